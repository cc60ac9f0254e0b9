//! What libtpu serves of the chips that its process uses: `RuntimeMetricService` by gRPC on a
//! loopback port (8431 and the fifteen after it) in the process's network namespace.
//!
//! The port is the tenant's. So only a port is asked on which a process listens that has a chip's
//! node open; the answer counts only if that process has accepted the connection; it has a bound in
//! bytes and in time; and what it says is believed only of the chips whose nodes that process has
//! open, only if it names exactly those, and only within what such a chip can have. A process that
//! fails is left alone for a while. One thread asks, once a tick, and a tick waits for it a moment.
//!
//! Names and messages are those of Google's tpu-info 0.14 (`tpu_metric_service.proto`).

mod wire;

use super::{CHIPS, VENDOR, number};
use crate::attribute::ProcessAttribution;
use crate::attribute::ownership::Ownership;
use crate::attribute::process::Living;
use crate::catalog::device::{self as metric, MemoryState, Task};
use crate::collect::device::reader::ServedValues;
use crate::collect::device::sysfs::PERCENT;
use crate::collect::device::wire::{WireValue, push};
use crate::collect::sockets::{
    Allowance, accepted, held, listening, network, network_of, own_network, reachable,
};
use crate::collect::source::Context;
use crate::ids::ProcKey;
use crate::inventory::{GpuInfo, Inventory, node_name};
use crate::paths::Paths;
use crate::sys::namespace;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// libtpu's ports: the first, and one more for each further process of a host.
const PORTS: RangeInclusive<u16> = 8431..=8446;
/// Processes that are asked at one tick; a chip has one.
const MAX_PROCESSES: usize = 64;
/// For all questions to one process.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long a process is left alone that did not answer.
const PAUSE: Duration = Duration::from_mins(1);
/// How long a tick waits for the answers; they usually take some milliseconds.
const WAIT: Duration = Duration::from_millis(100);
/// How long an answer is used; a tick may come before the next.
const MAX_AGE: Duration = Duration::from_mins(1);

/// libtpu's names.
const DUTY: &str = "tpu.runtime.tensorcore.dutycycle.percent";
const USED: &str = "tpu.runtime.hbm.memory.usage.bytes";
const TOTAL: &str = "tpu.runtime.hbm.memory.total.bytes";
const BANDWIDTH: &str = "tpu.runtime.hbm.utilization.percent";
/// Every metric that is asked for.
const ASKED: [&str; 4] = [DUTY, USED, TOTAL, BANDWIDTH];

/// A metric's values by libtpu's number of the device.
type Numbers = BTreeMap<u64, f64>;

/// Answers by the chip's node.
type ByNode = BTreeMap<String, Vec<WireValue>>;

/// The latest answers.
#[derive(Default)]
struct Latest {
    /// Ticks that were asked for, and that were answered.
    asked: u64,
    answered: u64,
    at: Option<Instant>,
    values: ByNode,
}

