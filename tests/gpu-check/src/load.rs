//! Runs `gpu-load` and hears what it says.

use crate::work::{Done, Ready};
use std::env;
use std::io::{self, BufRead as _, BufReader, Lines, Read as _};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

/// Why there is no load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The program cannot be started.
    #[error("start gpu-load: {0}")]
    Start(#[from] io::Error),
    /// It ended without a word.
    #[error("{0}")]
    Ended(String),
    /// It said something else.
    #[error("gpu-load said {text:?}: {source}")]
    Word {
        /// What.
        text: String,
        /// Why it is not understood.
        source: serde_json::Error,
    },
}

/// A running load; ended when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    words: Lines<BufReader<ChildStdout>>,
    errors: ChildStderr,
    /// What it has taken.
    pub ready: Ready,
}

impl Running {
    /// Starts a load and waits until it has its memory.
    pub fn start(arguments: &[&str]) -> Result<Self, LoadError> {
        Self::start_with(arguments, &[])
    }

    /// The same with variables.
    pub fn start_with(arguments: &[&str], variables: &[(&str, &Path)]) -> Result<Self, LoadError> {
        let program = env::current_exe()?.with_file_name("gpu-load");
        let mut child = Command::new(program)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let missing = || LoadError::Ended("gpu-load has no output".to_owned());
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let mut errors = child.stderr.take().ok_or_else(missing)?;
        let mut words = BufReader::new(stdout).lines();
        match word(&mut words) {
            Ok(ready) => Ok(Self { child, words, errors, ready }),
            Err(error) => {
                let _ended = child.wait();
                Err(said(&mut errors).map_or(error, LoadError::Ended))
            }
        }
    }

    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it and hears what it did.
    pub fn stop(mut self) -> Result<Done, LoadError> {
        drop(self.child.stdin.take());
        let done = word(&mut self.words);
        let _ended = self.child.wait();
        done.map_err(|error| said(&mut self.errors).map_or(error, LoadError::Ended))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // One that was stopped has ended already.
        let _ended = self.child.wait();
    }
}

fn word<T: serde::de::DeserializeOwned>(
    words: &mut Lines<BufReader<ChildStdout>>,
) -> Result<T, LoadError> {
    let text = words.next().transpose()?;
    let text = text.ok_or_else(|| LoadError::Ended("gpu-load ended without a word".to_owned()))?;
    serde_json::from_str(&text).map_err(|source| LoadError::Word { text, source })
}

/// The last line of what it wrote to standard error.
fn said(errors: &mut ChildStderr) -> Option<String> {
    let mut text = String::new();
    errors.read_to_string(&mut text).ok()?;
    text.lines().last().map(str::to_owned)
}
