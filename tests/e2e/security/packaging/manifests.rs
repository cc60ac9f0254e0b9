//! The files that are shipped say the same.

use super::{DAEMONSET, INSTALL, directive, short};
use gpuwho::privilege::NEEDS;
use gpuwho_tests::skip;
use std::collections::BTreeSet;
use std::process::Command;

/// Most that `systemd-analyze security` may say; it counts from 0 to 10.
const EXPOSURE: f64 = 4.5;

/// The capabilities that the DaemonSet adds.
pub(super) fn added() -> Vec<String> {
    let line = DAEMONSET.lines().find_map(|line| line.trim().strip_prefix("add: ["));
    let words = line.and_then(|line| line.strip_suffix(']')).unwrap_or_default();
    words.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_unit_the_daemonset_and_install_md_name_the_capabilities_that_the_agent_uses() {
    let used: BTreeSet<_> = NEEDS.iter().map(|need| short(need.name)).collect();
    let unit = directive("CapabilityBoundingSet").iter().map(|name| short(name)).collect();
    let daemonset = added().into_iter().collect();
    let (_, page) = INSTALL.split_once("The agent needs root with").unwrap();
    let page = page.split("\n\n").next().unwrap_or_default();
    let page = page.split('`').filter(|word| word.starts_with("CAP_")).map(short).collect();
    for (who, names) in [("unit", unit), ("DaemonSet", daemonset), ("install.md", page)] {
        assert_eq!(used, names, "{who}");
    }
}

#[test]
fn the_unit_is_little_exposed() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/systemd/gpuwho.service");
    let mut command = Command::new("systemd-analyze");
    let output = match command.args(["security", "--offline=true", "--no-pager", unit]).output() {
        Ok(output) if output.stdout.is_empty() => {
            skip!("systemd-analyze with --offline (systemd 250)")
        }
        Ok(output) => output,
        Err(_) => skip!("systemd-analyze (cargo xtask setup systemd)"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, level) = text.split_once("Overall exposure level for gpuwho.service: ").unwrap();
    let level: f64 = level.split_whitespace().next().unwrap().parse().unwrap();
    assert!(level <= EXPOSURE, "{level}");
}

#[test]
fn the_daemonset_is_not_privileged_and_mounts_no_more_than_it_reads() {
    let lines: Vec<_> =
        DAEMONSET.lines().map(str::trim).filter(|line| !line.starts_with('#')).collect();
    for wanted in [
        "drop: [ALL]",
        "allowPrivilegeEscalation: false",
        "readOnlyRootFilesystem: true",
        "seccompProfile: {type: RuntimeDefault}",
    ] {
        assert!(lines.contains(&wanted), "{wanted}");
    }
    assert!(!lines.iter().any(|line| line.starts_with("privileged:")));
    let whole = ["/", "/dev", "/etc", "/run", "/var", "/var/run", "/proc"];
    for path in whole {
        let mounted = format!("hostPath: {{path: {path}");
        let ends = [format!("{mounted}}}"), format!("{mounted},")];
        assert!(!lines.iter().any(|line| ends.iter().any(|end| line.contains(end))), "{path}");
    }
    let programs = ["docker", "podman"];
    let mounts = lines.iter().filter(|line| line.contains("hostPath"));
    assert_eq!(mounts.filter(|line| programs.iter().any(|name| line.contains(name))).count(), 0);
}
