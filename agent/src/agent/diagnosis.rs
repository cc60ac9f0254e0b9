//! Checks of the host for `gpuwho doctor`.

use crate::advisories;
use crate::privilege;
use crate::settings::Settings;
use gpuwho_model::finding::{Finding, Group, NOTICE};
use gpuwho_model::text::plural;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::slurm::DeviceAccess;
use gpuwho_owners::host::{self, CgroupNamespace};
use std::fs;

/// Checks the host itself: privileges and namespaces.
pub(super) fn host(settings: &Settings) -> Vec<Finding> {
    let mut findings = privileges();
    findings.push(cgroup_namespace(settings));
    findings.extend(driver_holes(settings).filter(|_| settings.advisories));
    findings
}

/// Whether NVIDIA's driver, by the version of its module, has known holes; nothing where it is not loaded,
/// or has none.
fn driver_holes(settings: &Settings) -> Option<Finding> {
    let version = fs::read_to_string(settings.paths.sys.join("module/nvidia/version")).ok()?;
    let version = version.trim();
    let known = advisories::of_nvidia(version)?;
    let remedy = format!("install {}; advisories.enabled = false leaves this out", known.1);
    let facts = advisories::sentence(version, &known);
    Some(Finding::new("driver", NOTICE, facts, remedy).of(Group::Devices))
}

/// Checks the files from which owners get their names.
pub(super) fn names(settings: &Settings) -> Vec<Finding> {
    vec![pod_logs(settings), slurm(settings)]
}

/// One finding if no capability is missing, otherwise one for each missing capability.
fn privileges() -> Vec<Finding> {
    let subject = "privilege";
    if !rustix::process::geteuid().is_root() {
        let facts = "not root: no BPF; only this user's processes can be read";
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
    let with_devices =
        jobs.iter().filter(|job| matches!(job.devices, DeviceAccess::Known { .. })).count();
    let files = settings.attribution.slurm.jobs.display();
    let (state, names, remedy) = if settings.attribution.slurm.jobs.is_dir() {
        ("ok", format!("names from {files}"), "")
    } else {
        (NOTICE, format!("{files} is missing: names come from the jobs' own environment"), PROLOG)
    };
    let with_devices = if with_devices == 0 { "none".into() } else { with_devices.to_string() };
    let jobs = plural(jobs.len(), "job", "jobs");
    let facts = format!("{jobs}; allocated devices known for {with_devices}; {names}");
    Finding::new("slurm", state, facts, remedy)
}

/// The remedy where names come from the jobs' own environment.
const PROLOG: &str = "install the prolog and epilog from deploy/slurm";
