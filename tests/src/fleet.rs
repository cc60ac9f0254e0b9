//! `cargo xtask fleet`: many simulated nodes in one process send to the real Collector, which writes to the
//! real Prometheus. A node is the agent's own OTLP sink (encoder, queue, thread, connection) with the points
//! of eight devices; what is measured is the receivers. All on the loopback interface, and it ends by itself.

pub mod nodes;
pub mod report;

use crate::bench::BenchError;
use crate::collector::deployed::Deployed;
use crate::footprint;
use crate::prometheus::Prometheus;
use crate::until::until;
use nodes::Fleet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Before the watch: connections are made, every series is new once, and the first blocks are written.
const WARM_UP: u32 = 3;

/// For what is on its way to be in Prometheus.
const ARRIVES_WITHIN: Duration = Duration::from_mins(2);

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
    /// Points that the Collector took meanwhile.
    pub accepted: u64,
    /// Points that waited in the nodes when the watch ended.
    pub waiting: u64,
    /// Points that the nodes made in the whole run and Prometheus does not have at its end.
    pub lost: u64,
    /// How long after the watch Prometheus had the last.
    pub late: Duration,
    /// CPU time of the Collector, of Prometheus and of all nodes.
    pub cpu: [Duration; 3],
    /// Resident bytes of the Collector and of Prometheus at the end of the watch.
    pub resident: [u64; 2],
    /// Bytes that the Collector read and wrote meanwhile: its connections.
    pub network: [u64; 2],
    /// Bytes of Prometheus' folder at the end of the run, and how long the nodes had sent.
    pub disk: u64,
    /// From the first request on.
    pub ran: Duration,
    /// Series in Prometheus, each of which was expected.
    pub series: u64,
}

/// Measures every size with receivers of its own.
pub fn measure(options: &Options) -> Result<Vec<Cost>, BenchError> {
    let watch = |nodes: &usize| {
        eprintln!("{nodes} nodes");
        one(*nodes, options)
    };
    options.sizes.iter().map(watch).collect()
}

fn one(nodes: usize, options: &Options) -> Result<Cost, BenchError> {
    let folder = tempfile::tempdir().map_err(BenchError::os("a folder"))?;
    let needs =
        |what: &str, error: &dyn std::fmt::Display| BenchError::Needs(format!("{what}: {error}"));
    let database = folder.path().join("prometheus");
    let prometheus =
        Prometheus::receiver(&database).map_err(|error| needs("Prometheus", &error))?;
    let collector = Deployed::unchanged(
        &folder.path().join("collector"),
        &["gateway.yaml", "to-remote-write.yaml"],
        &[("REMOTE_WRITE_URL", &prometheus.write_url())],
    )
    .map_err(|error| needs("the Collector", &error))?;
    let mut fleet = Fleet::start(nodes, &collector.http_endpoint())?;
    let first = Instant::now();
    fleet.run(options.every, WARM_UP);
    let look = || Look::at(collector.pid(), prometheus.pid());
    let (began, accepted, before) = (Instant::now(), fleet.report().accepted, look()?);
    fleet.run(options.every, options.ticks);
    let (took, report, after) = (began.elapsed(), fleet.report(), look()?);
    let (ended, ran) = (Instant::now(), first.elapsed());
    fleet.flush();
    let wanted = fleet.series() * u64::from(WARM_UP + options.ticks);
    let arrived =
        until(ARRIVES_WITHIN, || samples(&prometheus).ok().filter(|samples| *samples >= wanted));
    let late = ended.elapsed();
    let found = match arrived {
        Some(found) => found,
        None => samples(&prometheus)?,
    };
    let series = sum(&prometheus, |series| format!("count({series})"))?;
    if series != fleet.series() || found > wanted {
        let of = (fleet.series(), wanted);
        let log = collector.log();
        return Err(BenchError::Needs(format!(
            "each series once in Prometheus: {series} series and {found} samples of {of:?}\n{log}"
        )));
    }
    Ok(Cost {
        nodes,
        took,
        accepted: report.accepted - accepted,
        waiting: report.waiting(),
        lost: wanted - found,
        late,
        cpu: std::array::from_fn(|at| after.cpu[at].saturating_sub(before.cpu[at])),
        resident: after.resident,
        network: std::array::from_fn(|at| after.network[at] - before.network[at]),
        disk: bytes_in(&database.join("data")).map_err(BenchError::os(&database))?,
        ran,
        series,
    })
}

/// What the processes have used so far.
struct Look {
    cpu: [Duration; 3],
    resident: [u64; 2],
    network: [u64; 2],
}

impl Look {
    fn at(collector: u32, prometheus: u32) -> Result<Self, BenchError> {
        let mut cpu = [Duration::ZERO; 3];
        for (sum, pid) in cpu.iter_mut().zip([collector, prometheus, std::process::id()]) {
            *sum = Duration::from_nanos(
                footprint::cpu(pid).map_err(BenchError::os("a process's clock"))?,
            );
        }
        let mut resident = [0; 2];
        for (bytes, pid) in resident.iter_mut().zip([collector, prometheus]) {
            *bytes = footprint::memory(pid).map_err(BenchError::os("memory"))?.resident;
        }
        let io = fs::read_to_string(format!("/proc/{collector}/io"))
            .map_err(BenchError::os("the Collector's connections"))?;
        Ok(Self { cpu, resident, network: ["rchar:", "wchar:"].map(|key| field(&io, key)) })
    }
}

/// A number of `/proc/PID/io`.
fn field(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    value.unwrap_or_default()
}

/// What the nodes have in Prometheus by a function of each metric's series. One metric at a time: a query of all
/// would be a load of its own.
fn sum(prometheus: &Prometheus, of: impl Fn(&str) -> String) -> Result<u64, BenchError> {
    let failed = |error| BenchError::Needs(format!("an answer of Prometheus: {error}"));
    let names = prometheus.names().map_err(failed)?;
    // Remote write makes `target_info` of each resource.
    let names = names.iter().filter(|name| *name != "target_info");
    names.map(|name| number(prometheus, &of(&format!("{name}{{host_name=~\"node-.+\"}}")))).sum()
}

fn samples(prometheus: &Prometheus) -> Result<u64, BenchError> {
    sum(prometheus, |series| format!("sum(count_over_time({series}[1h]))"))
}

/// The only value of a query; 0 without any.
fn number(prometheus: &Prometheus, query: &str) -> Result<u64, BenchError> {
    let failed = |error| BenchError::Needs(format!("an answer of Prometheus: {error}"));
    let found = prometheus.query(query).map_err(failed)?;
    let value = found.first().and_then(|series| series["value"][1].as_str()?.parse().ok());
    Ok(value.unwrap_or_default())
}

/// All files of a folder. One that goes meanwhile counts nothing.
fn bytes_in(folder: &Path) -> std::io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)?.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        sum += if metadata.is_dir() { bytes_in(&entry.path())? } else { metadata.len() };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_field_is_the_number_behind_its_whole_name() {
        let text = "rchar: 12\nwchar: 345\nread_bytes: 6\n";
        assert_eq!(["rchar:", "wchar:", "char:"].map(|key| super::field(text, key)), [12, 345, 0]);
    }
}
