//! `[slurm]`: where the node keeps what Slurm's Prolog and other tools say of jobs.

use super::{ConfigError, checks};
use crate::attribute::slurm::Settings;
use crate::paths::Paths;
use serde::Deserialize;
use std::path::PathBuf;

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

/// What was typed over the usual places.
pub(super) fn settings(raw: RawSlurm, paths: &Paths) -> Result<Settings, ConfigError> {
    let usual = Settings::usual(paths);
    let set = [
        ("slurm.jobs", &raw.jobs),
        ("slurm.gpu_map", &raw.gpu_map),
        ("slurm.gpustat", &raw.gpustat),
    ];
    checks::absolute(set.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?))))?;
    Ok(Settings {
        jobs: raw.jobs.unwrap_or(usual.jobs),
        gpu_map: raw.gpu_map.or(usual.gpu_map),
        gpustat: raw.gpustat.unwrap_or(usual.gpustat),
        environment: raw.environment.unwrap_or(usual.environment),
        pod_namespaces: raw.pod_namespaces.unwrap_or(usual.pod_namespaces),
    })
}
