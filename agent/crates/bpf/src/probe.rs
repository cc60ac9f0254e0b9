//! A row of the table PROBES (`agent/src/agent/probes.rs`): a source that loads a BPF object, and its self-tests.

use gpuwho_collect::source::SourceDef;
use std::error::Error;

/// A probe. Its object is built from `agent-ebpf/src/bin/<stem>.rs`.
#[derive(Clone, Copy, Debug)]
pub struct ProbeDef {
    /// The source of the probe.
    pub source: SourceDef,
    /// Its self-tests, which the VM matrix runs in every kernel.
    pub self_tests: &'static [SelfTest],
    /// Runs a self-test; returns one line of text, newline included.
    pub self_test: fn(Option<&str>) -> Result<String, SelfTestError>,
    /// Unit tests of the agent that the VM matrix also runs in every kernel.
    pub vm_tests: &'static [&'static str],
}

/// Why a self-test failed.
pub type SelfTestError = Box<dyn Error + Send + Sync>;

/// A self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfTest {
    /// The name.
    pub name: &'static str,
    /// The hook to use, as an argument of `--hook`.
    pub hook: Option<&'static str>,
}
