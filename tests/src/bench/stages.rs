//! What part of the agent's CPU goes into knowing whose everything is, on a full node: the agent's
//! own account of its stages beside the scheduler's account of its threads, over the same ticks.
//!
//! Attribution is what there would not be without owners: telling whose the driver's PIDs are, the
//! look-ups for the points, the table's upkeep, and the whole of the threads that ask for names and
//! that take the kernel's reports. The ledger stands beside it: it divides, it does not find out.

use super::cost::{cpu, reader, threads};
use super::crowd::{Crowd, Size};
use super::receiver::Receiver;
use super::table::Row;
use super::{BenchError, stage};
use crate::agent::{Agent, Config};
use crate::footprint::{Threads, spent};
use crate::stage::Group;
use crate::until::until;
use crate::worker::Worker;
use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::{NumberDataPoint, metric, number_data_point};
use prost::Message as _;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The agent's default.
const EVERY: &str = "10s";
/// Ticks before it counts: for a minute the agent looks more often at processes that are new to it.
const WARM_UP: u64 = 8;
/// Until the next tick, on a machine under load.
const WITHIN: Duration = Duration::from_mins(2);
/// A tick's further requests follow the first within this.
const BETWEEN_REQUESTS: Duration = Duration::from_secs(2);
/// Percent of the tick's CPU.
const TARGET: f64 = 1.0;
/// Percent of the tick's CPU for health, cost and receipts.
const JUDGED_TARGET: f64 = 5.0;
/// Their stages; receipts are a part of the costs.
const JUDGED: [&str; 2] = ["health", "costs"];
/// The stages that are attribution.
const STAGES: [&str; 3] = ["identify", "owners", "table"];
/// So are these threads, whose work is not a tick's; the kernel keeps 15 bytes of a name.
const THREADS: [&str; 2] = ["names", "collect:device_"];
/// These do not work for the ticks either, and are not attribution: they are left out of the tick.
const APART: [&str; 3] = ["nccl:watch", "kmsg", "reader:events"];
/// How long a process stays that comes and goes, and how long none is there after it.
const PASSES: Duration = Duration::from_millis(500);

/// The agent at a moment.
struct Moment {
    /// Seconds by stage.
    stages: BTreeMap<String, f64>,
    agent: Spent,
    reader: Spent,
}

/// CPU time of a process in nanoseconds, and by thread.
struct Spent {
    all: u64,
    threads: Threads,
}

impl Spent {
    fn of(pid: u32) -> Result<Self, BenchError> {
        Ok(Self { all: cpu(pid)?, threads: threads(pid)? })
    }

    fn since(&self, before: &Self) -> Self {
        Self { all: self.all - before.all, threads: spent(&before.threads, &self.threads) }
    }

    /// Of the threads that do not work for the ticks.
    fn apart(&self) -> u64 {
        APART.iter().filter_map(|name| self.threads.get(*name)).sum()
    }
}

/// Runs the agent on a crowd and watches it; with `churn` a process a second comes and goes.
pub fn measure(churn: bool, watch: Duration) -> Result<Vec<Row>, BenchError> {
    let mut crowd = Crowd::of(stage()?, Size::USUAL)?;
    let receiver = Receiver::start().map_err(BenchError::os("receiver"))?;
    let config = Config { default_metrics: true, ..Config::default() };
    let agent = crowd.agent(EVERY, receiver.endpoint(), config)?;
    let _passing = churn.then(|| Passing::start(crowd.passage()?)).transpose()?;
    (0..WARM_UP).try_for_each(|_| tick(&receiver))?;
    let before = Moment::now(&agent, &receiver)?;
    let ticks = (watch.as_secs() / 10).max(1);
    (0..ticks).try_for_each(|_| tick(&receiver))?;
    let after = Moment::now(&agent, &receiver)?;
    let who = agent.who()?;
    Ok(rows(churn, &who, ticks, [&before, &after]))
}

