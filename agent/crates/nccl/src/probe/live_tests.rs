//! Tests of the probe in the running kernel with the fake library: real processes as ranks, real
//! uprobes, exact numbers. Every test needs root and BPF, and prints so if it is skipped.

use super::attach::Attaching;
use super::attach::many::Way;
use super::attach::probes::{Attached, Probes, task_layout};
use super::attach::target::Target;
use super::budget::controller::Attach;
use super::budget::quota::Quotas;
use super::libraries::elf;
use super::libraries::rescan::RescanHandle;
use super::libraries::{Libraries, ScanOutcome};
use super::maps::Maps;
use super::maps::Snapshot;
use super::shared::Shared;
use super::{Dependencies, Nccl, RecoveryTiming, Settings};
use gpuwho_collect::Collector as _;
use gpuwho_common::nccl::{
    BUCKETS, Calls, Communicator, GROWN, HIT_ENTRY, HIT_RETURN, Hash, MADE, PLACE_COMMUNICATOR,
    ROOM, STRANGERS, SYMBOLS, operation,
};
use gpuwho_model::catalog::agent::{DropReason, SourceState};
use gpuwho_model::catalog::nccl::{KnownBy, ProbeLevel};
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::{Batch, Histogram, Sample, Subject, Value};
use gpuwho_model::status::StatusRegistry;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::communicators::{Communicators, MemberFacts, Origin};
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::proc_scan::is_alive;
use gpuwho_owners::tenant_files::TenantFiles;
use gpuwho_pipeline::event::aggregator::{self, EventAggregator};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

const DEADLINE: Duration = Duration::from_mins(2);

/// An artifact built next to this test: `target/<profile>`.
fn built(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let path = this.parent().and_then(Path::parent).unwrap().join(name);
    assert!(path.is_file(), "no {}: cargo build -p gpuwho-fake-nccl", path.display());
    path
}

/// A process that loads a library and executes orders.
struct Rank {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Rank {
    fn idle() -> Self {
        Self::run(&mut Command::new(built("nccl-rank")))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, orders, answers }
    }

    fn with(library: &Path) -> Self {
        let mut rank = Self::idle();
        assert_eq!(rank.order(&format!("load {}", library.display())), "ok");
        rank
    }

    fn begin(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        let answer = answer.trim_end().to_owned();
        assert!(!answer.starts_with("refused"), "{answer}");
        answer
    }

    fn order(&mut self, order: &str) -> String {
        self.begin(order);
        self.answer()
    }

    fn process(&self) -> ProcKey {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let start = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap();
        ProcKey { pid: self.child.id(), start_ticks: start.parse().unwrap() }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A copy of the fake library for one test, so that its probes see only its ranks.
struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(built("libnccl.so"), folder.path().join("libnccl.so.2")).unwrap();
        Self { folder }
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("libnccl.so.2")
    }
}

#[test]
fn a_library_for_another_processor_is_not_probed() {
    let scene = Scene::new();
    let exports = || elf::exports(&File::open(scene.library()).unwrap()).unwrap();
    assert!(exports().is_some());
    let mut bytes = std::fs::read(scene.library()).unwrap();
    // The header's `e_machine`, now RISC-V.
    bytes[18..20].copy_from_slice(&[243, 0]);
    std::fs::write(scene.library(), bytes).unwrap();
    assert_eq!(exports(), None);
}

/// The libraries of these processes; each maps one.
fn scanned(paths: &Paths, processes: &[ProcKey]) -> Libraries {
    let mut libraries = Libraries::new(TenantFiles::direct(paths), paths);
    for process in processes {
        let (mut now, mut changed) = (Instant::now(), false);
        // A slow machine needs more time than a process gets at once.
        let is_whole = (0..60).any(|_| {
            let ScanOutcome { changed: more, again } = libraries.scan(*process, now);
            changed |= more;
            now += again.unwrap_or_default();
            again.is_none()
        });
        assert!(changed && is_whole, "{:?}", libraries.problem());
    }
    libraries
}

/// The bare probe on the library that a rank maps.
struct Bare {
    probes: Probes,
    maps: Maps,
    quotas: Quotas,
    attached: Attached,
}

impl Bare {
    fn on(rank: &Rank, best: Way) -> Option<Self> {
        Self::timing(0, rank, best)
    }

    /// Times only some calls of threads with more than this many calls a second.
    fn timing(timed_rate: u32, rank: &Rank, best: Way) -> Option<Self> {
        let paths = Paths::default();
        let mut libraries = scanned(&paths, &[rank.process()]);
        let key = *libraries.in_use().next().unwrap().0;
        libraries.log_version(&key, Instant::now());
        let library = libraries.in_use().next().unwrap().1;
        assert_eq!(&*library.exports.version, "2.29.7+cuda13.0");
        assert!(library.exports.build_id.is_some());
        let loaded = Probes::load(task_layout(&paths), best, timed_rate);
        let (mut probes, maps, of_owners) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                println!("skipped: needs BPF: {error}");
                return None;
            }
        };
        if probes.way() != best {
            println!("skipped: needs a kernel with {}", best.as_str());
            return None;
        }
        let target = Target { file: &library.place(), exports: &library.exports, number: 1 };
        let attached = probes.attach(&target, true).unwrap();
        assert_eq!(attached.refused, Vec::new());
        let mut quotas = Quotas::default();
        quotas.load(of_owners);
        Some(Self { probes, maps, quotas, attached })
    }

    fn read(&self) -> Snapshot {
        self.maps.read().unwrap()
    }

    /// Sets what is counted of every process.
    fn allow(&mut self, attach: Attach) {
        self.quotas.allow(vec![(STRANGERS, attach)]);
    }
}

/// Attaches everything.
fn attach_all(attaching: &mut Attaching, libraries: &mut Libraries, shared: &Shared, now: Instant) {
    let wanted = attaching.wanted(libraries, |_| Attach::Full);
    attaching.follow(libraries, &wanted, shared, now);
}

/// A rank that is alone in its communicator, `world`, with the bare probe on its library.
fn alone(way: Way, timed_rate: u32) -> Option<(Scene, Rank, Bare)> {
    let scene = Scene::new();
    let mut rank = Rank::with(&scene.library());
    let bare = Bare::timing(timed_rate, &rank, way)?;
    let id = rank.order("id");
    assert_eq!(rank.order(&format!("init world 1 0 {id}")), "0");
    Some((scene, rank, bare))
}

fn only<T>(items: impl IntoIterator<Item = T>) -> T {
    let mut items = items.into_iter();
    let first = items.next().unwrap();
    assert!(items.next().is_none(), "more than one");
    first
}

fn calls(snapshot: &Snapshot, number: u64, operation: u32) -> Vec<(u32, Calls)> {
    let mine = snapshot.calls.iter();
    mine.filter(|(key, _)| key.communicator == number && key.operation == operation)
        .map(|(key, calls)| (key.class, *calls))
        .collect()
}

fn of_pid(snapshot: &Snapshot, pid: u32) -> Vec<(u64, Communicator)> {
    snapshot.communicators.iter().filter(|(_, c)| c.identity.pid == pid).copied().collect()
}

fn hash(id: &str) -> u64 {
    let bytes: Vec<u8> =
        (0..128).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()).collect();
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap());
    }
    Hash::of_unique_id(&words)
}

#[test]
fn rank_size_hash_sequence_calls_and_bytes_are_exact_in_a_session() {
    everything_is_exact(Way::Session);
}

#[test]
fn rank_size_hash_sequence_calls_and_bytes_are_exact_with_a_link_for_many() {
    everything_is_exact(Way::Multi);
}

#[test]
fn rank_size_hash_sequence_calls_and_bytes_are_exact_with_a_probe_a_function() {
    everything_is_exact(Way::Each);
}

