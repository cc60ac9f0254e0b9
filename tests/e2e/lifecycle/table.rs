//! What a person sees in a terminal: the table, the events, the doctor; with a device that is lost,
//! with an agent that is stuck, and with none.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::skip;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Room for a machine under load; the loss comes after five seconds.
const WITHIN: Duration = Duration::from_mins(1);

/// A node with an agent.
struct Node {
    agent: Agent,
    nvml: FakeNvml,
    folder: TempDir,
}

impl Node {
    fn new(scenario: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let nvml = FakeNvml::install(folder.path(), scenario).unwrap();
        let config = Config {
            interval: Some("500ms".to_owned()),
            // What this host's own kernel says is of no concern.
            kmsg: Some(folder.path().join("no-kmsg")),
            ..Config::default()
        };
        let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
        Self { agent, nvml, folder }
    }

    /// One whose fourth device is lost.
    fn with_a_lost_device() -> Self {
        let node = Self::new("xid79-falls-off");
        let is_lost = |who: &Value| (who["devices"][3]["state"] == "lost").then_some(());
        node.agent.wait_for("the loss", WITHIN, is_lost).unwrap();
        let is_kept = |who: &Value| {
            who["events"]["last"].as_str().is_some_and(|last| last.contains("XID 79")).then_some(())
        };
        node.agent.wait_for("the event", WITHIN, is_kept).unwrap();
        node
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program::gpuwho().unwrap());
        command.args(words).arg("--socket").arg(self.agent.socket());
        command
    }

    fn ask(&self, words: &[&str]) -> (Option<i32>, String) {
        of(&self.command(words).output().unwrap())
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.command(words).arg("--json").output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What a terminal of so many columns is given.
    fn terminal(&self, columns: usize, variables: &str) -> String {
        let (program, socket) = (program::gpuwho().unwrap(), self.agent.socket());
        let (program, socket) = (program.display(), socket.display());
        let line = format!(
            "stty cols {columns} rows 40; unset NO_COLOR; TERM=xterm {variables} {program} --socket {socket}"
        );
        let output = Command::new("script").args(["-qec", &line, "/dev/null"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().replace('\r', "")
    }
}

fn of(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.clone(), output.stderr.clone()].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// The text without colours.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[test]
fn a_lost_device_has_no_value_and_what_happened_is_said_with_its_remedy() {
    let node = Node::with_a_lost_device();
    let who = node.json(&[]);
    let values = |index: usize| {
        let keys = ["utilization", "memory_used_bytes", "memory_limit_bytes", "power_watts"];
        keys.map(|key| who["devices"][index][key].is_null())
    };
    assert_eq!((values(3), values(0)), ([true; 4], [false; 4]), "{who:#}");
    assert_eq!((&who["schema"], &who["totals"]["devices_ok"]), (&1.into(), &7.into()));

    let line = node.agent.wait_for_log("XID 79 on GPU 3", WITHIN).unwrap();
    let expected = ["ERROR", "XID 79 on GPU 3", "drain the node", "fallen off the bus"];
    assert!(expected.iter().all(|part| line.contains(part)), "{line}");

    let (code, events) = node.ask(&["events"]);
    let expected = ["critical XID 79 on GPU 3", "remedy: drain the node", "meaning: "];
    assert!(code == Some(0) && expected.iter().all(|part| events.contains(part)), "{events}");
    let report = node.json(&["events"]);
    let xid = report["events"].as_array().unwrap().iter().find(|event| event["code"] == 79);
    assert_eq!((&report["schema"], &xid.unwrap()["gpu"]), (&1.into(), &3.into()), "{report:#}");
}

#[test]
fn the_table_is_as_wide_as_the_terminal_and_coloured_there_alone() {
    if Command::new("script").arg("--version").output().is_err() {
        skip!("script(1), for a terminal");
    }
    let node = Node::with_a_lost_device();
    for columns in [60, 80, 132, 200] {
        let table = node.terminal(columns, "");
        assert!(table.contains("\x1b[31mlost"), "{columns}: {table:?}");
        let text = plain(&table);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(columns), "{columns}: {widest:?}\n{text}");
        let lost = text.lines().find(|line| line.starts_with("  3  ")).unwrap();
        assert!(!lost.contains("GiB") && !lost.contains('%'), "{lost}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("XID 79 on GPU 3") && words.contains("gpuwho"), "{text}");
        assert!(text.contains(" on 8 accelerators, 1 not answering"), "{text}");
        assert!(!text.contains("nccl") && !text.contains("absent"), "{text}");
    }
    for none in ["NO_COLOR=1", "TERM=dumb"] {
        let table = node.terminal(80, none);
        assert!(table.contains("lost") && !table.contains('\x1b'), "{none}: {table:?}");
    }
    let (_, table) = node.ask(&[]);
    assert!(table.contains("lost") && !table.contains('\x1b'), "a pipe: {table:?}");
}

#[test]
fn the_log_has_no_colours_where_nobody_wants_them() {
    if Command::new("script").arg("--version").output().is_err() {
        skip!("script(1), for a terminal");
    }
    let program = program::gpuwho().unwrap();
    let log = |variables: &str| {
        let program = program.display();
        let line = format!(
            "unset NO_COLOR; TERM=xterm {variables} {program} collect agent --once --log debug"
        );
        let output = Command::new("script").args(["-qec", &line, "/dev/null"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(log("").contains('\x1b'), "{:?}", log(""));
    assert!(!log("NO_COLOR=1").contains('\x1b'), "{:?}", log("NO_COLOR=1"));
}

#[test]
fn a_part_of_the_table_is_what_was_asked_for() {
    let node = Node::new("h100x8");
    let all = |who: &Value| (who["totals"]["devices_ok"] == 8).then_some(());
    node.agent.wait_for("the devices", WITHIN, all).unwrap();
    let part = node.json(&["--gpu", "2,5"]);
    let indexes: Vec<_> =
        part["devices"].as_array().unwrap().iter().map(|on| &on["index"]).collect();
    assert_eq!(
        (indexes, &part["totals"]["devices"]),
        (vec![&Value::from(2), &5.into()], &2.into())
    );
    let (code, text) = node.ask(&["--gpu", "9"]);
    assert!(code == Some(1) && text.contains("no device `9`; there are: 0, 1, 2"), "{text}");
    let nobody = node.json(&["--user", "no-such-user"]);
    assert_eq!(nobody["totals"]["processes"], 0);
    let (code, text) = node.ask(&["--job", "1"]);
    assert!(code == Some(1) && text.contains("no process of job 1 on 8 accelerators"), "{text}");
    let (code, text) = node.ask(&["--sort", "colour"]);
    assert!(code == Some(2) && text.contains("memory"), "{text}");
}

#[test]
fn watching_ends_when_the_reader_goes_away() {
    let node = Node::new("h100x8");
    let mut command = node.command(&["--watch", "1"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let titles = (&mut lines).map_while(Result::ok).filter(|line| line.contains(" accelerator"));
    assert_eq!(titles.take(2).count(), 2);
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn watching_without_an_agent_leaves_no_thread_behind() {
    let folder = TempDir::new().unwrap();
    let nvml = FakeNvml::install(folder.path(), "h100x8").unwrap();
    let config = folder.path().join("gpuwho.toml");
    let text = Config::default().to_toml(&folder.path().join("run"), Some(&nvml));
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(program::gpuwho().unwrap());
    command.args(["--watch", "1", "--config"]).arg(&config);
    let mut child = nvml.apply(&mut command).stdout(Stdio::piped()).spawn().unwrap();
    let tasks = format!("/proc/{}/task", child.id());
    let threads = || std::fs::read_dir(&tasks).unwrap().count();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let frames = (&mut lines).map_while(Result::ok).filter(|line| line.contains(" on 8 accel"));
    let counts: Vec<_> = frames.map(|_| threads()).take(3).collect();
    assert_eq!(counts, [1; 3], "threads by frame");
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_agent_that_is_stuck_is_said_to_be_and_read_without() {
    let node = Node::new("h100x8");
    let pid = Pid::from_raw(i32::try_from(node.agent.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let silent = format!("(process {}) does not answer; it is stopped or stuck", node.agent.pid());
    let (code, text) = node.ask(&[]);
    assert!(code == Some(1) && text.contains(&format!("{silent}; waiting")), "{text}");
    let mut command = Command::new(program::gpuwho().unwrap());
    command.arg("--config").arg(node.folder.path().join("gpuwho.toml"));
    node.nvml.apply(&mut command);
    let (code, text) = of(&command.output().unwrap());
    assert!(text.contains(&format!("{silent}; reading without it")), "{text}");
    assert!(code == Some(0) && text.contains("NVIDIA H100"), "{text}");
    kill_process(pid, Signal::CONT).unwrap();
}

#[test]
fn doctor_says_in_groups_what_does_not_work_and_its_exit_code_says_so_too() {
    let node = Node::with_a_lost_device();
    let (code, text) = node.ask(&["doctor"]);
    assert_eq!(code, Some(1), "{text}");
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in {text}"));
    assert!(
        place("devices\n") < place("device 3") && place("device 3") < place("kernel\n"),
        "{text}"
    );
    assert!(place("device 3") < place("agent\n"), "{text}");
    assert!(!text.contains(" absent ") && !text.contains("Verifier"), "{text}");
    assert!(text.contains(" not applicable") && text.contains("(--all shows them)"), "{text}");
    let (_, all) = node.ask(&["doctor", "--all"]);
    assert!(all.contains(" absent "), "{all}");
    let mut command = Command::new(program::gpuwho().unwrap());
    command.args(["doctor", "--socket", "/nonexistent/gpuwho.sock"]);
    let (code, text) = of(&command.output().unwrap());
    assert!(code == Some(1) && text.contains("no gpuwho agent answers"), "{text}");
}
