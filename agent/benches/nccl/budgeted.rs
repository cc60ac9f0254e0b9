//! The source as it is by default, on callers that are too fast for it: which part of their calls is
//! still seen, and what that costs.

use crate::compared::process_cpu;
use crate::ranks::{self, Ranks};
use crate::table::{ENTRIES, Found, OURS, RING};
use gpuwho::collect::nccl::probe::BudgetedProbe;
use std::io;
use std::time::{Duration, Instant};

/// The budget is checked once a second and needs some checks to find its level.
const SETTLED: Duration = Duration::from_secs(5);
/// Longer than the longest of its cycles on the mean.
const WATCHED: Duration = Duration::from_secs(35);

/// Slower callers are left alone, by default.
const SLOWEST: u32 = 10_000;

const HEAD: &str = "\
| processes | calls/s | level at the end | of calls seen | a call pays, on the mean | agent, of a core \
| ring : ours |
|---|---|---|---|---|---|---|";

/// What every rate costs, at what a call that is seen costs and what the ring does.
pub(crate) fn measure(found: &[Found]) -> io::Result<()> {
    println!("\nwith the probe budget, by default, {} s\n{HEAD}", WATCHED.as_secs());
    for one in found.iter().filter(|one| one.rate == 0 || one.rate >= SLOWEST) {
        let folder = tempfile::tempdir()?;
        let library = ranks::library(folder.path(), "budgeted")?;
        let mut ranks = Ranks::start(&library, one.processes)?;
        let mut probe = BudgetedProbe::of(&ranks.pids())?;
        ranks.turns(one.rate, SETTLED)?;
        probe.read();
        let (before, spent, began) = (probe.hits(), process_cpu(), Instant::now());
        let calls = ranks.turns(one.rate, WATCHED)?;
        probe.read();
        let (after, spent, took) = (probe.hits(), process_cpu() - spent, began.elapsed());
        let part = (after.0 - before.0) as f64 / calls as f64;
        // With returns it is as in the other table; without, an entry's price.
        let seen = if after.1 - before.1 > (after.0 - before.0) / 100 { OURS } else { ENTRIES };
        let agent = spent as f64;
        let pays = part * one.more(seen);
        let ring = one.more(RING) + one.reader(RING);
        println!(
            "| {} | {} | {} | {:.1} % | {pays:.0} ns | {:.2} % | {:.1} |",
            one.processes,
            if one.rate == 0 { "all".to_owned() } else { one.rate.to_string() },
            after.2.as_str(),
            100.0 * part,
            100.0 * agent / took.as_nanos() as f64,
            ring / (pays + agent / calls as f64),
        );
    }
    Ok(())
}
