//! What a look at the host finds: the lines of `gpuwho doctor`.

use serde::Serialize;

/// One finding: answer first, reason second, remedy third.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub subject: String,
    /// How it stands: `ok`, or a word like `absent`, `degraded`, `hung`.
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
            subject: subject.into(),
            state: state.into(),
            facts: facts.into(),
            remedy: remedy.into(),
        }
    }
}
