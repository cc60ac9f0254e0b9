//! `gpuwho top` in a terminal: the built program behind a pseudo terminal, and what a person then sees.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::until::until;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read as _, Write};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(30);

/// What the program has written since it began.
#[derive(Default)]
struct Written {
    screen: vt100::Parser,
    all: Vec<u8>,
}

/// A terminal with the program in it.
struct Terminal {
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    written: Arc<Mutex<Written>>,
}

fn size(rows: u16, cols: u16) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}

impl Terminal {
    fn start(arguments: &[&str], nvml: Option<&FakeNvml>, rows: u16, cols: u16) -> Self {
        let pair = native_pty_system().openpty(size(rows, cols)).unwrap();
        let mut command = CommandBuilder::new(program::gpuwho().unwrap());
        command.arg("top");
        command.args(arguments);
        command.env("TERM", "xterm-256color");
        command.env_remove("NO_COLOR");
        if let Some(nvml) = nvml {
            let mut with = Command::new("true");
            for (name, value) in nvml.apply(&mut with).get_envs() {
                command.env(name, value.unwrap_or_default());
            }
        }
        let child = pair.slave.spawn_command(command).unwrap();
        let written = Arc::new(Mutex::new(Written {
            screen: vt100::Parser::new(rows, cols, 0),
            all: Vec::new(),
        }));
        let mut reader = pair.master.try_clone_reader().unwrap();
        let keys = pair.master.take_writer().unwrap();
        let sink = Arc::clone(&written);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                let mut written = sink.lock().unwrap();
                written.screen.process(&bytes[..count]);
                written.all.extend_from_slice(&bytes[..count]);
            }
        });
        Self { master: pair.master, keys, child, written }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn resize(&mut self, rows: u16, cols: u16) {
        self.written.lock().unwrap().screen.screen_mut().set_size(rows, cols);
        self.master.resize(size(rows, cols)).unwrap();
    }

    fn seen(&self) -> String {
        self.written.lock().unwrap().screen.screen().contents()
    }

    /// Waits for a screen that has all of these and none of those.
    fn shows(&self, has: &[&str], has_not: &[&str]) -> String {
        let seen = until(WITHIN, || {
            let seen = self.seen();
            let is_it = has.iter().all(|text| seen.contains(text))
                && !has_not.iter().any(|text| seen.contains(text));
            is_it.then_some(seen)
        });
        seen.unwrap_or_else(|| panic!("{has:?}, not {has_not:?}:\n{}", self.seen()))
    }

    /// The exit code, and whether the terminal is as it was before.
    fn ends(&mut self) -> (u32, bool) {
        let ended = until(WITHIN, || self.child.try_wait().unwrap());
        let ended = ended.unwrap_or_else(|| panic!("goes on:\n{}", self.seen()));
        let is_restored = || {
            let all = String::from_utf8_lossy(&self.written.lock().unwrap().all).into_owned();
            // The screen before, the cursor, no mouse.
            ["\x1b[?1049l", "\x1b[?25h", "\x1b[?1000l"]
                .iter()
                .all(|off| all.contains(off))
                .then_some(())
        };
        (ended.exit_code(), until(Duration::from_secs(2), is_restored).is_some())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // One that has ended already cannot be.
        let _ = self.child.kill();
    }
}

struct Node {
    agent: Agent,
    nvml: FakeNvml,
    folder: TempDir,
}

impl Node {
    fn new(scenario: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let nvml = FakeNvml::install(folder.path(), scenario).unwrap();
        let agent = Self::agent(folder.path(), &nvml);
        Self { agent, nvml, folder }
    }

    fn agent(folder: &Path, nvml: &FakeNvml) -> Agent {
        let config = Config {
            interval: Some("500ms".to_owned()),
            kmsg: Some(folder.join("no-kmsg")),
            ..Config::default()
        };
        Agent::start(folder, &config, Some(nvml)).unwrap()
    }

    fn top(&self, more: &[&str], rows: u16, cols: u16) -> Terminal {
        let socket = self.agent.socket();
        let mut arguments = vec!["--interval", "200ms", "--socket", socket.to_str().unwrap()];
        arguments.extend(more);
        Terminal::start(&arguments, None, rows, cols)
    }
}

