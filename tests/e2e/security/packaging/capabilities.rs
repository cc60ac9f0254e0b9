//! Each capability is needed: without it a feature goes, and the agent says which.

use super::{short, states};
use crate::fixture::{TRAINER, holder, owner, without_kernel};
use gpuwho::privilege::NEEDS;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::engine::{EngineSpec, FakeEngine};
use gpuwho_tests::stage::{Group, Stage, StageError};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::nodes::host_nodes;
use gpuwho_tests::{nccl, or_skip, program, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Several readings on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);
/// Stands for a GPU's node: every machine has it, and hardly anything opens it.
pub(super) const NODE: &str = "/dev/full";
pub(super) const NOBODY: u32 = 65_534;

/// A process without capabilities that holds a device; ended when dropped.
pub(super) struct Holder(Child);

impl Holder {
    /// Of a user, with a file of NCCL's Inspector that only this user may read.
    pub(super) fn start(uid: u32, folder: &Path) -> Self {
        fs::create_dir(folder).unwrap();
        chown(folder, Some(uid), Some(uid)).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
        let shell = program::shell_with_nccl(folder).unwrap();
        let script = format!("umask 077; exec 3>>\"$0/node-pid$$.log\" 4<{NODE}; read -r end");
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
        command.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
        command.arg(shell).args(["-c", &script]).arg(folder);
        command.env("NCCL_INSPECTOR_ENABLE", "1").env("NCCL_INSPECTOR_DUMP_DIR", folder);
        let child = command.stdin(Stdio::piped()).spawn().unwrap();
        let holder = Self(child);
        let held = format!("/proc/{}/fd/4", holder.0.id());
        let ready = || fs::read_link(&held).is_ok_and(|path| path == Path::new(NODE)).then_some(());
        until(WITHIN, ready).unwrap();
        holder
    }

    /// Moves it into a group.
    fn join(&self, group: &Group) {
        for directory in &group.directories {
            fs::write(directory.join("cgroup.procs"), self.0.id().to_string()).unwrap();
        }
    }

