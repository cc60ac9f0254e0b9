//! Rules about pages for users who come from elsewhere or send elsewhere: a metric, attribute or key
//! that they name as gpuwho's exists.

use super::Finding;
use super::names::{declared, is_known, is_name};
use super::tree::Tree;
use std::collections::BTreeSet;
use std::path::Path;

/// The heading of a table's column with names of gpuwho; the other columns name other programs'.
const OURS: &str = "gpuwho";

/// First words of names that no other program's page or query means when it stands outside a table.
const FAMILIES: &[&str] = &["gpu", "gpuwho", "nccl", "inference", "slurm", "cgroup"];

/// The sample configuration, which has every key.
const SAMPLE: &str = "deploy/gpuwho.toml";

/// The recording rules.
const RULES: &str = "dashboards/alerts.yaml";

/// The pages, by the beginnings of their paths.
const PAGES: [&str; 3] = ["agent/docs/from-", "agent/docs/queries.md", "deploy/collector/"];

/// What must be there.
pub(super) const PLACES: &[&str] = &[SAMPLE, RULES, PAGES[0], PAGES[1], PAGES[2]];

/// Words that look like names and are files.
const FILES: &[&str] = &[".toml", ".yaml", ".md", ".service", ".json", ".sock", ".alloy", ".pem"];

/// Each name of gpuwho on such a page is in the catalogue, or a key of the configuration.
pub(super) fn names(tree: &Tree) -> Vec<Finding> {
    let names = declared(tree);
    let known = Known {
        spelled: names.iter().map(|name| name.replace('.', "_")).collect(),
        keys: tree.text(SAMPLE).map(keys).unwrap_or_default(),
        rules: tree.text(RULES).unwrap_or_default(),
        names,
    };
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| is_page(path)) {
        let is_markdown = Path::new(path).extension().is_some_and(|extension| extension == "md");
        let mut ours: Option<Vec<bool>> = None;
        for (line, content) in (1..).zip(text.lines()) {
            let cells = is_markdown.then(|| cells(content)).flatten();
            let wrong: Vec<&str> = match (cells, &ours) {
                (None, _) => {
                    ours = None;
                    known.unknown(content, false)
                }
                (Some(cells), Some(ours)) => {
                    let with_ours = cells.iter().zip(ours.iter().chain(std::iter::repeat(&true)));
                    with_ours
                        .filter(|(_, is_ours)| **is_ours)
                        .flat_map(|(cell, _)| known.unknown(cell, true))
                        .collect()
                }
                // A table without such a column is about gpuwho alone.
                (Some(cells), None) => {
                    let has = cells.contains(&OURS);
                    ours = Some(cells.iter().map(|cell| !has || *cell == OURS).collect());
                    Vec::new()
                }
            };
            findings.extend(wrong.into_iter().map(|word| Finding {
                file: path.to_owned(),
                line,
                rule: "pages name only metrics, attributes and keys that exist",
                remedy: format!("{word} is neither in the catalogue nor a key of {SAMPLE}"),
            }));
        }
    }
    findings
}

fn is_page(path: &str) -> bool {
    PAGES.iter().any(|place| path.starts_with(place))
}

/// What may be named.
struct Known<'t> {
    names: BTreeSet<String>,
    /// With underscores for dots, as Prometheus has them.
    spelled: BTreeSet<String>,
    /// `section.key` of the configuration.
    keys: BTreeSet<String>,
    /// Text with the recording rules, whose names have colons.
    rules: &'t str,
}

