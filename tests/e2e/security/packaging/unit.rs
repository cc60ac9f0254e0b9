//! The unit's restrictions, put on `gpuwho doctor` by runc, because there is no systemd where tests
//! run: capabilities, system calls, namespaces, devices, and a file system that is read-only. Not
//! tried so: `RestrictAddressFamilies`, `RestrictRealtime`, `RestrictSUIDSGID`, `LockPersonality`.

use super::{directive, states};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::{or_skip, skip};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// `CLONE_NEWNET`, the only namespace of others that the agent enters.
const NETWORK: u32 = 0x4000_0000;
/// Flags of all namespaces but network and mounts (`linux/sched.h`).
const OTHER_NAMESPACES: u64 = 0x3e00_0080;
/// What of the host's root a service sees.
const ROOT: &[&str] = &["bin", "dev", "etc", "lib", "lib64", "root", "run", "sys", "usr", "var"];

/// The system calls of a group, those of the groups in it as well.
fn group(name: &str) -> Option<BTreeSet<String>> {
    let output = Command::new("systemd-analyze").args(["syscall-filter", name]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut calls = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with(' ')).map(str::trim) {
        match line {
            line if line.starts_with('@') => calls.extend(group(line)?),
            line if line.starts_with('#') => {}
            call => _ = calls.insert(call.to_owned()),
        }
    }
    Some(calls)
}

/// The calls that the unit's filters leave; systemd's rule is that each filter changes the one before.
fn allowed() -> Option<BTreeSet<String>> {
    let mut allowed = group("@default")?;
    let mut is_refusal = false;
    for word in directive("SystemCallFilter") {
        // A line of refusals begins with it; the unit's last line is one.
        is_refusal |= word.starts_with('~');
        let word = word.trim_start_matches('~');
        let calls = match word {
            word if word.starts_with('@') => group(word)?,
            call => BTreeSet::from([call.to_owned()]),
        };
        for call in calls {
            if is_refusal {
                allowed.remove(&call)
            } else {
                allowed.insert(call)
            };
        }
    }
    Some(allowed)
}

fn seccomp() -> Option<Value> {
    let mut allowed = allowed()?;
    assert!(allowed.contains("bpf") && allowed.contains("read") && !allowed.contains("pivot_root"));
    assert_eq!(directive("RestrictNamespaces"), ["net", "mnt"]);
    allowed.remove("setns");
    allowed.remove("unshare");
    let network = json!([{ "index": 1, "value": NETWORK, "op": "SCMP_CMP_EQ" }]);
    let own = json!([{
        "index": 0, "value": OTHER_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ",
    }]);
    Some(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "syscalls": [
            { "names": allowed, "action": "SCMP_ACT_ALLOW" },
            { "names": ["setns"], "action": "SCMP_ACT_ALLOW", "args": network },
            { "names": ["unshare"], "action": "SCMP_ACT_ALLOW", "args": own },
        ],
    }))
}

fn mounts(scratch: &Path) -> Vec<Value> {
    let there = ROOT.iter().filter(|name| Path::new("/").join(name).is_dir());
    let bind = |path: String, mode: &str| {
        let options = ["rbind", "rprivate", mode];
        json!({ "destination": path, "source": path, "type": "bind", "options": options })
    };
    let scratch = scratch.display().to_string();
    let agent = program::gpuwho().unwrap().display().to_string();
    let proc = json!({ "destination": "/proc", "source": "proc", "type": "proc" });
    there
        .map(|name| bind(format!("/{name}"), "ro"))
        .chain([proc, bind(agent, "ro"), bind(scratch, "rw")])
        .collect()
}

/// What runs in it sees the host's processes, networks and cgroups.
fn bundle(
    folder: &Path,
    cgroup: &str,
    arguments: &[String],
    environment: &[String],
) -> Option<Value> {
    let capabilities = directive("CapabilityBoundingSet");
    let sets = json!({
        "bounding": capabilities,
        "effective": capabilities,
        "permitted": capabilities,
    });
    let devices = json!([
        { "allow": false, "access": "rwm" },
        { "allow": true, "type": "c", "access": "rw" },
    ]);
    assert_eq!(directive("DeviceAllow"), ["char-*", "rw"]);
    Some(json!({
        "ociVersion": "1.0.2",
        "process": {
            "args": arguments,
            "env": environment,
            "cwd": "/",
            "user": { "uid": 0, "gid": 0 },
            "capabilities": sets,
            "noNewPrivileges": true,
        },
        "root": { "path": folder.join("root"), "readonly": true },
        "mounts": mounts(folder),
        "linux": {
            "namespaces": [{ "type": "mount" }],
            "cgroupsPath": cgroup,
            "resources": { "devices": devices },
            "seccomp": seccomp()?,
        },
    }))
}

/// The states that a doctor found, by subject.
fn findings(command: &mut Command) -> Vec<(String, String)> {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    states(&list, "subject").into_iter().collect()
}

#[test]
fn under_the_units_restrictions_everything_works_that_works_without() {
    let mut stage = or_skip!(Stage::new());
    if Command::new("runc").arg("--version").output().is_err() {
        skip!("runc (cargo xtask setup containerd)");
    }
    let folder = stage.folder().to_owned();
    let nvml = FakeNvml::install(&folder, "h100x8").unwrap();
    let group = stage.service("gpuwho").unwrap();
    let library = nvml.library().display().to_string();
    let arguments = [program::gpuwho().unwrap().display().to_string(), "doctor".into()];
    let more = ["--json", "--nvidia-library", &library].map(str::to_owned);
    let arguments: Vec<_> = arguments.into_iter().chain(more).collect();
    let mut plain = Command::new(&arguments[0]);
    nvml.apply(plain.args(&arguments[1..]));
    let environment = plain
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, value?.to_str()?)));
    let cgroup = format!("{}/agent", group.path);
    let Some(bundle) = bundle(&folder, &cgroup, &arguments, &environment.collect::<Vec<_>>())
    else {
        skip!("systemd-analyze syscall-filter (cargo xtask setup systemd)");
    };
    fs::create_dir(folder.join("root")).unwrap();
    fs::write(folder.join("config.json"), bundle.to_string()).unwrap();
    let mut runc = Command::new("runc");
    runc.arg("--root").arg(folder.join("runc")).args(["run", "--bundle"]).arg(&folder);
    runc.arg(format!("gpuwho-unit-{}", std::process::id()));
    let restricted = findings(&mut runc);
    assert_eq!(restricted, findings(&mut plain));
    let states: Vec<_> = restricted.iter().map(|(name, state)| (&**name, &**state)).collect();
    for wanted in ["privilege", "kernel log", "nvidia", "device 7"] {
        assert!(states.contains(&(wanted, "ok")), "{states:?}");
    }
}

#[test]
fn the_unit_allows_what_the_kernel_is_asked() {
    let families = directive("RestrictAddressFamilies");
    assert!(families.iter().any(|family| family == "AF_NETLINK"), "{families:?}");
    let Some(allowed) = allowed() else {
        skip!("systemd-analyze syscall-filter (cargo xtask setup systemd)");
    };
    for call in ["kcmp", "socket", "connect", "sendto", "recvfrom"] {
        assert!(allowed.contains(call), "{call}");
    }
}
