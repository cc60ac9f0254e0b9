//! The DaemonSet's container, made by a real containerd with the manifest's capabilities, mounts,
//! environment and the runtime's own filter of system calls. Not tried so: AppArmor (there is none
//! where tests run), and cgroup v2 alone, where containerd gives it a cgroup namespace.

use super::manifests::added;
use super::{DAEMONSET, states};
use crate::fixture::{holder, owner};
use gpuwho::privilege::NEEDS;
use gpuwho_tests::containerd::{
    self, Container, ContainerSpec, Containerd, PodSpec, Restricted, Run,
};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::program;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::script::Script;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Where the image has the agent.
const AGENT: &str = "/gpuwho";
/// A start in a container and several readings, on a machine under load.
const WITHIN: Duration = Duration::from_secs(90);

/// The value of a key in a line of YAML's flow style.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{key}: "))?;
    let rest = rest.trim_start_matches('{');
    let end = rest.find([',', '}']).unwrap_or(rest.len());
    Some(rest.get(..end)?.trim().trim_matches('"'))
}

/// What the manifest sets in the environment: names and values.
fn environment() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut lines = DAEMONSET.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("- name: ").or_else(|| value(line, "- {name")) else {
            continue;
        };
        let below = lines.peek().and_then(|next| next.strip_prefix("value: "));
        let set = below.map(|text| text.trim_matches('\'')).or_else(|| value(line, "value"));
        found.extend(set.map(|set| (name.to_owned(), set.to_owned())));
    }
    found
}

/// With the fake driver's, and without a receiver.
fn environment_with(nvml: &FakeNvml) -> Vec<(String, String)> {
    let mut play = Command::new("true");
    nvml.apply(&mut play);
    let mut env = environment();
    assert!(env.iter().any(|(name, _)| name == "GPUWHO_KUBERNETES_CRI"), "{env:?}");
    env.retain(|(name, _)| !name.starts_with("OTEL_"));
    let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
    env.extend(play.get_envs().filter_map(|(name, value)| Some((text(name), text(value?)))));
    let library = nvml.library().display().to_string();
    let more = [("GPUWHO_NVIDIA_LIBRARY", library), ("GPUWHO_AGENT_INTERVAL", "1s".to_owned())];
    env.extend(more.map(|(name, value)| (name.to_owned(), value)));
    env
}

/// What it mounts: path in the container, path on the host, whether it is read-only.
fn mounts() -> Vec<(String, String, bool)> {
    let host = |name: &str| {
        let volume = format!("- {{name: {name}, hostPath: {{path: ");
        let line = DAEMONSET.lines().find_map(|line| line.trim().strip_prefix(&*volume)).unwrap();
        line.split([',', '}']).next().unwrap().to_owned()
    };
    let lines = DAEMONSET.lines().filter(|line| line.contains("mountPath"));
    let mount = |line: &str| {
        let (name, path) = (value(line, "name").unwrap(), value(line, "mountPath").unwrap());
        (path.to_owned(), host(name), line.contains("readOnly: true"))
    };
    lines.map(mount).collect()
}

/// The node that the manifest's host paths are of: containerd's and the pods' folders of the test, the
/// real cgroups, and empty folders for the rest.
fn on_this_node(
    containerd: &Containerd,
    mounts: Vec<(String, String, bool)>,
) -> Vec<(String, String, bool)> {
    let place = |host: &str| match host {
        "/sys/fs/cgroup" | "/etc/passwd" | "/etc/machine-id" if Path::new(host).exists() => {
            Path::new(host).to_owned()
        }
        "/var/log/pods" => containerd.pod_logs(),
        "/run/containerd" => containerd.socket().parent().unwrap().to_owned(),
        other => {
            let folder = containerd.scratch().join("node").join(other.trim_start_matches('/'));
            fs::create_dir_all(&folder).unwrap();
            folder
        }
    };
    let mounts = mounts.into_iter();
    mounts.map(|(inside, host, ro)| (inside, place(&host).display().to_string(), ro)).collect()
}

/// What `gpuwho` prints in the container.
fn ask(container: &Container, arguments: &[&str]) -> Option<Value> {
    let command: Vec<_> = [AGENT].iter().chain(arguments).copied().collect();
    let executed = container.exec(&command).unwrap();
    serde_json::from_str(&executed.stdout).ok()
}

fn status(pid: u32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap().trim().to_owned()
}

#[test]
fn in_the_daemonsets_container_the_agent_names_pods_with_four_capabilities() {
    let mut containerd = or_skip!(containerd::available()).start().unwrap();
    let folder = containerd.scratch().to_owned();
    let nvml = FakeNvml::install(&folder, "h100x8").unwrap();
    let env = environment_with(&nvml);
    let env: Vec<_> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
    let mut mounts = on_this_node(&containerd, mounts());
    let own = program::gpuwho().unwrap().display().to_string();
    let path = folder.display().to_string();
    // What the image has, and what NVIDIA's runtime adds.
    mounts.extend([(AGENT.to_owned(), own, true), (path.clone(), path, true)]);

    let trainer = containerd.pod(&PodSpec::default()).unwrap();
    let run = Run::Worker(Script { gpus: vec![0], ..Script::default() });
    let train = trainer.container(&ContainerSpec { run, gpus: &[0], ..ContainerSpec::default() });
    let train = train.unwrap();
    let own =
        PodSpec { namespace: "kube-system", name: "gpuwho", host_pid: true, ..PodSpec::default() };
    let own = containerd.pod(&own).unwrap();
    let capabilities = added();
    let agent = own.container(&ContainerSpec {
        name: "gpuwho",
        run: Run::Command(vec![AGENT.to_owned(), "agent".to_owned()]),
        gpus: &[0, 1, 2, 3, 4, 5, 6, 7],
        env: &env,
        mounts: &mounts,
        restricted: Some(Restricted { capabilities: &capabilities }),
        ..ContainerSpec::default()
    });
    let agent = agent.unwrap();

    let mut last = Value::Null;
    let named = until(WITHIN, || {
        last = ask(&agent, &["--json"])?;
        let sources = states(&last["sources"], "name");
        let ready = ["device_users", "nvidia", "cri", "kmsg"];
        let is_ready =
            ready.iter().all(|name| sources.get(*name).is_some_and(|state| state == "ready"));
        let held = holder(&last, train.pid).filter(|held| owner(held).pod == train.expected.pod)?;
        is_ready.then(|| held.clone())
    });
    let log = || fs::read_to_string(&agent.log).unwrap_or_default();
    let named = named.unwrap_or_else(|| panic!("{last:#}\n{}", log()));
    assert_eq!(owner(&named), train.expected);
    look_at_its_privileges(&agent);
    look_at_what_works(&agent);
}

fn look_at_its_privileges(agent: &Container) {
    let bits = NEEDS.iter().map(|need| need.capability.bits()).fold(0, |all, bit| all | bit);
    assert_eq!(status(agent.pid, "CapEff"), format!("{bits:016x}"));
    assert_eq!(status(agent.pid, "CapBnd"), format!("{bits:016x}"));
    assert_eq!([status(agent.pid, "NoNewPrivs"), status(agent.pid, "Seccomp")], ["1", "2"]);
}

fn look_at_what_works(agent: &Container) {
    let findings = ask(agent, &["doctor", "--json"]).unwrap();
    let states = states(&findings, "subject");
    for ok in [
        "privilege",
        "cgroup namespace",
        "device_users",
        "kmsg",
        "nccl:watch",
        "pod logs",
        "nvidia",
        "cri",
    ] {
        assert_eq!(states[ok], "ok", "{ok}: {findings:#}");
    }
}