impl Known<'_> {
    /// The words that look like names of gpuwho and are none. In its column of a table everything in
    /// backticks with dots is a name, elsewhere what begins like one.
    fn unknown<'a>(&self, text: &'a str, in_column: bool) -> Vec<&'a str> {
        let spans: Vec<&str> =
            if in_column { text.split('`').skip(1).step_by(2).collect() } else { vec![text] };
        let is_part = |c: char| c.is_ascii_alphanumeric() || "._:*".contains(c);
        spans
            .into_iter()
            .flat_map(|span| span.split(move |c| !is_part(c)))
            .map(|word| word.trim_end_matches(['.', ':']))
            .filter(|word| self.is_wrong(word, in_column))
            .collect()
    }

    fn is_wrong(&self, word: &str, in_column: bool) -> bool {
        let family = word.split(['.', '_', ':']).next().unwrap_or_default();
        let is_file = FILES.iter().any(|end| word.ends_with(end));
        if is_file || (family == word) || !(in_column || FAMILIES.contains(&family)) {
            return false;
        }
        if word.contains(':') {
            return !self.rules.contains(&format!("record: {word}\n"));
        }
        if let Some(begin) = word.strip_suffix(".*") {
            return !self.names.iter().any(|name| name.starts_with(&format!("{begin}.")));
        }
        let is_key = self.keys.contains(word);
        let is_like = is_name(word) || FAMILIES.contains(&family);
        is_like && !is_key && !is_known(word, &self.names, &self.spelled)
    }
}

/// The cells of a table's row.
fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.trim().strip_prefix('|')?;
    Some(row.strip_suffix('|').unwrap_or(row).split('|').map(str::trim).collect())
}

/// `section.key` of each key in the sample, most of which are commented out.
fn keys(sample: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut section = "";
    for line in sample.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
        } else if let Some((key, _)) = line.trim_start_matches("#: ").split_once(" = ") {
            keys.insert(format!("{section}.{key}"));
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::names;

    const CATALOG: (&str, &str) = (
        "agent/crates/model/src/catalog/device.rs",
        "metrics! { ENERGY: Counter<f64> of GpuId = \"gpu.energy\" [\"J\"] from \"nvml\"; }\n\
         attributes! { POD = \"k8s.pod.name\"; }",
    );
    const SAMPLE: (&str, &str) =
        ("deploy/gpuwho.toml", "[slurm]\n#: gpu_map = \"/run\"\n[metrics]\nlevel = \"all\"\n");

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let found = names(&Tree::of([CATALOG, SAMPLE, (path, text)]));
        let word = |remedy: &str| remedy.split(' ').next().unwrap().to_owned();
        found.into_iter().map(|finding| (finding.line, word(&finding.remedy))).collect()
    }

    #[test]
    fn a_wrong_name_in_our_column_is_found_and_the_others_column_is_theirs() {
        let page = "| theirs | gpuwho | why |\n|---|---|---|\n\
                    | `gpu.power.usage` | `gpu.energy` (J), `k8s.pod.name` | `slurm.x` |\n\
                    | `gpu.b` | `gpu.enrgy`, `k8s.*`, `slurm.gpu_map`, `slurm.*` | |\n";
        let found = found("agent/docs/from-there.md", page);
        assert_eq!(found, [(4, "gpu.enrgy".to_owned()), (4, "slurm.*".to_owned())]);
    }

    #[test]
    fn a_wrong_name_in_text_queries_and_configurations_is_found() {
        let text = "In `gpu.energy` or gpuwho's `gpuwho.toml`.\n`rate(gpu_energy_joules_total[5m])`\n\
                    `rate(gpu_enrgy_joules_total[5m])`, `k8s_pod_phase`, `k8s.no.name`\n- name == \"gpu.no\"\n";
        let expected = [(3, "gpu_enrgy_joules_total".to_owned()), (4, "gpu.no".to_owned())];
        for path in ["agent/docs/from-there.md", "deploy/collector/node.yaml"] {
            assert_eq!(found(path, text), expected);
        }
        assert_eq!(found("agent/docs/ownership.md", text), []);
    }

    #[test]
    fn a_table_about_gpuwho_alone_is_ours_in_all_columns_and_rules_are_known() {
        let page = "| question | query |\n|---|---|\n| Who? | `gpu_no` |\n\
                    | Cost? | `gpu:cost:sum5m`, `gpu:no:sum5m` |\n";
        let rules = ("dashboards/alerts.yaml", "      - record: gpu:cost:sum5m\n        expr: 1\n");
        let found = names(&Tree::of([CATALOG, SAMPLE, rules, ("agent/docs/queries.md", page)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [3, 4]);
    }
}
