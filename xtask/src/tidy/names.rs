//! Rules about the names of metrics and attributes: the catalogue is their only source.

use super::Finding;
use super::rust::is;
use super::tree::{Tree, is_test_file};
use std::collections::BTreeSet;

/// The folder that declares every metric.
const CATALOG: &str = "agent/crates/model/src/catalog/";

/// Declares every attribute.
const ATTRIBUTES: &str = "agent/crates/model/src/attributes.rs";

/// The macros that declare.
const CATALOG_ROOT: &str = "agent/crates/model/src/catalog.rs";

/// Declares the type, and makes values of it.
const METRIC: &str = "agent/crates/model/src/metric.rs";

/// What must be there.
pub(super) const PLACES: &[&str] = &[CATALOG, ATTRIBUTES, CATALOG_ROOT, METRIC];

/// What Prometheus spellings may have behind the name: units, and the parts of a series.
const SUFFIXES: &[&str] = &[
    "_bytes",
    "_seconds",
    "_watts",
    "_joules",
    "_celsius",
    "_grams",
    "_hertz",
    "_ratio",
    "_total",
    "_bucket",
    "_sum",
    "_count",
    "_info",
    "_per_second",
];

/// A metric made anywhere else would miss the documents and the checks.
pub(super) fn metric_declarations(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _) in tree.ending(".rs").filter(|(path, _)| ![METRIC, CATALOG_ROOT].contains(path)) {
        let source = tree.source(path);
        let tokens: Vec<_> = source.tokens().iter().collect();
        for (pair, next) in tokens.iter().zip(tokens.iter().skip(1)) {
            if pair.text == "MetricDef" && next.text == "{" {
                findings.push(Finding {
                    file: path.to_owned(),
                    line: pair.line,
                    rule: "metrics are declared in the catalogue only",
                    remedy: format!("declare it with `metrics!` in {CATALOG}"),
                });
            }
        }
    }
    findings
}

/// A name written twice is soon two names.
pub(super) fn name_literals(tree: &Tree) -> Vec<Finding> {
    let names = declared(tree);
    let mut findings = Vec::new();
    let sources = tree.ending(".rs").filter(|(path, _)| is_shipped(path));
    for (path, _) in sources {
        if path == CATALOG_ROOT || declares(path) || is_test_file(path) {
            continue;
        }
        for token in tree.source(path).shipped() {
            let Some(literal) = token.string() else { continue };
            if names.contains(literal) || (is_name(literal) && literal.starts_with("gpu.")) {
                findings.push(Finding {
                    file: path.to_owned(),
                    line: token.line,
                    rule: "names of metrics and attributes are written in the catalogue only",
                    remedy: format!("use the catalogue's item for {literal}"),
                });
            }
        }
    }
    findings
}

/// Whether names are declared there.
fn declares(path: &str) -> bool {
    path.starts_with(CATALOG) || path == ATTRIBUTES
}

/// Of the agent itself, not of its benchmarks.
fn is_shipped(path: &str) -> bool {
    path.starts_with("agent/") && path.contains("/src/")
}

/// A dashboard or an alert on a metric that does not exist shows nothing, and nobody notices.
pub(super) fn dashboards(tree: &Tree) -> Vec<Finding> {
    let names = declared(tree);
    let spelled: BTreeSet<_> = names.iter().map(|name| name.replace('.', "_")).collect();
    let files = tree.files().filter(|(path, _)| {
        let is_ours = path.starts_with("dashboards/") || path.starts_with("deploy/");
        is_ours && [".json", ".yaml", ".yml"].iter().any(|suffix| path.ends_with(suffix))
    });
    let mut findings = Vec::new();
    for (path, text) in files {
        for (line, content) in (1..).zip(text.lines()) {
            // A node's labels are no metrics.
            let content = content.replace("nvidia.com/gpu", "");
            let words = content.split(|c: char| !(c.is_ascii_alphanumeric() || "._:".contains(c)));
            for word in words.filter(|word| is_metric_like(word)) {
                if !is_known(word, &names, &spelled) {
                    findings.push(Finding {
                        file: path.to_owned(),
                        line,
                        rule: "dashboards and alerts name only metrics that exist",
                        remedy: format!("{word} is not in the catalogue"),
                    });
                }
            }
        }
    }
    findings
}

