//! Starts fake inference engines, gives them work, and asks them who has asked.

pub mod real;
pub mod serve;

use crate::program;
use crate::stage::Group;
use crate::worker::nodes;
use crate::worker::script::Script;
use serve::{Mode, Order};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Where and what an engine serves.
#[derive(Clone, Debug)]
pub struct EngineSpec<'a> {
    /// Where it runs.
    pub group: Option<&'a Group>,
    /// The devices that it holds itself; an API server holds none.
    pub gpus: &'a [u32],
    /// What it answers.
    pub mode: Mode,
    /// Its port; 0: any.
    pub port: u16,
    /// Whether it has a network namespace of its own, as a pod has.
    pub own_network: bool,
    /// Its user.
    pub uid: Option<u32>,
}

impl Default for EngineSpec<'_> {
    fn default() -> Self {
        let (group, uid) = (None, Some(54_321));
        Self { group, gpus: &[], mode: Mode::Page, port: 8000, own_network: true, uid }
    }
}

/// A running engine; ended when dropped.
#[derive(Debug)]
pub struct FakeEngine {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The port of its page.
    pub port: u16,
}

/// Who has asked an engine so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Requests for its page.
    pub pages: u64,
    /// Requests for anything else on that port.
    pub others: u64,
    /// Connections to its other ports: a store, a rendezvous, messages.
    pub strange_connections: u64,
    /// Bytes that came there.
    pub strange_bytes: u64,
}

impl FakeEngine {
    /// Starts one and waits until it listens.
    pub fn start(spec: &EngineSpec<'_>) -> io::Result<Self> {
        let directories = spec.group.iter().flat_map(|group| &group.directories);
        let script = Script {
            join: directories.map(|path| path.display().to_string()).collect(),
            comm: "VLLM::APIServer".to_owned(),
            gpus: spec.gpus.to_vec(),
            uid: spec.uid,
            ..Script::default()
        };
        let mut child = Command::new(program::engine().map_err(io::Error::other)?)
            .args([spec.mode.as_str(), &spec.port.to_string(), &spec.own_network.to_string()])
            .args(script.to_arguments())
            .envs([nodes::environment()])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("no pipe");
        let orders = child.stdin.take().ok_or_else(missing)?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let mut engine = Self { child, orders, answers, port: 0 };
        let ready = engine.answer()?;
        let port = ready.strip_prefix("ready ").and_then(|port| port.parse().ok());
        engine.port = port.ok_or_else(|| io::Error::other(format!("engine said {ready:?}")))?;
        Ok(engine)
    }

    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it serve so many requests more, each of [`serve::PROMPT`] and [`serve::GENERATED`]
    /// tokens.
    pub fn work(&mut self, requests: u64) -> io::Result<()> {
        self.order(&Order::Work(requests)).map(drop)
    }

    /// Who has asked it so far.
    pub fn asked(&mut self) -> io::Result<Asked> {
        let answer = self.order(&Order::Asked)?;
        let numbers: Vec<u64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [pages, others, strange_connections, strange_bytes] = numbers[..] else {
            return Err(io::Error::other(format!("engine said {answer:?}")));
        };
        Ok(Asked { pages, others, strange_connections, strange_bytes })
    }

    fn order(&mut self, order: &Order) -> io::Result<String> {
        writeln!(self.orders, "{order}")?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
