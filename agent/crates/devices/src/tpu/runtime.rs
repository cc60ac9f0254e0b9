//! What libtpu serves of the chips that its process uses: `RuntimeMetricService` by gRPC on a
//! loopback port (8431 and the fifteen after it) in the process's network namespace.
//!
//! The port is the tenant's. So only a port is asked on which a process listens that has a chip's
//! node open; the answer counts only if that process has accepted the connection; it has a bound in
//! bytes and in time; and what it says is believed only of the chips whose nodes that process has
//! open, only if it names exactly those, and only within what such a chip can have. A process that
//! fails is left alone for a while. One thread asks, once a tick, and a tick waits for it a moment; its
//! time is divided among owners, who cannot have more of it by more processes.
//!
//! Names and messages are those of Google's tpu-info 0.14 (`tpu_metric_service.proto`).

mod wire;

use super::{CHIPS, VENDOR, number};
use crate::reader::ServedValues;
use crate::sysfs::PERCENT;
use crate::wire::{WireValue, push};
use gpuwho_collect::source::Context;
use gpuwho_model::catalog::device::{self as metric, MemoryState, Task};
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::inventory::{GpuInfo, Inventory, node_name};
use gpuwho_owners::process::Living;
use gpuwho_owners::sockets::{
    Allowance, accepted, held, listening, network, network_of, own_network, reachable,
};
use gpuwho_sys::namespace;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// libtpu's ports: the first, and one more for each further process of a host.
const PORTS: RangeInclusive<u16> = 8431..=8446;
/// Processes of an owner that are asked at one tick, at most one that answers a chip: a host has 8 chips.
/// Others may have a chip's node open without serving anything.
const MAX_PROCESSES: usize = 16;
/// Owners that are asked at one tick, those first that have waited longest.
const MAX_OWNERS: usize = 64;
/// For all questions to one process, and the time of an owner's turn after which no further one is asked.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How many times as long as its turn took an owner waits for the next one: a quarter of the thread's time
/// is one owner's at most.
const REST: u32 = 3;
/// How long a process is left alone that did not answer.
const PAUSE: Duration = Duration::from_mins(1);
/// How long a tick waits for the answers; they usually take some milliseconds.
const WAIT: Duration = Duration::from_millis(100);
/// How long an answer is used; a tick may come before the next. After that the chip has no value, not an
/// old one.
const MAX_AGE: Duration = Duration::from_secs(15);

/// libtpu's names.
const DUTY: &str = "tpu.runtime.tensorcore.dutycycle.percent";
const USED: &str = "tpu.runtime.hbm.memory.usage.bytes";
const TOTAL: &str = "tpu.runtime.hbm.memory.total.bytes";
const BANDWIDTH: &str = "tpu.runtime.hbm.utilization.percent";
/// Every metric that is asked for.
const ASKED: [&str; 4] = [DUTY, USED, TOTAL, BANDWIDTH];

/// A metric's values by libtpu's number of the device.
type Numbers = BTreeMap<u64, f64>;

/// Answers by the chip's node, with the time of each.
type ByNode = BTreeMap<String, (Instant, Vec<WireValue>)>;

/// The latest answers.
#[derive(Default)]
struct Latest {
    /// Ticks that were asked for, and that were answered.
    asked: u64,
    answered: u64,
    values: ByNode,
}

/// Shared by the reader and the thread that asks.
#[derive(Default)]
struct Shared {
    latest: Mutex<Latest>,
    is_answered: Condvar,
}

/// The source of what processes serve. Its thread begins when a chip is read for the first time.
pub(super) fn served(context: &Context) -> ServedValues {
    let shared = Arc::new(Shared::default());
    let (paths, ownership) = (context.paths.clone(), context.ownership.clone());
    let mut idle = Some(Asker::new(paths, ownership, Arc::clone(&context.inventory)));
    let mut thread: Option<SyncSender<u64>> = None;
    let mut tick = 0;
    Box::new(move |device| {
        let Some(device) = device else {
            tick += 1;
            if let Some(ask) = &thread {
                // Full while the last answers are still awaited: asked at the next tick.
                if ask.try_send(tick).is_ok() {
                    shared.latest.lock().asked = tick;
                }
            }
            return Vec::new();
        };
        if let Some(asker) = idle.take() {
            thread = asker.start(&shared).ok();
            if thread.as_ref().is_some_and(|ask| ask.try_send(tick).is_ok()) {
                shared.latest.lock().asked = tick;
            }
        }
        let mut latest = shared.latest.lock();
        let is_due = |latest: &mut Latest| latest.answered < latest.asked;
        shared.is_answered.wait_while_for(&mut latest, is_due, WAIT);
        if is_due(&mut latest) {
            // The other chips of this tick do not wait again.
            latest.asked = latest.answered;
        }
        let values = device.nodes.iter().find_map(|node| latest.values.get(node));
        let values = values.filter(|(at, _)| at.elapsed() <= MAX_AGE);
        values.map(|(_, values)| values.clone()).unwrap_or_default()
    })
}

