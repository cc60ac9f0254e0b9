//! The processes that the agent starts: one loads the driver's library, others read tenants' files.

use super::capabilities::{Holder, NOBODY, NODE};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CapabilitySet;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;
use tempfile::TempDir;

/// A reading or two on a machine under load.
const WITHIN: Duration = Duration::from_secs(40);

/// An agent that has read the devices, and its reader.
fn reader(folder: &TempDir, launcher: &[&str]) -> (Agent, u32) {
    let nvml = FakeNvml::install(folder.path(), "h100x8").unwrap();
    let launcher = launcher.iter().map(|word| (*word).to_owned()).collect();
    let config = Config { bpf: Some(false), launcher, ..Config::default() };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let all_read = |who: &Value| {
        let devices = who["devices"].as_array()?;
        let is_read = |device: &Value| device["state"] == "ok";
        (devices.len() == 8 && devices.iter().all(is_read)).then_some(())
    };
    agent.wait_for("eight devices", WITHIN, all_read).unwrap();
    let pid = agent.reader().unwrap();
    (agent, pid)
}

/// What the kernel says of each thread of a process.
fn fields(pid: u32, name: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let status = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    let field = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    status.map(field).collect()
}

#[test]
fn the_process_that_loads_the_drivers_library_has_no_capability_and_reads_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, pid) = reader(&folder, &[]);
    for (field, value) in [
        ("CapEff", "0000000000000000"),
        ("CapPrm", "0000000000000000"),
        ("CapInh", "0000000000000000"),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        let found = fields(pid, field);
        assert!(found.len() > 1 && found.iter().all(|found| found == value), "{field}: {found:?}");
    }
}

#[test]
fn a_setting_leaves_the_drivers_library_what_the_agent_may() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, pid) = reader(&folder, &["env", "GPUWHO_NVIDIA_CONFINED=false"]);
    assert_eq!(fields(pid, "CapEff").first(), fields(agent.pid(), "CapEff").first());
    assert_eq!(fields(pid, "Seccomp").first(), fields(agent.pid(), "Seccomp").first());
}

#[test]
fn a_descriptor_that_the_agent_was_started_with_does_not_reach_the_drivers_library() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    let file = File::create(&secret).unwrap();
    fcntl_setfd(&file, FdFlags::empty()).unwrap();
    let (agent, pid) = reader(&folder, &[]);
    let holds = |pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|path| path == secret)
    };
    assert_eq!((holds(agent.pid()), holds(pid)), (true, false));
}

#[test]
fn a_process_that_reads_tenants_files_may_open_and_read_and_nothing_else() {
    let stage = or_skip!(Stage::new());
    fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let _holder = Holder::start(NOBODY, &stage.folder().join("user"));
    let config = Config {
        interval: Some("500ms".to_owned()),
        nodes: Some(vec![NODE.to_owned()]),
        more: "[nvidia]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    let mut agent = Agent::start(stage.folder(), &config, None).unwrap();
    // It gives up what it does not need before it reads anything.
    let helper = || agent.child("file-reader").filter(|pid| fields(*pid, "Seccomp") == ["2"]);
    let pid = until(WITHIN, helper).unwrap();
    let wanted = |who: &Value| {
        let mut sources = who["sources"].as_array()?.iter();
        sources.find(|one| one["name"] == "nccl_inspector" && one["state"] == "ready").map(drop)
    };
    agent.wait_for("the Inspector's file", WITHIN, wanted).unwrap();
    let held = u64::from_str_radix(&fields(pid, "CapEff")[0], 16).unwrap();
    let needed = CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE;
    assert_eq!((held & !needed.bits(), &*fields(pid, "NoNewPrivs")[0]), (0, "1"));
    // The agent ends those that do not end by themselves: systemd may refuse to start another one beside them.
    let signal = |pid: u32, signal| {
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
    };
    signal(pid, Signal::STOP);
    signal(agent.pid(), Signal::TERM);
    assert_eq!(agent.wait(WITHIN).unwrap().code(), Some(0));
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = state.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    assert!(matches!(state, None | Some(Some('Z' | 'X'))), "{state:?}");
}
