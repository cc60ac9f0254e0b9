use super::*;
use crate::ras::answer::{Communicator, LocalNames, MissingRank};
use crate::ras::json;
use gpuwho_model::ids::{CgroupId, Hierarchy};
use gpuwho_owners::attribute::fake::FakeHost;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::{Evidence, KernelCgroups, Opened};
use gpuwho_owners::communicators::{MemberFacts, MemberKey};
use gpuwho_owners::inventory::Inventory;
use gpuwho_pipeline::event::aggregator::Sources;
use gpuwho_pipeline::event::record::records;

/// Recorded: three processes of the library, the third one given up.
const ONE_DEAD_JSON: &str =
    include_str!("../../../../../../tests/fixtures/nccl-ras/libnccl-2.30.4-one-dead.json");
const WORLD: u64 = 0x1db1_4a8a_713c_2fa5;
const LARGE: u64 = 0xcf26_4af5_3edb_e986;
const SECOND: u64 = 1_000_000_000;
const NETWORK: u64 = 4_026_531_840;

fn parsed(text: &str) -> Answer {
    json::from_json(text.as_bytes(), &LocalNames::default()).unwrap()
}

/// The recorded answer, about a process with this PID.
fn one_dead() -> Answer {
    parsed(&ONE_DEAD_JSON.replace("13046", "13033"))
}

/// A process of a large job that does not answer, missing as rank 21.
fn absent(is_dead: bool) -> Answer {
    let process = Process::named("172.16.64.213", 3_487_984).unwrap();
    let rank = MissingRank { rank: 21, process: Some(process), is_unresponsive: true, is_dead };
    let communicator = Communicator {
        size: Some(32),
        absent: vec![rank],
        ..Communicator::new(CommunicatorHash(LARGE))
    };
    let lost = vec![LostProcess { process, devices: 0 }];
    let other = Process::named("172.16.64.214", 7).unwrap();
    let other = vec![LostProcess { process: other, devices: 0 }];
    let (dead, late) = if is_dead { (lost, other) } else { (Vec::new(), lost) };
    Answer { communicators: vec![communicator], dead, late, ..Answer::default() }
}

/// The state of the thread with an aggregator.
struct Rig {
    host: FakeHost,
    ownership: Ownership,
    communicators: Arc<Communicators>,
    aggregator: Arc<EventAggregator>,
    names: NcclNames,
    reported: ReportedProcesses,
    claims: u64,
}

fn key(pid: u32) -> ProcKey {
    ProcKey { pid, start_ticks: 100 }
}

impl Rig {
    fn new() -> Self {
        let host = FakeHost::new();
        let ownership = Ownership::with_clock(&host.paths, || 100 * SECOND);
        let aggregator = Arc::new(EventAggregator::new(Sources {
            inventory: Arc::new(Inventory::default()),
            ownership: ownership.clone(),
            listed: Box::new(|_| Vec::new()),
            paths: host.paths.clone(),
            wake: Box::new(|| {}),
            make_way: Box::new(|| {}),
        }));
        let communicators = Arc::<Communicators>::default();
        let paths = host.paths.clone();
        let names = NcclNames::new(Arc::clone(&communicators), Arc::clone(&aggregator), paths);
        let reported = ReportedProcesses::default();
        Self { host, ownership, communicators, aggregator, names, reported, claims: 0 }
    }

    /// Makes a process of a Slurm job hold a device.
    fn holds(&self, pid: u32, job: u32) {
        let path = format!("/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_1");
        let id = CgroupId { hierarchy: Hierarchy::V2, id: job.into() };
        self.host.start(key(pid), "train", &format!("0::{path}\n"));
        self.ownership.observe(Evidence::CgroupMade { id, path: Arc::from(path) });
        self.ownership.observe(Evidence::Opened(Opened {
            process: key(pid),
            uid: 1000,
            comm: Arc::from("train"),
            cgroups: KernelCgroups(vec![id]),
            node: Arc::from("/dev/nvidia0"),
            at_ns: 2 * SECOND,
        }));
    }

