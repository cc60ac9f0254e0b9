//! What an agent holds and does, with each of its children: threads, CPU time, wake-ups, reads,
//! memory, descriptors and BPF maps, as `/proc` shows them.

use crate::agent::Agent;
use crate::sys;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Nanoseconds of CPU by thread name: the scheduler's own, not the clock's ticks.
pub type Threads = BTreeMap<String, u64>;

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// In memory, shared or not.
    pub resident: u64,
    /// The same, shared pages divided by those that share them.
    pub proportional: u64,
    /// Not of a file.
    pub anonymous: u64,
}

/// One process.
#[derive(Clone, Debug)]
pub struct Process {
    /// The command of the agent's that it runs.
    pub name: String,
    /// Its PID.
    pub pid: u32,
    /// Its threads.
    pub threads: usize,
    /// Their CPU time.
    pub spent: Threads,
    /// CPU time of the process in nanoseconds: also of threads that have ended.
    pub cpu: u64,
    /// How often they have gone to sleep, which is how often they have been woken.
    pub wakes: u64,
    /// Calls of `read` and its like.
    pub reads: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Memory of its BPF maps in the kernel.
    pub map_bytes: u64,
    /// Its memory.
    pub memory: Memory,
}

/// The agent first, then its children.
pub fn of(agent: &Agent) -> io::Result<Vec<Process>> {
    let all = [("agent".to_owned(), agent.pid())].into_iter().chain(agent.children());
    all.map(|(name, pid)| Process::read(name, pid)).collect()
}

impl Process {
    /// One by its PID.
    pub fn read(name: String, pid: u32) -> io::Result<Self> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let tasks = entries(&folder.join("task"))?;
        let statuses = tasks.iter().filter_map(|task| fs::read_to_string(task.join("status")).ok());
        let wakes = statuses.map(|status| field(&status, "voluntary_ctxt_switches:")).sum();
        let reads = field(&read(&folder.join("io"))?, "syscr:");
        Ok(Self {
            name,
            pid,
            threads: tasks.len(),
            spent: threads(pid)?,
            cpu: cpu(pid)?,
            wakes,
            reads,
            descriptors: entries(&folder.join("fd"))?.len(),
            map_bytes: map_bytes(&folder)?,
            memory: memory(pid)?,
        })
    }
}

/// CPU time of a process in nanoseconds, its threads that have ended included.
pub fn cpu(pid: u32) -> io::Result<u64> {
    sys::process_cpu(pid).map_err(|error| of_path(Path::new(&format!("/proc/{pid}")), &error))
}

/// CPU time by thread, of those that are there.
pub fn threads(pid: u32) -> io::Result<Threads> {
    let mut all = Threads::new();
    for folder in entries(&PathBuf::from(format!("/proc/{pid}/task")))? {
        let name = read(&folder.join("comm"))?.trim_end().to_owned();
        let text = read(&folder.join("schedstat"))?;
        let nanos = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
        *all.entry(name).or_default() += nanos.unwrap_or_default();
    }
    Ok(all)
}

/// What threads have spent between two moments.
pub fn spent(before: &Threads, after: &Threads) -> Threads {
    let since = |name: &String| before.get(name).copied().unwrap_or_default();
    after.iter().map(|(name, now)| (name.clone(), now.saturating_sub(since(name)))).collect()
}

/// Memory of a process.
pub fn memory(pid: u32) -> io::Result<Memory> {
    Ok(rollup(&read(Path::new(&format!("/proc/{pid}/smaps_rollup")))?))
}

fn rollup(text: &str) -> Memory {
    let bytes = |name| field(text, name) * 1024;
    Memory { resident: bytes("Rss:"), proportional: bytes("Pss:"), anonymous: bytes("Anonymous:") }
}

/// A map counts once, however many descriptors of it are open.
fn map_bytes(folder: &Path) -> io::Result<u64> {
    let mut maps = HashMap::new();
    for descriptor in entries(&folder.join("fdinfo"))? {
        // One that was closed meanwhile is none.
        let text = fs::read_to_string(descriptor).unwrap_or_default();
        if text.contains("\nmap_id:") {
            maps.insert(field(&text, "map_id:"), field(&text, "memlock:"));
        }
    }
    Ok(maps.values().sum())
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let all = fs::read_dir(folder).map_err(|error| of_path(folder, &error))?;
    Ok(all.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path).map_err(|error| of_path(path, &error))
}

fn of_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn time_of_a_thread_that_has_ended_is_the_processes() {
        let own = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.try_into().unwrap())
        };
        let busy = Duration::from_millis(5);
        let before = cpu(process::id()).unwrap();
        thread::spawn(move || while own() < busy {}).join().unwrap();
        let spent = Duration::from_nanos(cpu(process::id()).unwrap() - before);
        assert!(spent >= busy, "{spent:?}");
    }

    #[test]
    fn memory_is_read_by_the_whole_name() {
        let text = "Rss:   10 kB\nPss:   4 kB\nPss_Dirty: 3 kB\nAnonymous:  2 kB\n";
        let expected = Memory { resident: 10_240, proportional: 4_096, anonymous: 2_048 };
        assert_eq!(rollup(text), expected);
    }
}