/// Of every rank.
fn everything_is_exact(way: Way) {
    let scene = Scene::new();
    let mut ranks: Vec<Rank> = (0..3).map(|_| Rank::with(&scene.library())).collect();
    let Some(bare) = Bare::on(&ranks[0], way) else { return };
    println!("{} entries, {} returns", bare.attached.functions(), bare.attached.returns());
    let id = ranks[0].order("id");
    for (rank, process) in ranks.iter_mut().enumerate() {
        assert_eq!(process.order(&format!("init world 3 {rank} {id}")), "0");
        assert_eq!(process.order("call 5 ncclAllReduce world 1000 7"), "0");
        assert_eq!(process.order("call 2 ncclAllGather world 1048576 9"), "0");
        assert_eq!(process.order("call 1 ncclBcast world 10 1"), "0");
    }
    let snapshot = bare.read();
    for (rank, process) in ranks.iter().enumerate() {
        let (number, found) = only(of_pid(&snapshot, process.child.id()));
        let identity = found.identity;
        assert_eq!(
            (identity.rank, identity.ranks, identity.hash, identity.origin),
            (u32::try_from(rank).unwrap(), 3, hash(&id), MADE)
        );
        assert_eq!(identity.start_ns / 10_000_000, process.process().start_ticks);
        assert_eq!((found.activity.sequence, found.activity.calls), (8, 8));
        let (class, reduced) = only(calls(&snapshot, number, operation::ALL_REDUCE));
        assert_eq!((class, reduced.count, reduced.bytes), (0, 5, 20_000));
        assert_eq!(reduced.enqueue.iter().sum::<u64>(), 5);
        assert_eq!(reduced.interval.iter().sum::<u64>(), 4);
        assert_eq!(reduced.enqueue.len(), BUCKETS);
        let (class, gathered) = only(calls(&snapshot, number, operation::ALL_GATHER));
        assert_eq!((class, gathered.count, gathered.bytes), (3, 2, 2 * 3 * 2 * 1_048_576));
        // The inner call of `ncclBcast` is not counted again.
        let (class, sent) = only(calls(&snapshot, number, operation::BROADCAST));
        assert_eq!((class, sent.count, sent.bytes), (0, 1, 10));
    }
    let ids = bare.maps.unique_ids().unwrap();
    assert_eq!(ids.iter().map(|(hash, _)| *hash).collect::<Vec<_>>(), vec![hash(&id)]);
    let holds = bare.attached.into_holds();
    let (links, began) = (holds.len(), Instant::now());
    drop(holds);
    println!("{links} closed in {:?}", began.elapsed());
    assert!(way == Way::Each || links <= 4, "{links} links for one file");
    assert_eq!(ranks[0].order("call 5 ncclAllReduce world 1000 7"), "0");
    let (_, after) = only(of_pid(&bare.maps.read().unwrap(), ranks[0].child.id()));
    assert_eq!(after.activity.calls, 8, "counted while nothing is attached");
}

#[test]
fn a_session_leaves_out_the_returns_that_say_nothing() {
    let Some((_scene, mut rank, mut bare)) = alone(Way::Session, 0) else { return };
    let hits = |bare: &Bare| {
        let of = |counter: u32| bare.probes.counts.get(&counter, 0).unwrap().iter().sum::<u64>();
        (of(HIT_ENTRY), of(HIT_RETURN))
    };
    assert_eq!(hits(&bare), (2, 2));
    rank.order("call 10 ncclAllReduce world 10 7");
    assert_eq!(hits(&bare), (12, 12));
    // Start, end and ten calls; only the end is timed.
    rank.order("group 10 ncclAllReduce world 10 7");
    assert_eq!(hits(&bare), (24, 13));
    bare.allow(Attach::Entries);
    rank.order("call 10 ncclAllReduce world 10 7");
    assert_eq!(hits(&bare), (34, 13));
    assert_eq!(rank.order("destroy world"), "0");
    assert_eq!(hits(&bare), (35, 14));
}

/// The whole source, on given processes instead of those that hold a device.
struct Source {
    nccl: Nccl,
    ownership: Ownership,
    waker: RescanHandle,
    communicators: Arc<Communicators>,
    holders: Arc<Mutex<Vec<ProcKey>>>,
    board: StatusRegistry,
    aggregator: Arc<EventAggregator>,
}

/// The exported values, by metric, process, communicator and dimensions.
struct MemberSamples(Vec<(Sample, Option<Arc<MemberFacts>>)>);

impl Source {
    /// `None` if this machine does not support probes.
    fn start(hang_after: Duration, budget: u64) -> Option<Self> {
        Self::patient(hang_after, budget, RecoveryTiming::default())
    }

    /// Times every call.
    fn patient(hang_after: Duration, budget: u64, recovery: RecoveryTiming) -> Option<Self> {
        let default = Settings::default();
        Self::of(Settings { hang_after, budget, recovery, timed_rate: 0, ..default })
    }

    fn of(settings: Settings) -> Option<Self> {
        if let (SourceState::Degraded, why) =
            super::diagnose(&Settings::default(), &Paths::default())
        {
            println!("skipped: needs root and BPF: {why}");
            return None;
        }
        let paths = Paths::default();
        let (ownership, communicators) = (Ownership::new(&paths), Arc::default());
        let holders: Arc<Mutex<Vec<ProcKey>>> = Arc::default();
        let listed = Arc::clone(&holders);
        let candidates = Box::new(move || listed.lock().clone());
        let board = StatusRegistry::default();
        let aggregator = Arc::new(EventAggregator::new(aggregator::Sources {
            inventory: Arc::default(),
            ownership: ownership.clone(),
            listed: Box::new(|_| Vec::new()),
            paths: paths.clone(),
            wake: Box::new(|| {}),
            make_way: Box::new(|| {}),
        }));
        let with = Dependencies {
            files: &TenantFiles::direct(&paths),
            ownership: &ownership,
            communicators: &communicators,
            board: &board,
            aggregator: Some(&aggregator),
        };
        let (nccl, waker) = Nccl::start(settings, with, candidates).unwrap();
        Some(Self { nccl, ownership, waker, communicators, holders, board, aggregator })
    }

    fn default() -> Option<Self> {
        Self::start(Duration::from_mins(1), 1_000_000)
    }

    /// Adds a process, as evidence of an opened device does.
    fn hold(&mut self, process: ProcKey) {
        let known = self.ownership.process(process.pid, boot_time_ns());
        assert!(known.is_none_or(|known| known == process), "{known:?} for {process:?}");
        self.holders.lock().push(process);
        self.waker.request(process);
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&mut Self) -> bool) {
        let end = Instant::now() + DEADLINE;
        while !is_so(self) {
            assert!(Instant::now() < end, "{what}: {:?}", self.nccl.report());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until this many files are probed, and each added process was scanned: a file may be
    /// probed because of the first process alone.
    fn until_ready(&mut self, files: u64) {
        self.until("attached", |source| {
            let holders = source.holders.lock().clone();
            let mut living =
                holders.iter().filter(|process| is_alive(&Paths::default(), **process));
            source.nccl.shared.with(|known| {
                known.files == files && living.all(|process| known.libraries.contains_key(process))
            }) && source.nccl.report().state == SourceState::Ready
        });
    }

    fn read(&mut self) -> MemberSamples {
        let mut batch = Batch::new("nccl", SystemTime::now());
        self.nccl.collect(&mut batch);
        let facts = |sample: &Sample| match sample.subject {
            Subject::Member(id) => Some(self.communicators.facts(id).unwrap()),
            _ => None,
        };
        MemberSamples(
            batch
                .samples
                .into_iter()
                .map(|(_, s)| {
                    let f = facts(&s);
                    (s, f)
                })
                .collect(),
        )
    }

    /// Entries in the maps: communicators, calls, threads.
    fn entries(&self) -> [usize; 3] {
        let snapshot = self.nccl.maps.as_ref().unwrap().read().unwrap();
        [snapshot.communicators.len(), snapshot.calls.len(), snapshot.threads.len()]
    }
}

impl MemberSamples {
    /// Values of a metric, by process, communicator and dimensions.
    fn all(&self, metric: &str) -> BTreeMap<(u32, String, String), Value> {
        let of = self.0.iter().filter(|(sample, _)| sample.metric.name == metric);
        of.map(|(sample, facts)| {
            let dims = sample.metric.dims.iter().zip(sample.dims);
            let dims: Vec<&str> = dims.map(|(dim, at)| dim.values[usize::from(at)]).collect();
            let facts = facts.as_ref();
            let hash = facts.and_then(|f| f.hash).map_or("-".into(), |hash| hash.to_string());
            let pid = facts.map_or(0, |facts| facts.process.pid);
            ((pid, hash, dims.join(" ")), sample.value.clone())
        })
        .collect()
    }

    /// A metric of a process's only communicator.
    fn of(&self, metric: &str, rank: &Rank, dims: &str) -> Option<Value> {
        let pid = rank.child.id();
        let mut all = self.all(metric).into_iter();
        all.find(|((one, _, d), _)| *one == pid && d == dims).map(|(_, value)| value)
    }

    fn int(&self, metric: &str, rank: &Rank, dims: &str) -> Option<i64> {
        self.of(metric, rank, dims).map(|value| match value {
            Value::Int(number) => number,
            other => panic!("{metric}: {other:?}"),
        })
    }

    fn histogram(&self, metric: &str, rank: &Rank, dims: &str) -> Option<Histogram> {
        self.of(metric, rank, dims).map(|value| match value {
            Value::Histogram(histogram) => *histogram,
            other => panic!("{metric}: {other:?}"),
        })
    }

    fn state(&self, rank: &Rank) -> Option<&'static str> {
        ["running", "idle", "waiting", "hung", "unknown"]
            .into_iter()
            .find(|state| self.int("nccl.rank.status", rank, state) == Some(1))
    }

    fn members(&self, pid: u32) -> Vec<Arc<MemberFacts>> {
        let infos = self.0.iter().filter(|(s, _)| s.metric.name == "nccl.communicator.info");
        let facts = infos.filter_map(|(_, facts)| facts.clone());
        facts.filter(|facts| facts.process.pid == pid).collect()
    }
}

