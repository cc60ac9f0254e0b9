//! The rules and alerts that are shipped, as Prometheus itself reads and evaluates them.

use std::process::Command;

const DASHBOARDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dashboards");

/// `promtool`, where `cargo xtask test` says or on the path; `None` where there is none.
pub(crate) fn promtool(args: &[&str]) -> Option<(bool, String)> {
    let program = std::env::var_os("GPUWHO_PROMTOOL").unwrap_or_else(|| "promtool".into());
    let output = Command::new(program).args(args).current_dir(DASHBOARDS).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn the_rules_say_what_their_own_tests_expect() {
    for args in [
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts.test.yaml"],
        ["test", "rules", "queries.test.yaml"],
    ] {
        let Some((is_good, said)) = promtool(&args) else {
            gpuwho_tests::skip!("promtool (Debian's prometheus)");
        };
        assert!(is_good, "{args:?}: {said}");
    }
}
