//! Ranks whose communicators were there before the agent: from the memory of their processes and
//! from the library's own status socket, to the receiver.

use gpuwho_common::nccl::Hash;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::amd::{On, Tree};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, ReceivedRecord as Record, of};
use gpuwho_tests::fakes::load;
use gpuwho_tests::nccl::{Rank, is_probed_here, library, library_named};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::nodes::host_nodes;
use rustix::process::geteuid;
use serde_json::json;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(40);
/// By default nobody is asked.
const ASK_ALL: &str = "[nccl]\nras = \"all\"\nras_interval = \"1s\"\n";

/// Two ranks of one communicator that has been used; and its id.
fn world(folder: &Path, env: &[(&str, &str)]) -> (Vec<Rank>, String) {
    let library = library(folder).unwrap();
    let start = || Rank::start(folder, &library, env).unwrap();
    let mut ranks = vec![start(), start()];
    let id = ranks[0].order("id").unwrap();
    for (number, rank) in ranks.iter_mut().enumerate() {
        assert_eq!(rank.order(&format!("init world 2 {number} {id}")).unwrap(), "0");
        assert_eq!(rank.order("call 4 ncclAllReduce world 1024 7").unwrap(), "0");
    }
    let byte = |at: usize| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap();
    let word =
        |at: usize| u64::from_le_bytes(std::array::from_fn(|byte_at| byte(8 * at + byte_at)));
    let words = std::array::from_fn(word);
    (ranks, format!("{:#x}", Hash::of_unique_id(&words)))
}

/// An agent that counts; what is missing where the kernel does not let it.
fn start(folder: &Path, collector: &Collector, more: &str) -> Result<Agent, &'static str> {
    let otlp = Some(Otlp { endpoint: collector.http_endpoint(), protocol: None });
    let more = format!("[nvidia]\nenabled = false\n{more}");
    let interval = Some("500ms".to_owned());
    let config = Config { interval, otlp, more, ..Config::default() };
    is_probed_here()?;
    let agent = Agent::start(folder, &config, None).unwrap();
    agent.wait_for_log("counting collective calls", WITHIN).unwrap();
    Ok(agent)
}

#[test]
fn a_rank_from_before_the_agent_arrives_with_its_number() {
    if !geteuid().is_root() {
        gpuwho_tests::skip!("root, to attach probes");
    }
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let (mut ranks, hash) = world(folder.path(), &[]);
    let _agent = or_skip!(start(folder.path(), &collector, ""));
    for (number, rank) in ["0", "1"].into_iter().zip(&mut ranks) {
        let pid = rank.pid().to_string();
        let wanted = [
            ("process.pid", pid.as_str()),
            ("nccl.communicator.id", hash.as_str()),
            ("nccl.rank", number),
            ("nccl.nranks", "2"),
            ("nccl.communicator.known_by", "memory"),
        ];
        let arrives = || {
            // Another library may have been attached to first.
            rank.order("call 3 ncclAllReduce world 1024 7").unwrap();
            let points = collector.points().unwrap();
            of(&points, "nccl.communicator.info", &wanted).first().map(|_| ())
        };
        until(WITHIN, arrives).expect("the rank's series");
    }
}