#[test]
fn devices_pages_filters_and_sizes_are_at_hand_and_the_terminal_is_restored() {
    let node = Node::new("h100x8");
    let mut top = node.top(&[], 24, 80);
    let seen = top.shows(&["8 GPUs", "[1 Devices]", "OWNERS", "GiB", "92 %"], &["reading"]);
    assert!(seen.lines().filter(|line| line.contains("/79.6G")).count() == 8, "{seen}");
    top.press("2");
    top.shows(&["[2 Owners]", "OWNER (by memory)"], &["TEMP"]);
    top.press("s");
    top.shows(&["OWNER (by util)"], &[]);
    top.press("5");
    top.shows(&["[5 Agent]", "nvidia"], &[]);
    top.press("1/gpu==3\r");
    let seen = top.shows(&["filter: gpu==3"], &[]);
    assert_eq!(seen.lines().filter(|line| line.contains("/79.6G")).count(), 1, "{seen}");
    top.press("\x1b");
    top.shows(&["q quit"], &["filter:"]);
    for (rows, cols) in [(1, 1), (3, 10), (60, 200), (10, 400)] {
        top.resize(rows, cols);
    }
    top.shows(&["MODEL", "NVIDIA H100 80GB HBM3"], &[]);
    top.resize(24, 200);
    top.press("?");
    top.shows(&["Ctrl-Z: suspend"], &[]);
    top.press("q");
    assert_eq!(top.ends(), (0, true));
}

#[test]
fn an_agent_that_goes_and_comes_back_is_said_and_shown_again() {
    let Node { agent, nvml, folder } = Node::new("a10x1");
    let socket = agent.socket();
    let mut top =
        Terminal::start(&["-d", "200ms", "--socket", socket.to_str().unwrap()], None, 24, 200);
    top.shows(&["NVIDIA A10"], &[]);
    drop(agent);
    top.shows(&["NVIDIA A10", "no gpuwho agent answers"], &[]);
    let _agent = Node::agent(folder.path(), &nvml);
    top.shows(&["NVIDIA A10"], &["no gpuwho agent answers"]);
    // As a shell's end does it.
    let pid = i32::try_from(top.child.process_id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    assert_eq!(top.ends(), (0, true));
}

#[test]
fn without_an_agent_it_reads_by_itself_and_without_a_device_says_so() {
    for (scenario, part) in [("a10x1", "NVIDIA A10"), ("empty", "no accelerator")] {
        let folder = TempDir::new().unwrap();
        let nvml = FakeNvml::install(folder.path(), scenario).unwrap();
        let config = folder.path().join("gpuwho.toml");
        let run = folder.path().join("run");
        std::fs::write(&config, format!("[paths]\nrun = {run:?}\n")).unwrap();
        let library = nvml.library();
        let arguments =
            ["--config", config.to_str().unwrap(), "--nvidia-library", library.to_str().unwrap()];
        let mut top = Terminal::start(&arguments, Some(&nvml), 24, 200);
        top.shows(&[part, "[1 Devices]"], &[]);
        top.press("\x03");
        assert_eq!(top.ends(), (0, true), "{scenario}");
    }
}

#[test]
fn a_pipe_is_no_terminal() {
    let output = Command::new(program::gpuwho().unwrap()).arg("top").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("needs a terminal") && said.contains("--json"), "{said}");
}

/// A terminal that went away, as a lost ssh connection leaves it: the program ends and does not spin, also
/// where nobody tells it.
#[test]
fn a_terminal_that_is_gone_is_the_end() {
    let node = Node::new("a10x1");
    for shell in ["exec", "trap '' HUP; exec"] {
        let pair = native_pty_system().openpty(size(24, 80)).unwrap();
        let mut command = CommandBuilder::new("sh");
        let (program, socket) = (program::gpuwho().unwrap(), node.agent.socket());
        let line = format!("{shell} {} top --socket {}", program.display(), socket.display());
        command.args(["-c", &line]);
        let mut child = pair.slave.spawn_command(command).unwrap();
        let mut reader = pair.master.try_clone_reader().unwrap();
        let mut first = [0; 4096];
        assert!(reader.read(&mut first).unwrap() > 0, "it draws");
        drop((reader, pair));
        let ended = until(WITHIN, || child.try_wait().unwrap());
        assert!(ended.is_some(), "{shell}: it goes on");
    }
}
