//! The agent's own figures: what each source costs and how it is doing, what was lost, and how
//! large the agent is. Reads the statuses and two files of `/proc`; a few microseconds a tick.

use gpuwho_collect::Collector;
use gpuwho_collect::cpu_limit::{self, CpuLimit, Importance};
use gpuwho_collect::self_stats::SelfStats;
use gpuwho_collect::source::{self, Alone, Context, SourceDef};
use gpuwho_export as export;
use gpuwho_model::catalog::agent::{
    self as metric, AgentProcess, ReloadOutcome, SourceState, Stage,
};
use gpuwho_model::sample::{Agent, Batch, Source};
use gpuwho_model::status::{Report, StatusRegistry};
use gpuwho_owners::attribute::ownership::Ownership;
use parking_lot::Mutex;
use procfs::process::Process;
use procfs::{ProcResult, WithCurrentSystemInfo as _};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// This source's name.
pub(super) const NAME: &str = Agent::SOURCE;

/// The row.
pub(super) const SOURCE: SourceDef = SourceDef {
    name: NAME,
    about: "the agent's own figures",
    section: None,
    after: &[],
    alone: Alone::Always,
    configure: |_, _| Ok(Box::new(Settings)),
};

#[derive(Debug)]
struct Settings;

impl source::Source for Settings {
    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        Ok(vec![Box::new(SelfMetrics::new(context))])
    }
}

