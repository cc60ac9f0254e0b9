//! The source as it is by default, on callers that are too fast for it: which part of their calls is
//! still seen, and what that costs the agent.

use crate::compared::process_cpu;
use crate::ranks::{self, Ranks};
use crate::table::callers;
use gpuwho_nccl::probe::BudgetedProbe;
use std::io;
use std::time::{Duration, Instant};

/// The budget is checked once a second and needs some checks to find its level.
const SETTLED: Duration = Duration::from_secs(5);
/// Longer than the longest of its cycles on the mean.
const WATCHED: Duration = Duration::from_secs(35);

/// Processes and calls a second of each; 0 is without a pause. Slower callers are left alone, by default.
const CALLERS: [(usize, u32); 4] = [(1, 10_000), (8, 100_000), (1, 0), (8, 0)];

pub(crate) fn measure() -> io::Result<()> {
    for (processes, rate) in CALLERS {
        let folder = tempfile::tempdir()?;
        let library = ranks::library(folder.path(), "budgeted")?;
        let mut ranks = Ranks::start(&library, processes)?;
        let mut probe = BudgetedProbe::of(&ranks.pids())?;
        ranks.turns(rate, SETTLED)?;
        probe.read();
        let (before, spent, began) = (probe.hits(), process_cpu(), Instant::now());
        let calls = ranks.turns(rate, WATCHED)?;
        probe.read();
        let (after, spent, took) = (probe.hits(), process_cpu() - spent, began.elapsed());
        println!(
            "| {} | level {} at the end, {:.1} % of calls seen, agent {:.2} % of a core |",
            callers(processes, rate),
            after.2.as_str(),
            100.0 * (after.0 - before.0) as f64 / calls as f64,
            100.0 * spent as f64 / took.as_nanos() as f64,
        );
    }
    Ok(())
}