/// Shared by the reader and the thread that asks.
#[derive(Default)]
struct Shared {
    latest: Mutex<Latest>,
    is_answered: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The source of what processes serve. Its thread begins when a chip is read for the first time.
pub(super) fn served(context: &Context) -> ServedValues {
    let shared = Arc::new(Shared::default());
    let asker = Asker {
        paths: context.paths.clone(),
        ownership: context.ownership.clone(),
        inventory: Arc::clone(&context.inventory),
        paused: BTreeMap::new(),
    };
    let mut idle = Some(asker);
    let mut thread: Option<SyncSender<u64>> = None;
    let mut tick = 0;
    Box::new(move |device| {
        let Some(device) = device else {
            tick += 1;
            if let Some(ask) = &thread {
                // Full while the last answers are still awaited: asked at the next tick.
                if ask.try_send(tick).is_ok() {
                    shared.lock().asked = tick;
                }
            }
            return Vec::new();
        };
        if let Some(asker) = idle.take() {
            thread = asker.start(&shared).ok();
            if thread.as_ref().is_some_and(|ask| ask.try_send(tick).is_ok()) {
                shared.lock().asked = tick;
            }
        }
        let waiting = shared.lock();
        let is_due = |latest: &mut Latest| latest.answered < latest.asked;
        let waited = shared.is_answered.wait_timeout_while(waiting, WAIT, is_due);
        let (mut latest, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            // The other chips of this tick do not wait again.
            latest.asked = latest.answered;
        }
        if latest.at.is_none_or(|at| at.elapsed() > MAX_AGE) {
            return Vec::new();
        }
        let values = device.nodes.iter().find_map(|node| latest.values.get(node));
        values.cloned().unwrap_or_default()
    })
}

/// Asks the processes.
struct Asker {
    paths: Paths,
    ownership: Ownership,
    inventory: Arc<Inventory>,
    /// Processes that did not answer, and until when they are left alone.
    paused: BTreeMap<ProcKey, Instant>,
}

impl Asker {
    fn start(mut self, shared: &Arc<Shared>) -> io::Result<SyncSender<u64>> {
        let (ask, asked) = sync_channel(1);
        let shared = Arc::clone(shared);
        thread::Builder::new().name("tpu:metrics".to_owned()).spawn(move || {
            for tick in asked {
                let values = self.ask_all();
                let mut latest = shared.lock();
                (latest.at, latest.values, latest.answered) = (Some(Instant::now()), values, tick);
                drop(latest);
                shared.is_answered.notify_all();
            }
        })?;
        Ok(ask)
    }

    fn ask_all(&mut self) -> ByNode {
        let now = Instant::now();
        self.paused.retain(|_, until| *until > now);
        let inventory = self.inventory.all();
        let chips =
            inventory.iter().map(|(_, info)| info).filter(|info| info.vendor == VENDOR.name);
        let chips: Vec<_> = chips.collect();
        let mut values = ByNode::new();
        let openers = self.ownership.openers().into_iter();
        let on_chips = openers.filter_map(|opener| {
            let used = used_chips(&opener, &chips);
            (!used.is_empty()).then_some((opener.process, used))
        });
        for (process, used) in on_chips.take(MAX_PROCESSES) {
            if self.paused.contains_key(&process) {
                continue;
            }
            match ask(&self.paths, process) {
                Ok(Some(numbers)) => {
                    for (chip, of_chip) in used.iter().zip(shared_out(&numbers, &used)) {
                        // Of two processes that have a node open, the first speaks for it.
                        if let Some(node) = chip.nodes.first() {
                            values.entry(node.clone()).or_insert(of_chip);
                        }
                    }
                }
                // It serves nothing, or not yet.
                Ok(None) => {}
                Err(_) => {
                    self.paused.insert(process, Instant::now() + PAUSE);
                }
            }
        }
        values
    }
}

/// The chips whose nodes a process has open, in libtpu's order.
fn used_chips<'a>(opener: &ProcessAttribution, chips: &[&'a Arc<GpuInfo>]) -> Vec<&'a GpuInfo> {
    let has_open = |chip: &GpuInfo| opener.nodes.iter().any(|node| chip.has_node(node_name(node)));
    let mut used: Vec<&GpuInfo> =
        chips.iter().map(|chip| &***chip).filter(|chip| has_open(chip)).collect();
    used.sort_by_key(|chip| chip.nodes.first().and_then(|node| number(node)));
    used
}

