//! Processes that call a copy of the fake library.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Turns with pauses are so many in ten seconds.
const TURNS: u32 = 25;
/// Calls of a turn without pauses.
const UNPAUSED: u32 = 20_000;
/// A turn is warmed up for such a part of a second: two stretches in which calls are counted to tell
/// how fast they are.
const WARM_PARTS: u32 = 5;
/// And without pauses for so many calls, some tenths of a second where they are probed.
const WARM_UNPAUSED: u32 = 200_000;

/// A turn of all processes.
pub(crate) struct Turn {
    /// Nanoseconds of a call: the mean of the quicker 99 % of each process, and of those the mean.
    pub(crate) ns: f64,
    /// Calls of all, the warming up included.
    pub(crate) calls: u32,
    /// And a second, without that.
    pub(crate) calls_a_second: f64,
}

/// The processes.
pub(crate) struct Ranks(Vec<(Child, ChildStdin, BufReader<ChildStdout>)>);

/// A copy of the library that nobody else maps.
pub(crate) fn library(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let path = folder.join(name.replace(' ', "-"));
    fs::copy(built("libnccl.so")?, &path)?;
    Ok(path)
}

/// The profile's folder below `target`; benchmarks run one folder deeper.
fn built(name: &str) -> io::Result<PathBuf> {
    let this = std::env::current_exe()?;
    let folder = this.parent().and_then(Path::parent).unwrap_or(Path::new("."));
    let path = folder.join(name);
    let missing = || io::Error::other(format!("no {}", path.display()));
    path.is_file().then_some(path.clone()).ok_or_else(missing)
}

impl Ranks {
    /// Starts them as the ranks of a communicator.
    pub(crate) fn start(library: &Path, processes: usize) -> io::Result<Self> {
        let mut ranks = Self(Vec::new());
        for _ in 0..processes {
            let mut child = Command::new(built("nccl-rank")?)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let orders = child.stdin.take().unwrap();
            let answers = BufReader::new(child.stdout.take().unwrap());
            ranks.0.push((child, orders, answers));
        }
        ranks.order(|_| format!("load {}", library.display()))?;
        let id = ranks.order(|_| "id".to_owned())?.swap_remove(0);
        ranks.order(|rank| format!("init world {processes} {rank} {id}"))?;
        Ok(ranks)
    }

    /// All of them call at a rate, after they have done so for a while: how fast a thread calls
    /// decides what is timed.
    pub(crate) fn turn(&mut self, rate: u32) -> io::Result<Turn> {
        let times = if rate == 0 { UNPAUSED } else { 10 * rate / TURNS };
        let pace = |times: u32| format!("pace {times} {rate} ncclAllReduce world 1000 7");
        let warm = if rate == 0 { WARM_UNPAUSED } else { rate / WARM_PARTS };
        self.order(|_| pace(warm))?;
        let began = Instant::now();
        let answers = self.order(|_| pace(times))?;
        let means = answers.iter().filter_map(|answer| answer.split(' ').nth(1));
        let means: Vec<f64> = means.filter_map(|mean| mean.parse().ok()).collect();
        let ns = means.iter().sum::<f64>() / means.len() as f64;
        let ranks = u32::try_from(self.0.len()).unwrap_or(1);
        let calls_a_second = f64::from(times * ranks) / began.elapsed().as_secs_f64();
        Ok(Turn { ns, calls: (warm + times) * ranks, calls_a_second })
    }

    /// The processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.0.iter().map(|(child, ..)| child.id()).collect()
    }

    /// All of them call at a rate, turn after turn, for so long; gives the calls.
    pub(crate) fn turns(&mut self, rate: u32, time: Duration) -> io::Result<u64> {
        let (end, mut calls) = (Instant::now() + time, 0);
        while Instant::now() < end {
            calls += u64::from(self.turn(rate)?.calls);
        }
        Ok(calls)
    }

    /// Gives every process an order, then takes all answers.
    fn order(&mut self, order: impl Fn(usize) -> String) -> io::Result<Vec<String>> {
        for (rank, (_, orders, _)) in self.0.iter_mut().enumerate() {
            writeln!(orders, "{}", order(rank))?;
        }
        let answer = |(_, _, answers): &mut (Child, ChildStdin, BufReader<ChildStdout>)| {
            let mut line = String::new();
            answers.read_line(&mut line)?;
            if line.is_empty() || line.starts_with("refused") {
                return Err(io::Error::other(line));
            }
            Ok(line.trim_end().to_owned())
        };
        self.0.iter_mut().map(answer).collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for (child, ..) in &mut self.0 {
            // Gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
