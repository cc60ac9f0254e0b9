//! Programs for Python beside the checks: PyTorch and NVIDIA's own binding are where a machine has them.

use serde::de::DeserializeOwned;
use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A running program, which ends when its standard input does.
pub(crate) struct Python {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Python {
    /// Starts a program with arguments and variables; why not, in words.
    pub(crate) fn start(
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self, String> {
        let child = Command::new("python3")
            .args(["-c", program])
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.map_err(|why| format!("no python3: {why}"))?;
        let out = child.stdout.take().ok_or("python3 has no output")?;
        Ok(Self { child, lines: BufReader::new(out).lines() })
    }

    /// The next line that it says, as JSON; none where it has ended or says something else.
    pub(crate) fn says<T: DeserializeOwned>(&mut self) -> Option<T> {
        serde_json::from_str(&self.lines.next()?.ok()?).ok()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It ends by itself.
        let _ended = self.child.wait();
    }
}