/// The values of each chip, in the order of the chips; nothing of a metric whose devices are not
/// exactly the process's own.
fn shared_out(
    numbers: &BTreeMap<&'static str, Numbers>,
    chips: &[&GpuInfo],
) -> Vec<Vec<WireValue>> {
    let of = |name: &str| numbers.get(name).and_then(|numbers| by_chip(numbers, chips));
    let (duty, bandwidth) = (of(DUTY), of(BANDWIDTH));
    let (used, total) = (of(USED), of(TOTAL));
    let one = |at: usize, chip: &GpuInfo| {
        let ratio = |all: &Option<Vec<Vec<f64>>>| {
            let parts = all.as_ref()?.get(at)?;
            let is_percent = parts.iter().all(|part| (0.0..=PERCENT).contains(part));
            let count = u32::try_from(parts.len()).ok().filter(|count| *count > 0 && is_percent)?;
            Some(parts.iter().sum::<f64>() / f64::from(count) / PERCENT)
        };
        let mut out = Vec::new();
        push(&mut out, &metric::UTILIZATION, Task::General, ratio(&duty));
        push(&mut out, &metric::MEMORY_BANDWIDTH_UTILIZATION, (), ratio(&bandwidth));
        let bytes = |all: &Option<Vec<Vec<f64>>>| {
            let bytes = all.as_ref()?.get(at)?.iter().sum::<f64>();
            #[expect(clippy::cast_possible_truncation, reason = "whole, and below a chip's memory")]
            (0.0..MAX_BYTES).contains(&bytes).then_some(bytes as i64)
        };
        let total = bytes(&total).filter(|total| (1..=memory_of(chip)).contains(total));
        push(&mut out, &metric::MEMORY_LIMIT, (), total);
        if let Some((total, used)) = total.zip(bytes(&used)).filter(|(total, used)| used <= total) {
            push(&mut out, &metric::MEMORY_USAGE, MemoryState::Used, Some(used));
            push(&mut out, &metric::MEMORY_USAGE, MemoryState::Free, Some(total - used));
        }
        out
    };
    chips.iter().enumerate().map(|(at, chip)| one(at, chip)).collect()
}

/// More bytes than any device has.
const MAX_BYTES: f64 = 1e15;

/// The memory of a chip, by its model.
fn memory_of(chip: &GpuInfo) -> i64 {
    let model = chip.model.as_deref().unwrap_or_default();
    let kind = CHIPS.iter().find(|kind| model.ends_with(&format!(" {}", kind.name)));
    kind.map_or(0, |kind| kind.memory << 30)
}

/// The values of each chip: one or two of libtpu's devices each, which are numbered over the host's
/// chips or over the process's own. `None` if these are not the devices of exactly these chips.
fn by_chip(numbers: &Numbers, chips: &[&GpuInfo]) -> Option<Vec<Vec<f64>>> {
    let each = numbers
        .len()
        .checked_div(chips.len())
        .filter(|each| (1..=2).contains(each) && each * chips.len() == numbers.len())?;
    let width = u64::try_from(each).ok()?;
    let of_host = chips.iter().flat_map(|chip| {
        let first = u64::from(chip.index) * width;
        first..first + width
    });
    let of_host: BTreeSet<u64> = of_host.collect();
    let own = 0..u64::try_from(numbers.len()).ok()?;
    let is_own = numbers.keys().copied().eq(own) || numbers.keys().eq(of_host.iter());
    let values: Vec<f64> = numbers.values().copied().collect();
    is_own.then(|| values.chunks(each).map(<[f64]>::to_vec).collect())
}

/// Why a process has no values.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("its network namespace cannot be entered")]
    Namespace,
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    #[error(transparent)]
    Call(#[from] wire::CallError),
}

/// Sockets and descriptors that are looked at for one question.
const MAX_LOOKS: usize = 131_072;

/// Asks a process; `None` if it serves nothing.
fn ask(
    paths: &Paths,
    process: ProcKey,
) -> Result<Option<BTreeMap<&'static str, Numbers>>, AskError> {
    let Some(living) = Living::same(paths, process) else { return Ok(None) };
    let looks = Allowance::new(MAX_LOOKS, Some(Instant::now() + TIMEOUT));
    let sockets: HashSet<u64> = held(&living, &looks).collect();
    let ports =
        listening(&living, &sockets, &looks).into_iter().filter(|at| PORTS.contains(&at.port()));
    let Some(at) = ports.map(reachable).min_by_key(SocketAddr::port) else { return Ok(None) };
    let inode = network_of(paths, process).ok_or(AskError::Namespace)?;
    let connect = || TcpStream::connect_timeout(&at, TIMEOUT);
    let stream = if own_network(paths) == Some(inode) {
        connect()?
    } else {
        let namespace = network(paths, process, inode).ok_or(AskError::Namespace)?;
        namespace::in_network(namespace, connect)?
    };
    let client = stream.local_addr()?;
    let is_its = || {
        let inode = accepted(&living, (at, client), &looks);
        inode.is_some_and(|inode| held(&living, &looks).any(|own| own == inode))
    };
    Ok(Some(wire::ask(stream, &ASKED, TIMEOUT, is_its)?))
}

#[cfg(test)]
mod tests;
