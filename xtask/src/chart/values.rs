//! The chart's values: the page about them, made of `values.schema.json` and of the defaults in
//! `values.yaml`.

use super::CHART;
use crate::place;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;

/// The page.
pub(crate) const README: &str = "deploy/helm/gpuwho/README.md";

/// What stands above the table.
const HEAD: &str = "# gpuwho's Helm chart

gpuwho on every node, as a DaemonSet without RBAC and without a service account's token: it never asks the API server.

```
helm install gpuwho gpuwho-VERSION.tgz --namespace gpuwho --create-namespace \\
  --set otlp.endpoint=http://collector:4318 --set runtimeClassName=nvidia
```

[Ways to the driver](../../kubernetes/README.md) says what to set for which nodes, and what stays on a node after
`helm uninstall`. Written by `cargo xtask docs`.

| value | default | meaning |
|---|---|---|
";

/// A value that can be set.
struct Leaf {
    /// As `--set` names it.
    path: String,
    meaning: String,
}

/// The text of the page.
pub(crate) fn readme() -> Result<String> {
    let defaults = read("values.yaml")?;
    let mut page = HEAD.to_owned();
    for Leaf { path, meaning } in leaves()? {
        let default = default_of(&defaults, &path);
        let default = default.with_context(|| format!("values.yaml has no {path}"))?;
        // Writing to a string does not fail.
        let _ = writeln!(page, "| `{path}` | `{default}` | {meaning} |");
    }
    Ok(page)
}

fn read(name: &str) -> Result<String> {
    let path = place::root().join(CHART).join(name);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// Every value in the schema, sorted; Helm's own left out.
fn leaves() -> Result<Vec<Leaf>> {
    let schema: Value =
        serde_json::from_str(&read("values.schema.json")?).context("reading the values' schema")?;
    let mut found = Vec::new();
    walk(&schema, "", &mut found);
    found.retain(|leaf| leaf.path != "global");
    Ok(found)
}

fn walk(schema: &Value, path: &str, found: &mut Vec<Leaf>) {
    let Some(properties) = schema["properties"].as_object() else {
        let meaning = schema["description"].as_str().unwrap_or_default().to_owned();
        return found.push(Leaf { path: path.to_owned(), meaning });
    };
    for (name, property) in properties {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        walk(property, &path, found);
    }
}

/// What follows a key in `values.yaml`, which is indented by two spaces a level; the items of a list that
/// has a line each in one line.
fn default_of(yaml: &str, path: &str) -> Option<String> {
    let mut lines =
        yaml.lines().filter(|line| !line.trim().is_empty() && !line.trim().starts_with('#'));
    let mut rest = "";
    for (level, name) in path.split('.').enumerate() {
        let key = format!("{}{name}:", "  ".repeat(level));
        rest = lines.find_map(|line| line.strip_prefix(&key))?.trim();
    }
    if !rest.is_empty() {
        return Some(rest.to_owned());
    }
    let items: Vec<_> = lines.map_while(|line| line.trim().strip_prefix("- ")).collect();
    Some(format!("[{}]", items.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::{default_of, leaves, read};
    use crate::chart::combinations;
    use crate::place;
    use serde_json::Value;
    use std::fs;

    #[test]
    fn every_value_is_described_and_set_by_a_combination() {
        let combinations = combinations().unwrap();
        let options: Vec<_> = combinations.iter().flat_map(|one| &one.options).collect();
        // `--set` names a value, its part, or an item of it.
        let is_set = |path: &str| {
            options.iter().flat_map(|text| text.split(',')).any(|text| {
                text.strip_prefix(path).is_some_and(|rest| rest.starts_with(['=', '.', '[']))
            })
        };
        for leaf in leaves().unwrap() {
            assert!(leaf.meaning.ends_with('.'), "{} has no description", leaf.path);
            assert!(is_set(&leaf.path), "no combination sets {}", leaf.path);
        }
        assert!(combinations.iter().all(|one| !one.has.is_empty()));
    }

    #[test]
    fn every_value_is_in_the_schema_and_the_other_way_round() {
        let yaml = read("values.yaml").unwrap();
        let paths: Vec<_> = leaves().unwrap().into_iter().map(|leaf| leaf.path).collect();
        for path in &paths {
            assert!(default_of(&yaml, path).is_some(), "values.yaml has no {path}");
        }
        let is_leaf = |line: &&str| match line.trim_start().split_once(':') {
            Some((name, rest)) if name.chars().all(char::is_alphanumeric) => {
                !rest.is_empty() || name == "runtimeSockets"
            }
            _ => false,
        };
        assert_eq!(yaml.lines().filter(is_leaf).count(), paths.len());
    }

    #[test]
    fn a_default_is_what_follows_its_key() {
        let yaml = "# a: 0\na:\n  # b: 0\n  b: 1\nb:\n  b: {c: 2}\nlist:\n  # why\n  - /x\n  - /y\nend: []\n";
        let of = |path| default_of(yaml, path);
        assert_eq!(of("a.b").as_deref(), Some("1"));
        assert_eq!(of("b.b").as_deref(), Some("{c: 2}"));
        assert_eq!(of("list").as_deref(), Some("[/x, /y]"));
        assert_eq!((of("end").as_deref(), of("a.c")), (Some("[]"), None));
    }

    #[test]
    fn the_pod_requests_what_the_agent_may_use() {
        let budgets = fs::read_to_string(place::root().join("agent/docs/budgets.json")).unwrap();
        let budgets: Value = serde_json::from_str(&budgets).unwrap();
        let resources = default_of(&read("values.yaml").unwrap(), "resources").unwrap();
        let request = |key: &str, unit: &str| -> f64 {
            let (_, rest) = resources.split_once(&format!("{key}: ")).unwrap();
            rest.split_once(unit).unwrap().0.parse().unwrap()
        };
        let budget = |key: &str| budgets["bench"][key].as_f64().unwrap();
        assert!(request("cpu", "m") / 10.0 >= budget("cpu_percent_at_10s"), "{resources}");
        let memory = request("memory", "Mi") * 1.048_576;
        assert!(memory >= budget("proportional_mb") + budget("bpf_maps_mb"), "{resources}");
    }
}