#[test]
fn a_rank_of_rccl_on_an_amd_device_is_counted() {
    let stage = or_skip!(Stage::new());
    let folder = stage.folder();
    let collector = or_skip!(Collector::start(&folder.join("collector")));
    or_skip!(is_probed_here());
    let tree = Tree::new(&folder.join("amd"), &load("mi300x8").unwrap(), 100.0).unwrap();
    host_nodes(folder).unwrap();
    let library = library_named(folder, "librccl.so.1").unwrap();
    let below = |name: &str| folder.join("dev").join(name);
    let mut rank = Rank::holding(&below("dri/renderD128"), &library, &[]).unwrap();
    tree.compute(&On { pid: rank.pid(), render: 128, bytes: 1 << 30 }).unwrap();
    let id = rank.order("id").unwrap();
    assert_eq!(rank.order(&format!("init world 1 0 {id}")).unwrap(), "0");
    let config = Config {
        interval: Some("500ms".to_owned()),
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        sys: Some(tree.sys()),
        nodes: Some(["kfd", "dri/renderD12*"].map(|name| below(name).display().to_string()).into()),
        more: "[nvidia]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    let agent = Agent::start(folder, &config, None).unwrap();
    agent.wait_for_log("counting collective calls", WITHIN).unwrap();
    let pid = rank.pid().to_string();
    let arrives = || {
        assert_eq!(rank.order("call 3 ncclAllReduce world 1024 7").unwrap(), "0");
        let points = collector.points().unwrap();
        let calls = of(&points, "nccl.collective.calls", &[("process.pid", &pid)]);
        let is_on = of(
            &points,
            "gpu.process.memory.usage",
            &[("process.pid", &pid), ("gpu.vendor", "amd")],
        );
        let counted = calls.iter().filter_map(|point| point.number()).fold(0.0, f64::max);
        (counted >= 3.0 && !is_on.is_empty()).then_some(())
    };
    until(WITHIN, arrives).expect("the calls of a rank whose device is AMD's");
}

#[test]
fn a_communicator_arrives_under_the_name_its_program_gave_it_and_so_does_its_hang() {
    if !geteuid().is_root() {
        gpuwho_tests::skip!("root, to attach probes");
    }
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let (mut ranks, _) = world(folder.path(), &[]);
    let _agent = or_skip!(start(folder.path(), &collector, "[nccl]\nhang_after = \"2s\"\n"));
    let is_known = || {
        for rank in &mut ranks {
            rank.order("call 1 ncclAllReduce world 1024 7").unwrap();
        }
        let points = collector.points().unwrap();
        of(&points, "nccl.communicator.info", &[("nccl.rank", "1")]).first().map(|_| ())
    };
    until(WITHIN, is_known).expect("the rank");
    // Rank 0 alone says it; what the first of a host says holds for all of its ranks.
    let hex: String = b"tensor".iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect();
    ranks[0].order(&format!("config name {hex}")).unwrap();
    for rank in &mut ranks {
        assert_eq!(rank.order("split world 7 0 part").unwrap(), "0");
    }
    let name = ("nccl.communicator.name", "tensor");
    let is_named = || {
        for rank in &mut ranks {
            rank.order("call 1 ncclAllReduce part 1024 7").unwrap();
        }
        let points = collector.points().unwrap();
        let named = |pid: u32| {
            let wanted = [("process.pid", &*pid.to_string()), name];
            let info = of(&points, "nccl.communicator.info", &wanted);
            Some(info.first()?.attrs.get("nccl.communicator.id")?.clone())
        };
        let ids = (named(ranks[0].pid())?, named(ranks[1].pid())?);
        (ids.0 == ids.1).then_some(ids.0)
    };
    let id = until(WITHIN, is_named).expect("the name of both ranks");
    // The id is enough for everything else.
    let points = collector.points().unwrap();
    let calls = of(&points, "nccl.collective.calls", &[("nccl.communicator.id", &id)]);
    assert!(!calls.is_empty());
    assert!(calls.iter().all(|point| !point.attrs.contains_key(name.0)), "{calls:?}");
    ranks[1].order("hang").unwrap();
    ranks[1].begin("call 1 ncclBroadcast part 4096 7").unwrap();
    let hung = || told_of(&collector, "nccl.rank.hung", ("nccl.communicator.id", &id));
    let record = until(WITHIN, hung).expect("the event");
    assert_eq!(record.attrs.get(name.0).map(String::as_str), Some(name.1), "{record:?}");
}

fn digit(half: u8) -> char {
    char::from_digit(half.into(), 16).unwrap()
}

/// A record of an event; the ranks of other tests are on this host as well.
fn told_of(collector: &Collector, event: &str, (name, value): (&str, &str)) -> Option<Record> {
    let records = collector.records().unwrap();
    let is_it = |record: &Record| {
        record.event == event && record.attrs.get(name).is_some_and(|is| is == value)
    };
    records.into_iter().find(is_it)
}

/// What a library of 2.29 says of the first of two ranks here, and of the second if it lives.
fn status_of_two(hash: &str, ranks: &[Rank], dead: Option<u32>) -> String {
    let rank = |number: usize| {
        json!({
            "rank": number, "host": "127.0.0.1", "pid": ranks[number].pid(),
            "cuda_dev": number, "collective_counts": { "AllReduce": 4 },
        })
    };
    let lost = dead.map(|pid| {
        let status = json!({ "unresponsive": true, "considered_dead": true });
        json!({ "rank": 1, "host": "127.0.0.1", "pid": pid, "cuda_dev": 1, "status": status })
    });
    let here: Vec<_> = (0..ranks.len()).map(rank).collect();
    let missing = Vec::from_iter(lost);
    let world = json!({ "hash": hash, "size": 2, "ranks": here, "missing_ranks": missing });
    json!({ "nccl_version": "2.29.7", "communicators": [world] }).to_string()
}

/// What a library of 2.29 says of the two ranks here and a third one that is dead.
fn status(hash: &str, ranks: &[Rank]) -> String {
    let rank = |number: usize, launched: u32| {
        json!({
            "rank": number, "host": "127.0.0.1", "pid": ranks[number].pid(),
            "cuda_dev": number, "nvml_dev": number,
            "status": {
                "init_state": 0, "async_error": 0, "finalize_called": false,
                "destroy_flag": false, "abort_flag": false,
            },
            "collective_counts": {
                "Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0,
                "AllReduce": launched,
            },
        })
    };
    let dead = json!({
        "rank": 2, "host": "172.16.64.245", "pid": 1_524_345, "cuda_dev": 1, "nvml_dev": 1,
        "status": { "unresponsive": true, "considered_dead": true },
    });
    json!({
        "nccl_version": "2.29.7", "cuda_runtime_version": 13_000, "cuda_driver_version": 13_000,
        "timestamp": "2025-12-19 13:06:53", "communicators_count": 1,
        "communicators": [{
            "hash": hash, "secondary_hash": "0x1:0x2", "size": 3, "ranks_count": 2,
            "missing_ranks_count": 1, "ranks": [rank(0, 70), rank(1, 64)],
            "missing_ranks": [dead],
        }],
        "ras": { "collection_time_sec": 0.0, "timeouts_count": 0 },
    })
    .to_string()
}

#[test]
fn nccls_own_word_of_a_dead_peer_arrives_as_an_event_and_as_numbers() {
    if !geteuid().is_root() {
        gpuwho_tests::skip!("root, to attach probes");
    }
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("localhost:{port}");
    let (mut ranks, hash) = world(folder.path(), &[("NCCL_RAS_ADDR", &address)]);
    let document = folder.path().join("status.json");
    std::fs::write(&document, status(&hash, &ranks)).unwrap();
    let _agent = or_skip!(start(folder.path(), &collector, ASK_ALL));
    for rank in &mut ranks {
        assert_eq!(rank.order(&format!("ras {}", document.display())).unwrap(), "ok");
    }
    let mut reported = |metric: &str, attrs: &[(&str, &str)]| {
        let mut all = attrs.to_vec();
        all.push(("nccl.communicator.id", hash.as_str()));
        let value = || {
            for rank in &mut ranks {
                rank.order("call 1 ncclAllReduce world 1024 7").unwrap();
            }
            let points: Vec<ReceivedPoint> = collector.points().unwrap();
            of(&points, metric, &all).iter().find_map(|point| point.number())
        };
        until(WITHIN, value)
    };
    let is_near =
        |value: Option<f64>, wanted: f64| value.is_some_and(|is| (is - wanted).abs() < 0.5);
    let checks = [
        ("nccl.communicator.ranks", ("nccl.rank.presence", "dead"), "0", 1.0),
        ("nccl.communicator.ranks", ("nccl.rank.presence", "present"), "1", 2.0),
        ("nccl.rank.launched", ("nccl.operation", "all_reduce"), "1", 64.0),
        ("nccl.rank.launched.lag", ("nccl.nranks", "2"), "1", 6.0),
        ("nccl.rank.launched.lag", ("nccl.nranks", "2"), "0", 0.0),
    ];
    for (metric, attr, rank, wanted) in checks {
        let value = reported(metric, &[attr, ("nccl.rank", rank)]);
        assert!(is_near(value, wanted), "{metric} {attr:?} of rank {rank}: {value:?}");
    }
    let dead = || told_of(&collector, "nccl.peer.dead", ("nccl.communicator.id", &hash));
    let record = until(WITHIN, dead).expect("the event");
    let attrs = |name: &str| record.attrs.get(name).map_or("", String::as_str);
    let said = ["nccl.communicator.id", "nccl.rank", "nccl.nranks", "nccl.peer.host"].map(attrs);
    assert_eq!(said, [hash.as_str(), "2", "3", "172.16.64.245"]);
    let whose = attrs("process.pid");
    assert!(ranks.iter().any(|rank| rank.pid().to_string() == whose), "{record:?}");
}

#[test]
fn a_rank_that_was_killed_here_is_named_though_its_process_has_ended() {
    if !geteuid().is_root() {
        gpuwho_tests::skip!("root, to attach probes");
    }
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("localhost:{port}");
    let (mut ranks, hash) = world(folder.path(), &[("NCCL_RAS_ADDR", &address)]);
    let document = folder.path().join("status.json");
    std::fs::write(&document, status_of_two(&hash, &ranks, None)).unwrap();
    for rank in &mut ranks {
        assert_eq!(rank.order(&format!("ras {}", document.display())).unwrap(), "ok");
    }
    let _agent = or_skip!(start(folder.path(), &collector, ASK_ALL));
    let second = ("nccl.rank", "1");
    let is_known = || {
        for rank in &mut ranks {
            rank.order("call 1 ncclAllReduce world 1024 7").unwrap();
        }
        let points = collector.points().unwrap();
        let info = of(&points, "nccl.communicator.info", &[second]);
        let answered = of(&points, "nccl.ras.queries", &[("nccl.ras.outcome", "answered")]);
        let has_answered = answered.iter().any(|point| point.number().is_some_and(|n| n >= 2.0));
        (!info.is_empty() && has_answered).then_some(())
    };
    until(WITHIN, is_known).expect("the rank, and NCCL's answers");
    let killed = ranks.remove(1);
    let pid = killed.pid();
    drop(killed);
    std::fs::write(&document, status_of_two(&hash, &ranks, Some(pid))).unwrap();
    let dead = || told_of(&collector, "nccl.peer.dead", ("nccl.communicator.id", &hash));
    let record = until(WITHIN, dead).expect("the event");
    let names = ["process.pid", "nccl.peer.record", "nccl.peer.pid", "nccl.rank", "nccl.nranks"];
    let attrs = names.map(|name| record.attrs.get(name).map_or("", String::as_str));
    let pid = pid.to_string();
    assert_eq!(attrs, [&pid, "itself", &pid, "1", "2"], "{record:?}");
    assert!(record.attrs.contains_key("gpuwho.owner.method"), "{record:?}");
}

#[test]
fn a_rank_that_hangs_arrives_as_an_event_with_its_owner_operation_and_size() {
    if !geteuid().is_root() {
        gpuwho_tests::skip!("root, to attach probes");
    }
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let (mut ranks, hash) = world(folder.path(), &[]);
    let _agent = or_skip!(start(folder.path(), &collector, "[nccl]\nhang_after = \"2s\"\n"));
    let is_known = || {
        ranks[0].order("call 1 ncclAllReduce world 1024 7").unwrap();
        ranks[1].order("call 1 ncclAllReduce world 1024 7").unwrap();
        let points = collector.points().unwrap();
        let info = of(&points, "nccl.communicator.info", &[("nccl.rank", "1")]);
        info.first().map(|_| ())
    };
    until(WITHIN, is_known).expect("the rank");
    ranks[1].order("hang").unwrap();
    ranks[1].begin("call 1 ncclBroadcast world 4096 7").unwrap();
    // The other one goes on: it has nothing to wait for on the host.
    let hung = || {
        ranks[0].order("call 1 ncclAllReduce world 1024 7").unwrap();
        told_of(&collector, "nccl.rank.hung", ("nccl.communicator.id", &hash))
    };
    let record = until(WITHIN, hung).expect("the event");
    let attr = |name: &str| record.attrs.get(name).map_or("", String::as_str);
    let pid = ranks[1].pid().to_string();
    let reported = [
        "process.pid",
        "nccl.communicator.id",
        "nccl.rank",
        "nccl.nranks",
        "nccl.operation",
        "nccl.call.bytes",
        "nccl.call.state",
    ];
    let wanted = [pid.as_str(), &hash, "1", "2", "broadcast", "16384", "open"];
    assert_eq!(reported.map(attr), wanted, "{record:?}");
    assert!(record.attrs.contains_key("gpuwho.owner.method"), "{record:?}");
    // Two readings, half a second apart, after it has become old enough; a second for a busy host.
    let age: u64 = attr("nccl.call.age").parse().unwrap();
    assert!((2..=4).contains(&age), "{record:?}");
}