/// Ranks of one communicator `world`, observed since before they created it.
fn world(source: &mut Source, scene: &Scene, size: usize) -> (Vec<Rank>, u64) {
    let mut ranks: Vec<Rank> = (0..size).map(|_| Rank::with(&scene.library())).collect();
    for rank in &ranks {
        source.hold(rank.process());
    }
    source.until_ready(1);
    let id = ranks[0].order("id");
    for (rank, process) in ranks.iter_mut().enumerate() {
        assert_eq!(process.order(&format!("init world {size} {rank} {id}")), "0");
    }
    (ranks, hash(&id))
}

#[test]
fn the_last_rank_is_reported_with_the_time_the_others_waited() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, world) = world(&mut source, &scene, 3);
    let began = Instant::now();
    for _ in 0..5 {
        // Each rank calls after the previous one has returned.
        for rank in &mut ranks {
            rank.order("call 1 ncclAllReduce world 262144 9");
        }
    }
    let most = began.elapsed().as_secs_f64();
    let reported = source.read();
    let hash = format!("{world:#x}");
    for (number, rank) in ranks.iter().enumerate() {
        let facts = only(reported.members(rank.child.id()));
        assert_eq!(
            (facts.rank, facts.ranks, facts.hash.map(|hash| hash.to_string()), facts.origin),
            (u32::try_from(number).ok(), Some(3), Some(hash.clone()), Origin::UniqueId)
        );
        assert_eq!(facts.version.as_deref(), Some("2.29.7"));
        assert_eq!(reported.int("nccl.rank.sequence", rank, ""), Some(5));
        assert_eq!(reported.int("nccl.rank.lag", rank, ""), Some(0));
        assert_eq!(reported.int("nccl.arrival.compared", rank, ""), Some(5));
        assert_eq!(reported.int("nccl.arrival.mismatches", rank, ""), Some(0));
        assert_eq!(reported.int("nccl.collective.calls", rank, "all_reduce lt_1MiB"), Some(5));
        assert_eq!(
            reported.int("nccl.collective.bytes", rank, "all_reduce lt_1MiB"),
            Some(5 * 524_288)
        );
        let enqueue = "nccl.collective.enqueue.duration";
        assert_eq!(reported.histogram(enqueue, rank, "all_reduce lt_1MiB").unwrap().count(), 5);
        let spread = reported.histogram("nccl.arrival.spread", rank, "").unwrap();
        assert_eq!(spread.count(), if number == 2 { 5 } else { 0 }, "{spread:?}");
        assert!(spread.sum < most, "{spread:?}");
        assert_eq!(reported.state(rank), Some("running"));
    }
    let Some(Value::Double(first)) = reported.of("nccl.arrival.skew", &ranks[0], "") else {
        panic!("no lateness")
    };
    assert!(first.abs() < f64::EPSILON);
    // The CPU time of finding and attaching is a separate series of the agent's metrics.
    let watched = source.board.all().remove("nccl:watch").and_then(|of| of.cpu_seconds);
    assert!(watched.is_some_and(|seconds| seconds > 0.0), "{watched:?}");
    // Nothing is compared twice.
    let again = source.read();
    assert_eq!(again.int("nccl.arrival.compared", &ranks[2], ""), Some(5));
}

#[test]
fn a_rank_that_hangs_in_a_call_is_reported_while_it_hangs_and_leaves_nothing_when_it_is_killed() {
    let hang_after = Duration::from_millis(200);
    let Some(mut source) = Source::start(hang_after, 1_000_000) else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 2);
    for rank in &mut ranks {
        rank.order("call 3 ncclAllReduce world 1024 7");
    }
    ranks[1].order("hang");
    ranks[1].begin("call 1 ncclAllReduce world 1024 7");
    let end = Instant::now() + DEADLINE;
    let reported = loop {
        assert!(Instant::now() < end, "the open call is not told");
        let reported = source.read();
        // The first reading in which the call is old enough reports it.
        match reported.of("nccl.rank.open_call.age", &ranks[1], "") {
            Some(Value::Double(age)) if age >= hang_after.as_secs_f64() => break reported,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert_eq!(reported.state(&ranks[1]), Some("hung"));
    assert_eq!(reported.int("nccl.rank.hangs", &ranks[1], ""), Some(1));
    assert_eq!(reported.int("nccl.rank.sequence", &ranks[1], ""), Some(4));
    // The other rank is one behind, and quiet as long: from the node it looks stuck as well.
    assert_eq!(reported.int("nccl.rank.lag", &ranks[0], ""), Some(1));
    assert_eq!(source.read().int("nccl.rank.hangs", &ranks[1], ""), Some(1));
    ranks.clear();
    source.read();
    assert_eq!(source.entries(), [0, 0, 0]);
}

#[test]
fn a_rank_that_stays_behind_its_peers_is_hung_and_they_wait() {
    let hang_after = Duration::from_millis(500);
    let Some(mut source) = Source::start(hang_after, 1_000_000) else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 2);
    for rank in &mut ranks {
        rank.order("call 2 ncclAllReduce world 1024 7");
    }
    let end = Instant::now() + DEADLINE;
    loop {
        assert!(Instant::now() < end, "the rank behind is not told");
        ranks[0].order("call 1 ncclAllReduce world 1024 7");
        let reported = source.read();
        let quiet = reported.of("nccl.rank.idle.duration", &ranks[1], "");
        if matches!(quiet, Some(Value::Double(quiet)) if quiet >= hang_after.as_secs_f64()) {
            assert_eq!(
                (reported.state(&ranks[0]), reported.state(&ranks[1])),
                (Some("waiting"), Some("hung"))
            );
            break;
        }
    }
    // Both have called within that time, once the machine lets them.
    let end = Instant::now() + DEADLINE;
    loop {
        for rank in &mut ranks {
            rank.order("call 1 ncclAllReduce world 1024 7");
        }
        let reported = source.read();
        let states = [reported.state(&ranks[0]), reported.state(&ranks[1])];
        if states == [Some("running"); 2] {
            break;
        }
        assert!(Instant::now() < end, "{states:?}");
    }
}

#[test]
fn a_rank_that_waits_for_others_to_make_a_communicator_is_reported() {
    let Some(mut source) = Source::start(Duration::from_millis(50), 1_000_000) else { return };
    let scene = Scene::new();
    let mut rank = Rank::with(&scene.library());
    source.hold(rank.process());
    source.until_ready(1);
    let id = rank.order("id");
    assert_eq!(
        source.read().all("nccl.unique_ids.unused").into_values().next(),
        Some(Value::Int(1))
    );
    rank.order("hang");
    rank.begin(&format!("init world 4 3 {id}"));
    source.until("the open birth", |source| source.read().state(&rank) == Some("hung"));
    let facts = only(source.read().members(rank.child.id()));
    assert_eq!(
        (facts.rank, facts.ranks, facts.hash.map(|hash| hash.0)),
        (Some(3), Some(4), Some(hash(&id)))
    );
}

#[test]
fn split_shrink_and_destroy_are_followed() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, world) = world(&mut source, &scene, 4);
    for (number, rank) in ranks.iter_mut().enumerate() {
        // Even and odd ranks, in the opposite order.
        let (color, key) = (number % 2, 10 - number);
        assert_eq!(rank.order(&format!("split world {color} {key} half")), "0");
        rank.order("call 2 ncclReduceScatter half 100 0");
    }
    let children = |reported: &MemberSamples, rank: &Rank| {
        let mut of = reported.members(rank.child.id());
        of.retain(|facts| facts.origin != Origin::UniqueId);
        of.into_iter()
            .map(|f| (f.hash.unwrap().0, f.rank, f.ranks, f.parent.unwrap().0))
            .collect::<Vec<_>>()
    };
    let reported = source.read();
    for (number, rank) in ranks.iter().enumerate() {
        let color = u32::try_from(number % 2).unwrap();
        let place = u32::try_from(1 - number / 2).unwrap();
        let child = Hash::of_child(world, 1, color);
        assert_eq!(children(&reported, rank), vec![(child, Some(place), Some(2), world)]);
    }
    // From now on the size of the halves is known, and so is that of a scattered message.
    for rank in &mut ranks {
        rank.order("call 3 ncclReduceScatter half 100 0");
        assert_eq!(rank.order("destroy half"), "0");
    }
    let last = source.read();
    assert_eq!(last.int("nccl.collective.bytes", &ranks[0], "reduce_scatter lt_4KiB"), Some(600));
    assert_eq!(last.int("nccl.collective.calls", &ranks[0], "reduce_scatter unknown"), Some(2));
    assert_eq!(source.entries()[0], 4);
    assert!(children(&source.read(), &ranks[0]).is_empty());
    ranks[3].order("shrink world small 1");
    ranks[0].order("shrink world small 1");
    let reported = source.read();
    let small = Hash::of_child(world, 0, 0);
    assert_eq!(children(&reported, &ranks[3]), vec![(small, Some(2), Some(3), world)]);
    assert_eq!(children(&reported, &ranks[0]), vec![(small, Some(0), Some(3), world)]);
}

