//! Runs the built agent with a generated configuration, reads what it says, and ends it.

mod config;

pub use config::{Config, Otlp};

use crate::nvml::FakeNvml;
use crate::program;
use crate::until::{until, until_every};
use crate::worker::nodes::host_nodes;
use serde_json::Value;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The exit code of `gpuwho` where there is no accelerator.
const NO_DEVICE: i32 = 3;

/// The agent answers its socket in milliseconds once it runs; this is for a machine under load.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// Between two questions to an agent: each starts a program, and an agent has something new each second.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(200);

/// Why an agent did not do what was waited for.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No program.
    #[error(transparent)]
    NotBuilt(#[from] program::NotBuilt),
    /// A file or process operation.
    #[error("{what}: {source}")]
    Os {
        /// On what.
        what: String,
        /// What happened.
        source: io::Error,
    },
    /// `gpuwho --json` failed.
    #[error("gpuwho --json: {0}")]
    Ask(String),
    /// It did not come.
    #[error("waited {waited:?} for {what}; last seen:\n{last}")]
    NotSeen {
        /// For what.
        what: String,
        /// How long.
        waited: Duration,
        /// What there was instead.
        last: String,
    },
}

/// A running agent; ended when dropped.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    run: PathBuf,
    log: Receiver<String>,
}

impl Agent {
    /// Starts it with its files in `folder` and waits until it answers.
    pub fn start(
        folder: &Path,
        config: &Config,
        nvml: Option<&FakeNvml>,
    ) -> Result<Self, AgentError> {
        let mut agent = Self::spawn(folder, config, nvml)?;
        let mut last = String::new();
        let answered = until(STARTS_WITHIN, || match agent.who_if_listening() {
            Ok(_) => Some(Ok(())),
            Err(error) => {
                last = error.to_string();
                agent.child.try_wait().ok().flatten().map(Err)
            }
        });
        match answered {
            Some(Ok(())) => Ok(agent),
            ended => {
                let state = match ended {
                    Some(Err(status)) => format!("the agent ended: {status}"),
                    _ => last,
                };
                let log: Vec<_> = agent.log.try_iter().collect();
                Err(AgentError::NotSeen {
                    what: "the agent's answer".to_owned(),
                    waited: STARTS_WITHIN,
                    last: format!("{state}\n{}", log.join("\n")),
                })
            }
        }
    }

