//! What the agent costs a process that opens ordinary files and never a device: the same loop
//! without an agent and with one of each hook, in turns, so that a change of the machine's speed
//! meets all of them.

use super::table::{Row, median};
use super::{BenchError, needs_kernel, stage};
use crate::agent::{Agent, Config};
use crate::stage::Stage;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Files opened in one loop.
const OPENS: u32 = 100_000;
/// Loops of each turn; the quickest counts, since others can only take time away.
const LOOPS: usize = 4;
/// More than without the agent.
const TARGET_PERCENT: f64 = 2.0;
/// The hooks, as the configuration names them.
const HOOKS: [&str; 2] = ["cgroup", "syscall"];

/// Measures every hook that works here.
pub fn measure(rounds: usize) -> Result<Vec<Row>, BenchError> {
    let stage = stage()?;
    let file = stage.folder().join("ordinary");
    fs::write(&file, "").map_err(BenchError::os(&file))?;
    let mut ratios = HOOKS.map(|_| Vec::new());
    let mut refused: [Option<BenchError>; HOOKS.len()] = [None, None];
    let mut nanos = Vec::new();
    for _ in 0..rounds {
        for ((hook, ratios), refused) in HOOKS.iter().zip(&mut ratios).zip(&mut refused) {
            if refused.is_some() {
                continue;
            }
            let without = turn(&file)?;
            nanos.push(without);
            match with_agent(&stage, hook, &file) {
                Ok(with) => ratios.push(with / without),
                Err(why) => *refused = Some(why),
            }
        }
    }
    let mut rows = Vec::new();
    for ((hook, ratios), refused) in HOOKS.iter().zip(ratios).zip(refused) {
        let what = format!("100,000 opens, hook {hook}");
        rows.push(
            refused.map_or_else(
                || row(&what, hook, ratios),
                |why| Row::missing(&what, why.to_string()),
            ),
        );
    }
    let each = median(nanos) / f64::from(OPENS);
    rows.push(Row::plain("one open and close without an agent", format!("{each:.0} ns")));
    Ok(rows)
}

fn row(what: &str, hook: &str, mut ratios: Vec<f64>) -> Row {
    ratios.sort_by(f64::total_cmp);
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let (least, most) = (ratios.first().copied(), ratios.last().copied());
    let (least, most) = (least.unwrap_or(f64::NAN), most.unwrap_or(f64::NAN));
    let middle = percent(median(ratios.clone()));
    let figure = format!(
        "{middle:+.2} % CPU (median of {} pairs, {:+.1} to {:+.1} %)",
        ratios.len(),
        percent(least),
        percent(most)
    );
    let target = if hook == "cgroup" { "< 2 %" } else { "< 2 % (fallback)" };
    Row::against(what, figure, target, middle < TARGET_PERCENT)
}

fn with_agent(stage: &Stage, hook: &'static str, file: &Path) -> Result<f64, BenchError> {
    let config = Config {
        default_metrics: true,
        interval: Some("10s".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        hook: Some(hook),
        file: Some("/dev/null".into()),
        more: "[nvidia]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, None)?;
    needs_kernel(&agent)?;
    turn(file)
}

/// Nanoseconds of CPU of the quickest loop.
fn turn(file: &Path) -> Result<f64, BenchError> {
    let mut quickest = f64::INFINITY;
    for _ in 0..LOOPS {
        let program = std::env::current_exe().map_err(BenchError::os("this program"))?;
        let output = Command::new(&program).arg("--open-loop").arg(file).output();
        let output = output.map_err(BenchError::os(&program))?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let nanos = text.parse::<f64>().ok();
        quickest = quickest.min(
            nanos.ok_or(BenchError::Strange { what: text, expected: "how long the loop took" })?,
        );
    }
    Ok(quickest)
}

/// The loop itself, in a process of its own; gives its nanoseconds of CPU.
pub fn open_loop(file: &Path) -> Result<u64, BenchError> {
    let spent = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
    };
    // The first opens of a process fault pages in.
    for _ in 0..OPENS / 100 {
        File::open(file).map_err(BenchError::os(file))?;
    }
    let before = spent();
    for _ in 0..OPENS {
        File::open(file).map_err(BenchError::os(file))?;
    }
    Ok(spent() - before)
}