#[test]
fn a_library_under_another_name_that_is_loaded_late_is_probed_and_released() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let mut rank = Rank::idle();
    source.hold(rank.process());
    source.until("looked at", |source| !source.nccl.shared.with(|known| known.rounds == 0));
    assert_eq!(source.nccl.report().state, SourceState::Absent);
    // As a copy inside a framework's library.
    let other = scene.folder.path().join("libtorch_cuda.so");
    std::fs::rename(scene.library(), &other).unwrap();
    rank.order(&format!("load {}", other.display()));
    source.until_ready(1);
    // The file may be removed; the mapping stays.
    std::fs::remove_file(&other).unwrap();
    let id = rank.order("id");
    rank.order(&format!("init world 1 0 {id} config"));
    rank.order("call 2 ncclAllGather world 10 8");
    let reported = source.read();
    assert_eq!(reported.int("nccl.collective.bytes", &rank, "all_gather lt_4KiB"), Some(160));
    assert_eq!(reported.all("nccl.libraries").into_values().next(), Some(Value::Int(1)));
    drop(rank);
    source.waker.wake();
    source.until("let go", |source| source.nccl.shared.with(|known| known.files == 0));
    assert_eq!(source.nccl.report().state, SourceState::Absent);
    source.read();
    assert_eq!(source.entries(), [0, 0, 0]);
}

#[test]
fn a_library_that_is_linked_into_a_program_is_followed() {
    let Some(mut source) = Source::default() else { return };
    let mut rank = Rank::run(&mut Command::new(built("nccl-static")));
    let id = rank.order("id");
    source.hold(rank.process());
    source.until_ready(1);
    assert_eq!(rank.order(&format!("init world 1 0 {id}")), "0");
    assert_eq!(rank.order("call 4 ncclAllReduce world 1024 7"), "0");
    let reported = source.read();
    let facts = only(reported.members(rank.child.id()));
    assert_eq!((facts.rank, facts.ranks), (Some(0), Some(1)));
    assert_eq!(facts.hash.map(|found| found.0), Some(hash(&id)));
    assert_eq!(facts.library.as_deref(), built("nccl-static").to_str());
    assert_eq!(reported.int("nccl.collective.calls", &rank, "all_reduce lt_64KiB"), Some(4));
}

#[test]
fn a_library_that_only_a_container_sees_is_followed() {
    let Some(mut source) = Source::default() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs none \"$0\" && cp \"$1\" \"$0/libnccl.so.2\" && exec \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.arg(folder.path()).arg(built("libnccl.so")).arg(built("nccl-rank"));
    let mut rank = Rank::run(&mut command);
    let library = folder.path().join("libnccl.so.2");
    assert_eq!(rank.order(&format!("load {}", library.display())), "ok");
    assert!(!library.exists(), "seen outside its mounts");
    source.hold(rank.process());
    source.until_ready(1);
    let id = rank.order("id");
    rank.order(&format!("init world 2 1 {id} scalable"));
    rank.order("call 3 ncclSend world 5 4");
    let reported = source.read();
    let facts = only(reported.members(rank.child.id()));
    assert_eq!((facts.rank, facts.ranks), (Some(1), Some(2)));
    assert_eq!(facts.library.as_deref(), library.to_str());
    assert_eq!(reported.int("nccl.collective.bytes", &rank, "send lt_4KiB"), Some(120));
    // Sending is not a collective.
    assert_eq!(reported.int("nccl.rank.sequence", &rank, ""), Some(0));
}

/// A rank as containers of one image have it: the same layer under its own mount.
fn contained(merged: &Path, below: &Path) -> Rank {
    let script = "mount -t tmpfs none \"$0\" && mkdir \"$0/up\" \"$0/work\" \"$0/merged\" && \
                  mount -t overlay -o lowerdir=\"$1\",upperdir=\"$0/up\",workdir=\"$0/work\" \
                  none \"$0/merged\" && exec \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    Rank::run(command.args([merged, below, &built("nccl-rank")]))
}

#[test]
fn a_file_under_two_overlay_mounts_is_probed_once() {
    let Some(mut source) = Source::default() else { return };
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("below");
    let merged = folder.path().join("merged");
    std::fs::create_dir(&below).unwrap();
    std::fs::create_dir(&merged).unwrap();
    std::fs::copy(built("libnccl.so"), below.join("libnccl.so.2")).unwrap();
    let mut ranks: Vec<Rank> = (0..2).map(|_| contained(&merged, &below)).collect();
    let library = merged.join("merged/libnccl.so.2");
    for rank in &mut ranks {
        rank.begin(&format!("load {}", library.display()));
        let mut answer = String::new();
        rank.answers.read_line(&mut answer).unwrap();
        if answer.trim_end() != "ok" {
            println!("skipped: needs overlay mounts");
            return;
        }
        source.hold(rank.process());
    }
    // And one that maps the layer itself.
    ranks.push(Rank::with(&below.join("libnccl.so.2")));
    source.hold(ranks[2].process());
    source.until("all looked at", |source| {
        source.nccl.shared.with(|known| known.libraries.len()) == 3
    });
    source.until_ready(1);
    let id = ranks[0].order("id");
    let hits = |source: &mut Source| {
        source.until("looked again", |source| source.nccl.shared.with(|known| known.budget != 0));
        source.nccl.shared.with(|known| known.counts[HIT_ENTRY as usize])
    };
    let before = hits(&mut source);
    for (number, rank) in ranks.iter_mut().enumerate() {
        assert_eq!(rank.order(&format!("init world 3 {number} {id}")), "0");
        assert_eq!(rank.order("group 5 ncclAllReduce world 10 7"), "0");
    }
    let reported = source.read();
    for rank in &ranks {
        assert_eq!(reported.int("nccl.rank.sequence", rank, ""), Some(5));
    }
    // One hit a call, and one each for creation, start and end of the group.
    source.until("counted", |source| hits(source) >= before + 3 * 8);
    assert!(hits(&mut source) <= before + 3 * 8 + 1, "{before}: {}", hits(&mut source));
    // The end of the first process does not affect the probes for the others.
    ranks.remove(0);
    source.waker.wake();
    source.until("let go", |source| {
        source.nccl.shared.with(|known| known.libraries.len() == 2 && known.detaching == 0)
    });
    for rank in &mut ranks {
        assert_eq!(rank.order("call 2 ncclAllReduce world 10 7"), "0");
    }
    let reported = source.read();
    for rank in &ranks {
        assert_eq!(reported.int("nccl.rank.sequence", rank, ""), Some(7));
    }
}

/// Device and inode of a mapped file: in the list of mappings, and of the file itself.
fn identities(process: ProcKey, path: &Path) -> [(u32, u32, u64); 2] {
    use std::os::unix::fs::MetadataExt as _;
    let folder = format!("/proc/{}", process.pid);
    let maps = std::fs::read_to_string(format!("{folder}/maps")).unwrap();
    let is_it = |line: &&str| line.ends_with(path.to_str().unwrap());
    let fields: Vec<&str> = maps.lines().find(is_it).unwrap().split_ascii_whitespace().collect();
    let (major, minor) = fields[3].split_once(':').unwrap();
    let hex = |text| u32::from_str_radix(text, 16).unwrap();
    let found = std::fs::metadata(format!("{folder}/map_files/{}", fields[0])).unwrap();
    let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    [(hex(major), hex(minor), fields[4].parse().unwrap()), (device.0, device.1, found.ino())]
}

