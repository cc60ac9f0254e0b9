//! Tenants with many processes, descriptors and entries, which the agent looks through.

use super::usage::{Attacker, Received, cpu_time};
use crate::device::reader::rig::shipped;
use crate::fixture::{TRAINER, holder};
use crate::points::ALONE;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::amd::{On, Tree};
use gpuwho_tests::attacker;
use gpuwho_tests::engine::{EngineSpec, FakeEngine};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Group, PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::nodes::{environment, host_nodes};
use nvidia_ml::scenario::Scenario;
use serde_json::Value;
use std::time::Duration;

/// A look at every process, on a machine under load. It once took above two minutes.
const SEEN_WITHIN: Duration = Duration::from_secs(40);
/// Some readings on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);
/// Processes of the tenant's, and the descriptors that they share: each is looked at in each process.
const PROCESSES: &str = "480";
const DESCRIPTORS: &str = "19000";
/// Descriptors whose `/proc/PID/fdinfo` has a line for each of so many entries.
const EPOLLS: &str = "8";
const ENTRIES: &str = "18000";
/// Connections that a look for who accepts them is made for.
const CONNECTIONS: usize = 2;
/// Readings for which processor time is counted, one each half second, and the most of one in a build
/// for tests: 100 ms for the looks for servers, 100 ms for those for holders, 25 ms for requests, 50 ms
/// for the devices' openers.
const READINGS: usize = 20;
const MAX_CPU: Duration = Duration::from_millis(400);
/// Of the process that reads AMD's devices: 50 ms for the files of openers, and its own. It once took
/// a second and more.
const MAX_READER_CPU: Duration = Duration::from_millis(150);
/// Its command.
const READER: &str = "device-reader";
/// The second of the scenario that the tree shows.
const NOW: f64 = 100.0;
/// Bytes that alice has on her device.
const BYTES: u64 = 5 << 30;

/// Starts an attack of this many things on AMD's first device.
fn attack(name: &str, counts: [&str; 2], group: &Group) -> Attacker {
    let groups = group.directories.iter().map(|path| path.to_str().unwrap());
    let arguments: Vec<_> = counts.into_iter().chain(["128"]).chain(groups).collect();
    Attacker::start(attacker::command(name, &arguments).unwrap().envs([environment()]))
}

fn source<'a>(who: &'a Value, name: &str) -> Option<&'a Value> {
    who["sources"].as_array()?.iter().find(|source| source["name"] == name)
}

#[test]
fn descriptors_without_end_hide_no_holder_and_hold_up_no_reading() {
    let mut stage = or_skip!(Stage::new());
    let scenario = Scenario::load(&shipped("mi300x8")).unwrap();
    let tree = Tree::new(&stage.folder().join("amd"), &scenario, NOW).unwrap();
    let names = ["crowd", "epolls", "trainer-0", "chat-0"];
    let [many, polls, train, chat] =
        names.map(|name| stage.pod(&PodSpec { name, ..TRAINER }).unwrap());
    // All are there before the agent: it has to look for who holds a device.
    let crowd = attack("crowd", [PROCESSES, DESCRIPTORS], &many);
    let _polls = attack("epolls", [EPOLLS, ENTRIES], &polls);
    let alice = Worker::on(&train, &[129]).unwrap();
    tree.compute(&On { pid: alice.pid(), render: 129, bytes: BYTES }).unwrap();
    let (points, received) = Received::listen(stage.folder(), &["gpu.power"]);
    let below = |name: &str| stage.folder().join("dev").join(name).display().to_string();
    let nodes = vec![host_nodes(stage.folder()).unwrap(), below("kfd"), below("dri/renderD*")];
    let config = Config {
        interval: Some("500ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        sys: Some(tree.sys()),
        // Who holds a device is looked for in `/proc` alone, every two seconds.
        bpf: Some(false),
        file: Some(points),
        nodes: Some(nodes),
        more: format!(
            "{ALONE}[nvidia]\nenabled = false\n[amd]\ndeadline = \"5s\"\n[engines]\ninterval = \"2s\"\n"
        ),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, None).unwrap();
    let look = |who: &Value| holder(who, alice.pid()).cloned();
    let held = agent.wait_for("alice's process", SEEN_WITHIN, look).unwrap();
    assert_eq!(held["pod"], "trainer-0", "{held:#}");

    // An engine of hers is found and read beside the crowd, of which one answers for another.
    let spec = EngineSpec { group: Some(&chat), gpus: &[129], ..EngineSpec::default() };
    let _engine = FakeEngine::start(&spec).unwrap();
    let look = |who: &Value| {
        let mut engines = who["engines"].as_array()?.iter();
        let hers = engines.find(|engine| engine["pod"] == "chat-0")?;
        hers["running"].as_f64()
    };
    let running = agent.wait_for("alice's engine", WITHIN, look).unwrap();
    assert!((running - 16.0).abs() < 0.5, "{running}");
    let looked = until(WITHIN, || (crowd.count("accepted") >= CONNECTIONS).then_some(()));
    assert!(looked.is_some(), "the crowd's engine was not asked: {:#?}", agent.log());

    // Each reading has alice's device.
    let readings = || received.of(&["gpu.power", "GPU-e3a98f4e6c9d0101"]).map_or(0, |(_, all)| all);
    let before = (readings(), cpu_time(&agent, None), cpu_time(&agent, Some(READER)));
    let count = until(WITHIN, || Some(readings() - before.0).filter(|count| *count >= READINGS));
    let count = u32::try_from(count.expect("readings")).unwrap();
    let each = cpu_time(&agent, None).saturating_sub(before.1) / count;
    let of_reader = cpu_time(&agent, Some(READER)).saturating_sub(before.2) / count;
    println!("{count} readings, {each:?} and of the reader {of_reader:?} of a processor each");
    assert!(each < MAX_CPU, "{each:?} of a processor a reading");
    assert!(of_reader < MAX_READER_CPU, "{of_reader:?} of a processor a reading of the devices");
    let who = agent.who().unwrap();
    for name in ["device_users", "amd", "engines", "pipeline"] {
        let state = source(&who, name).map(|source| source["state"].clone());
        assert!(state.as_ref().is_some_and(|state| *state != "hung"), "{name}: {state:?}");
    }
}
