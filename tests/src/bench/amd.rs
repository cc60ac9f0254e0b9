//! What a reading of eight MI300X in CPX, 64 partitions, costs by the kernel's files alone: the reader's CPU
//! time, and how many files it reads. The files are on a tmpfs or a disk instead of sysfs, so a figure has
//! no time of the driver's own.

use super::cost::cpu;
use super::table::Row;
use super::{BenchError, stage};
use crate::agent::{Agent, Config};
use crate::amd::{FIRST_RENDER, On, Tree};
use crate::fakes::load;
use crate::footprint;
use crate::stage::Stage;
use nvidia_ml::scenario::Scenario;
use std::fs;
use std::process;
use std::thread;
use std::time::Duration;

/// Two devices of this, four times.
const SCENARIO: &str = "mi300x2-cpx";
const DEVICES: u32 = 8;
/// Of each device.
const PARTITIONS: u32 = 8;
/// The agent's interval; a reading has half of it.
const EVERY: Duration = Duration::from_secs(2);
/// The first readings look for what there is.
const WARM_UP: Duration = Duration::from_secs(5);
/// The target of the issue is NVIDIA's own share of a reading: 1.964 ms for eight devices.
const TARGET_MICROS: f64 = 1964.0 / 8.0;

/// Runs the agent without processes, and with one on each partition.
pub fn measure(watch: Duration) -> Result<Vec<Row>, BenchError> {
    let stage = stage()?;
    let scenario = scenario()?;
    let mut rows = Vec::new();
    for processes in [0, DEVICES * PARTITIONS] {
        rows.extend(of(&stage, &scenario, processes, watch)?);
    }
    Ok(rows)
}

fn scenario() -> Result<Scenario, BenchError> {
    let mut scenario = load(SCENARIO)?;
    for group in &mut scenario.groups {
        group.count = DEVICES;
    }
    Ok(scenario)
}

fn of(
    stage: &Stage,
    scenario: &Scenario,
    processes: u32,
    watch: Duration,
) -> Result<Vec<Row>, BenchError> {
    let folder = stage.folder().join(format!("amd-{processes}"));
    let tree = Tree::new(&folder, scenario, 100.0).map_err(BenchError::os(&folder))?;
    // A process of the host for each partition; who it is does not matter to the reader.
    let pids = fs::read_dir("/proc").map_err(BenchError::os("/proc"))?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pids: Vec<u32> = pids.chain([process::id()]).collect();
    for (render, pid) in (FIRST_RENDER..FIRST_RENDER + processes).zip(pids.into_iter().cycle()) {
        let on = On { pid, render, bytes: 1 << 30 };
        tree.compute(&on).map_err(BenchError::os(&folder))?;
        tree.statistics(&on, 19, 1500).map_err(BenchError::os(&folder))?;
    }
    let config = Config {
        default_metrics: true,
        interval: Some(format!("{}ms", EVERY.as_millis())),
        sys: Some(tree.sys()),
        nodes: Some(Vec::new()),
        more: "[nvidia]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    let agent = Agent::start(&folder, &config, None)?;
    thread::sleep(WARM_UP);
    let pid = reader(&agent)?;
    let look = || -> Result<_, BenchError> {
        let all = footprint::of(&agent).map_err(BenchError::os("the agent's files in /proc"))?;
        let own = all.into_iter().find(|process| process.pid == pid);
        let reads = own.as_ref().map_or(0, |process| process.reads);
        let open = own.map_or(0, |process| process.descriptors);
        Ok((cpu(pid)?, reads, open))
    };
    let before = look()?;
    thread::sleep(watch);
    let after = look()?;
    let ticks = watch.as_secs_f64() / EVERY.as_secs_f64();
    let micros = (after.0 - before.0) as f64 / 1e3 / ticks;
    let reads = (after.1 - before.1) as f64 / ticks;
    let what =
        format!("{DEVICES} MI300X in {} partitions, {processes} processes", DEVICES * PARTITIONS);
    let each = micros / f64::from(DEVICES);
    let figure = format!("{micros:.0} µs a tick, {each:.0} µs a device");
    Ok(vec![
        Row::against(what, figure, "below NVIDIA's 246 µs a device", each < TARGET_MICROS),
        Row::plain("  reads of the reader", format!("{reads:.0} a tick")),
        Row::plain("  descriptors that it keeps open", after.2.to_string()),
    ])
}

/// The process that reads AMD's devices.
fn reader(agent: &Agent) -> Result<u32, BenchError> {
    let what = "the agent".to_owned();
    agent.reader().ok_or(BenchError::Strange { what, expected: "that it has a reader" })
}
