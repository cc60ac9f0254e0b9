//! `[paths]`: the places of the host's files and of the agent's own.

use gpuwho_model::config::{ConfigError, checks};
use gpuwho_model::paths::Paths;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The section in the sample.
pub(super) const SAMPLE: &str = r#"# Where the host's files are, for an agent that sees the host mounted elsewhere.
#: root = "/"
# Each can be set alone:
#: proc = "/proc"
#: sys = "/sys"
#: cgroup = "/sys/fs/cgroup"
#: dev = "/dev"
#: pod_logs = "/var/log/pods"
#: passwd = "/etc/passwd"
# The id of this host, exported as host.id.
#: machine_id = "/etc/machine-id"
# The kernel log, in the format of /dev/kmsg.
#: kmsg = "/dev/kmsg"
# The agent's own sockets, and the position up to which the kernel log was read.
#: run = "/run/gpuwho"
# Mode of gpuwho.sock in there, in octal: who may connect. Commands use gpuwho-admin.sock, for root and
# the agent's own user only.
#: socket_mode = "0666"
# The store of this host's known devices: a device that disappears in a reboot is reported as missing.
# Only one agent at a time uses it; a second one on the host needs its own, and its own `run`.
#: state = "/var/lib/gpuwho"
"#;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawPaths {
    root: Option<PathBuf>,
    proc: Option<PathBuf>,
    sys: Option<PathBuf>,
    cgroup: Option<PathBuf>,
    dev: Option<PathBuf>,
    pod_logs: Option<PathBuf>,
    passwd: Option<PathBuf>,
    machine_id: Option<PathBuf>,
    kmsg: Option<PathBuf>,
    run: Option<PathBuf>,
    state: Option<PathBuf>,
    socket_mode: Option<String>,
}

impl RawPaths {
    /// The host's root, if it is elsewhere.
    pub(super) fn root(&self) -> Option<PathBuf> {
        self.root.clone()
    }

    /// The mode of the public socket.
    pub(super) fn socket_mode(&self) -> Option<String> {
        self.socket_mode.clone()
    }

    /// The paths that are set, by key.
    fn each(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [
            ("paths.root", &self.root),
            ("paths.proc", &self.proc),
            ("paths.sys", &self.sys),
            ("paths.cgroup", &self.cgroup),
            ("paths.dev", &self.dev),
            ("paths.pod_logs", &self.pod_logs),
            ("paths.passwd", &self.passwd),
            ("paths.machine_id", &self.machine_id),
            ("paths.kmsg", &self.kmsg),
            ("paths.run", &self.run),
            ("paths.state", &self.state),
        ];
        all.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?)))
    }
}

/// The default places with those that were set.
pub(super) fn paths(raw: RawPaths) -> Result<Paths, ConfigError> {
    let default = Paths::under(raw.root.as_deref().unwrap_or(Path::new("/")));
    checks::absolute(raw.each())?;
    Ok(Paths {
        proc: raw.proc.unwrap_or(default.proc),
        cgroup: match (raw.cgroup, &raw.sys) {
            (Some(cgroup), _) => cgroup,
            (None, Some(sys)) => sys.join("fs/cgroup"),
            (None, None) => default.cgroup,
        },
        sys: raw.sys.unwrap_or(default.sys),
        kmsg: match (raw.kmsg, &raw.dev) {
            (Some(kmsg), _) => kmsg,
            (None, Some(dev)) => dev.join("kmsg"),
            (None, None) => default.kmsg,
        },
        dev: raw.dev.unwrap_or(default.dev),
        pod_logs: raw.pod_logs.unwrap_or(default.pod_logs),
        passwd: raw.passwd.unwrap_or(default.passwd),
        machine_id: raw.machine_id.unwrap_or(default.machine_id),
        run: raw.run.unwrap_or(default.run),
        state: raw.state.unwrap_or(default.state),
    })
}
