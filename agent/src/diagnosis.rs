//! What a look at the host finds: the lines of `gpuwho doctor`.

use crate::attribute::ownership::Ownership;
use crate::attribute::slurm::Granted;
use crate::catalog::agent::SourceState;
use crate::collect::kernel::{device_users, nccl};
use crate::collect::{inspector, kmsg, ras};
use crate::config::Settings;
use crate::host::{self, CgroupNamespace};
use crate::pipeline;
use crate::privilege;
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

/// Looks at everything the agent would use, without an agent.
pub fn diagnose(settings: &Settings) -> Vec<Finding> {
    let mut findings = privileges();
    findings.push(cgroup_namespace(settings));
    for finding in device_users::diagnose(&settings.kernel, &settings.paths) {
        findings.push(Finding::new(finding.what, finding.standing.as_str(), finding.detail, ""));
    }
    findings.push(collectives(settings));
    findings.push(completions(settings));
    findings.push(status_sockets(settings));
    findings.push(kernel_log(settings));
    findings.push(pod_logs(settings));
    findings.push(slurm(settings));
    findings.push(receiver(settings));
    let who = pipeline::read_once(settings);
    for source in who.sources {
        let state = if source.state == "ready" { "ok" } else { &source.state };
        findings.push(Finding::new(source.name, state, source.reason, source.remedy));
    }
    for device in who.devices {
        let facts = format!("{} {} {}", device.model, device.uuid, device.reason);
        let subject = format!("device {}", device.index);
        findings.push(Finding::new(subject, &device.state, facts.trim_end(), ""));
    }
    findings
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

fn collectives(settings: &Settings) -> Finding {
    let (state, facts) = nccl::diagnose(&settings.nccl, &settings.paths);
    let state = if state == SourceState::Ready { "ok" } else { state.as_str() };
    Finding::new("collectives", state, facts, "")
}

fn completions(settings: &Settings) -> Finding {
    let (state, facts) = inspector::diagnose(&settings.inspector);
    let state = if state == SourceState::Ready { "ok" } else { state.as_str() };
    Finding::new("NCCL inspector", state, facts, "")
}

fn status_sockets(settings: &Settings) -> Finding {
    let (state, facts) = if settings.nccl.enabled {
        ras::diagnose(&settings.ras)
    } else {
        (SourceState::Absent, "switched off (nccl.enabled)".into())
    };
    let state = if state == SourceState::Ready { "ok" } else { state.as_str() };
    Finding::new("NCCL status", state, facts, "")
}

fn kernel_log(settings: &Settings) -> Finding {
    match kmsg::probe(&settings.paths) {
        Ok(place) => {
            let facts = format!("{place} can be read: XIDs, bus errors and OOM kills are told");
            Finding::new("kernel log", "ok", facts, "")
        }
        Err(why) => Finding::new("kernel log", "degraded", why, kmsg::REMEDY),
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
    let told = jobs.iter().filter(|job| matches!(job.granted, Granted::Devices { .. })).count();
    let files = settings.attribution.slurm.jobs.display();
    let (names, remedy) = if settings.attribution.slurm.jobs.is_dir() {
        (format!("names from {files}"), "")
    } else {
        (format!("{files} is not there: names from the jobs' own environment"), PROLOG)
    };
    let count = jobs.len();
    let facts = format!("{count} jobs, of {told} the kernel tells the granted devices; {names}");
    Finding::new("slurm", "ok", facts, remedy)
}

/// What makes names come from root.
const PROLOG: &str = "to have them from root, use the prolog and epilog in deploy/slurm";

fn receiver(settings: &Settings) -> Finding {
    match &settings.otlp {
        Some(otlp) => Finding::new("otlp", "ok", format!("sends to {:?}", otlp.endpoint), ""),
        None => Finding::new(
            "otlp",
            "absent",
            "no receiver is set: nothing is sent",
            "give --otlp URL, set [otlp] endpoint, or OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
    }
}
