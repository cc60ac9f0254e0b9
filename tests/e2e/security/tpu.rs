//! A tenant whose processes hold a TPU's chip without end and answer nothing.

use super::usage::{Attacker, Received};
use crate::fixture::TRAINER;
use crate::points::ALONE;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker;
use gpuwho_tests::fakes::load;
use gpuwho_tests::stage::{PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::vendors::TPU;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::Script;
use gpuwho_tests::{or_skip, skip};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The scenario, in which this value of a chip is another each time that it is asked for.
const SCENARIO: &str = "accelerators";
const VALUE: &str = "gpu.memory.bandwidth.utilization";
/// What a worker's script calls the first chip.
const CHIP: u32 = 3000;
/// The console that stands for it here: no other test's processes hold it.
const CONSOLE: u32 = 63;
/// The attacker's processes: each once took a second of every turn.
const PROCESSES: usize = 120;
/// For so long values are looked at beside them, and the age that none of them has.
const BESIDE: Duration = Duration::from_secs(8);
const MAX_AGE: Duration = Duration::from_secs(3);
const WITHIN: Duration = Duration::from_mins(1);

/// The longest time between two values.
fn age(received: &Received) -> Duration {
    let value = || received.of(&[VALUE]).map_or(0.0, |(value, _)| value);
    let (began, mut last) = (Instant::now(), (Instant::now(), value()));
    let mut longest = Duration::ZERO;
    while began.elapsed() < BESIDE {
        let next = value();
        longest = longest.max(last.0.elapsed());
        if (next - last.1).abs() > f64::EPSILON {
            last = (Instant::now(), next);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    longest
}

#[test]
fn silent_processes_of_one_owner_take_no_value_from_anothers_chip() {
    if !Path::new("/dev").join(format!("tty{CONSOLE}")).exists() {
        skip!("virtual consoles, to stand for a chip");
    }
    let mut stage = or_skip!(Stage::new());
    let root = stage.folder().join("host");
    let _fake = (TPU.install)(&root, load(SCENARIO).unwrap().only(TPU.name)).unwrap();
    fs::write(root.join("sys/class/vfio/0/dev"), format!("4:{CONSOLE}")).unwrap();
    let nodes = ("GPUWHO_FIRST_CONSOLE", format!("{CONSOLE},vfio/0"));
    let (points, received) = Received::listen(stage.folder(), &[VALUE]);
    let config = Config {
        interval: Some("500ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        sys: Some(root.join("sys")),
        file: Some(points),
        more: format!("{ALONE}[nvidia]\nenabled = false\n"),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, None).unwrap();
    let alice = stage.pod(&PodSpec { name: "alice", ..TRAINER }).unwrap();
    let libtpu = Some(SCENARIO.to_owned());
    let script = Script { gpus: vec![CHIP], libtpu, ..Script::default() };
    let _alice = Worker::start_with(Some(&alice), &script, &[(nodes.0, &nodes.1)]).unwrap();
    let first = until(WITHIN, || received.of(&[VALUE]));
    assert!(first.is_some(), "{:#?} {:#?}", agent.log(), agent.who());

    let mallory = stage.pod(&PodSpec { name: "mallory", ..TRAINER }).unwrap();
    let groups: Vec<_> =
        mallory.directories.iter().map(|path| path.display().to_string()).collect();
    let (count, chip) = (PROCESSES.to_string(), CHIP.to_string());
    let arguments: Vec<&str> =
        [&*count, &*chip].into_iter().chain(groups.iter().map(String::as_str)).collect();
    let mut command = attacker::command("silent-libtpu", &arguments).unwrap();
    let attack = Attacker::start(command.envs([nodes]));
    let asked = until(WITHIN, || (attack.count("asked") > 0).then_some(()));
    assert!(asked.is_some(), "{:#?}", agent.log());
    let age = age(&received);
    println!("{} silent processes were asked; the oldest value had {age:?}", attack.count("asked"));
    assert!(age < MAX_AGE, "a value of {age:?}: {:#?}", agent.log());
}
