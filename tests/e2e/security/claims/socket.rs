//! The control sockets, a second agent, and configurations that cannot be right.

use super::{ANSWERS_WITHIN, Attack, manager};
use crate::fixture::{SEEN_WITHIN, TRAINER, wait_for_holder, watch, watch_with};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker::{self, NOBODY};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::stage::{Group, PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::Script;
use gpuwho_tests::{or_skip, program};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Output, Stdio};

/// What a user who asks a socket is answered.
fn asked(agent: &Agent, socket: &str, uid: u32, request: &str) -> Output {
    let socket = agent.socket().with_file_name(socket);
    let (uid, socket) = (uid.to_string(), socket.display().to_string());
    let mut command = attacker::command("claims-ask", &[&uid, &socket, request]).unwrap();
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    assert!(ended(&mut child), "no answer to {uid}");
    child.wait_with_output().unwrap()
}

fn ended(child: &mut Child) -> bool {
    until(ANSWERS_WITHIN, || child.try_wait().unwrap()).is_some()
}

/// Lets anybody reach the sockets, as on a host.
fn opened(stage: &Stage) {
    fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o755)).unwrap();
}

const WHO: &str = "{\"ask\":\"who\"}";

#[test]
fn silent_and_slow_clients_delay_nobody() {
    let stage = or_skip!(Stage::new());
    opened(&stage);
    let agent = watch(&stage);
    let socket = agent.socket().display().to_string();
    let _slow = Attack::start("claims-slow", &[&socket], &[]);
    let _silent = Attack::start("claims-silent", &[&socket, "1000"], &[]);
    for _ in 0..3 {
        // Root over the public socket and over its own, then a user without privilege.
        agent.who().unwrap();
        let root = asked(&agent, "gpuwho-admin.sock", 0, "{\"ask\":\"resume\"}");
        assert!(String::from_utf8_lossy(&root.stdout).contains("\"answer\":\"done\""), "{root:?}");
        // Busy is an answer, too: the command asks again.
        let answered = until(ANSWERS_WITHIN, || {
            let user = asked(&agent, "gpuwho.sock", 12_345, WHO);
            String::from_utf8_lossy(&user.stdout).contains("\"answer\":\"who\"").then_some(())
        });
        assert!(answered.is_some(), "a user beside 1,000 silent clients is not answered");
    }
}

#[test]
fn release_is_roots_alone_over_either_socket() {
    let stage = or_skip!(Stage::new());
    opened(&stage);
    let agent = watch(&stage);
    let sockets = ["gpuwho.sock", "gpuwho-admin.sock"];
    let modes = sockets.map(|name| {
        let path = agent.socket().with_file_name(name);
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    });
    assert_eq!(modes, [0o666, 0o600]);
    for request in [
        "{\"ask\":\"release\",\"seconds\":600}",
        "{\"ask\":\"resume\"}",
        "{\"ask\":\"forget\",\"uuid\":\"x\"}",
    ] {
        let public = asked(&agent, sockets[0], NOBODY, request);
        let said = String::from_utf8_lossy(&public.stdout).into_owned();
        assert!(said.contains("refused") && said.contains("only root"), "{said}");
        let admin = asked(&agent, sockets[1], NOBODY, request);
        assert!(admin.stdout.is_empty() && !admin.status.success(), "{admin:?}");
        assert!(String::from_utf8_lossy(&admin.stderr).contains("denied"), "{admin:?}");
        // Nor by root over everybody's: what is on it is for questions.
        let root = asked(&agent, sockets[0], 0, request);
        let said = String::from_utf8_lossy(&root.stdout).into_owned();
        assert!(said.contains("gpuwho-admin.sock"), "{said}");
    }
}

#[test]
fn a_user_is_told_nothing_of_others_unless_the_operator_says_so() {
    const ALICE: u32 = 1001;
    let mut stage = or_skip!(Stage::new());
    opened(&stage);
    let pod = stage.pod(&TRAINER).unwrap();
    let slice = manager(&mut stage, NOBODY);
    let script = Script {
        uid: Some(ALICE),
        gpus: vec![0],
        comm: "alice-secret".to_owned(),
        ..Script::default()
    };
    let alice = Worker::start(Some(&pod), &script).unwrap();
    let own = Attack::holds(1, b"own-work", &slice, "run", &[]);
    let names = ["alice-secret", "trainer-0", "own-work"];
    let seen = |agent: &Agent, uid: u32| {
        wait_for_holder(agent, alice.pid());
        wait_for_holder(agent, own.pid());
        // What users are told may be a moment old.
        let mut last = String::new();
        let complete = until(SEEN_WITHIN, || {
            last = String::from_utf8(asked(agent, "gpuwho.sock", uid, WHO).stdout).unwrap();
            (last.contains("own-work") || uid == 12_345 && last.contains("hidden")).then_some(())
        });
        assert!(complete.is_some(), "{last}");
        (names.map(|name| last.contains(name)), last)
    };
    let agent = watch(&stage);
    let (said, text) = seen(&agent, NOBODY);
    assert_eq!(said, [false, false, true], "{text}");
    let reply: Value = serde_json::from_str(&text).unwrap();
    let who = &reply["who"];
    assert!(who["others_hidden"] == true && who["hidden_processes"].as_u64() >= Some(1), "{text}");
    // Other tests may run as the same user.
    let holders = who["holders"].as_array().unwrap();
    assert!(holders.iter().all(|holder| holder["uid"] == NOBODY), "{text}");
    assert!(holders.iter().any(|holder| holder["pid"] == own.pid()), "{text}");
    assert_eq!(seen(&agent, 12_345).0, [false; 3]);
    assert_eq!(seen(&agent, 0).0, [true; 3]);
    drop(agent);
    let agent = watch_with(&stage, Config { show_others: Some(true), ..Config::default() });
    assert_eq!(seen(&agent, NOBODY).0, [true; 3]);
}