#[test]
fn libraries_on_an_overlay_over_two_file_systems_are_probed_each() {
    let Some(mut source) = Source::default() else { return };
    let folder = tempfile::tempdir().unwrap();
    // The first file of each layer: both have the same inode number there.
    let script = "mount -t tmpfs none \"$0\" && cd \"$0\" && mkdir one two merged && \
                  mount -t tmpfs one one && mount -t tmpfs two two && \
                  cp \"$1\" one/first.so && cp \"$1\" two/second.so && \
                  mount -t overlay -o lowerdir=one:two,xino=off none merged && exec \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.arg(folder.path()).arg(built("libnccl.so")).arg(built("nccl-rank"));
    let mut rank = Rank::run(&mut command);
    let libraries = ["first", "second"]
        .map(|name| (name, folder.path().join("merged").join(name).with_extension("so")));
    for (name, library) in &libraries {
        rank.begin(&format!("load {}", library.display()));
        let mut answer = String::new();
        rank.answers.read_line(&mut answer).unwrap();
        if answer.trim_end() != "ok" {
            println!("skipped: needs overlay mounts");
            return;
        }
        let [shown, opened] = identities(rank.process(), library);
        println!("{name}: {shown:?} in the list of mappings, {opened:?} opened");
        assert_ne!(shown, opened);
    }
    source.hold(rank.process());
    source.until_ready(2);
    for (name, library) in &libraries {
        assert_eq!(rank.order(&format!("load {}", library.display())), "ok");
        let id = rank.order("id");
        assert_eq!(rank.order(&format!("init {name} 1 0 {id}")), "0");
        assert_eq!(rank.order(&format!("call 3 ncclAllReduce {name} 10 7")), "0");
        let reported = source.read();
        let hash = format!("{:#x}", hash(&id));
        let calls = reported.all("nccl.collective.calls");
        let key = (rank.child.id(), hash.clone(), "all_reduce lt_4KiB".to_owned());
        assert_eq!(calls.get(&key), Some(&Value::Int(3)), "{name}");
        let mut mine = reported.members(rank.child.id());
        mine.retain(|facts| facts.hash.is_some_and(|found| found.to_string() == hash));
        assert_eq!(only(mine).library.as_deref(), library.to_str());
    }
}

#[test]
fn communicators_of_one_process_have_the_hash_of_the_id_that_was_made_inside() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let mut rank = Rank::with(&scene.library());
    source.hold(rank.process());
    source.until_ready(1);
    assert_eq!(rank.order("all one 2"), "0");
    let made = hash(&rank.order("own-id"));
    let mut members: Vec<_> = source
        .read()
        .members(rank.child.id())
        .iter()
        .map(|facts| (facts.rank, facts.ranks, facts.hash.unwrap().0, facts.origin, facts.parent))
        .collect();
    members.sort_unstable_by_key(|member| member.0);
    let of = |rank| (Some(rank), Some(2), made, Origin::InitAll, None);
    assert_eq!(members, [of(0), of(1)]);
    // The id was used, so no other member is awaited.
    assert_eq!(
        source.read().all("nccl.unique_ids.unused").into_values().next(),
        Some(Value::Int(0))
    );
}

#[test]
fn hostile_arguments_are_counted_as_unsized_and_harm_nothing() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    let rank = &mut ranks[0];
    rank.order("call 1 ncclAllReduce world 0xffffffffffffffff 8");
    rank.order("call 1 ncclAllReduce world 16 77");
    rank.order("call 1 ncclAllReduce world 0x10000000000 8");
    // Handles that never existed, one of them unreadable, and NULL.
    let none = rank.order("call 4 ncclAllReduce - 16 7");
    assert_eq!(none, "4");
    // Zero bytes instead of the magic number.
    rank.order("call 3 ncclReduce - 16 7");
    let reported = source.read();
    let all = reported.all("nccl.collective.calls");
    let calls = |hash_known: bool, dims: &str| {
        let mut of =
            all.iter().filter(|((_, hash, d), _)| (hash != "-") == hash_known && d == dims);
        of.next().map(|(_, value)| value.clone())
    };
    assert_eq!(calls(true, "all_reduce unknown"), Some(Value::Int(2)));
    assert_eq!(calls(true, "all_reduce ge_4GiB"), Some(Value::Int(1)));
    assert_eq!(calls(false, "all_reduce lt_4KiB"), Some(Value::Int(4)));
    assert_eq!(calls(false, "reduce lt_4KiB"), Some(Value::Int(3)));
    // Refused handles are removed, and their counts stay.
    assert_eq!(source.entries()[0], 1);
    rank.order("call 2 ncclAllReduce - 16 7");
    let again = source.read().all("nccl.collective.calls");
    let of = again.iter().find(|((_, hash, d), _)| hash == "-" && d == "all_reduce lt_4KiB");
    assert_eq!(of.map(|(_, value)| value.clone()), Some(Value::Int(6)));
}

/// Calls with registers that no program has, each by a process that may crash from it.
#[test]
fn wild_registers_kill_their_own_process_and_leave_nothing() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    ranks[0].order("call 3 ncclAllReduce world 16 7");
    let (most, kernel, hole) = ("0xffffffffffffffff", "0xffff888000000000", "0xdead0000");
    let wild = [
        format!("ncclAllReduce {most} {most} {most} {most} {most} {hole}"),
        format!("ncclAllGather 0 0 {most} 8 {kernel}"),
        format!("ncclSend 0 {most} {most} {most} {kernel} {most}"),
        format!("ncclCommInitRankScalable {hole} 2 1 1 {kernel} {most}"),
        format!("ncclCommInitRankScalable {hole} {most} {most} {most} {hole} {most}"),
        format!("ncclCommSplit {hole} {most} {most} {hole} {most}"),
        format!("ncclCommShrink {kernel} {hole} 0x7fffffff {kernel}"),
        format!("ncclCommGrow 0 2 {hole} 1 {kernel}"),
        format!("ncclCommInitAll {kernel} 0x7fffffff {most}"),
        format!("ncclGetUniqueId {kernel}"),
        format!("ncclCommGetAsyncError {hole} {kernel}"),
        format!("ncclCommDestroy {most}"),
    ];
    for order in &wild {
        let mut rank = Rank::with(&scene.library());
        source.hold(rank.process());
        rank.begin(&format!("wild {order}"));
        // It answers, or it ends.
        let mut answer = String::new();
        rank.answers.read_line(&mut answer).unwrap();
        assert!(!answer.starts_with("refused"), "{order}: {answer}");
    }
    // Their last counts, once.
    source.read();
    let reported = source.read();
    assert_eq!(reported.int("nccl.rank.sequence", &ranks[0], ""), Some(3));
    let pids: Vec<u32> =
        reported.all("nccl.communicator.info").into_keys().map(|key| key.0).collect();
    assert_eq!(pids, [ranks[0].child.id()], "nobody else is a rank");
    assert_eq!(source.entries(), [1, 1, 1]);
    assert_eq!(ranks[0].order("call 1 ncclAllReduce world 16 7"), "0");
    assert_eq!(source.read().int("nccl.rank.sequence", &ranks[0], ""), Some(4));
}

#[test]
fn an_owner_of_ten_thousand_communicators_gets_half_of_the_entries_until_its_process_ends() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    let many = 10_000;
    assert_eq!(ranks[0].order(&format!("all many {many}")), "0");
    let id = ranks[0].order("id");
    for number in 0..many {
        ranks[0].order(&format!("init c{number} 1 0 {id}"));
    }
    let share = ROOM[PLACE_COMMUNICATOR] / 2;
    let lost = vec![
        (DropReason::CommunicatorsFull, 33 + many - share),
        (DropReason::OperationsFull, 0),
        (DropReason::ThreadsFull, 0),
    ];
    source.until("losses counted", |source| source.nccl.report().dropped == lost);
    let reported = source.read();
    let share = usize::try_from(share).unwrap();
    assert_eq!(source.entries()[0], share);
    assert_eq!(reported.members(ranks[0].child.id()).len(), share);
    let report = source.nccl.report();
    assert_eq!(report.state, SourceState::Degraded);
    let refused = "uses all map entries that it may: refused";
    assert!(report.reason.contains(refused), "{report:?}");
    drop(ranks);
    source.read();
    assert_eq!(source.entries(), [0, 0, 0]);
    source.read();
    assert!(!source.nccl.report().reason.contains(refused));
    // All of it is free again.
    let mut rank = Rank::with(&scene.library());
    let process = rank.process();
    source.hold(process);
    source.until("found", |source| {
        source.nccl.shared.with(|known| known.libraries.contains_key(&process))
    });
    let id = rank.order("id");
    for number in 0..100 {
        rank.order(&format!("init again{number} 1 0 {id}"));
    }
    source.until("known", |source| source.read().members(rank.child.id()).len() == 100);
}

#[test]
fn a_group_is_timed_once_at_its_end() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    let rank = &mut ranks[0];
    rank.order("group 8 ncclSend world 1000 7");
    rank.order("group 8 ncclRecv world 1000 7");
    rank.order("call 1 ncclRecv world 1000 7");
    let reported = source.read();
    let enqueue = "nccl.collective.enqueue.duration";
    assert_eq!(reported.int("nccl.collective.calls", rank, "send lt_4KiB"), Some(8));
    assert_eq!(reported.histogram(enqueue, rank, "send lt_4KiB").unwrap().count(), 1);
    assert_eq!(reported.int("nccl.collective.calls", rank, "recv lt_4KiB"), Some(9));
    assert_eq!(reported.histogram(enqueue, rank, "recv lt_4KiB").unwrap().count(), 2);
    assert_eq!(reported.of("nccl.rank.open_call.age", rank, ""), None);
}

