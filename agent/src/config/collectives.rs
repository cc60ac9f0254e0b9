//! `[nccl]`: the three ways in which collective communication is watched.

use super::{ConfigError, duration};
use crate::collect::kernel::nccl;
use crate::collect::{inspector, ras};
use serde::Deserialize;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Every question to NCCL goes to every process of a job.
const SHORTEST_ROUND: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawNccl {
    enabled: Option<bool>,
    budget: Option<u64>,
    timed_rate: Option<u32>,
    hang_after: Option<String>,
    trusted_mounts: Option<Vec<PathBuf>>,
    inspector: Option<bool>,
    inspector_dirs: Option<Vec<PathBuf>>,
    inspector_rate: Option<u64>,
    ras: Option<bool>,
    ras_interval: Option<String>,
    /// Was in sample files; there are no such probes any more.
    hooks: Option<bool>,
}

/// What is counted by probes.
pub(super) fn probes(raw: RawNccl) -> Result<nccl::Settings, ConfigError> {
    let usual = nccl::Settings::default();
    if raw.hooks.is_some() {
        tracing::warn!("nccl.hooks has no effect any more: remove it");
    }
    if raw.budget == Some(0) {
        return Err(ConfigError::Value {
            key: "nccl.budget".into(),
            problem: "no hits at all would be allowed".into(),
            remedy: "set nccl.enabled = false instead; 10000 is the default".into(),
        });
    }
    let trusted_mounts = raw.trusted_mounts.unwrap_or(usual.trusted_mounts);
    trusted_mounts.iter().try_for_each(|path| trusted_mount(path))?;
    Ok(nccl::Settings {
        trusted_mounts,
        enabled: raw.enabled.unwrap_or(usual.enabled),
        budget: raw.budget.unwrap_or(usual.budget),
        patience: usual.patience,
        timed_rate: raw.timed_rate.unwrap_or(usual.timed_rate),
        hang_after: duration("nccl.hang_after", raw.hang_after, usual.hang_after)?,
    })
}

/// A directory whose mounts may keep the kernel waiting: none by accident.
fn trusted_mount(path: &Path) -> Result<(), ConfigError> {
    let is_plain = path.components().all(|part| !matches!(part, Component::ParentDir));
    if path.is_absolute() && is_plain && path.parent().is_some() {
        return Ok(());
    }
    Err(ConfigError::Value {
        key: "nccl.trusted_mounts".into(),
        problem: format!("`{}` is not the whole path of a directory below /", path.display()),
        remedy:
            "name where root mounts images, like /cvmfs; a hung server there stops the host's forks"
                .into(),
    })
}

/// What is read of the Inspector's files.
pub(super) fn inspector(raw: &RawNccl) -> Result<inspector::Settings, ConfigError> {
    let usual = inspector::Settings::default();
    if raw.inspector_rate == Some(0) {
        return Err(ConfigError::Value {
            key: "nccl.inspector_rate".into(),
            problem: "nothing at all would be read".into(),
            remedy: "set nccl.inspector = false instead; 524288 is the default".into(),
        });
    }
    let directories = raw.inspector_dirs.clone().unwrap_or(usual.directories);
    if let Some(relative) = directories.iter().find(|path| !path.is_absolute()) {
        return Err(ConfigError::Value {
            key: "nccl.inspector_dirs".into(),
            problem: format!("`{}` is not absolute", relative.display()),
            remedy: "write the whole path, like /var/lib/nccl-inspector".into(),
        });
    }
    Ok(inspector::Settings {
        enabled: raw.inspector.unwrap_or(usual.enabled),
        directories,
        rate: raw.inspector_rate.unwrap_or(usual.rate),
    })
}

/// What NCCL is asked itself.
pub(super) fn ras(raw: &RawNccl) -> Result<ras::Settings, ConfigError> {
    let usual = ras::Settings::default();
    let every = duration("nccl.ras_interval", raw.ras_interval.clone(), usual.every)?;
    if every < SHORTEST_ROUND {
        return Err(ConfigError::Value {
            key: "nccl.ras_interval".into(),
            problem: format!("{every:?} is shorter than {SHORTEST_ROUND:?}"),
            remedy: "an answer comes from all processes of a job; 1m is the default".into(),
        });
    }
    Ok(ras::Settings { enabled: raw.ras.unwrap_or(usual.enabled), every })
}