#[test]
fn a_second_agent_with_another_run_directory_is_refused() {
    let stage = or_skip!(Stage::new());
    let agent = watch(&stage);
    let text = fs::read_to_string(stage.folder().join("gpuwho.toml")).unwrap();
    let run = stage.folder().join("run");
    let other = stage.folder().join("other");
    let text = text.replace(&run.display().to_string(), &other.display().to_string());
    let config = stage.folder().join("second.toml");
    fs::write(&config, text).unwrap();
    let mut command = Command::new(program::gpuwho().unwrap());
    command.args(["agent", "--config"]).arg(&config);
    let mut second = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let is_over = ended(&mut second);
    let _gone = second.kill();
    let output = second.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(is_over, "it runs beside the first: {said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
    let first = format!("another gpuwho agent is running on this host (process {})", agent.pid());
    assert!(said.contains(&first) && said.contains("paths.state"), "{said}");
    // The lock is nobody else's to hold.
    let lock = stage.folder().join("state/agent.lock");
    assert_eq!(fs::metadata(lock).unwrap().permissions().mode() & 0o777, 0o600);
    agent.who().unwrap();
}

#[test]
fn a_configuration_that_cannot_be_right_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let status = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(status.success());
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let cases = [
        (write("1", "[otlp]\ncompression = \"lz4\"\n"), "otlp.compression"),
        (write("2", "[otlp]\ntimeout_ms = 0\n"), "otlp.timeout_ms"),
        (write("3", "[paths]\nrun = \"\"\n"), "paths.run"),
        (write("4", "[paths]\nsocket_mode = \"999\"\n"), "paths.socket_mode"),
        (write("5", "[nvidia]\nlibrary = \"/etc/passwd\"\n"), "nvidia.library"),
        (write("6", "[devices]\nnodes = [\"relative\"]\n"), "devices.nodes"),
        (write("7", "[devices]\nnodes = [\"/*\"]\n"), "devices.nodes"),
        (fifo, "not a regular file"),
        ("/dev/zero".into(), "not a regular file"),
    ];
    for (file, words) in cases {
        let mut command = Command::new(program::gpuwho().unwrap());
        command.args(["config", "check"]).arg(&file);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let is_over = ended(&mut child);
        let _gone = child.kill();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(is_over, "{}: it waits", file.display());
        assert_eq!(output.status.code(), Some(2), "{}: {said}", file.display());
        assert!(said.contains(words), "{}: {said}", file.display());
    }
}

#[test]
fn another_users_receipt_is_answered_as_one_that_nobody_has() {
    const ALICE: u32 = 1001;
    let mut stage = or_skip!(Stage::new());
    opened(&stage);
    let own = PodSpec { name: "own", ..TRAINER };
    let pods =
        [(TRAINER, ALICE), (own, NOBODY)].map(|(spec, uid)| (stage.pod(&spec).unwrap(), uid));
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
    let begin = |(gpu, (pod, uid)): (u32, &(Group, u32))| {
        let script = Script { uid: Some(*uid), gpus: vec![gpu], ..Script::default() };
        let worker = Worker::start(Some(pod), &script).unwrap();
        nvml.set_processes(gpu, &[Some(worker.pid())]).unwrap();
        worker
    };
    let _workers: Vec<_> = (0..).zip(&pods).map(begin).collect();
    let (interval, pod_logs) = (Some("200ms".to_owned()), Some(stage.pod_logs()));
    let config = Config { interval, pod_logs, ..Config::default() };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    let answer = |uid: u32, name: &str| {
        let request = format!("{{\"ask\":\"receipt\",\"name\":{name:?}}}");
        let text = String::from_utf8(asked(&agent, "gpuwho.sock", uid, &request).stdout).unwrap();
        text.replace(name, "NAME")
    };
    let has = |uid: u32, name: &str| answer(uid, name).contains("\"gpu_hours\"");
    let is_known = || (has(0, "trainer-0") && has(0, "own") && has(NOBODY, "own")).then_some(());
    assert!(
        until(SEEN_WITHIN, is_known).is_some(),
        "{} {}",
        answer(0, "own"),
        answer(NOBODY, "own")
    );
    // Whether it ran here, and whether he has receipts himself, changes nothing.
    for uid in [NOBODY, 12_345] {
        let (others, nobodys) = (answer(uid, "trainer-0"), answer(uid, "trainer-9"));
        assert_eq!(others, nobodys);
        assert!(others.contains("\"answer\":\"receipts\""), "{others}");
    }
}