/// A process that has chips' nodes open.
struct Speaker<'a> {
    process: ProcKey,
    chips: Vec<&'a GpuInfo>,
}

/// Asks the processes.
struct Asker {
    paths: Paths,
    ownership: Ownership,
    inventory: Arc<Inventory>,
    /// When each process was asked that gave no answer, or until when it is left alone.
    silent: BTreeMap<ProcKey, Instant>,
    /// When each owner's turn was, and from when on it has the next.
    turns: HashMap<QuotaKey, (Instant, Instant)>,
}

impl Asker {
    fn new(paths: Paths, ownership: Ownership, inventory: Arc<Inventory>) -> Self {
        Self { paths, ownership, inventory, silent: BTreeMap::new(), turns: HashMap::new() }
    }

    fn start(mut self, shared: &Arc<Shared>) -> io::Result<SyncSender<u64>> {
        let (ask, asked) = sync_channel(1);
        let shared = Arc::clone(shared);
        thread::Builder::new().name("tpu:metrics".to_owned()).spawn(move || {
            for tick in asked {
                // At once: the next owner may take its time.
                self.ask_all(|node, values| drop(shared.latest.lock().values.insert(node, values)));
                let mut latest = shared.latest.lock();
                latest.values.retain(|_, (at, _)| at.elapsed() <= MAX_AGE);
                latest.answered = tick;
                drop(latest);
                shared.is_answered.notify_all();
            }
        })?;
        Ok(ask)
    }

    /// One turn of each owner.
    fn ask_all(&mut self, mut publish: impl FnMut(String, (Instant, Vec<WireValue>))) {
        let inventory = Arc::clone(&self.inventory);
        let inventory = inventory.all();
        let chips = inventory.iter().map(|(_, info)| info);
        let chips: Vec<_> = chips.filter(|info| info.vendor == VENDOR.name).collect();
        let mut owners: HashMap<QuotaKey, Vec<Speaker<'_>>> = HashMap::new();
        let mut speaking = HashSet::new();
        for opener in self.ownership.openers() {
            let chips = used_chips(&opener, &chips);
            if !chips.is_empty() {
                let speaker = Speaker { process: opener.process, chips };
                speaking.insert(opener.process);
                owners.entry(self.ownership.key_of(Some(&opener))).or_default().push(speaker);
            }
        }
        self.turns.retain(|owner, _| owners.contains_key(owner));
        self.silent.retain(|process, _| speaking.contains(process));

        let last = |owner: &QuotaKey| self.turns.get(owner).map(|(last, _)| *last);
        let mut order: Vec<_> = owners.into_iter().map(|one| (last(&one.0), one)).collect();
        order.sort_by_key(|(last, _)| *last);
        // Of two processes that have a node open, the first speaks for it.
        let mut answered = BTreeSet::new();
        for (_, (owner, speakers)) in order.into_iter().take(MAX_OWNERS) {
            let began = Instant::now();
            if self.turns.get(&owner).is_some_and(|(_, next)| *next > began) {
                continue;
            }
            self.ask_owner(speakers, &mut answered, &mut publish);
            self.turns.insert(owner, (began, Instant::now() + began.elapsed() * REST));
        }
    }

    /// Asks an owner's processes until each of their chips has an answer; first those that answered last
    /// time, then those that have not been asked for longest.
    fn ask_owner(
        &mut self,
        mut speakers: Vec<Speaker<'_>>,
        answered: &mut BTreeSet<String>,
        publish: &mut impl FnMut(String, (Instant, Vec<WireValue>)),
    ) {
        let began = Instant::now();
        let node = |chip: &&GpuInfo| chip.nodes.first().cloned();
        speakers.sort_by_key(|one| self.silent.get(&one.process).copied());
        let mut left = MAX_PROCESSES;
        for Speaker { process, chips } in speakers {
            let now = Instant::now();
            let is_done = chips.iter().filter_map(node).all(|node| answered.contains(&node));
            if is_done || self.silent.get(&process).is_some_and(|until| *until > now) {
                continue;
            }
            if left == 0 || now - began >= TIMEOUT {
                return;
            }
            left -= 1;
            let numbers = match ask(&self.paths, process) {
                Ok(Some(numbers)) => numbers,
                // It serves nothing, or not yet: the others first.
                Ok(None) => {
                    self.silent.insert(process, now);
                    continue;
                }
                Err(_) => {
                    self.silent.insert(process, now + PAUSE);
                    continue;
                }
            };
            self.silent.remove(&process);
            for (chip, of_chip) in chips.iter().zip(shared_out(&numbers, &chips)) {
                if let Some(node) = node(chip).filter(|node| answered.insert(node.clone())) {
                    publish(node, (Instant::now(), of_chip));
                }
            }
        }
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
