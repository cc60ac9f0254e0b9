//! What a look at the host finds: the lines of `gpuwho doctor`.

use crate::attribute::ownership::Ownership;
use crate::attribute::slurm::Granted;
use crate::config::Settings;
use crate::host::{self, CgroupNamespace};
use crate::privilege;
use serde::Serialize;

/// What a finding is about: the sections of `gpuwho doctor`, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Accelerators and their drivers.
    Devices,
    /// The kernel's evidence: privileges, BPF, the kernel log.
    #[default]
    Kernel,
    /// Where the names of owners come from.
    Names,
    /// Where points go.
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
            Self::Names => "names",
            Self::Receivers => "receivers",
            Self::Engines => "engines",
            Self::Agent => "agent",
        }
    }
}

/// One finding: answer first, reason second, remedy third.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub group: Group,
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
            group: Group::default(),
            subject: subject.into(),
            state: state.into(),
            facts: facts.into(),
            remedy: remedy.into(),
        }
    }

    /// The same in a group.
    #[must_use]
    pub fn of(self, group: Group) -> Self {
        Self { group, ..self }
    }

    /// Whether something was asked for and does not work as it should. What is absent was not, and
    /// an agent that does not run is no fault.
    pub fn is_fault(&self) -> bool {
        !["ok", ABSENT, NOT_RUNNING].contains(&&*self.state)
    }

    /// Whether it does not apply to this host.
    pub fn is_absent(&self) -> bool {
        self.state == ABSENT
    }
}

/// The state of what is not on this host.
pub const ABSENT: &str = "absent";
/// The state of an agent that nobody has started.
pub const NOT_RUNNING: &str = "not running";

/// What a look at the host finds before any source: privileges and namespaces.
pub fn host(settings: &Settings) -> Vec<Finding> {
    let mut findings = privileges();
    findings.push(cgroup_namespace(settings));
    findings
}

/// What it finds of where owners' names come from.
pub fn names(settings: &Settings) -> Vec<Finding> {
    vec![pod_logs(settings), slurm(settings)]
}

/// One line where all is there, else one for each capability that is missing.
fn privileges() -> Vec<Finding> {
    let subject = "privilege";
    if !rustix::process::geteuid().is_root() {
        let facts = "not root: no BPF, and only this user's processes can be looked into";
        return vec![Finding::new(subject, "degraded", facts, "run it with sudo")];
    }
    let missing = privilege::missing();
    if missing.is_empty() {
        return vec![Finding::new(subject, "ok", "root with every capability it uses", "")];
    }
    let finding = |need: &&privilege::Need| {
        let facts = format!("without {}: {}", need.name, need.without);
        Finding::new(subject, "degraded", facts, format!("give it {}", need.name))
    };
    missing.iter().map(finding).collect()
}

fn cgroup_namespace(settings: &Settings) -> Finding {
    let subject = "cgroup namespace";
    match host::enter_cgroup_namespace(&settings.paths) {
        CgroupNamespace::Host => Finding::new(subject, "ok", "paths are the host's", ""),
        CgroupNamespace::Foreign(error) => Finding::new(
            subject,
            "degraded",
            format!("not the host's, and it cannot be entered ({error}): owners stay unknown"),
            "run as root with CAP_SYS_ADMIN; in a container, with hostPID as well",
        ),
    }
}

fn pod_logs(settings: &Settings) -> Finding {
    let path = settings.paths.pod_logs.display();
    if settings.paths.pod_logs.is_dir() {
        return Finding::new("pod logs", "ok", format!("{path}: pod names are known"), "");
    }
    let facts = format!("{path} is not there: no kubelet on this host, so no pod names");
    Finding::new(
        "pod logs",
        "absent",
        facts,
        "on a Kubernetes node, mount it or set paths.pod_logs",
    )
}

fn slurm(settings: &Settings) -> Finding {
    let ownership = Ownership::with_settings(&settings.paths, settings.attribution.clone());
    ownership.expire(host::boot_time_ns());
    let jobs = ownership.jobs();
    if jobs.is_empty() {
        return Finding::new("slurm", "absent", "no job has a cgroup on this host", "");
    }
    let reported = jobs.iter().filter(|job| matches!(job.granted, Granted::Devices { .. })).count();
    let files = settings.attribution.slurm.jobs.display();
    let (names, remedy) = if settings.attribution.slurm.jobs.is_dir() {
        (format!("names from {files}"), "")
    } else {
        (format!("{files} is not there: names from the jobs' own environment"), PROLOG)
    };
    let count = jobs.len();
    let facts =
        format!("{count} jobs, of {reported} the kernel tells the granted devices; {names}");
    Finding::new("slurm", "ok", facts, remedy)
}

/// What makes names come from root.
const PROLOG: &str = "to have them from root, use the prolog and epilog in deploy/slurm";
