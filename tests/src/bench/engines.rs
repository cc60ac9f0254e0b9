//! What an inference engine costs the agent: CPU time of a scrape and memory, of one engine and of
//! many, each in a pod and a network of its own, read every five seconds.

use super::receiver::Receiver;
use super::table::Row;
use super::{BenchError, stage};
use crate::agent::{Agent, Config, Otlp};
use crate::engine::{EngineSpec, FakeEngine};
use crate::footprint::{self, Process};
use crate::nvml::FakeNvml;
use crate::stage::{Driver, PodSpec, Qos};
use crate::until::until;
use std::thread;
use std::time::Duration;

/// Engines on the host; without one, it is the host's own cost.
const ENGINES: [usize; 3] = [0, 1, 32];
/// Devices that the engines share.
const GPUS: usize = 8;
/// What happens once is not the cost of a scrape.
const WARM_UP: Duration = Duration::from_secs(15);
/// Until all engines are read.
const WITHIN: Duration = Duration::from_mins(2);

/// What the agent's processes have spent and hold.
struct Cost {
    nanos: u64,
    anonymous: u64,
    scrapes: u64,
}

/// Measures the agent beside each number of engines.
pub fn measure(watch: Duration) -> Result<Vec<Row>, BenchError> {
    let costs = ENGINES.map(|count| with(count, watch).map(|cost| (count, cost)));
    let mut without = None;
    let mut rows = Vec::new();
    for cost in costs {
        let (count, cost) = cost?;
        let Some((nanos, anonymous)) = without else {
            without = Some((cost.nanos, cost.anonymous));
            continue;
        };
        let more = cost.nanos.saturating_sub(nanos) as f64 / cost.scrapes.max(1) as f64;
        let memory = cost.anonymous.saturating_sub(anonymous) as f64 / count as f64;
        let plural = if count == 1 { "engine" } else { "engines" };
        rows.push(Row::plain(
            format!("{count} {plural} every 5 s"),
            format!(
                "{:.2} ms a scrape ({} scrapes), {:.0} kB anonymous memory an engine",
                more / 1e6,
                cost.scrapes,
                memory / 1e3
            ),
        ));
    }
    Ok(rows)
}

/// The agent beside a number of engines.
fn with(count: usize, watch: Duration) -> Result<Cost, BenchError> {
    let mut stage = stage()?;
    let nvml = FakeNvml::install(stage.folder(), "h100x8")?;
    let mut engines = Vec::new();
    for number in 0..count {
        let group = stage.pod(&PodSpec {
            namespace: "serving",
            name: &format!("chat-{number}"),
            container: "engine",
            qos: Qos::Burstable,
            driver: Driver::Cgroupfs,
        })?;
        let gpu = [u32::try_from(number % GPUS).unwrap_or_default()];
        let spec = EngineSpec { group: Some(&group), gpus: &gpu, ..EngineSpec::default() };
        engines.push(FakeEngine::start(&spec).map_err(BenchError::os("an engine"))?);
    }
    let receiver = Receiver::start().map_err(BenchError::os("receiver"))?;
    let config = Config {
        default_metrics: true,
        pod_logs: Some(stage.pod_logs()),
        otlp: Some(Otlp { endpoint: receiver.endpoint().to_owned(), protocol: None }),
        more: "[engines]\ninterval = \"5s\"\n".to_owned(),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml))?;
    // Twice: the first page of an engine is not the cost of a scrape.
    let is_read = |engine: &mut FakeEngine| engine.asked().is_ok_and(|asked| asked.pages > 1);
    until(WITHIN, || engines.iter_mut().all(is_read).then_some(())).ok_or(BenchError::Strange {
        what: format!("{count} engines"),
        expected: "that the agent reads them",
    })?;
    thread::sleep(WARM_UP);
    let (before, pages) = (spent(&agent)?, pages(&mut engines)?);
    thread::sleep(watch);
    let after = spent(&agent)?;
    let scrapes = self::pages(&mut engines)? - pages;
    let (nanos, anonymous) = (after.0.saturating_sub(before.0), after.1);
    Ok(Cost { nanos, anonymous, scrapes })
}

/// CPU time and anonymous memory of all of the agent's processes.
fn spent(agent: &Agent) -> Result<(u64, u64), BenchError> {
    let all = footprint::of(agent).map_err(BenchError::os("the agent's files in /proc"))?;
    let nanos = |process: &Process| process.cpu;
    Ok((all.iter().map(nanos).sum(), all.iter().map(|process| process.memory.anonymous).sum()))
}

fn pages(engines: &mut [FakeEngine]) -> Result<u64, BenchError> {
    let asked = engines.iter_mut().map(|engine| engine.asked().map(|asked| asked.pages));
    asked.sum::<Result<u64, _>>().map_err(BenchError::os("an engine"))
}