    /// Starts it and waits for nothing.
    pub fn spawn(
        folder: &Path,
        config: &Config,
        nvml: Option<&FakeNvml>,
    ) -> Result<Self, AgentError> {
        let os = |what: &Path| {
            let what = what.display().to_string();
            move |source| AgentError::Os { what, source }
        };
        let run = folder.join("run");
        let file = folder.join("gpuwho.toml");
        fs::create_dir_all(&run).map_err(os(&run))?;
        // Without privilege there are no nodes to be made, and none to be opened either.
        let nodes = config.nodes.clone().or_else(|| host_nodes(folder).ok().map(|all| vec![all]));
        let config = Config { nodes, ..config.clone() };
        fs::write(&file, config.to_toml(&run, nvml)).map_err(os(&file))?;
        let program = program::gpuwho()?;
        let mut command = match config.launcher.split_first() {
            Some((launcher, arguments)) => {
                let mut command = Command::new(launcher);
                command.args(arguments).arg(&program);
                command
            }
            None => Command::new(&program),
        };
        command.arg("agent").arg("--config").arg(&file);
        let log = match &config.log_file {
            Some(path) => fs::File::create(path).map_err(os(path))?.into(),
            None => Stdio::piped(),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        if let Some(nvml) = nvml {
            nvml.apply(&mut command);
        }
        // Ctrl-C at a terminal is for whoever started the agent, who then ends it.
        crate::sys::die_with_us(&mut command).process_group(0);
        let mut child = command.spawn().map_err(os(&program))?;
        let (lines, log) = channel();
        if let Some(stderr) = child.stderr.take() {
            thread::spawn(move || {
                let read = BufReader::new(stderr).lines().map_while(Result::ok);
                // Ends with the agent, or when nobody listens any more.
                read.map(|line| lines.send(line)).take_while(Result::is_ok).for_each(drop);
            });
        }
        Ok(Self { child, run, log })
    }

    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// PID of the child that reads devices, if it has not ended.
    pub fn reader(&self) -> Option<u32> {
        self.child("device-reader")
    }

    /// PID of a child that runs a command of the agent's, if it has not ended.
    pub fn child(&self, command: &str) -> Option<u32> {
        let runs = |(name, pid): (String, u32)| (name == command).then_some(pid);
        self.children().into_iter().find_map(runs)
    }

    /// Every child that has not ended, with the command of the agent's that it runs.
    pub fn children(&self) -> Vec<(String, u32)> {
        let own = |entry: fs::DirEntry| {
            let child: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let (_, rest) = stat.rsplit_once(") ")?;
            let mut words = rest.split_whitespace();
            let lives = words.next()? != "Z";
            let parent: u32 = words.next()?.parse().ok()?;
            if !lives || parent != self.pid() {
                return None;
            }
            // Of no other process: another test's attacker shows a command line of 64 GB.
            let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
            Some((line.split('\0').nth(1)?.to_owned(), child))
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut children: Vec<_> = processes.filter_map(own).collect();
        children.sort();
        children
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.run.join("gpuwho.sock")
    }

    /// What `gpuwho --json` says, also of a host without devices.
    pub fn who(&self) -> Result<Value, AgentError> {
        let output = Command::new(program::gpuwho()?)
            .arg("--json")
            .arg("--socket")
            .arg(self.socket())
            .output()
            .map_err(|source| AgentError::Os { what: "gpuwho".to_owned(), source })?;
        if ![Some(0), Some(NO_DEVICE)].contains(&output.status.code()) {
            return Err(AgentError::Ask(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| AgentError::Ask(error.to_string()))
    }

    /// The same of an agent that starts: no program is started before it has its socket.
    fn who_if_listening(&self) -> Result<Value, AgentError> {
        if !self.socket().exists() {
            return Err(AgentError::Ask("no socket yet".to_owned()));
        }
        self.who()
    }

    /// Asks until `look` finds what it looks for.
    pub fn wait_for<T>(
        &self,
        what: &str,
        within: Duration,
        mut look: impl FnMut(&Value) -> Option<T>,
    ) -> Result<T, AgentError> {
        let mut last = String::new();
        let found = until_every(BETWEEN_QUESTIONS, within, || match self.who() {
            Ok(who) => {
                last = format!("{who:#}");
                look(&who)
            }
            Err(error) => {
                last = error.to_string();
                None
            }
        });
        found.ok_or_else(|| AgentError::NotSeen { what: what.to_owned(), waited: within, last })
    }

    /// The next line of its log with a text in it.
    pub fn wait_for_log(&self, text: &str, within: Duration) -> Result<String, AgentError> {
        let end = Instant::now() + within;
        let mut seen = Vec::new();
        loop {
            match self.log.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(text) => return Ok(line),
                Ok(line) => seen.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(AgentError::NotSeen {
                        what: format!("{text:?} in the log"),
                        waited: within,
                        last: seen.join("\n"),
                    });
                }
            }
        }
    }

    /// Waits for it to end by itself.
    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        until(within, || self.child.try_wait().ok().flatten())
    }

    /// The lines logged since the last look.
    pub fn log(&self) -> Vec<String> {
        self.log.try_iter().collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // As an init system would: politely first. One that has ended already is fine too.
        let _ended = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let ended = until(Duration::from_secs(3), || self.child.try_wait().ok().flatten());
        if ended.is_none() {
            let _gone = self.child.kill();
        }
        let _reaped = self.child.wait();
    }
}