    fn is_rank(&self, pid: u32, hash: u64, rank: u32, ranks: u32) {
        let facts = MemberFacts {
            hash: Some(CommunicatorHash(hash)),
            rank: Some(rank),
            ranks: Some(ranks),
            ..MemberFacts::new(key(pid))
        };
        self.communicators.put(MemberKey { process: key(pid), number: hash }, facts);
    }

    /// Gives a process a PID in its own namespace and an address in a network.
    fn listen(&mut self, pid: u32, network: u64, (host, inside): (&str, u32)) {
        let hosts = BTreeSet::from([host.parse().unwrap()]);
        let endpoint = RasEndpoint { network, inside, hosts, client: None };
        self.names.note(key(pid), Some(&endpoint));
    }

    /// Ends the process and removes its communicators.
    fn ends(&mut self, pid: u32) {
        self.names.note(key(pid), None);
        for hash in self.communicators.hashes(key(pid)) {
            for member in self.communicators.members(hash) {
                if self.communicators.facts(member).unwrap().process == key(pid) {
                    self.communicators.remove(member);
                }
            }
        }
        self.ownership.observe(Evidence::Exited { process: key(pid), at_ns: 40 * SECOND });
    }

    /// The records of an answer of this process, by name and attributes.
    fn receive(&mut self, answer: &Answer, answering: u32) -> Vec<String> {
        let tenant = Speaker::of(key(answering), &self.aggregator);
        let all = (1..100).map(key);
        let server = Server {
            tenant,
            answering: vec![key(answering)],
            trusted: all.filter(|one| Speaker::of(*one, &self.aggregator) == tenant).collect(),
            here: LocalNames::default(),
            sees_host_pids: true,
        };
        let received = ReceivedAnswer { network: NETWORK, answer, server: &server };
        let mut accounts = Accounts::default();
        self.claims = self.reported.report(&received, &self.names, &self.aggregator, &mut accounts);
        let events = self.aggregator.drain();
        let records = events.iter().flat_map(records);
        records
            .map(|record| {
                let of = |name: &str| {
                    let mut all = record.attributes.iter();
                    all.find(|(key, _)| key.name == name).map(|(_, value)| value.to_string())
                };
                let records = [
                    "process.pid",
                    "slurm.job.id",
                    "nccl.peer.record",
                    "nccl.peer.host",
                    "nccl.peer.pid",
                    "nccl.communicator.id",
                    "nccl.rank",
                    "nccl.nranks",
                    "gpuwho.event.processes",
                ];
                let records = records.map(|name| of(name).unwrap_or_else(|| "-".into()));
                format!("{}: {} | {}", record.name, records.join(" "), record.body)
            })
            .collect()
    }
}

#[test]
fn a_dead_process_of_this_node_is_named_with_its_owner_after_it_has_ended() {
    let mut rig = Rig::new();
    for (pid, inside, rank) in [(70, 13_028, 0), (71, 13_029, 1), (72, 13_033, 2)] {
        rig.holds(pid, 1007);
        rig.is_rank(pid, WORLD, rank, 3);
        rig.listen(pid, NETWORK, ("127.0.0.1", inside));
    }
    rig.ends(72);
    let answer = one_dead();
    let wanted = "nccl.peer.dead: 72 1007 itself 127.0.0.1 13033 0x1db14a8a713c2fa5 2 3 - | NCCL \
                  has given up process 13033 on node 127.0.0.1, which is this one";
    assert_eq!(rig.receive(&answer, 70), [wanted]);
    assert_eq!(rig.receive(&answer, 70), [""; 0], "records once");
    // As recorded.
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    rig.holds(72, 1007);
    let answer = parsed(ONE_DEAD_JSON);
    let lost = answer.dead[0].process;
    rig.listen(72, NETWORK, (&lost.host.to_string(), lost.pid));
    rig.ends(72);
    let records = rig.receive(&answer, 70);
    assert!(
        records.len() == 1 && records[0].starts_with("nccl.peer.dead: 72 1007 itself"),
        "{records:?}"
    );
}

