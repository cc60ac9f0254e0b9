//! The configuration that a test gives to an agent.

use crate::nvml::FakeNvml;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Where the agent sends.
#[derive(Clone, Debug)]
pub struct Otlp {
    /// URL.
    pub endpoint: String,
    /// `http/protobuf` or `grpc`; without it what the agent concludes from the URL.
    pub protocol: Option<&'static str>,
}

/// What the agent is told in its configuration file; all that is `None` stays at its default.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// `agent.interval`, `1s` without.
    pub interval: Option<String>,
    /// Whether the agent's own level of metrics stays; without, it is `all`, which tests look at.
    pub default_metrics: bool,
    /// Where its log goes instead of to whoever asks for it.
    pub log_file: Option<PathBuf>,
    /// `agent.series_limit`.
    pub series_limit: Option<u32>,
    /// `agent.cpu_limit`, in percent of a core.
    pub cpu_limit: Option<f64>,
    /// `agent.show_others`.
    pub show_others: Option<bool>,
    /// `paths.pod_logs`.
    pub pod_logs: Option<PathBuf>,
    /// `paths.passwd`.
    pub passwd: Option<PathBuf>,
    /// `paths.sys`; cgroups stay the kernel's.
    pub sys: Option<PathBuf>,
    /// `paths.cgroup`.
    pub cgroup: Option<PathBuf>,
    /// `paths.proc`; without, the kernel's.
    pub proc: Option<PathBuf>,
    /// `paths.kmsg`; without, the kernel's own log.
    pub kmsg: Option<PathBuf>,
    /// `devices.nodes`; without, the nodes that stand for NVIDIA's on this stage.
    pub nodes: Option<Vec<String>>,
    /// `devices.bpf`.
    pub bpf: Option<bool>,
    /// `devices.open_hook`.
    pub hook: Option<&'static str>,
    /// `devices.rescan_interval`.
    pub rescan_interval: Option<&'static str>,
    /// `nvidia.deadline`; half the interval without.
    pub deadline: Option<&'static str>,
    /// `nvidia.retry`.
    pub retry: Option<&'static str>,
    /// `[otlp]`.
    pub otlp: Option<Otlp>,
    /// `sinks.file`.
    pub file: Option<PathBuf>,
    /// A program that becomes the agent, with its arguments: `setpriv`, say.
    pub launcher: Vec<String>,
    /// Whatever else, as TOML.
    pub more: String,
}

impl Config {
    /// The file's text.
    pub fn to_toml(&self, run: &Path, nvml: Option<&FakeNvml>) -> String {
        let mut text = String::new();
        let interval = self.interval.as_deref().unwrap_or("1s");
        let keys = [
            ("interval", Some(interval.into())),
            ("series_limit", self.series_limit.map(Value::from)),
            ("cpu_limit", self.cpu_limit.map(Value::from)),
            ("show_others", self.show_others.map(Value::from)),
        ];
        section(&mut text, "agent", &keys);
        if !self.default_metrics {
            section(&mut text, "metrics", &[("level", Some("all".into()))]);
        }
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let cgroup = self.sys.as_ref().map(|_| PathBuf::from("/sys/fs/cgroup"));
        let cgroup = self.cgroup.clone().or(cgroup);
        let paths = [
            ("run", Some(run.display().to_string().into())),
            // Beside it: no test finds another's devices.
            ("state", Some(run.with_file_name("state").display().to_string().into())),
            ("pod_logs", path(&self.pod_logs).map(Value::from)),
            ("passwd", path(&self.passwd).map(Value::from)),
            ("proc", path(&self.proc).map(Value::from)),
            ("kmsg", path(&self.kmsg).map(Value::from)),
            ("sys", path(&self.sys).map(Value::from)),
            ("cgroup", path(&cgroup).map(Value::from)),
        ];
        section(&mut text, "paths", &paths);
        let default = || vec!["/dev/nvidia*".to_owned()];
        let nodes = self.nodes.clone().unwrap_or_else(default);
        let devices = [
            ("nodes", Some(nodes.into())),
            ("bpf", self.bpf.map(Value::from)),
            ("open_hook", self.hook.map(Value::from)),
            ("rescan_interval", self.rescan_interval.map(Value::from)),
        ];
        section(&mut text, "devices", &devices);
        if let Some(nvml) = nvml {
            let library = nvml.library().display().to_string();
            let keys = [
                ("library", Some(library.into())),
                ("deadline", self.deadline.map(Value::from)),
                ("retry", self.retry.map(Value::from)),
            ];
            section(&mut text, "nvidia", &keys);
        }
        if let Some(otlp) = &self.otlp {
            let keys = [
                ("endpoint", Some(otlp.endpoint.as_str().into())),
                ("protocol", otlp.protocol.map(Value::from)),
            ];
            section(&mut text, "otlp", &keys);
        }
        if let Some(file) = path(&self.file) {
            section(&mut text, "sinks", &[("file", Some(file.into()))]);
        }
        text + &self.more
    }
}

/// JSON's strings, booleans and lists of strings are TOML's too.
fn section(text: &mut String, name: &str, keys: &[(&str, Option<Value>)]) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "[{name}]");
    for (key, value) in keys {
        if let Some(value) = value {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_has_only_what_was_set() {
        let config = Config {
            bpf: Some(false),
            otlp: Some(Otlp {
                endpoint: "http://127.0.0.1:4318".to_owned(),
                protocol: Some("grpc"),
            }),
            ..Config::default()
        };
        let expected = "\
[agent]
interval = \"1s\"
[metrics]
level = \"all\"
[paths]
run = \"/tmp/run\"
state = \"/tmp/state\"
[devices]
nodes = [\"/dev/nvidia*\"]
bpf = false
[otlp]
endpoint = \"http://127.0.0.1:4318\"
protocol = \"grpc\"
";
        assert_eq!(config.to_toml(Path::new("/tmp/run"), None), expected);
    }
}
