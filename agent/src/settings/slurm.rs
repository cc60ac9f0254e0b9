//! `[slurm]`: the node's files in which Slurm's Prolog and other tools describe jobs.

use gpuwho_model::config::{ConfigError, checks};
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::slurm::Settings;
use serde::Deserialize;
use std::path::PathBuf;

/// The section in the sample.
pub(super) const SAMPLE: &str = r#"# Files of the node that describe jobs, used where they exist. The agent ignores files that users other
# than root can write.
# One file a job, written by gpuwho's Prolog: Slurm's variables as KEY=VALUE. The file's name is the
# job's number.
#: jobs = "/run/gpuwho/slurm/jobs"
# dcgm-exporter's job mapping directory (--hpc-job-mapping-dir), and jobstats' directory.
#: gpu_map = "/run/dcgm-job-map"
#: gpustat = "/run/gpustat"
# Read Slurm's own variables (no others) in the environment of a job's processes, for names that no
# file has. Used as labels only; the cgroup decides ownership. Outside every job they are exported as a
# claim (gpuwho.claimed.slurm.job.id).
#: environment = true
# Namespaces of pods that run slurmd: jobs inside are exported beside the pod, which stays the owner.
#: pod_namespaces = []
"#;

/// The section, key by key.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawSlurm {
    jobs: Option<PathBuf>,
    gpu_map: Option<PathBuf>,
    gpustat: Option<PathBuf>,
    environment: Option<bool>,
    pod_namespaces: Option<Vec<String>>,
}

/// The default places with those that were set.
pub(super) fn settings(raw: RawSlurm, paths: &Paths) -> Result<Settings, ConfigError> {
    let default = Settings::default_settings(paths);
    let set = [
        ("slurm.jobs", &raw.jobs),
        ("slurm.gpu_map", &raw.gpu_map),
        ("slurm.gpustat", &raw.gpustat),
    ];
    checks::absolute(set.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?))))?;
    Ok(Settings {
        jobs: raw.jobs.unwrap_or(default.jobs),
        gpu_map: raw.gpu_map.or(default.gpu_map),
        gpustat: raw.gpustat.unwrap_or(default.gpustat),
        environment: raw.environment.unwrap_or(default.environment),
        pod_namespaces: raw.pod_namespaces.unwrap_or(default.pod_namespaces),
    })
}
