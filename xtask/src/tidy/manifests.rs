//! Rules about dependencies.

use super::Finding;
use super::tree::Tree;

/// Clients of the Kubernetes API, by the start of their names: ownership comes from the node alone,
/// so none may creep in.
const KUBERNETES_CLIENTS: &[&str] = &["kube-", "kubert", "kubernetes", "k8s"];

/// The promise "no Kubernetes API access" is checked where every dependency is listed.
pub(super) fn no_kubernetes_client(tree: &Tree) -> Vec<Finding> {
    let lock = tree.text("Cargo.lock").unwrap_or_default();
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(lock.lines()) {
        let name = line.strip_prefix("name = \"").and_then(|rest| rest.strip_suffix('"'));
        let is_client = |name: &&str| {
            *name == "kube" || KUBERNETES_CLIENTS.iter().any(|start| name.starts_with(start))
        };
        if let Some(name) = name.filter(is_client) {
            findings.push(Finding {
                file: "Cargo.lock".to_owned(),
                line: number,
                rule: "no Kubernetes API client",
                remedy: format!("{name} is one; `cargo tree --invert {name}` says who wants it"),
            });
        }
    }
    findings
}

/// A dependency stands below the sentence that says why, alone or in a group; a blank line ends
/// the group.
pub(super) fn reasons(tree: &Tree) -> Vec<Finding> {
    let manifest = tree.text("Cargo.toml").unwrap_or_default();
    let (mut in_table, mut has_reason) = (false, false);
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(manifest.lines()) {
        if line.starts_with('[') {
            in_table = line == "[workspace.dependencies]";
            has_reason = false;
        } else if line.is_empty() {
            has_reason = false;
        } else if line.starts_with('#') {
            has_reason = true;
        } else if in_table && !has_reason {
            let name = line.split([' ', '=']).next().unwrap_or(line);
            findings.push(Finding {
                file: "Cargo.toml".to_owned(),
                line: number,
                rule: "every dependency has its reason",
                remedy: format!("write above {name} why it is needed"),
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::{no_kubernetes_client, reasons};

    #[test]
    fn a_kubernetes_client_in_the_lock_file_is_found() {
        let names = ["kubelet", "k8s-openapi", "fake-kubelet", "kube", "kube-runtime", "cube"];
        let lock: String = names.map(|name| format!("name = \"{name}\"\n")).concat();
        let found = no_kubernetes_client(&Tree::of([("Cargo.lock", &lock)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2, 4, 5]);
    }

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let manifest = "[workspace.dependencies]\n# Reads TOML.\ntoml = \"1\"\nserde = \"1\"\n\n\
                        regex = \"1\"\n\n[profile.dev]\ndebug = 1\n";
        let found = reasons(&Tree::of([("Cargo.toml", manifest)]));
        let remedies: Vec<_> = found.iter().map(|finding| finding.remedy.as_str()).collect();
        assert_eq!(remedies, ["write above regex why it is needed"]);
    }
}