#[test]
fn its_owner_is_named_after_the_table_has_removed_it() {
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    rig.holds(72, 1007);
    rig.listen(72, NETWORK, ("127.0.0.1", 13_033));
    rig.ends(72);
    rig.ownership.expire(3_600 * SECOND);
    assert_eq!(rig.ownership.attribution(key(72)), None);
    let records = rig.receive(&one_dead(), 70);
    assert!(
        records.len() == 1 && records[0].starts_with("nccl.peer.dead: 72 1007 itself"),
        "{records:?}"
    );
}

#[test]
fn a_remote_dead_process_is_reported_by_host_and_pid_with_its_local_peers() {
    let mut rig = Rig::new();
    for (pid, rank) in [(70, 0), (71, 1)] {
        rig.holds(pid, 1007);
        rig.is_rank(pid, LARGE, rank, 32);
    }
    // Of another job, on the same port.
    rig.holds(80, 1008);
    rig.is_rank(80, WORLD, 0, 2);
    let records = rig.receive(&absent(true), 70);
    let wanted = "nccl.peer.dead: 70 1007 peer 172.16.64.213 3487984 0xcf264af53edbe986 21 32 2 | \
                  NCCL has given up process 3487984 on node 172.16.64.213";
    assert_eq!(records, [wanted], "the late one is its own node's business");
}

#[test]
fn a_remote_death_affects_only_the_reporting_tenant() {
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    rig.holds(80, 1008);
    // Another job's process is in the communicator, or claims to be.
    rig.is_rank(80, WORLD, 0, 3);
    let records = rig.receive(&one_dead(), 70);
    let wanted = "nccl.peer.dead: 70 1007 peer 127.0.0.1 13033 0x1db14a8a713c2fa5 2 3 - | NCCL has \
                  given up process 13033 on node 127.0.0.1";
    assert_eq!((records, rig.claims), (vec![wanted.to_owned()], 0));
}

#[test]
fn a_death_of_another_owners_process_is_not_reported() {
    let (name, answer) = (("127.0.0.1", 13_033), one_dead());
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    rig.holds(80, 1008);
    rig.listen(80, NETWORK, name);
    // Not even with the communicator and the rank that the process has.
    for is_rank in [false, true] {
        if is_rank {
            rig.is_rank(80, WORLD, 2, 3);
            rig.is_rank(70, WORLD, 1, 3);
            rig.listen(80, NETWORK, name);
        }
        assert_eq!(rig.receive(&answer, 70), [""; 0]);
        assert_eq!(rig.claims, 1);
    }
    // Its own answer counts, also after the other's.
    rig.holds(81, 1008);
    let records = rig.receive(&answer, 81);
    assert!(
        records.len() == 1 && records[0].starts_with("nccl.peer.dead: 80 1008 itself"),
        "{records:?}"
    );
    // In another network the same name is an unknown process.
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    rig.holds(80, 1008);
    rig.listen(80, NETWORK + 1, name);
    let records = rig.receive(&answer, 70);
    assert!(records[0].starts_with("nccl.peer.dead: 70 1007 peer"), "{records:?}");
}

#[test]
fn a_living_process_of_another_user_is_not_reported_dead_by_its_pid() {
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    // It is on this host, although it is not known to use NCCL.
    rig.host.start(ProcKey { pid: 13_033, start_ticks: 100 }, "sshd", "0::/\n");
    let path = rig.host.paths.proc.join("13033/status");
    std::fs::write(path, "Tgid:\t13033\nUid:\t0\t0\t0\t0\n").unwrap();
    assert_eq!(rig.receive(&one_dead(), 70), [""; 0]);
    assert_eq!(rig.claims, 1);
}