/// The names that the catalogue declares: `NAME = "…"` in an attribute or metric table.
pub(super) fn declared(tree: &Tree) -> BTreeSet<String> {
    let sources = tree.ending(".rs").filter(|(path, _)| declares(path));
    let mut names = BTreeSet::new();
    for (path, _) in sources {
        let source = tree.source(path);
        let tokens = source.tokens();
        for (at, token) in tokens.iter().enumerate() {
            let is_declared = at > 0 && is(tokens, at - 1, "=");
            if let Some(name) = token.string().filter(|name| is_declared && is_name(name)) {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

/// Lower-case words joined by dots.
pub(super) fn is_name(text: &str) -> bool {
    let is_word = |word: &str| {
        let mut chars = word.chars();
        chars.next().is_some_and(|c| c.is_ascii_lowercase())
            && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    text.contains('.') && text.split('.').all(is_word)
}

/// Ours by its first word; `gpuwho.toml` and the like are files.
fn is_metric_like(word: &str) -> bool {
    word.starts_with("gpu_") || word.starts_with("gpu.") || word.starts_with("gpuwho_")
}

pub(super) fn is_known(word: &str, names: &BTreeSet<String>, spelled: &BTreeSet<String>) -> bool {
    if names.contains(word.trim_end_matches('.')) {
        return true;
    }
    // Recording rules are called `level:metric:operation`; the metric is what must exist.
    let mut rest = word.split(':').next().unwrap_or(word);
    loop {
        if spelled.contains(rest) {
            return true;
        }
        match SUFFIXES.iter().find_map(|suffix| rest.strip_suffix(suffix)) {
            Some(shorter) => rest = shorter,
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::{METRIC, dashboards, metric_declarations, name_literals};

    const DEVICE: (&str, &str) = (
        "agent/crates/model/src/catalog/device.rs",
        "metrics! { ENERGY: Counter<f64> of GpuId = \"gpu.energy\" [\"J\"] from \"nvml\"; }\n\
         attributes! { POD = \"k8s.pod.name\"; }",
    );

    #[test]
    fn a_metric_made_outside_the_catalogue_is_found() {
        let text = "fn a() -> MetricDef { b }\n";
        let made = "static A: D = MetricDef { name };\n";
        let tree = Tree::of([("agent/src/a.rs", made), (METRIC, text)]);
        assert_eq!(metric_declarations(&tree).len(), 1);
    }

    #[test]
    fn a_name_as_a_literal_is_found_but_not_in_tests_or_documentation() {
        let text = "/// `gpu.energy`\nfn a() { f(\"gpu.energy\", \"k8s.pod.name\", \"gpu.new\") }\n\
                    #[cfg(test)]\nmod tests { const A: &str = \"gpu.energy\"; }\n";
        let found = name_literals(&Tree::of([DEVICE, ("agent/crates/nccl/src/a.rs", text)]));
        let remedies: Vec<_> = found.iter().map(|finding| finding.remedy.as_str()).collect();
        assert_eq!(
            remedies,
            [
                "use the catalogue's item for gpu.energy",
                "use the catalogue's item for k8s.pod.name",
                "use the catalogue's item for gpu.new",
            ]
        );
    }

    #[test]
    fn a_file_name_is_not_a_metric() {
        let text = "fn a() { f(\"gpuwho.toml\", \"/run/gpuwho.sock\") }";
        assert_eq!(name_literals(&Tree::of([DEVICE, ("agent/src/a.rs", text)])), []);
    }

    #[test]
    fn a_panel_on_a_metric_that_does_not_exist_is_found() {
        let panel = "{\"expr\": \"rate(gpu_energy_joules_total{k8s_pod_name=~\\\".+\\\"}[5m])\"}\n\
                     {\"expr\": \"gpu_enrgy_joules_total\"}\n";
        let found = dashboards(&Tree::of([DEVICE, ("dashboards/node.json", panel)]));
        let found: Vec<_> = found.iter().map(|f| (f.line, f.remedy.as_str())).collect();
        assert_eq!(found, [(2, "gpu_enrgy_joules_total is not in the catalogue")]);
    }
}