/// Processes that come and go, one a second; the last one ends when this is dropped.
struct Passing {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Passing {
    fn start(group: Group) -> Result<Self, BenchError> {
        let end = Arc::<AtomicBool>::default();
        let reported = Arc::clone(&end);
        let pass = move || {
            while !reported.load(Ordering::Relaxed) {
                if let Err(error) = Worker::flash(&group, &[0], PASSES) {
                    eprintln!("bench: {error}");
                }
                thread::sleep(PASSES);
            }
        };
        let thread = thread::Builder::new().name("passing".to_owned()).spawn(pass);
        let thread = Some(thread.map_err(BenchError::os("a thread"))?);
        Ok(Self { end, thread })
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        // Its panic is on standard error already.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

/// Until the agent has sent what belongs to its next tick, which may be some requests.
fn tick(receiver: &Receiver) -> Result<(), BenchError> {
    let before = receiver.received().0;
    let sent = until(WITHIN, || (receiver.received().0 > before).then_some(()));
    sent.ok_or(BenchError::Strange { what: "the receiver".to_owned(), expected: "a request" })?;
    thread::sleep(BETWEEN_REQUESTS);
    Ok(())
}

impl Moment {
    /// Right after a tick was sent: the stages are those of the tick before it.
    fn now(agent: &Agent, receiver: &Receiver) -> Result<Self, BenchError> {
        let (agent, reader) = (Spent::of(agent.pid())?, Spent::of(reader(agent)?)?);
        let bodies = receiver.last();
        let mut all = bodies.iter().map(|body| stages(body));
        let found = all.find(|stages| stages.as_ref().map_or(true, |stages| !stages.is_empty()));
        let what = "the agent's request".to_owned();
        let stages =
            found.ok_or(BenchError::Strange { what, expected: "what each stage cost" })??;
        Ok(Self { stages, agent, reader })
    }
}

/// Seconds by stage, as the agent sent them; none where they are in another request.
fn stages(body: &[u8]) -> Result<BTreeMap<String, f64>, BenchError> {
    let mut plain = Vec::new();
    let unpacked = GzDecoder::new(body).read_to_end(&mut plain);
    unpacked.map_err(BenchError::os("the agent's request"))?;
    let request = ExportMetricsServiceRequest::decode(&*plain)?;
    let scopes = request.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
    let reported = scopes.flat_map(|scope| &scope.metrics);
    let mut found = BTreeMap::new();
    for metric in reported.filter(|metric| metric.name == "gpuwho.stage.cpu.time") {
        let Some(metric::Data::Sum(sum)) = &metric.data else { continue };
        found.extend(sum.data_points.iter().filter_map(stage_of));
    }
    Ok(found)
}

fn stage_of(point: &NumberDataPoint) -> Option<(String, f64)> {
    let named = point.attributes.iter().find(|attribute| attribute.key == "gpuwho.stage")?;
    let name = format!("{:?}", named.value.as_ref()?.value.as_ref()?);
    let name = name.split('"').nth(1)?.to_owned();
    match point.value? {
        number_data_point::Value::AsDouble(seconds) => Some((name, seconds)),
        number_data_point::Value::AsInt(_) => None,
    }
}

fn rows(
    churn: bool,
    who: &serde_json::Value,
    ticks: u64,
    [before, after]: [&Moment; 2],
) -> Vec<Row> {
    let ticks = ticks as f64;
    let micros = |nanos: u64| nanos as f64 / 1e3 / ticks;
    let agent = after.agent.since(&before.agent);
    let reader = after.reader.since(&before.reader);
    let of_tick = |spent: &Spent| micros(spent.all.saturating_sub(spent.apart()));
    let tick = of_tick(&agent) + of_tick(&reader);
    let beside = micros(agent.apart() + reader.apart());
    let stage = |name: &str| {
        let at = |moment: &Moment| moment.stages.get(name).copied().unwrap_or_default();
        (at(after) - at(before)) * 1e6 / ticks
    };
    let thread = |name: &str| micros(agent.threads.get(name).copied().unwrap_or_default());
    let parts = STAGES.iter().map(|name| (*name, stage(name)));
    let parts: Vec<_> = parts.chain(THREADS.iter().map(|name| (*name, thread(name)))).collect();
    let sum: f64 = parts.iter().map(|(_, micros)| micros).sum();
    let percent = |micros: f64| micros / tick * 100.0;
    let figure = format!("{sum:.0} µs of a tick, {:.2} % of its CPU", percent(sum));
    let parts: Vec<_> =
        parts.iter().map(|(name, micros)| format!("{name} {micros:.1} µs")).collect();
    let of = scene(churn);
    let name = |what: &str| format!("{what}, {of}");
    let attribution = if churn {
        Row::plain(name("attribution"), figure)
    } else {
        Row::against(name("attribution"), figure, "< 1 %", percent(sum) < TARGET)
    };
    let shares = stage("shares");
    let others = ["series", "sinks"].map(|name| format!("{name} {:.0} µs", stage(name)));
    let holders = who["sources"].as_array().and_then(|all| {
        let kernel = all.iter().find(|source| source["name"] == "device_users")?;
        kernel["state"].as_str().map(str::to_owned)
    });
    vec![
        Row::plain(
            name("CPU"),
            format!(
                "{tick:.0} µs a tick ({ticks} ticks): agent {:.0}, reader {:.0}; not of it {} {beside:.0} µs",
                of_tick(&agent),
                of_tick(&reader),
                APART.join(", ")
            ),
        ),
        attribution,
        Row::plain("  of which", parts.join(", ")),
        judging(&of, JUDGED.map(stage), tick),
        Row::plain(
            "  beside it",
            format!(
                "shares {shares:.0} µs, {:.2} %; {}; kernel source {}",
                percent(shares),
                others.join(", "),
                holders.unwrap_or_default()
            ),
        ),
    ]
}

/// Of what the figures are.
fn scene(churn: bool) -> String {
    if churn {
        return "a process a second comes and goes".to_owned();
    }
    let Size { containers, pods, each, .. } = Size::USUAL;
    format!("{} processes, {containers} containers", pods * each)
}

/// What health, cost and receipts take of a tick, and each of them.
fn judging(of: &str, micros: [f64; JUDGED.len()], tick: f64) -> Row {
    let sum: f64 = micros.iter().sum();
    let percent = sum / tick * 100.0;
    let parts = JUDGED.iter().zip(micros);
    let parts: Vec<_> = parts.map(|(name, micros)| format!("{name} {micros:.0}")).collect();
    let figure = format!("{sum:.0} µs of a tick ({}), {percent:.2} % of its CPU", parts.join(", "));
    let what = format!("health, cost and receipts, {of}");
    Row::against(what, figure, "< 5 %", percent < JUDGED_TARGET)
}
