//! A probe as a row of [`super::PROBES`]: a source that loads a BPF object, and how it is proved on
//! a kernel.

use crate::collect::source::SourceDef;
use std::error::Error;

/// A row: one probe. Its object is built from `agent-ebpf/src/bin/<stem>.rs`.
#[derive(Clone, Copy, Debug)]
pub struct ProbeDef {
    /// The source that it feeds.
    pub source: SourceDef,
    /// What `gpuwho self-test` can be asked, which the VM matrix asks in every kernel.
    pub self_tests: &'static [SelfTest],
    /// Runs one; gives a line for a person, newline included.
    pub self_test: fn(Option<&str>) -> Result<String, SelfTestError>,
    /// Unit tests of the agent that the VM matrix runs in every kernel as well.
    pub vm_tests: &'static [&'static str],
}

/// What a self-test has found wrong.
pub type SelfTestError = Box<dyn Error + Send + Sync>;

/// A self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfTest {
    /// Its name.
    pub name: &'static str,
    /// One of the ways in which it can be done, as `--hook` takes it.
    pub hook: Option<&'static str>,
}
