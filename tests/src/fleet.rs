//! `cargo xtask fleet`: many simulated nodes in one process send to the real Collector, which sends to the
//! real Prometheus. A node is the agent's own OTLP sink (encoder, queue, thread, connection) with the points
//! of eight devices; what is measured is the receivers. All on the loopback interface, and it ends by itself.

pub mod nodes;
pub mod report;

use crate::bench::BenchError;
use crate::collector::deployed::Deployed;
use crate::footprint;
use crate::prometheus::Prometheus;
use nodes::Fleet;
use std::time::{Duration, Instant};

/// Before the watch: connections are made, every series is new once, and the first blocks are written.
const WARM_UP: u32 = 3;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nodes, a figure for each size.
    pub sizes: Vec<usize>,
    /// Between two requests of a node.
    pub every: Duration,
    /// Requests of each node while it is watched.
    pub ticks: u32,
}

/// What one size cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Simulated nodes.
    pub nodes: usize,
    /// How long it was watched.
    pub took: Duration,
    /// Requests of each node meanwhile.
    pub ticks: u32,
    /// Points that the Collector took.
    pub accepted: u64,
    /// Points that never arrived, over the whole run.
    pub lost: u64,
    /// Points that waited in the nodes at the end of the watch.
    pub waiting: u64,
    /// Bytes of the requests' bodies, compressed, as one node would send them.
    pub bytes: u64,
    /// CPU time of the Collector, of Prometheus and of the nodes.
    pub cpu: [Duration; 3],
    /// Resident bytes of the Collector and of Prometheus.
    pub resident: [u64; 2],
    /// Series in Prometheus' head.
    pub series: u64,
}

/// Measures every size with receivers of its own.
pub fn measure(options: &Options) -> Result<Vec<Cost>, BenchError> {
    options.sizes.iter().map(|nodes| one(*nodes, options)).collect()
}

fn one(nodes: usize, options: &Options) -> Result<Cost, BenchError> {
    let folder = tempfile::tempdir().map_err(BenchError::os("a folder"))?;
    let lack =
        |what: &str, error: &dyn std::fmt::Display| BenchError::Needs(format!("{what}: {error}"));
    let prometheus = Prometheus::receiver(&folder.path().join("prometheus"))
        .map_err(|error| lack("Prometheus", &error))?;
    let url = format!("{}/api/v1/otlp", prometheus.url());
    let collector = Deployed::unchanged(
        &folder.path().join("collector"),
        &["gateway.yaml", "to-prometheus.yaml"],
        &[("METRICS_URL", &url)],
    )
    .map_err(|error| lack("the Collector", &error))?;
    let mut fleet = Fleet::start(nodes, &collector.http_endpoint())?;
    fleet.run(options.every, WARM_UP);
    let pids = [collector.pid(), prometheus.pid(), std::process::id()];
    let (began, before) = (Instant::now(), (spent(pids)?, fleet.report().accepted));
    fleet.run(options.every, options.ticks);
    let (took, after) = (began.elapsed(), fleet.report());
    let now = spent(pids)?;
    let cpu = std::array::from_fn(|at| now[at].saturating_sub(before.0[at]));
    let resident = [collector.pid(), prometheus.pid()]
        .map(|pid| footprint::memory(pid).map(|all| all.resident));
    let [collectors, prometheuss] = resident;
    let resident = [
        collectors.map_err(BenchError::os("the Collector's memory"))?,
        prometheuss.map_err(BenchError::os("Prometheus' memory"))?,
    ];
    let found = prometheus.query("prometheus_tsdb_head_series").unwrap_or_default();
    let series = found.first().and_then(|series| series["value"][1].as_str()?.parse().ok());
    let waiting = after.taken.saturating_sub(after.accepted);
    let bytes = fleet.body_bytes();
    let ended = fleet.end();
    Ok(Cost {
        nodes,
        took,
        ticks: options.ticks,
        accepted: after.accepted.saturating_sub(before.1),
        lost: ended.queue_full + ended.refused + ended.undelivered,
        waiting,
        bytes,
        cpu,
        resident,
        series: series.unwrap_or_default(),
    })
}

/// CPU time of processes.
fn spent(pids: [u32; 3]) -> Result<[Duration; 3], BenchError> {
    let mut all = [Duration::ZERO; 3];
    for (sum, pid) in all.iter_mut().zip(pids) {
        let threads = footprint::threads(pid).map_err(BenchError::os("a process's threads"))?;
        *sum = Duration::from_nanos(threads.values().sum());
    }
    Ok(all)
}
