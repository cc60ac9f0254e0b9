//! Ranks: processes that hold a device and call the collective library that they are given.

use crate::attacker::NOBODY;
use crate::program;
use crate::sys::hold_node;
use crate::worker::nodes::host_nodes;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A rank; ended when dropped.
#[derive(Debug)]
pub struct Rank {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// A copy of the fake library of a stage's own.
pub fn library(folder: &Path) -> io::Result<PathBuf> {
    library_named(folder, "libnccl.so.2")
}

/// The same by another name: RCCL has the same functions.
pub fn library_named(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let path = folder.join(name);
    std::fs::copy(program::fake_nccl().map_err(io::Error::other)?, &path)?;
    Ok(path)
}

/// Whether the kernel takes the agent's probes on the library: where it does, they must be there.
pub fn is_probed_here() -> Result<(), &'static str> {
    let takes = program::gpuwho().is_ok_and(|agent| {
        let tried = Command::new(agent).args(["self-test", "nccl"]).output();
        tried.is_ok_and(|tried| tried.status.success())
    });
    if takes { Ok(()) } else { Err("a kernel that lets the agent count collective calls") }
}

impl Rank {
    /// Starts one that holds the first device below `folder` and has loaded `library`.
    pub fn start(folder: &Path, library: &Path, env: &[(&str, &str)]) -> io::Result<Self> {
        host_nodes(folder)?;
        Self::holding(&folder.join("dev/nvidia0"), library, env)
    }

    /// Starts one that holds this device and has loaded `library`.
    pub fn holding(device: &Path, library: &Path, env: &[(&str, &str)]) -> io::Result<Self> {
        let mut command = Command::new(program::rank().map_err(io::Error::other)?);
        command.envs(env.iter().copied());
        Self::holding_as(command, device, library)
    }

    /// Starts one of nobody's, who can reach `folder`.
    pub fn of_nobody(folder: &Path, library: &Path) -> io::Result<Self> {
        let mut command = Command::new(program::rank().map_err(io::Error::other)?);
        command.uid(NOBODY).gid(NOBODY);
        Self::holding_as(command, &folder.join("dev/nvidia0"), library)
    }

    fn holding_as(mut command: Command, device: &Path, library: &Path) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = hold_node(&mut command, device)?.spawn()?;
        let missing = || io::Error::other("no pipe");
        let orders = child.stdin.take().ok_or_else(missing)?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let mut rank = Self { child, orders, answers };
        rank.order(&format!("load {}", library.display()))?;
        Ok(rank)
    }

    /// Gives an order whose answer nobody waits for.
    pub fn begin(&mut self, order: &str) -> io::Result<()> {
        writeln!(self.orders, "{order}")
    }

    /// Carries out an order and gives the answer.
    pub fn order(&mut self, order: &str) -> io::Result<String> {
        self.begin(order)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if answer.is_empty() || answer.starts_with("refused") {
            return Err(io::Error::other(format!("{order}: {answer}")));
        }
        Ok(answer.trim_end().to_owned())
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