#[test]
fn events_of_a_job_are_limited_each_minute() {
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    let all = (1..5_000)
        .map(|pid| LostProcess { process: Process::named("10.0.0.9", pid).unwrap(), devices: 0 });
    let answer = Answer { dead: all.collect(), ..Answer::default() };
    // Ten of a kind are reported one by one, the others in a summary.
    assert_eq!(rig.receive(&answer, 70).len(), 10);
    assert_eq!(rig.reported.dead.len(), 16);
}

#[test]
fn of_processes_with_the_same_name_the_missing_rank_decides() {
    let name = ("127.0.0.1", 13_033);
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    for pid in [72, 92] {
        rig.holds(pid, 1007);
        rig.listen(pid, NETWORK, name);
    }
    let who = |rig: &mut Rig| {
        rig.reported = ReportedProcesses::default();
        rig.receive(&one_dead(), 70)[0].clone()
    };
    assert!(who(&mut rig).starts_with("nccl.peer.dead: 70 1007 peer 127.0.0.1"), "either");
    rig.is_rank(92, WORLD, 2, 3);
    rig.listen(92, NETWORK, name);
    assert!(who(&mut rig).starts_with("nccl.peer.dead: 92 1007 itself 127.0.0.1"));
    // A process known to have another rank does not match.
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    rig.holds(72, 1007);
    rig.is_rank(72, WORLD, 1, 3);
    rig.listen(72, NETWORK, name);
    assert!(who(&mut rig).starts_with("nccl.peer.dead: 72 1007 peer 127.0.0.1"));
}

#[test]
fn a_process_in_another_network_matches_only_by_rank() {
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    rig.holds(72, 1007);
    rig.listen(72, NETWORK + 1, ("127.0.0.1", 13_033));
    let answer = one_dead();
    let records = rig.receive(&answer, 70);
    assert!(records[0].starts_with("nccl.peer.dead: 70 1007 peer 127.0.0.1"), "{records:?}");
    rig.is_rank(72, WORLD, 2, 3);
    rig.listen(72, NETWORK + 1, ("127.0.0.1", 13_033));
    rig.reported = ReportedProcesses::default();
    let records = rig.receive(&answer, 70);
    assert!(records[0].starts_with("nccl.peer.dead: 72 1007 itself 127.0.0.1"), "{records:?}");
}

#[test]
fn a_silent_process_is_reported_again_only_after_an_answer() {
    let mut rig = Rig::new();
    rig.holds(70, 1007);
    rig.holds(72, 1007);
    rig.is_rank(72, LARGE, 21, 32);
    rig.listen(72, NETWORK, ("172.16.64.213", 3_487_984));
    let silent = absent(false);
    let wanted = "nccl.peer.unresponsive: 72 1007 itself 172.16.64.213 3487984 0xcf264af53edbe986 \
                  21 32 - | NCCL gets no answer from process 3487984 on node 172.16.64.213, which \
                  is this one";
    assert_eq!(rig.receive(&silent, 70), [wanted]);
    rig.reported.settle(&[&silent]);
    assert_eq!(rig.receive(&silent, 70), [""; 0]);
    rig.reported.settle(&[&Answer::default()]);
    assert_eq!(rig.receive(&silent, 70), [wanted]);
}

#[test]
fn names_outlive_their_process_for_a_limited_time() {
    let mut rig = Rig::new();
    rig.listen(72, NETWORK, ("127.0.0.1", 13_033));
    let now = Instant::now();
    let is_kept = |rig: &mut Rig, after: Duration, apart: Duration, is_there: bool| {
        rig.names.remove(now + after, apart, |_| is_there);
        !rig.names.of.is_empty()
    };
    let minutes = Duration::from_mins;
    assert!(is_kept(&mut rig, minutes(9), minutes(1), true), "it lives");
    assert!(is_kept(&mut rig, minutes(9), minutes(5), false), "asked each five minutes");
    assert!(is_kept(&mut rig, minutes(4), minutes(1), false));
    assert!(!is_kept(&mut rig, minutes(6), minutes(1), false));
}
