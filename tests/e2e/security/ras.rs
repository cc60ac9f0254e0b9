//! Answers of a false NCCL status service (RAS).

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker::{self, Running};
use gpuwho_tests::nccl::{Rank, is_probed_here, library};
use gpuwho_tests::or_skip;
use gpuwho_tests::sys::hold_node;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::nodes::host_nodes;
use rustix::process::geteuid;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_mins(2);

/// A process of nobody's that holds a device, has the library and serves what its kind says.
struct Mallory(Running);

impl Mallory {
    fn start(folder: &Path, library: &Path, kind: &str, port: u16) -> Self {
        let port_text = port.to_string();
        let document = folder.join("lies.json").display().to_string();
        let arguments = [kind, &port_text, &document];
        let has_file = matches!(kind, "file" | "heard");
        let arguments = if has_file { &arguments[..] } else { &arguments[..2] };
        let mut command = attacker::command("ras", arguments).unwrap();
        command.env("NCCL_RAS_ADDR", format!("localhost:{port}")).env("LD_PRELOAD", library);
        let command = hold_node(&mut command, &folder.join("dev/nvidia0")).unwrap();
        let (child, said) = Running::start_and_hear(command).unwrap();
        assert_eq!(said, "ready\n");
        Self(child)
    }
}

/// What a test has: devices, the library, and what the agent has told.
struct Room {
    folder: TempDir,
    library: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// Agents see the processes of all tests, and nobody has only so many ports.
static ALONE: Mutex<()> = Mutex::new(());

impl Room {
    fn new() -> Result<Self, &'static str> {
        if !geteuid().is_root() {
            return Err("root, to attach probes");
        }
        is_probed_here()?;
        let folder = TempDir::new().unwrap();
        host_nodes(folder.path()).unwrap();
        let library = library(folder.path()).unwrap();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Self { folder, library, _alone: alone })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn mallory(&self, kind: &str, port: u16) -> Mallory {
        Mallory::start(self.path(), &self.library, kind, port)
    }

    /// Root's process, whose status socket answers on this port.
    fn alice(&self, port: u16) -> Rank {
        let address = format!("localhost:{port}");
        Rank::start(self.path(), &self.library, &[("NCCL_RAS_ADDR", &address)]).unwrap()
    }

    /// Two ranks of root's in one communicator, and the unique id that it is made from.
    fn world(&self, port: u16) -> ([Rank; 2], String) {
        let mut ranks = [self.alice(port), self.alice(port)];
        let id = ranks[0].order("id").unwrap();
        for (number, rank) in ranks.iter_mut().enumerate() {
            assert_eq!(rank.order(&format!("init world 2 {number} {id}")).unwrap(), "0");
        }
        (ranks, id)
    }

    fn agent(&self) -> Agent {
        self.agent_asking("ras = \"all\"\n")
    }

    /// An agent whose section `[nccl]` has this line.
    fn agent_asking(&self, whom: &str) -> Agent {
        let more = format!("[nvidia]\nenabled = false\n[nccl]\n{whom}ras_interval = \"1s\"\n");
        let (interval, file) = (Some("500ms".to_owned()), Some(self.reported()));
        let config = Config { interval, file, more, ..Config::default() };
        Agent::start(self.path(), &config, None).unwrap()
    }

    fn reported(&self) -> PathBuf {
        self.path().join("points.jsonl")
    }

    /// The lines so far in which `key` is `name`.
    fn lines(&self, key: &str, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.reported()).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().filter(|line| line.contains(name));
        let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line[key] == name).collect()
    }

    /// The points of a metric so far: attributes and value.
    fn points(&self, metric: &str) -> Vec<(Value, f64)> {
        let lines = self.lines("metric", metric).into_iter();
        lines
            .filter_map(|line| Some((line["attributes"].clone(), line["value"].as_f64()?)))
            .collect()
    }

    /// The event that tells of this process, as what has happened or to whom.
    fn event(&self, pid: u32) -> Option<Value> {
        let mut events = self.lines("event", "nccl.peer.dead").into_iter();
        events.find(|event| {
            ["process.pid", "nccl.peer.pid"].iter().any(|name| event["attributes"][*name] == pid)
        })
    }

    /// How often questions came to this.
    fn queries(&self, outcome: &str) -> f64 {
        let points = self.points("nccl.ras.queries").into_iter();
        let all = points.filter(|(attributes, _)| attributes["nccl.ras.outcome"] == outcome);
        all.map(|(_, count)| count).fold(0.0, f64::max)
    }
}

/// The communicator that is made from this unique id.
fn hash_of(id: &str) -> String {
    let byte = |at: usize| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap();
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|of| byte(8 * at + of)));
    let words = std::array::from_fn(word);
    format!("{:#x}", gpuwho_common::nccl::Hash::of_unique_id(&words))
}

/// Free ports, in order.
fn ports<const N: usize>() -> [u16; N] {
    let all = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let mut ports = all.map(|listener| listener.local_addr().unwrap().port());
    ports.sort_unstable();
    ports
}