/// What each sink did with its points.
#[derive(Debug, Default)]
pub(super) struct SinkReports(pub Mutex<BTreeMap<&'static str, export::Report>>);

/// The collector.
#[derive(Debug)]
struct SelfMetrics {
    statuses: StatusRegistry,
    ownership: Ownership,
    self_stats: Arc<SelfStats>,
    sinks: Arc<SinkReports>,
    readers: Readers,
    limit: CpuLimit,
}

/// What all reader children together cost. The CPU time of one that has ended stays in the sum, as
/// far as it was read.
#[derive(Debug, Default)]
struct Readers {
    ended: f64,
    living: BTreeMap<u32, f64>,
}

impl Readers {
    /// CPU seconds and resident bytes, from those of each child there is; `None` before the first.
    fn sum(&mut self, now: &[(u32, f64, u64)]) -> Option<(f64, u64)> {
        let before = std::mem::take(&mut self.living);
        for &(pid, seconds, _) in now {
            self.living.insert(pid, seconds);
        }
        // A number whose time went back is another process.
        let is_over =
            |(pid, seconds): &(&u32, &f64)| self.living.get(pid).is_none_or(|now| now < *seconds);
        self.ended += before.iter().filter(is_over).map(|(_, seconds)| seconds).sum::<f64>();
        let seconds = self.ended + self.living.values().sum::<f64>();
        let is_any = !now.is_empty() || self.ended > 0.0;
        is_any.then(|| (seconds, now.iter().map(|(.., bytes)| bytes).sum()))
    }
}

impl SelfMetrics {
    /// Reports on everything on `statuses`.
    fn new(context: &Context) -> Self {
        let Context { board: statuses, ownership, gauges: self_stats, cpu_limit, .. } = context;
        Self {
            statuses: statuses.clone(),
            ownership: ownership.clone(),
            self_stats: Arc::clone(self_stats),
            sinks: context.of_kind.get(),
            readers: Readers::default(),
            limit: cpu_limit.clone(),
        }
    }

    fn sinks(&self, out: &mut Batch) {
        let sinks = self.sinks.0.lock();
        for (&name, report) in sinks.iter() {
            for (outcome, points) in report.outcomes() {
                out.push(metric::EXPORT_POINTS.sample(Source(name), outcome, count(points)));
            }
            for (reason, lost) in report.dropped() {
                out.push(metric::DROPPED.sample(Source(name), reason, count(lost)));
            }
            // A sink that only answers takes nothing over.
            if report.taken > 0 {
                out.push(metric::EXPORT_TAKEN.sample(Source(name), (), count(report.taken)));
                out.push(metric::EXPORT_WAITING.sample(Source(name), (), count(report.waiting())));
            }
            if report.spool_bytes > 0 {
                out.push(metric::SPOOL_USAGE.sample(Source(name), (), count(report.spool_bytes)));
            }
        }
    }

    fn sources(&self, out: &mut Batch) {
        for (name, standing) in self.statuses.all() {
            let source = || Source(name);
            for &state in SourceState::ALL {
                let on = i64::from(state == standing.report.state);
                out.push(metric::SOURCE_STATE.sample(source(), state, on));
            }
            if let Some(cpu) = standing.cpu_seconds {
                out.push(metric::SOURCE_CPU.sample(source(), (), cpu));
            }
            // A thread that only waits has no readings.
            if standing.durations.count() > 0 {
                out.push(metric::SOURCE_DURATION.sample(source(), (), standing.durations));
            }
            out.push(metric::SOURCE_HANGS.sample(source(), (), count(standing.hangs)));
            let report = standing.report;
            out.push(metric::SOURCE_ERRORS.sample(source(), (), count(report.errors)));
            out.push(metric::SOURCE_RESTARTS.sample(source(), (), count(report.restarts)));
            for (reason, lost) in report.dropped {
                out.push(metric::DROPPED.sample(source(), reason, count(lost)));
            }
        }
    }

    fn process(out: &mut Batch, which: AgentProcess, seconds: f64, bytes: u64) {
        out.push(metric::CPU.sample(Agent, which, seconds));
        out.push(metric::MEMORY.sample(Agent, which, count(bytes)));
    }

    /// All reader children as one; returns their CPU seconds.
    fn readers(&mut self, out: &mut Batch) -> f64 {
        let pids = self.self_stats.readers.lock().clone();
        let costs: Vec<_> = pids
            .into_iter()
            .filter_map(|pid| {
                let (seconds, bytes) = cost(Process::new(i32::try_from(pid).ok()?)).ok()?;
                Some((pid, seconds, bytes))
            })
            .collect();
        let Some((seconds, bytes)) = self.readers.sum(&costs) else { return 0.0 };
        Self::process(out, AgentProcess::Reader, seconds, bytes);
        seconds
    }
}

impl Collector for SelfMetrics {
    fn name(&self) -> &'static str {
        NAME
    }

    fn never_waits(&self) -> bool {
        true
    }

    fn importance(&self) -> Importance {
        Importance::Always
    }

    fn collect(&mut self, out: &mut Batch) {
        self.sources(out);
        self.sinks(out);
        for &stage in Stage::ALL {
            let seconds = self.self_stats.stages.seconds(stage);
            out.push(metric::STAGE_CPU.sample(Agent, stage, seconds));
        }
        out.push(metric::SERIES.sample(
            Agent,
            (),
            count(self.self_stats.series.load(Ordering::Relaxed)),
        ));
        let holders = self.ownership.holding();
        for (&outcome, reloads) in ReloadOutcome::ALL.iter().zip(&self.self_stats.reloads) {
            let reloads = count(reloads.load(Ordering::Relaxed));
            out.push(metric::RELOADS.sample(Agent, outcome, reloads));
        }
        out.push(metric::HOLDERS.sample(Agent, (), i64::try_from(holders).unwrap_or(i64::MAX)));
        for (owner, limit, refused) in self.ownership.refused() {
            out.push(metric::OWNER_REFUSED.sample(owner, limit, count(refused)));
        }
        out.push(metric::OWNERSHIP_LATENCY.sample(Agent, (), self.ownership.latency()));
        let readers = self.readers(out);
        if let Ok((seconds, bytes)) = cost(Process::myself()) {
            Self::process(out, AgentProcess::Agent, seconds, bytes);
            self.limit.take(Instant::now(), seconds + readers);
        }
        self.limit.figures(out);
        if let Some(report) = self.limit.report() {
            self.statuses.put(cpu_limit::STATUS, &report);
        }
    }

    fn report(&self) -> Report {
        Report::ready()
    }
}

/// A process's CPU seconds and resident bytes.
fn cost(process: ProcResult<Process>) -> ProcResult<(f64, u64)> {
    let stat = process?.stat()?;
    let seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
    Ok((seconds, stat.rss_bytes().get()))
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::Readers;

    #[test]
    fn the_readers_cost_is_all_childrens_and_never_falls() {
        let mut readers = Readers::default();
        assert_eq!(readers.sum(&[]), None, "no child yet");
        let steps = [
            (vec![(7, 1.0, 100), (8, 0.5, 50)], (1.5, 150)),
            // One ended, and another has come.
            (vec![(8, 0.5, 50), (9, 0.25, 10)], (1.75, 60)),
            // A number that another child has now.
            (vec![(8, 0.25, 20)], (2.0, 20)),
            (vec![], (2.0, 0)),
        ];
        for (now, (seconds, bytes)) in steps {
            assert_eq!(readers.sum(&now), Some((seconds, bytes)), "{now:?}");
        }
    }
}