#[test]
fn errors_are_counted_and_the_asynchronous_one_is_exported() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    let rank = &mut ranks[0];
    rank.order("fail 3");
    assert_eq!(rank.order("call 1 ncclAllReduce world 16 7"), "3");
    // "In progress" is not a failure.
    rank.order("fail 7");
    assert_eq!(rank.order("call 1 ncclAllReduce world 16 7"), "7");
    rank.order("break world 6");
    assert_eq!(rank.order("error world"), "0 6");
    let reported = source.read();
    assert_eq!(reported.int("nccl.call.errors", rank, ""), Some(1));
    assert_eq!(reported.int("nccl.communicator.async_error", rank, ""), Some(6));
    assert_eq!(rank.order("abort world"), "0");
    let last = source.read();
    assert_eq!(last.int("nccl.rank.sequence", rank, ""), Some(2));
    assert_eq!(source.read().members(rank.child.id()), Vec::new());
}

#[test]
fn above_the_budget_returns_then_calls_are_given_up_and_reported() {
    use ProbeLevel::{Detached, Entries, Full};
    let Some(mut source) = Source::start(Duration::from_mins(1), 1_000) else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    let (mut steps, end) = (Vec::new(), Instant::now() + DEADLINE);
    while !steps.iter().any(|(_, level)| *level == Detached) {
        assert!(Instant::now() < end, "{steps:?}");
        ranks[0].order("call 2000 ncclAllReduce world 16 7");
        steps.extend(level_changes(&source));
    }
    assert_eq!(steps[0], (Full, Entries), "{steps:?}");
    assert_eq!(steps[1], (Entries, Detached), "{steps:?}");
    source.until("said", |source| {
        let report = source.nccl.report();
        let why = "more than 1000 hits a second and process: calls are not counted";
        report.state == SourceState::Degraded && report.reason.starts_with(why)
    });
    let reported = source.read();
    let levels = reported.all("nccl.probe.level.status");
    let is = |level: ProbeLevel| levels[&(0, "-".into(), level.as_str().to_owned())].clone();
    assert_eq!((is(Full), is(Entries)), (Value::Int(0), Value::Int(0)));
    let Value::Double(covered) =
        reported.all("nccl.probe.coverage")[&(0, "-".into(), "return".into())]
    else {
        panic!("no coverage")
    };
    assert!(covered < 1.0, "{covered}");
}

/// The level changes since the last call: from and to.
fn level_changes(source: &Source) -> Vec<(ProbeLevel, ProbeLevel)> {
    let events = source.aggregator.drain().into_iter().filter_map(|event| event.what.decision);
    events.map(|decision| (decision.before, decision.level)).collect()
}

/// Calls until the budget has reached a level.
fn until_level(source: &mut Source, ranks: &mut [Rank], load: &str, wanted: ProbeLevel) {
    let end = Instant::now() + DEADLINE;
    loop {
        let level = source.nccl.shared.with(|known| known.level);
        if level == wanted {
            return;
        }
        assert!(Instant::now() < end, "{wanted:?} does not come: {level:?}");
        for rank in ranks.iter_mut() {
            rank.begin(load);
        }
        for rank in ranks.iter_mut() {
            rank.answer();
        }
    }
}

/// All ranks call without a pause; returns the minimum CPU nanoseconds of a call.
fn storm(ranks: &mut [Rank], ms: u32) -> u64 {
    for rank in ranks.iter_mut() {
        rank.begin(&format!("storm {ms} ncclAllReduce world 16 7"));
    }
    let answers: Vec<String> = ranks.iter_mut().map(Rank::answer).collect();
    let ns = answers.iter().map(|answer| answer.split_once(' ').unwrap().1.parse().unwrap());
    ns.min().unwrap()
}

#[test]
fn eight_busy_ranks_are_detached_and_counted_again_when_calm() {
    use ProbeLevel::{Detached, Entries, Full};
    let recovery = RecoveryTiming { rest: Duration::from_secs(3), calm_looks: 2 };
    let Some(mut source) = Source::patient(Duration::from_mins(1), 500, recovery) else {
        return;
    };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 8);
    source.read();
    // Too short for more than one reading.
    let probed_ns = storm(&mut ranks, 20);
    let storming = "storm 200 ncclAllReduce world 16 7";
    until_level(&mut source, &mut ranks, storming, Detached);
    let end = Instant::now() + DEADLINE;
    loop {
        let ns = storm(&mut ranks, 200);
        println!("{ns} ns a call, with probes {probed_ns}");
        if ns < probed_ns / 2 {
            break;
        }
        assert!(Instant::now() < end, "a call is {ns} ns, with probes {probed_ns}");
    }
    let reported = source.read();
    let Value::Double(covered) =
        reported.all("nccl.probe.coverage")[&(0, "-".into(), "entry".into())]
    else {
        panic!("no coverage")
    };
    assert!(covered < 1.0, "{covered}");
    until_level(&mut source, &mut ranks, "pace 20 50 ncclAllReduce world 16 7", Full);
    let steps = level_changes(&source);
    // Each starts where the previous one ended.
    assert!(steps.windows(2).all(|pair| pair[0].1 == pair[1].0), "{steps:?}");
    assert_eq!(steps.first(), Some(&(Full, Entries)), "{steps:?}");
    assert_eq!(steps.last(), Some(&(Entries, Full)), "{steps:?}");
    assert!(steps.contains(&(Detached, Entries)), "{steps:?}");
    source.until("all is counted", |source| source.nccl.report().state == SourceState::Ready);
}

#[test]
fn the_real_library_is_read_without_a_device() {
    let Some(library) = std::env::var_os("GPUWHO_TEST_NCCL").map(PathBuf::from) else {
        println!("skipped: needs the real NCCL (cargo xtask setup nccl), in GPUWHO_TEST_NCCL");
        return;
    };
    let Some(mut source) = Source::start(Duration::from_mins(1), 1_000_000) else { return };
    let mut rank = Rank::with(&library);
    source.hold(rank.process());
    source.until_ready(1);
    let id = rank.order("id");
    let unused = source.nccl.shared.with(|known| known.maps.take()).unwrap();
    let ids: Vec<u64> = unused.unique_ids().unwrap().iter().map(|(hash, _)| *hash).collect();
    assert_eq!(ids, vec![hash(&id)]);
    source.nccl.shared.with(|known| known.maps = Some(unused));
    // Refused, because there is no device: 1 is a CUDA error, 4 an invalid argument.
    assert_ne!(rank.order(&format!("init world 2 1 {id}")), "0");
    assert_eq!(rank.order("call 3 ncclAllReduce - 4096 7"), "4");
    assert_eq!(rank.order("call 2 ncclBcast - 10 1"), "4");
    assert_eq!(rank.order("call 1 ncclReduceScatter - 10 1"), "4");
    let reported = source.read();
    let facts = only(reported.members(rank.child.id()));
    assert_eq!((facts.hash, facts.rank, facts.origin), (None, None, Origin::Unknown));
    let (path, version) = (facts.library.as_deref(), facts.version.as_deref().unwrap());
    assert_eq!(path, library.canonicalize().unwrap().to_str());
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
    assert!(numbers.len() == 3 && numbers[0] == 2, "{version}");
    let calls = "nccl.collective.calls";
    assert_eq!(reported.int(calls, &rank, "all_reduce lt_64KiB"), Some(3));
    assert_eq!(reported.int(calls, &rank, "broadcast lt_4KiB"), Some(2));
    assert_eq!(reported.int(calls, &rank, "reduce_scatter unknown"), Some(1));
    assert_eq!(reported.int("nccl.collective.bytes", &rank, "all_reduce lt_64KiB"), Some(49_152));
    assert_eq!(reported.int("nccl.call.errors", &rank, ""), Some(6));
}

