//! Tests against real processes that listen as NCCL does.

use super::*;
use gpuwho_model::ids::{CgroupId, Hierarchy};
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::fake::FakeHost;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::{Evidence, KernelCgroups, Opened};
use gpuwho_owners::communicators::{CommunicatorHash, LocalRank};
use gpuwho_owners::proc_scan::living;
use gpuwho_pipeline::event::aggregator::Sources;
use serde_json::json;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// A tenant whose query takes 12 seconds in vain is queried again after 40, and the kernel may
/// choose a stopped process four times in a row, and again.
const WITHIN: Duration = Duration::from_mins(10);

/// A process that listens; its PID is known before it starts to.
struct Listening {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<std::process::ChildStdout>,
}

impl Listening {
    fn start(mut command: Command, port: u16) -> Self {
        command.env("NCCL_RAS_ADDR", format!("localhost:{port}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, orders, answers }
    }

    fn serve(&mut self, document: &Path) {
        writeln!(self.orders, "ras {}", document.display()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "ok\n");
    }

    fn process(&self) -> ProcKey {
        living(&Paths::default(), self.child.id()).unwrap()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let path = this.parent().and_then(Path::parent).unwrap().join("nccl-rank");
    assert!(path.is_file(), "no {}: cargo build -p gpuwho-fake-nccl", path.display());
    path
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A job of these processes, one rank each.
fn job(folder: &Path, name: &str, hash: u64, pids: &[u32]) -> PathBuf {
    let ranks = pids.iter().enumerate().map(|(rank, pid)| {
        json!({ "rank": rank, "host": "127.0.0.1", "pid": pid, "cuda_dev": rank,
            "collective_counts": { "AllReduce": 10 * (rank + 1) } })
    });
    let ranks: Vec<_> = ranks.collect();
    let communicator = json!({ "hash": format!("{hash:#x}"), "size": pids.len(), "ranks": ranks });
    let document = json!({ "nccl_version": "2.29.7", "communicators": [communicator] });
    let path = folder.join(name);
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

/// An aggregator in which one user owns all these processes.
fn aggregator(processes: &[ProcKey]) -> Arc<EventAggregator> {
    let host = FakeHost::new();
    let ownership = Ownership::with_clock(&host.paths, || u64::MAX);
    let id = CgroupId { hierarchy: Hierarchy::V2, id: 7 };
    let path = Arc::from("/user.slice/user-1000.slice/session-1.scope");
    ownership.observe(Evidence::CgroupMade { id, path });
    for process in processes {
        ownership.observe(Evidence::Opened(Opened {
            process: *process,
            uid: 1000,
            comm: Arc::from("train"),
            cgroups: KernelCgroups(vec![id]),
            node: Arc::from("/dev/nvidia0"),
            at_ns: 1,
        }));
    }
    Arc::new(EventAggregator::new(Sources {
        inventory: Arc::default(),
        ownership,
        listed: Box::new(|_| Vec::new()),
        paths: Paths::default(),
        wake: Box::new(|| {}),
        make_way: Box::new(|| {}),
    }))
}

/// Queries until every process is in an answer.
fn reported(processes: &[ProcKey]) -> (LocalRanks, Ras) {
    let every = Duration::from_secs(1);
    let communicators = Arc::<Communicators>::default();
    let all = processes.to_vec();
    let settings = Settings { mode: Mode::All, every };
    let candidates = Box::new(move || all.clone());
    let files = TenantFiles::direct(&Paths::default());
    let asked = (candidates as Candidates, Box::new(Vec::new) as States);
    let mut ras = Ras::new(settings, &files, &communicators, asked, aggregator(processes));
    ras.start().unwrap();
    let end = Instant::now() + WITHIN;
    loop {
        let ranks = communicators.reported();
        if processes.iter().all(|process| ranks.contains_key(process)) {
            return (ranks, ras);
        }
        assert!(Instant::now() < end, "{ranks:?} {:?}", ras.report());
        thread::sleep(Duration::from_millis(10));
    }
}

fn rank(hash: u64, rank: u32, ranks: u32) -> LocalRank {
    LocalRank { hash: CommunicatorHash(hash), rank, ranks, device: Some(rank) }
}

#[test]
fn two_jobs_that_share_a_port_are_both_reported() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let listening = || Listening::start(Command::new(program()), port);
    let mut all: Vec<Listening> = (0..3).map(|_| listening()).collect();
    let pids: Vec<u32> = all.iter().map(|one| one.child.id()).collect();
    let first = job(folder.path(), "first.json", 0xabc, &pids[..2]);
    let second = job(folder.path(), "second.json", 0xdef, &pids[2..]);
    all[0].serve(&first);
    all[1].serve(&first);
    all[2].serve(&second);
    let processes: Vec<ProcKey> = all.iter().map(Listening::process).collect();
    // The kernel chooses which process answers; a round queries again, and so does the next.
    let (ranks, mut ras) = reported(&processes);
    let ranks: Vec<_> = processes.iter().map(|process| ranks[process].ranks.clone()).collect();
    let wanted = [vec![rank(0xabc, 0, 2)], vec![rank(0xabc, 1, 2)], vec![rank(0xdef, 0, 1)]];
    assert_eq!(ranks, wanted);
    let mut batch = Batch::new(NAME, std::time::SystemTime::now());
    ras.collect(&mut batch);
    let of = |metric: &str| batch.samples.iter().filter(|(_, s)| s.metric.name == metric).count();
    assert_eq!((of("nccl.ras.peers"), of("nccl.ras.answer.age")), (3, 1));
    assert_eq!(ras.report().state, SourceState::Ready);
}

#[test]
fn a_process_that_is_stopped_does_not_keep_others_from_answering() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let listening = || Listening::start(Command::new(program()), port);
    let mut all = [listening(), listening()];
    let pids: Vec<u32> = all.iter().map(|one| one.child.id()).collect();
    let document = job(folder.path(), "job.json", 0xabc, &pids);
    for one in &mut all {
        one.serve(&document);
    }
    let processes: Vec<ProcKey> = all.iter().map(Listening::process).collect();
    let stopped = rustix::process::Pid::from_child(&all[1].child);
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
    let (ranks, _ras) = reported(&processes);
    assert_eq!(ranks[&processes[1]].ranks, vec![rank(0xabc, 1, 2)]);
}

#[test]
fn a_process_in_its_own_network_namespace_is_queried_there() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let mut command = Command::new("unshare");
    let script = "ip link set lo up && exec \"$0\"";
    command.args(["--net", "--", "sh", "-c", script]).arg(program());
    let is_possible = Command::new("unshare").args(["--net", "ip", "link", "show"]).output();
    if !is_possible.is_ok_and(|output| output.status.success()) {
        println!("skipped: needs root, unshare and ip");
        return;
    }
    let mut inside = Listening::start(command, port);
    let document = job(folder.path(), "job.json", 0xabc, &[inside.child.id()]);
    inside.serve(&document);
    let process = inside.process();
    let (ranks, _ras) = reported(&[process]);
    assert_eq!(ranks[&process].ranks, vec![rank(0xabc, 0, 1)]);
}

#[test]
fn with_no_cleared_version_no_thread_starts_and_the_reason_is_told() {
    let candidates: Candidates = Box::new(|| panic!("nobody is looked for"));
    let states: States = Box::new(|| panic!("nobody is looked at"));
    let files = TenantFiles::direct(&Paths::default());
    let communicators = Arc::<Communicators>::default();
    let asked = (candidates, states);
    let mut ras = Ras::new(Settings::default(), &files, &communicators, asked, aggregator(&[]));
    ras.start().unwrap();
    assert!(ras.thread.is_none() && CLEARED.is_empty());
    let mut batch = Batch::new(NAME, std::time::SystemTime::now());
    ras.collect(&mut batch);
    assert!(batch.samples.is_empty());
    let Report { state, reason, remedy, .. } = ras.report();
    let said = (state, reason.contains("survive"), remedy.contains("asks.md"));
    assert_eq!(said, (SourceState::Absent, true, true), "{reason} {remedy}");
    assert_eq!(diagnose(&Settings::default()), (state, reason, remedy));
}
