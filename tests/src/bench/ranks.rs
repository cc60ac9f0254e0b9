//! What the whole agent costs while ranks call the collective library without a pause, against the
//! same host with the same ranks at rest.

use super::cost::{cpu, reader, threads};
use super::load::Load;
use super::receiver::Receiver;
use super::table::Row;
use super::{BenchError, stage};
use crate::footprint::{Threads, spent};
use crate::nccl::{Rank, library};
use std::thread;
use std::time::{Duration, Instant};

/// As many as there are cores on a small machine.
const RANKS: usize = 2;
const EVERY: &str = "10s";
/// A process that is new is looked at more often for a minute.
const WARM_UP: Duration = Duration::from_secs(65);
/// One answer of a rank.
const TURN: Duration = Duration::from_millis(500);

/// Runs the agent beside ranks that rest, then call.
pub fn measure(watch: Duration) -> Result<Vec<Row>, BenchError> {
    let load = Load::start(stage()?)?;
    let receiver = Receiver::start().map_err(BenchError::os("receiver"))?;
    let agent = load.agent(EVERY, &receiver)?;
    let mut ranks = world(&load).map_err(BenchError::os("ranks"))?;
    agent.wait_for_log("counting collective calls", WARM_UP)?;
    thread::sleep(WARM_UP);
    let pids = [agent.pid(), reader(&agent)?];
    let (begun, before) = (Instant::now(), sum(pids)?);
    thread::sleep(watch);
    let idle = part(before, sum(pids)?, begun);
    let (begun, before, threads) = (Instant::now(), sum(pids)?, all_threads(pids)?);
    let mut calls = 0;
    while begun.elapsed() < watch {
        calls += storm(&mut ranks).map_err(BenchError::os("ranks"))?;
    }
    let rate = calls as f64 / begun.elapsed().as_secs_f64();
    let busy = part(before, sum(pids)?, begun);
    let most = most(&spent(&threads, &all_threads(pids)?));
    Ok(vec![
        Row::plain(format!("agent and reader beside {RANKS} ranks at rest"), percent(idle)),
        Row::plain(
            format!("while they call without a pause, {rate:.0} calls/s"),
            format!("{}, {:.1} times as much ({most})", percent(busy), busy / idle),
        ),
    ])
}

/// Ranks of one communicator.
fn world(load: &Load) -> std::io::Result<Vec<Rank>> {
    let folder = load.stage.folder();
    let library = library(folder)?;
    let start = |_| Rank::start(folder, &library, &[]);
    let mut ranks = (0..RANKS).map(start).collect::<std::io::Result<Vec<Rank>>>()?;
    let mut id = None;
    for (number, rank) in ranks.iter_mut().enumerate() {
        let id = match &id {
            Some(id) => id,
            None => id.insert(rank.order("id")?),
        };
        rank.order(&format!("init world {RANKS} {number} {id}"))?;
    }
    Ok(ranks)
}

/// All call for a moment; gives how often.
fn storm(ranks: &mut [Rank]) -> std::io::Result<u64> {
    let order = format!("storm {} ncclAllReduce world 16 7", TURN.as_millis());
    thread::scope(|scope| {
        let one = |rank| scope.spawn(|| Rank::order(rank, &order));
        let turns: Vec<_> = ranks.iter_mut().map(one).collect();
        let mut calls = 0;
        for turn in turns {
            let answer = turn.join().map_err(|_| std::io::Error::other("a rank's thread"))??;
            let word = answer.split(' ').next().and_then(|word| word.parse::<u64>().ok());
            calls += word.ok_or_else(|| std::io::Error::other(answer))?;
        }
        Ok(calls)
    })
}

/// Nanoseconds of both.
fn sum(pids: [u32; 2]) -> Result<u64, BenchError> {
    pids.into_iter().map(cpu).sum()
}

fn all_threads(pids: [u32; 2]) -> Result<Threads, BenchError> {
    let mut all = Threads::new();
    for pid in pids {
        for (name, nanos) in threads(pid)? {
            *all.entry(name).or_default() += nanos;
        }
    }
    Ok(all)
}

fn part(before: u64, after: u64, begun: Instant) -> f64 {
    (after - before) as f64 / begun.elapsed().as_nanos() as f64
}

fn percent(part: f64) -> String {
    format!("{:.3} % of a core", part * 100.0)
}

/// The thread that took most.
fn most(spent: &Threads) -> String {
    let all: u64 = spent.values().sum();
    let most = spent.iter().max_by_key(|(_, nanos)| **nanos);
    most.map_or_else(String::new, |(name, nanos)| {
        format!("{name} {:.0} % of it", *nanos as f64 / all.max(1) as f64 * 100.0)
    })
}