fn status(communicators: &Value) -> String {
    json!({ "nccl_version": "2.29.7", "communicators": communicators }).to_string()
}

fn present(rank: u32, pid: u32, launched: u64) -> Value {
    let counts = json!({ "AllReduce": launched });
    json!({ "rank": rank, "host": "127.0.0.1", "pid": pid, "cuda_dev": 0, "collective_counts": counts })
}

fn dead(rank: u32, pid: u32) -> Value {
    let status = json!({ "unresponsive": true, "considered_dead": true });
    json!({ "rank": rank, "host": "127.0.0.1", "pid": pid, "cuda_dev": 0, "status": status })
}

#[test]
fn a_false_status_service_speaks_of_its_own_processes_alone() {
    let room = or_skip!(Room::new());
    let [honest, false_port] = ports();
    let (mut ranks, id) = room.world(honest);
    let hash = hash_of(&id);
    let [first, second] = [ranks[0].pid(), ranks[1].pid()];
    let truth = room.path().join("truth.json");
    let world = json!({
        "hash": hash, "size": 2, "ranks": [present(0, first, 70), present(1, second, 70)],
    });
    fs::write(&truth, status(&json!([world]))).unwrap();
    // What is not root's: one that is dead, and that root's ranks have launched something else.
    let lies = room.path().join("lies.json");
    fs::write(&lies, "").unwrap();
    let mallory = room.mallory("file", false_port);
    let his = mallory.0.id();
    let world = json!({
        "hash": hash, "size": 3, "ranks": [present(0, first, 7_777), present(2, his, 9_999)],
        "missing_ranks": [dead(1, second)],
    });
    let own = json!({ "hash": "0xbad", "size": 1, "ranks": [], "missing_ranks": [dead(0, his)] });
    fs::write(&lies, status(&json!([world, own]))).unwrap();
    for rank in &mut ranks {
        assert_eq!(rank.order(&format!("ras {}", truth.display())).unwrap(), "ok");
    }
    let _agent = room.agent();
    let reported = until(WITHIN, || room.event(his)).expect("what he says of himself");
    assert_eq!(reported["attributes"]["nccl.communicator.id"], "0xbad");
    let launched = |reported: f64| {
        let points = room.points("nccl.rank.launched").into_iter();
        let mut of_it = points.filter(|(_, count)| (*count - reported).abs() < 0.5);
        of_it.find(|(attributes, _)| attributes["process.pid"] == first)
    };
    let is_told = || {
        for rank in &mut ranks {
            rank.order("call 1 ncclAllReduce world 1024 7").unwrap();
        }
        launched(70.0)
    };
    until(WITHIN, is_told).expect("what root's own process says");
    // He is heard more than once.
    let claims = || room.points("nccl.ras.claims").into_iter().map(|(_, claims)| claims);
    until(WITHIN, || claims().find(|claims| *claims >= 4.0)).expect("claims");
    for pid in [first, second] {
        assert_eq!(room.event(pid), None);
    }
    assert_eq!(launched(7_777.0), None);
    let ranks = room.points("nccl.communicator.ranks").into_iter();
    let dead: Vec<_> = ranks
        .filter(|(of, count)| of["nccl.rank.presence"] == "dead" && *count > 0.0)
        .filter(|(of, _)| of["process.pid"] == first || of["process.pid"] == second)
        .collect();
    assert_eq!(dead, []);
}

/// The most memory the process has had since [`forget_peak`], in bytes.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// The most is from now on what it has now (proc_pid_clear_refs(5)).
fn forget_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

#[test]
fn an_answer_without_end_costs_no_memory() {
    /// Beyond what it has before: an answer of 60 MB took 584 MB.
    const MAX_EVENTS: u64 = 24 << 20;
    let room = or_skip!(Room::new());
    // For whom the agent loads its probes before.
    let _alice = room.alice(1);
    for kind in ["many", "absent", "empties", "huge"] {
        let agent = room.agent();
        agent.wait_for_log("counting collective calls", WITHIN).unwrap();
        forget_peak(agent.pid());
        let before = peak(agent.pid());
        let _mallory = room.mallory(kind, ports::<1>()[0]);
        let refused = || room.queries("too_long") + room.queries("not_understood");
        let refused = until(WITHIN, || (refused() > 0.0).then_some(()));
        let grown = peak(agent.pid()).saturating_sub(before);
        println!("{kind}: {} kB more", grown >> 10);
        assert!(grown < MAX_EVENTS, "{kind}: {grown} bytes");
        refused.expect(kind);
        drop(agent);
        fs::remove_file(room.reported()).unwrap();
    }
}

