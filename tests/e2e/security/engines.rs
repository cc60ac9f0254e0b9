//! Tenants whose inference engines answer whatever costs most, or speak for others.

use super::usage::{Attacker, Peaks, Received, cpu_time};
use crate::fixture::TRAINER;
use crate::points::ALONE;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker::{self, NOBODY};
use gpuwho_tests::engine::serve::{GENERATED, recorded};
use gpuwho_tests::engine::{EngineSpec, FakeEngine};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::program;
use gpuwho_tests::stage::{Group, PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::Script;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Some readings of an agent that is attacked from all sides, on a machine under load.
const WITHIN: Duration = Duration::from_mins(2);
/// The agent with all of its children, of what its unit allows (256 MiB): each of the first three
/// attacks once took it beyond this alone.
const MAX_KB: u64 = 160 << 10;
/// Pods that serve a page of a long comment, one each.
const COMMENTS: u16 = 16;
/// Engines of the pod with many histograms.
const HISTOGRAMS: u16 = 5;
/// Readings for which processor time is counted, one each half second.
const READINGS: usize = 20;
/// Processor time of a reading, of a build for tests: a twentieth of a processor for each of the three
/// owners that are still asked, and what the agent needs itself. One endless answer once took the half
/// of a processor; on a machine whose cores are shared a reading costs up to half as much again.
const MAX_CPU: Duration = Duration::from_millis(320);
/// The port of another user's server.
const PORT: u16 = 8000;
/// Of the devices of the scenario.
const UUID: &str = "GPU-4f6b1c1e-8f0a-4c55-9d10-0000000000d0";
const GENERATED_TOKENS: &str = "inference.tokens.generated";
/// What is kept of what the agent writes.
const KEPT: [&str; 5] = [
    "gpu.sm.active",
    "gpuwho.engine.up",
    "gpuwho.owner.refused",
    "gpuwho.series",
    GENERATED_TOKENS,
];

/// A host with tenants that attack, and alice.
struct Host {
    stage: Stage,
    agent: Agent,
    received: Received,
    peaks: Peaks,
    _nvml: FakeNvml,
}

impl Host {
    fn new(stage: Stage) -> Self {
        let nvml = FakeNvml::install(stage.folder(), "mixed").unwrap();
        let (points, received) = Received::listen(stage.folder(), &KEPT);
        let config = Config {
            interval: Some("500ms".to_owned()),
            pod_logs: Some(stage.pod_logs()),
            file: Some(points),
            more: format!("{ALONE}[engines]\ninterval = \"2s\"\n"),
            ..Config::default()
        };
        let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
        Self { stage, agent, received, peaks: Peaks::default(), _nvml: nvml }
    }

    fn pod(&mut self, name: &str) -> Group {
        self.stage.pod(&PodSpec { name, ..TRAINER }).unwrap()
    }

    /// Starts engines in a pod of their own, or another group.
    fn attack(&mut self, kind: &str, count: u16, group: Option<&Group>) -> Attacker {
        let own = group.is_none().then(|| self.pod(kind.split(':').next().unwrap()));
        let group = group.or(own.as_ref()).unwrap();
        let gpu = if own.is_some() { "0" } else { "none" };
        let directories = group.directories.iter().map(|path| path.display().to_string());
        let (count, port) = (count.to_string(), PORT.to_string());
        let arguments: Vec<_> = [kind, &count, &port, gpu].map(str::to_owned).into_iter().collect();
        let arguments: Vec<_> = arguments.into_iter().chain(directories).collect();
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let mut command: Command = attacker::command("engines", &arguments).unwrap();
        Attacker::start(command.envs([gpuwho_tests::worker::nodes::environment()]))
    }

    /// Waits for a series, and for what is to be right of its value and number of points.
    fn wait(&self, words: &[&str], is_right: impl Fn((f64, usize)) -> bool) -> (f64, usize) {
        let look = || self.received.of(words).filter(|found| is_right(*found));
        until(WITHIN, look).unwrap_or_else(|| {
            let (log, who) = (self.agent.log(), self.agent.who().unwrap());
            panic!("{words:?} of {:#?}; {log:#?}; {who:#}", self.received)
        })
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let found = until(WITHIN, || is_so().then_some(()));
        assert!(found.is_some(), "{what}: {:#?}", self.agent.log());
    }

    fn readings(&self) -> usize {
        self.received.of(&["gpuwho.series"]).map_or(0, |(_, count)| count)
    }

    fn peak_kb(&mut self, what: &str) -> u64 {
        let peak = self.peaks.measure(self.agent.pid());
        println!("{what}: {peak} kB");
        peak
    }
}

#[test]
fn engines_that_answer_whatever_costs_most_cost_a_bound_and_nobody_else_a_reading() {
    let mut host = Host::new(or_skip!(Stage::new()));
    let alice = host.pod("chat-0");
    let spec = EngineSpec { group: Some(&alice), gpus: &[1], ..EngineSpec::default() };
    let mut chat = FakeEngine::start(&spec).unwrap();
    let before = recorded("vllm:generation_tokens_total{").unwrap();
    host.wait(&[GENERATED_TOKENS, "chat-0"], |(value, _)| (value - before).abs() < 0.5);
    host.peaks.forget(host.agent.pid());
    host.peak_kb("nothing");

    // In bob's service, of another user, who has no server: nobody may speak for him.
    let service = host.stage.service("bob").unwrap();
    let script = Script { gpus: vec![1], uid: Some(1001), ..Script::default() };
    let _bob = Worker::start(Some(&service), &script).unwrap();
    let guest = host.attack("plain", 1, Some(&service));

    let version = host.attack("version", 1, None);
    host.wait_until("the question for a version", || version.count("version") > 0);
    host.peak_kb("version");
    let histograms = host.attack("histograms", HISTOGRAMS, None);
    host.wait(&["gpuwho.owner.refused", "\"series\"", "histograms"], |(count, _)| count > 0.0);
    host.wait_until("a page of each", || histograms.count("page") >= usize::from(HISTOGRAMS));
    host.peak_kb("histograms");
    let comments: Vec<_> = (0..COMMENTS).map(|_| host.attack("comment", 1, None)).collect();
    let dcgm = host.attack(&format!("dcgm:{UUID}"), 1, None);
    let interim = host.attack("interim", 1, None);
    for one in &comments {
        host.wait_until("pages of long comments", || one.count("page") >= 2);
    }
    host.wait_until("the exporter's page", || dcgm.count("page") >= 2);
    host.wait_until("endless answers", || interim.count("page") >= 2);

    let (readings, cpu) = (host.readings(), cpu_time(&host.agent, None));
    let began = Instant::now();
    chat.work(3).unwrap();
    let total = before + (3 * GENERATED) as f64;
    host.wait(&[GENERATED_TOKENS, "chat-0"], |(value, _)| (value - total).abs() < 0.5);
    host.wait_until("readings", || host.readings() >= readings + READINGS);
    let count = u32::try_from(host.readings() - readings).unwrap();
    let each = cpu_time(&host.agent, None).saturating_sub(cpu) / count;
    println!("{count} readings in {:?}, {each:?} of a processor each", began.elapsed());
    assert!(each < MAX_CPU, "{each:?} of a processor a reading");
    let peak = host.peak_kb("all of it");
    assert!(peak < MAX_KB, "{peak} kB: {:?}", host.peaks);

    assert_eq!(guest.count("page") + guest.count("version"), 0, "bob's guest was asked");
    let received = &host.received;
    assert_eq!(received.of(&["gpuwho.engine.up", "chat-0"]).map(|up| up.0), Some(1.0));
    assert_eq!(received.of(&["gpuwho.engine.up", "interim"]).map(|up| up.0), Some(0.0));
    assert_eq!(received.of(&["gpuwho.engine.up", "dcgm"]).map(|up| up.0), Some(0.0));
    assert_eq!(received.of(&["gpu.sm.active"]), None, "an exporter of a tenant's was believed");
}

#[test]
fn engines_without_end_of_one_owner_leave_room_for_anothers() {
    let mut host = Host::new(or_skip!(Stage::new()));
    let _many = host.attack("plain", 120, None);
    host.wait(&["gpuwho.owner.refused", "\"engines\"", "plain"], |(count, _)| count > 0.0);
    let alice = host.pod("chat-0");
    let spec = EngineSpec { group: Some(&alice), gpus: &[1], ..EngineSpec::default() };
    let _chat = FakeEngine::start(&spec).unwrap();
    host.wait(&["gpuwho.engine.up", "chat-0"], |(up, _)| up > 0.5);
}

#[test]
fn an_engine_that_renames_its_model_at_each_question_is_counted_as_other() {
    let mut host = Host::new(or_skip!(Stage::new()));
    let churn = host.attack("churn", 1, None);
    host.wait_until("a page of it", || churn.count("page") > 0);
    host.wait(&["gpuwho.owner.refused", "\"series\"", "churn"], |(count, _)| count > 0.0);
}

#[test]
fn an_engine_that_is_started_again_has_no_names_again() {
    let mut host = Host::new(or_skip!(Stage::new()));
    let again = host.attack("again", 1, None);
    // Of the first one all are known.
    host.wait_until("pages", || again.count("page") >= 2);
    host.wait(&["gpuwho.engine.up", "again"], |(up, _)| up > 0.5);
    let refused = host.received.of(&["gpuwho.owner.refused", "\"series\"", "again"]);
    assert!(refused.is_none() || again.count("ended") > 0, "{refused:?}");
    // The next one has the rest of the hour.
    host.wait_until("another process", || again.count("ended") >= 1 && again.count("page") >= 4);
    host.wait(&["gpuwho.owner.refused", "\"series\"", "again"], |(count, _)| count > 0.0);
}

/// Serves a page about a device beside a program by the exporter's name.
fn export((user, group): (u32, &Group), program: &Path, uuid: &str) -> Attacker {
    let [user, program] = [user.to_string(), program.display().to_string()];
    let directories = group.directories.iter().map(|path| path.display().to_string());
    let arguments = [user, program, uuid.to_owned(), "0".to_owned()].into_iter();
    let arguments: Vec<_> = arguments.chain(directories).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut command: Command = attacker::command("exporter", &arguments).unwrap();
    Attacker::start(command.envs([gpuwho_tests::worker::nodes::environment()]))
}

/// Programs of root's in a folder of root's, and those that a tenant has: one of his own, and a link to root's in
/// a folder where everybody may make some. The set-user-ID ones are the tests' own, which become root and stay.
fn programs(folder: &Path) -> [PathBuf; 4] {
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    let make = |name: &str, mode| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(program::attacker().unwrap(), &path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    };
    let exporter = make("root/dcgm-exporter", 0o755);
    let set_user_id = make("root/su", 0o4755);
    let own = make("tenant/dcgm-exporter", 0o755);
    chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    chown(own.parent().unwrap(), Some(NOBODY), Some(NOBODY)).unwrap();
    let linked = folder.join("shared/dcgm-exporter");
    fs::create_dir(linked.parent().unwrap()).unwrap();
    fs::set_permissions(linked.parent().unwrap(), Permissions::from_mode(0o1777)).unwrap();
    // As a tenant can where `fs.protected_hardlinks` is 0.
    fs::hard_link(&set_user_id, &linked).unwrap();
    [exporter, set_user_id, own, linked]
}

#[test]
fn a_page_beside_a_set_user_id_program_of_roots_tells_nothing_of_others_devices() {
    let mut host = Host::new(or_skip!(Stage::new()));
    let folder = TempDir::new().unwrap();
    let [exporter, set_user_id, own, linked] = programs(folder.path());
    let uuid = |device: u32| UUID.replace("d0", &format!("d{device}"));
    let attacks: Vec<_> = [("set-user-id", set_user_id), ("own", own), ("linked", linked)]
        .into_iter()
        .zip(1..)
        .map(|((name, program), device)| {
            let pod = host.pod(name);
            (name, device, export((NOBODY, &pod), &program, &uuid(device)))
        })
        .collect();
    // The same by root, with root's program.
    let service = host.stage.service("dcgm").unwrap();
    let _real = export((0, &service), &exporter, UUID);
    host.wait(&["gpu.sm.active", UUID], |(value, _)| (value - 0.75).abs() < 0.01);
    for (name, device, attack) in &attacks {
        host.wait_until(&format!("two pages of {name}"), || attack.count("page") >= 2);
        let (up, _) = host.wait(&["gpuwho.engine.up", name], |_| true);
        let believed = host.received.of(&["gpu.sm.active", &uuid(*device)]);
        assert_eq!((believed, up < 0.5), (None, true), "{name} was believed");
    }
}