#[test]
fn communicators_from_before_the_agent_have_their_rank_from_their_processs_memory() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let mut ranks: Vec<Rank> = (0..2).map(|_| Rank::with(&scene.library())).collect();
    let id = ranks[0].order("id");
    for (number, rank) in ranks.iter_mut().enumerate() {
        assert_eq!(rank.order(&format!("init world 2 {number} {id}")), "0");
        assert_eq!(rank.order(&format!("split world 5 {number} half")), "0");
        assert_eq!(rank.order("call 7 ncclAllReduce world 1024 7"), "0");
    }
    for rank in &ranks {
        source.hold(rank.process());
    }
    source.until_ready(1);
    source.until("both were looked at", |source| {
        source.nccl.shared.with(|known| known.fields.len() == ranks.len())
    });
    for rank in &mut ranks {
        assert_eq!(rank.order("call 3 ncclAllReduce world 1024 7"), "0");
        assert_eq!(rank.order("call 2 ncclBroadcast half 1024 7"), "0");
    }
    let reported = source.read();
    let world = format!("{:#x}", hash(&id));
    let half = format!("{:#x}", Hash::of_child(hash(&id), 1, 5));
    for (number, rank) in ranks.iter().enumerate() {
        let members = reported.members(rank.child.id());
        let mut members: Vec<_> = members
            .iter()
            .map(|facts| {
                let hash = facts.hash.map(|hash| hash.to_string()).unwrap_or_default();
                (hash, facts.rank, facts.ranks, facts.device, facts.known_by)
            })
            .collect();
        let place = u32::try_from(number).ok();
        let known = |hash: &String| (hash.clone(), place, Some(2), place, KnownBy::Memory);
        let mut wanted = vec![known(&world), known(&half)];
        members.sort_by(|one, other| one.0.cmp(&other.0));
        wanted.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(members, wanted);
        // How many there were before is unknown.
        assert_eq!(reported.int("nccl.rank.sequence", rank, ""), None);
        let calls = reported.all("nccl.collective.calls");
        let of = |hash: &String, what: &str| {
            calls.get(&(rank.child.id(), hash.clone(), what.to_owned())).cloned()
        };
        assert_eq!(of(&world, "all_reduce lt_64KiB"), Some(Value::Int(3)));
        assert_eq!(of(&half, "broadcast lt_64KiB"), Some(Value::Int(2)));
    }
    let known = reported.all("nccl.communicators");
    let by = |what: &str| known.get(&(0, "-".to_owned(), what.to_owned())).cloned();
    assert_eq!((by("memory"), by("unknown")), (Some(Value::Int(4)), Some(Value::Int(0))));
    // New communicators are identified at their creation, next to the old ones.
    assert_eq!(ranks[0].order("split world 9 0 later"), "0");
    assert_eq!(ranks[0].order("call 1 ncclAllReduce later 1024 7"), "0");
    let reported = source.read();
    assert_eq!(reported.members(ranks[0].child.id()).len(), 3);
}

mod paced;

mod budgets;

mod several;

mod shares;

mod names;

#[test]
fn growing_keeps_ranks_and_adds_the_requested_ones() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, world) = world(&mut source, &scene, 2);
    ranks.push(Rank::with(&scene.library()));
    source.hold(ranks[2].process());
    source.until("all looked at", |source| {
        source.nccl.shared.with(|known| known.libraries.len()) == 3
    });
    // The first growth: its id starts with a hash of the parent's and of the number of the child.
    let id = ranks[0].order("grow-id world");
    let base = first_word(&id);
    source.read();
    // An existing member has a rank already, and may not request a smaller size.
    assert_eq!(ranks[0].order("grow world none 2"), "4");
    for rank in &mut ranks[..2] {
        assert_eq!(rank.order("grow world large 3"), "0");
    }
    assert_eq!(ranks[2].order(&format!("join large 3 2 {id}")), "0");
    // The arguments and the parent identify it, before any memory is read.
    let seen = source.nccl.maps.as_ref().unwrap().read().unwrap();
    for (number, rank) in (0..).zip(&ranks) {
        let mut grown = of_pid(&seen, rank.child.id());
        grown.retain(|(_, communicator)| communicator.identity.origin == GROWN);
        let (_, communicator) = only(grown);
        assert_eq!((communicator.identity.rank, communicator.identity.ranks), (number, 3));
    }
    for rank in &mut ranks {
        assert_eq!(rank.order("call 2 ncclAllGather large 100 7"), "0");
    }
    let reported = source.read();
    let hash = Hash::START.item(8).word(base).item(8).word(3).digest();
    for (number, rank) in ranks.iter().enumerate() {
        let mut grown = reported.members(rank.child.id());
        grown.retain(|facts| facts.origin == Origin::Grow);
        let facts = only(grown);
        let parent = (number < 2).then_some(world);
        assert_eq!(
            (facts.rank, facts.ranks, facts.hash.map(|hash| hash.0), facts.parent.map(|p| p.0)),
            (u32::try_from(number).ok(), Some(3), Some(hash), parent)
        );
        let of = reported.all("nccl.collective.bytes");
        let key = (rank.child.id(), format!("{hash:#x}"), "all_gather lt_4KiB".to_owned());
        assert_eq!(of.get(&key), Some(&Value::Int(2 * 3 * 400)));
    }
}

/// The first word of a unique id.
fn first_word(id: &str) -> u64 {
    u64::from_str_radix(&id[..16], 16).unwrap().swap_bytes()
}

#[test]
fn calls_with_a_configuration_are_the_same_operations_counted_once() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 2);
    // Ten floats, and whether they are one rank's part of two.
    let operations = [
        ("AllReduce", "all_reduce", 40),
        ("AllGather", "all_gather", 80),
        ("ReduceScatter", "reduce_scatter", 80),
        ("Broadcast", "broadcast", 40),
        ("Reduce", "reduce", 40),
        ("AlltoAll", "all_to_all", 80),
        ("Gather", "gather", 80),
        ("Scatter", "scatter", 80),
    ];
    let rank = &mut ranks[0];
    for (name, _, _) in operations {
        assert_eq!(rank.order(&format!("call 2 nccl{name} world 10 7")), "0");
        assert_eq!(rank.order(&format!("call 3 nccl{name}Config world 10 7")), "0");
    }
    let reported = source.read();
    for (name, operation, bytes) in operations {
        let dims = format!("{operation} lt_4KiB");
        let of = |metric: &str| reported.int(metric, rank, &dims);
        let found = (of("nccl.collective.calls"), of("nccl.collective.bytes"));
        assert_eq!(found, (Some(5), Some(5 * bytes)), "{name}");
    }
    assert_eq!(reported.int("nccl.rank.sequence", rank, ""), Some(40));
}

#[test]
fn a_group_that_is_only_simulated_ends_as_well() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    let rank = &mut ranks[0];
    assert_eq!(rank.order("simulate 2 ncclAllReduce world 10 7"), "0");
    // Outside the group again, so each is timed.
    assert_eq!(rank.order("call 3 ncclBroadcast world 10 7"), "0");
    let reported = source.read();
    let enqueue = "nccl.collective.enqueue.duration";
    assert_eq!(reported.histogram(enqueue, rank, "broadcast lt_4KiB").unwrap().count(), 3);
}

#[test]
fn a_communicator_exists_until_it_is_destroyed_or_aborted() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    let rank = &mut ranks[0];
    let id = rank.order("id");
    assert_eq!(rank.order(&format!("init other 1 0 {id} scalable")), "0");
    for order in ["finalize world", "revoke other"] {
        assert_eq!(rank.order(order), "0");
    }
    assert_eq!(source.read().members(rank.child.id()).len(), 2);
    for (order, left) in [("destroy world", 1), ("abort other", 0)] {
        assert_eq!(rank.order(order), "0");
        source.read();
        assert_eq!(source.read().members(rank.child.id()).len(), left, "{order}");
    }
    assert_eq!(source.entries(), [0, 0, 1]);
}

#[test]
fn a_refused_file_is_retried_and_does_not_affect_others() {
    if Source::default().is_none() {
        return;
    }
    let scenes = [Scene::new(), Scene::new()];
    let ranks = scenes.each_ref().map(|scene| Rank::with(&scene.library()));
    let folder = tempfile::tempdir().unwrap();
    let paths = proc_of(&folder, &ranks, &scenes);
    let mut libraries = scanned(&paths, &ranks.each_ref().map(Rank::process));
    let stuck = Stuck::on(&folder, &scenes[0]);
    let (mut attaching, shared, now) = (Attaching::new(0), Shared::default(), Instant::now());
    attach_all(&mut attaching, &mut libraries, &shared, now);
    let why = attaching.refused().unwrap().to_owned();
    assert!(why.starts_with(scenes[0].library().to_str().unwrap()), "{why}");
    // The other one is counted.
    let present = |attaching: &Attaching, libraries: &Libraries| {
        let mut present: Vec<bool> = attaching
            .present(libraries, &Quotas::default())
            .into_values()
            .map(|one| one.entries)
            .collect();
        present.sort_unstable();
        present
    };
    assert_eq!(present(&attaching, &libraries), [false, true]);
    let due = attaching.due().unwrap();
    stuck.go_on();
    let early = due.checked_sub(Duration::from_millis(1)).unwrap();
    attach_all(&mut attaching, &mut libraries, &shared, early);
    assert_eq!(attaching.refused(), Some(why.as_str()), "too early");
    attach_all(&mut attaching, &mut libraries, &shared, due);
    assert_eq!((attaching.refused(), attaching.due()), (None, None));
    assert_eq!(present(&attaching, &libraries), [true, true]);
}