    fn is_seen(&self, who: &Value) -> bool {
        let mut holders = who["holders"].as_array().into_iter().flatten();
        holders.any(|holder| holder["pid"] == self.0.id())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What an agent that began after the holders sees.
struct Seen {
    of_a_user: bool,
    sources: BTreeMap<String, String>,
    log: Vec<String>,
}

/// A stage that every user may look into, with the nodes of GPUs.
fn stage() -> Result<Stage, StageError> {
    let stage = Stage::new()?;
    fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    host_nodes(stage.folder()).unwrap();
    Ok(stage)
}

/// An agent with all capabilities that it uses but one, and a hook for opens of its choice or this.
fn agent(stage: &Stage, without: Option<&str>, hook: Option<&'static str>) -> Agent {
    let left = NEEDS.iter().filter(|need| Some(need.name) != without);
    let left: Vec<_> = left.map(|need| format!(",+{}", short(need.name).to_lowercase())).collect();
    let left = left.concat();
    let launcher = ["setpriv", "--no-new-privs", "--inh-caps=-all"].map(str::to_owned);
    let config = Config {
        interval: Some("500ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        hook,
        file: Some(stage.folder().join("points.jsonl")),
        nodes: Some(vec![NODE.to_owned(), host_nodes(stage.folder()).unwrap()]),
        launcher: launcher.into_iter().chain([format!("--bounding-set=-all{left}")]).collect(),
        more: "[nvidia]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    Agent::start(stage.folder(), &config, None).unwrap()
}

/// Waits until root's holder is seen, which needs no capability, and what is `wanted` as well.
fn look(without: Option<&str>, wanted: impl Fn(&Seen) -> bool) -> Result<Seen, StageError> {
    let mut stage = stage()?;
    let pod = stage.pod(&TRAINER)?;
    let _in_pod = FakeEngine::start(&EngineSpec {
        group: Some(&pod),
        gpus: &[0],
        // Root's: without a capability the agent finds it, too.
        uid: None,
        ..EngineSpec::default()
    });
    let of_root = Holder::start(0, &stage.folder().join("root"));
    let of_a_user = Holder::start(NOBODY, &stage.folder().join("user"));
    let agent = agent(&stage, without, None);
    let settled = |who: &Value| {
        let sources = states(&who["sources"], "name");
        let seen = Seen { of_a_user: of_a_user.is_seen(who), sources, log: Vec::new() };
        let is_done = of_root.is_seen(who)
            && ["device_users", "kmsg"].iter().all(|name| seen.sources.contains_key(*name));
        (is_done && wanted(&seen)).then_some(seen)
    };
    let seen = agent.wait_for("what is wanted", WITHIN, settled).unwrap();
    Ok(Seen { log: agent.log(), ..seen })
}

impl Seen {
    fn says(&self, name: &str) -> bool {
        self.log.iter().any(|line| line.contains("capability is missing") && line.contains(name))
    }

    fn is(&self, source: &str, state: &str) -> bool {
        self.sources.get(source).is_some_and(|found| found == state)
    }
}

#[test]
fn with_all_of_them_everything_is_seen() {
    let all = ["device_users", "nccl_inspector", "engines", "kmsg"];
    let wanted = |seen: &Seen| {
        let counts = nccl::is_probed_here().is_err() || !seen.is("nccl", "degraded");
        seen.of_a_user && counts && all.iter().all(|name| seen.is(name, "ready"))
    };
    let seen = or_skip!(look(None, wanted));
    assert!(!seen.says("CAP_"), "{:?}", seen.log);
}

#[test]
fn without_cap_sys_admin_there_is_no_bpf_and_no_way_into_a_pods_network() {
    // Devices' users are looked for in /proc, collectives are not counted, the engine is not asked.
    let gone = ["device_users", "nccl", "engines"];
    let wanted = |seen: &Seen| gone.iter().all(|name| seen.is(name, "degraded"));
    let seen = or_skip!(look(Some("CAP_SYS_ADMIN"), wanted));
    assert!(seen.says("CAP_SYS_ADMIN"), "{:?}", seen.log);
}

#[test]
fn without_cap_sys_ptrace_other_users_holders_are_hidden() {
    // Both are looked for in one scan, at the agent's start.
    let seen = or_skip!(look(Some("CAP_SYS_PTRACE"), |_| true));
    assert!(seen.says("CAP_SYS_PTRACE"), "{:?}", seen.log);
    assert!(!seen.of_a_user);
}

#[test]
fn without_cap_dac_read_search_other_users_folders_are_closed() {
    // `/proc/PID/fd` is one of them, so the holder is hidden, and with it the Inspector's file.
    let seen = or_skip!(look(Some("CAP_DAC_READ_SEARCH"), |_| true));
    assert!(seen.says("CAP_DAC_READ_SEARCH"), "{:?}", seen.log);
    assert!(!seen.of_a_user);
}

/// A user's process in a pod that begins after an agent: whether its owner is found, and the state of the
/// source of the Inspector's files after some turns.
fn later(without: Option<&str>, inspector: &str) -> Result<(), StageError> {
    let mut stage = stage()?;
    let pod = stage.pod(&TRAINER)?;
    let agent = agent(&stage, without, Some("syscall"));
    if without_kernel(&agent).is_some() {
        return Err(StageError::Unavailable("BPF"));
    }
    let late = Holder::start(NOBODY, &stage.folder().join("late"));
    late.join(&pod);
    let found = agent.wait_for("the pod", WITHIN, |who| {
        holder(who, late.0.id()).map(owner).filter(|owner| *owner == pod.expected)
    });
    found.unwrap();
    let is_turn = |line: &&str| {
        line.contains("\"gpuwho.source.duration\"") && line.contains("\"nccl_inspector\"")
    };
    let turns = || {
        let points = fs::read_to_string(stage.folder().join("points.jsonl")).unwrap_or_default();
        (points.lines().filter(is_turn).count() > 4).then_some(())
    };
    until(WITHIN, turns).unwrap();
    let is_so = |who: &Value| {
        (states(&who["sources"], "name").get("nccl_inspector")? == inspector).then_some(())
    };
    agent.wait_for(&format!("nccl_inspector: {inspector}"), WITHIN, is_so).unwrap();
    Ok(())
}

#[test]
fn without_cap_dac_read_search_cgroups_are_walked_and_the_inspectors_files_are_not_found() {
    or_skip!(later(None, "ready"));
    or_skip!(later(Some("CAP_DAC_READ_SEARCH"), "absent"));
}

#[test]
fn the_cgroup_hook_needs_to_read_who_opens() {
    // Its evidence counts only once `/proc/PID/fd` shows the device.
    for name in ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"] {
        let stage = or_skip!(stage());
        let agent = agent(&stage, Some(name), Some("cgroup"));
        if let Some(reason) = without_kernel(&agent) {
            skip!("{reason}");
        }
        let of_a_user = Holder::start(NOBODY, &stage.folder().join("user"));
        let of_root = Holder::start(0, &stage.folder().join("root"));
        let look = |who: &Value| of_root.is_seen(who).then(|| of_a_user.is_seen(who));
        let found = agent.wait_for("root's holder", WITHIN, look).unwrap();
        assert!(!found, "without {name}");
    }
}

#[test]
fn without_cap_syslog_a_closed_kernel_log_is_not_read() {
    let restricted = fs::read_to_string("/proc/sys/kernel/dmesg_restrict").unwrap_or_default();
    if restricted.trim() != "1" {
        gpuwho_tests::skip!("kernel.dmesg_restrict = 1");
    }
    let seen = or_skip!(look(Some("CAP_SYSLOG"), |seen| seen.is("kmsg", "degraded")));
    assert!(seen.says("CAP_SYSLOG"), "{:?}", seen.log);
}
