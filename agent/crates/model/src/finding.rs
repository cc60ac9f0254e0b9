//! Findings of `gpuwho doctor`.

use serde::Serialize;

/// The sections of `gpuwho doctor`, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Accelerators and their drivers.
    Devices,
    /// The kernel's evidence: privileges, BPF, the kernel log.
    #[default]
    Kernel,
    /// Sources of owners' names.
    Metadata,
    /// Receivers of points and events.
    Receivers,
    /// Inference engines, and NCCL.
    Engines,
    /// The running agent.
    Agent,
}

impl Group {
    /// The heading.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Kernel => "kernel",
            Self::Metadata => "names",
            Self::Receivers => "receivers",
            Self::Engines => "engines",
            Self::Agent => "agent",
        }
    }
}

/// One finding: the state, the facts, the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The section it belongs to.
    pub group: Group,
    /// What was checked.
    pub subject: String,
    /// Its state: `ok`, or a word like `absent`, `degraded`, `hung`.
    pub state: String,
    /// The facts, in one sentence.
    pub facts: String,
    /// What to do; empty when nothing.
    pub remedy: String,
}

impl Finding {
    /// Makes a finding.
    pub fn new(
        subject: impl Into<String>,
        state: &str,
        facts: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            group: Group::default(),
            subject: subject.into(),
            state: state.into(),
            facts: facts.into(),
            remedy: remedy.into(),
        }
    }

    /// A feature that the configuration switches off: it does not apply to this host.
    pub fn switched_off(subject: &str, key: &str) -> Self {
        Self::new(subject, ABSENT, format!("switched off ({key})"), "")
    }

    /// The same in a group.
    #[must_use]
    pub fn of(self, group: Group) -> Self {
        Self { group, ..self }
    }

    /// Whether something was asked for and does not work as it should. What is absent was not, and
    /// an agent that does not run is no fault.
    pub fn is_fault(&self) -> bool {
        !["ok", ABSENT, NOT_RUNNING, NOTICE].contains(&&*self.state)
    }

    /// Whether it does not apply to this host.
    pub fn is_absent(&self) -> bool {
        self.state == ABSENT
    }
}

/// The state of a feature that does not apply to this host.
pub const ABSENT: &str = "absent";
/// The state of what works, and should be known all the same.
pub const NOTICE: &str = "notice";
/// The state of an agent that is not started.
pub const NOT_RUNNING: &str = "not running";