#[test]
fn probes_blocked_by_a_stuck_process_are_detached_later_with_backoff() {
    if Source::default().is_none() {
        return;
    }
    let scene = Scene::new();
    let rank = Rank::with(&scene.library());
    let folder = tempfile::tempdir().unwrap();
    let paths = proc_of(&folder, std::slice::from_ref(&rank), std::slice::from_ref(&scene));
    let mut libraries = scanned(&paths, &[rank.process()]);
    let stuck = Stuck::on(&folder, &scene);
    let maps = folder.path().join("99/maps");
    let mapping = std::fs::read(&maps).unwrap();
    std::fs::write(&maps, "").unwrap();
    let (mut attaching, shared, mut now) = (Attaching::new(0), Shared::default(), Instant::now());
    attach_all(&mut attaching, &mut libraries, &shared, now);
    assert_eq!((attaching.refused(), attaching.is_idle()), (None, false));
    // From now on the process maps it, and is stuck.
    std::fs::write(&maps, mapping).unwrap();
    assert!(libraries.remove(rank.process()));
    attach_all(&mut attaching, &mut libraries, &shared, now);
    let links = attaching.detaching();
    let mut waits = Vec::new();
    for _ in 0..8 {
        attaching.detach_some(&libraries, now);
        assert_eq!(attaching.detaching(), links);
        let due = attaching.detaching_due().unwrap();
        waits.push(due.duration_since(now).as_secs());
        now = due;
    }
    assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60, 60]);
    stuck.go_on();
    while attaching.detaching() > 0 {
        attaching.detach_some(&libraries, now);
    }
    assert_eq!(attaching.detaching_due(), None);
}

#[test]
fn an_overlay_without_attributes_is_probed_where_the_host_sees_its_layers() {
    if Source::default().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Files on `ramfs` have no attribute that identifies a local file system.
    let script = "mount -t tmpfs none \"$0\" && cd \"$0\" && mkdir below more merged && \
                  mount -t ramfs none below && cp \"$1\" below/libnccl.so.2 && \
                  mount -t overlay -o lowerdir=\"$0/below:$0/more\" none merged && exec \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.arg(folder.path()).arg(built("libnccl.so")).arg(built("nccl-rank"));
    let mut rank = Rank::run(&mut command);
    let library = folder.path().join("merged/libnccl.so.2");
    rank.begin(&format!("load {}", library.display()));
    let mut answer = String::new();
    rank.answers.read_line(&mut answer).unwrap();
    if answer.trim_end() != "ok" {
        println!("skipped: needs overlay mounts");
        return;
    }
    // Process 1 has other mounts: the layers are unknown.
    let mut libraries = Libraries::new(TenantFiles::direct(&Paths::default()), &Paths::default());
    libraries.scan(rank.process(), Instant::now());
    let why = libraries.problem().unwrap_or_default();
    assert!(why.contains("its file system (overlay) may never answer"), "{why}");
    assert_eq!(libraries.in_use().count(), 0);
    // And as if the process had the mounts of process 1.
    let proc_folder = tempfile::tempdir().unwrap();
    let paths = Paths { proc: proc_folder.path().to_owned(), ..Paths::default() };
    let real = format!("/proc/{}", rank.child.id());
    for name in ["1".to_owned(), rank.child.id().to_string()] {
        std::os::unix::fs::symlink(&real, paths.proc.join(name)).unwrap();
    }
    let mut libraries = scanned(&paths, &[rank.process()]);
    let (mut attaching, shared) = (Attaching::new(0), Shared::default());
    attach_all(&mut attaching, &mut libraries, &shared, Instant::now());
    assert_eq!(attaching.refused(), None);
    let maps = shared.with(|known| known.maps.take()).unwrap();
    let id = rank.order("id");
    assert_eq!(rank.order(&format!("init world 1 0 {id}")), "0");
    assert_eq!(of_pid(&maps.read().unwrap(), rank.child.id()).len(), 1);
}

/// Processes as files, each with only its library in its mappings.
fn proc_of(folder: &tempfile::TempDir, ranks: &[Rank], scenes: &[Scene]) -> Paths {
    let paths = Paths { proc: folder.path().to_owned(), ..Paths::default() };
    for (rank, scene) in ranks.iter().zip(scenes) {
        let of = folder.path().join(rank.child.id().to_string());
        std::fs::create_dir_all(of.join("map_files")).unwrap();
        let real = format!("/proc/{}", rank.child.id());
        for name in ["stat", "mountinfo"] {
            std::os::unix::fs::symlink(format!("{real}/{name}"), of.join(name)).unwrap();
        }
        let maps = std::fs::read_to_string(format!("{real}/maps")).unwrap();
        let name = scene.library().display().to_string();
        let mapped = maps.lines().find(|line| line.contains(" r-xp ") && line.ends_with(&name));
        std::fs::write(of.join("maps"), mapped.unwrap()).unwrap();
        let range = mapped.unwrap().split(' ').next().unwrap();
        let (begin, end) = range.split_once('-').unwrap();
        let number = |hex| u64::from_str_radix(hex, 16).unwrap();
        let way = format!("map_files/{:x}-{:x}", number(begin), number(end));
        std::os::unix::fs::symlink(scene.library(), of.join(way)).unwrap();
    }
    paths
}

/// A process, as files, that maps a library and waits in the kernel.
struct Stuck(PathBuf);

impl Stuck {
    fn on(folder: &tempfile::TempDir, scene: &Scene) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let of = folder.path().join("99");
        let thread = of.join("task/99");
        std::fs::create_dir_all(&thread).unwrap();
        std::fs::create_dir_all(of.join("map_files")).unwrap();
        let found = std::fs::metadata(scene.library()).unwrap();
        let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        let (path, inode) = (scene.library().display().to_string(), found.ino());
        let line =
            format!("1000-2000 r--p 00000000 {:02x}:{:02x} {inode} {path}\n", device.0, device.1);
        std::fs::write(of.join("maps"), line).unwrap();
        std::os::unix::fs::symlink(scene.library(), of.join("map_files/1000-2000")).unwrap();
        let stuck = Self(thread);
        stuck.state("D");
        std::fs::copy(stuck.0.join("stat"), of.join("stat")).unwrap();
        std::fs::write(stuck.0.join("status"), "voluntary_ctxt_switches:\t7\n").unwrap();
        stuck
    }

    fn state(&self, state: &str) {
        let stat = format!("99 (rank) {state} 1{} 1 0 7{}\n", " 0".repeat(15), " 0".repeat(30));
        std::fs::write(self.0.join("stat"), stat).unwrap();
    }

    fn go_on(&self) {
        self.state("R");
    }
}

#[test]
fn a_library_is_the_opened_file_until_it_is_unmapped() {
    use std::os::unix::fs::MetadataExt as _;
    let scene = Scene::new();
    let mut ranks = [Rank::with(&scene.library()), Rank::with(&scene.library())];
    let processes = ranks.each_ref().map(Rank::process);
    let mut libraries = scanned(&Paths::default(), &processes);
    let inode = std::fs::metadata(scene.library()).unwrap().ino();
    // Another file takes its name, and the first process unmaps it.
    std::fs::rename(scene.library(), scene.folder.path().join("was")).unwrap();
    std::fs::write(scene.library(), "another").unwrap();
    ranks[0].child.kill().unwrap();
    ranks[0].child.wait().unwrap();
    assert!(libraries.remove(processes[0]));
    let place = only(libraries.in_use()).1.place();
    assert_eq!(std::fs::metadata(&place).unwrap().ino(), inode);
    assert!(libraries.remove(processes[1]));
    assert_eq!(libraries.in_use().count(), 0);
    let is_it = std::fs::metadata(&place).is_ok_and(|found| found.ino() == inode);
    assert!(!is_it, "still open");
}

#[test]
fn probes_go_into_the_file_that_was_read_whatever_is_mapped_there_now() {
    if Source::default().is_none() {
        return;
    }
    let scenes = [Scene::new(), Scene::new()];
    let mut ranks = scenes.each_ref().map(|scene| Rank::with(&scene.library()));
    let folder = tempfile::tempdir().unwrap();
    let paths = proc_of(&folder, &ranks[..1], &scenes[..1]);
    let mut libraries = scanned(&paths, &[ranks[0].process()]);
    // At the same range, and under the same name.
    let of = folder.path().join(ranks[0].child.id().to_string());
    let way = std::fs::read_dir(of.join("map_files")).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&way).unwrap();
    std::os::unix::fs::symlink(scenes[1].library(), &way).unwrap();
    std::fs::rename(scenes[0].library(), scenes[0].folder.path().join("was")).unwrap();
    std::os::unix::fs::symlink(scenes[1].library(), scenes[0].library()).unwrap();
    let (mut attaching, shared) = (Attaching::new(0), Shared::default());
    attach_all(&mut attaching, &mut libraries, &shared, Instant::now());
    assert_eq!(attaching.refused(), None);
    let maps = shared.with(|known| known.maps.take()).unwrap();
    for rank in &mut ranks {
        let id = rank.order("id");
        assert_eq!(rank.order(&format!("init world 1 0 {id}")), "0");
        assert_eq!(rank.order("call 3 ncclAllReduce world 16 7"), "0");
    }
    let snapshot = maps.read().unwrap();
    let seen = ranks.each_ref().map(|rank| of_pid(&snapshot, rank.child.id()).len());
    assert_eq!(seen, [1, 0]);
}