#[test]
fn silent_sockets_of_one_user_do_not_delay_anothers() {
    const SILENT: usize = 24;
    let room = or_skip!(Room::new());
    // In order: each of his comes before root's, and keeps its client for 12 seconds.
    let all: [u16; SILENT + 1] = ports();
    let _mallories: Vec<_> = all[..SILENT].iter().map(|port| room.mallory("drip", *port)).collect();
    let mut alice = room.alice(all[SILENT]);
    let _agent = room.agent();
    until(WITHIN, || (room.queries("late") >= 1.0).then_some(())).expect("silence");
    let truth = room.path().join("truth.json");
    let own = json!({
        "hash": "0xabc", "size": 1, "ranks": [], "missing_ranks": [dead(0, alice.pid())],
    });
    fs::write(&truth, status(&json!([own]))).unwrap();
    assert_eq!(alice.order(&format!("ras {}", truth.display())).unwrap(), "ok");
    // One of his at a time, for 20 seconds at most, and then hers.
    until(WITHIN, || room.event(alice.pid())).expect("what she says of herself");
    let left_out = (SILENT - 8) as f64;
    let counted = until(WITHIN, || (room.queries("not_asked") >= left_out).then_some(()));
    assert!(counted.is_some(), "{}", room.queries("not_asked"));
}

#[test]
fn a_rank_hears_nothing_unless_the_operator_asks_all() {
    /// Readings of the agent, each half a second: more than three intervals of questions.
    const READINGS: usize = 12;
    let room = or_skip!(Room::new());
    let heard = room.path().join("lies.json");
    // In order: what is asked of nobody comes first.
    for (whom, is_asked) in [("", false), ("ras = \"off\"\n", false), ("ras = \"all\"\n", true)] {
        fs::write(&heard, "").unwrap();
        let agent = room.agent_asking(whom);
        let _mallory = room.mallory("heard", ports::<1>()[0]);
        agent.wait_for_log("counting collective calls", WITHIN).unwrap();
        let bytes = || fs::metadata(&heard).unwrap().len();
        if is_asked {
            until(WITHIN, || (bytes() > 0).then_some(())).expect("the control: he is asked");
        } else {
            let readings = || sources(&room, "nccl").len();
            let before = readings();
            until(WITHIN, || (readings() >= before + READINGS).then_some(())).expect("readings");
            assert_eq!(bytes(), 0, "with `{whom}`: {:?}", fs::read_to_string(&heard));
            assert_eq!(room.points("nccl.ras.queries"), []);
            let ready = sources(&room, "nccl-ras").into_iter().filter(|(_, is)| *is > 0.5);
            let states: Vec<_> = ready.map(|(of, _)| of["gpuwho.source.state"].clone()).collect();
            assert!(states.iter().all(|state| state == "absent"), "{states:?}");
            assert_eq!(states.is_empty(), whom.contains("off"), "the source says so");
        }
        drop(agent);
        fs::remove_file(room.reported()).unwrap();
    }
}

#[test]
fn a_rank_that_was_killed_is_missed_by_its_peer_in_a_call_and_by_nobody_elses() {
    let room = or_skip!(Room::new());
    let ([mut first, mut second], id) = room.world(ports::<1>()[0]);
    let hash = hash_of(&id);
    // Nobody's, who says that he is in the same communicator, and dies too.
    fs::set_permissions(room.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut mallory = Rank::of_nobody(room.path(), &room.library).unwrap();
    assert_eq!(mallory.order(&format!("init world 2 0 {id}")).unwrap(), "0");
    let _agent = room.agent_asking("hang_after = \"2s\"\n");
    let (pid, his) = (second.pid(), mallory.pid());
    let mut are_known = || {
        for rank in [&mut first, &mut mallory] {
            rank.order("call 1 ncclAllReduce world 1024 7").unwrap();
        }
        second.order("call 1 ncclAllReduce world 1024 7").unwrap();
        let info = room.points("nccl.communicator.info");
        let is_member = |pid: u32| {
            info.iter()
                .any(|(of, _)| of["nccl.communicator.id"] == *hash && of["process.pid"] == pid)
        };
        (is_member(pid) && is_member(his)).then_some(())
    };
    until(WITHIN, &mut are_known).expect("the ranks");
    drop((second, mallory));
    assert_eq!(room.event(pid), None, "nobody waits");
    first.order("hang").unwrap();
    first.begin("call 1 ncclAllReduce world 1024 7").unwrap();
    let event = until(WITHIN, || room.event(pid)).expect("the event");
    let names = [
        "nccl.communicator.id",
        "nccl.peer.record",
        "nccl.rank",
        "nccl.nranks",
        "gpuwho.event.source",
    ];
    let said = names.map(|name| event["attributes"][name].clone());
    assert_eq!(said, [json!(hash), json!("itself"), json!(1), json!(2), json!("nccl")]);
    let ended = || {
        let mut points = room.points("nccl.communicator.ranks.ended").into_iter();
        points.find(|(of, count)| of["process.pid"] == first.pid() && (*count - 1.0).abs() < 0.5)
    };
    until(WITHIN, ended).expect("the metric");
    assert_eq!(room.event(his), None, "he is another owner's");
    assert_eq!(room.points("nccl.ras.queries"), [], "nobody was asked");
}

/// The points of a source's status so far.
fn sources(room: &Room, name: &str) -> Vec<(Value, f64)> {
    let all = room.points("gpuwho.source.status").into_iter();
    all.filter(|(of, _)| of["gpuwho.source"] == name).collect()
}
