//! `cargo xtask docs`: the rules of Prometheus, of Grafana and of the chart, from one table with its
//! figures, `dashboards/alerts.toml`.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const TABLE: &str = include_str!("../../dashboards/alerts.toml");
const RUNBOOK: &str = "agent/docs/runbook.md";
/// Whoever is woken learns first on which host it is.
const HOST: &str = "{{ with $labels.host_name }}{{ . }}{{ else }}{{ $labels.instance }}{{ end }}: ";
const HEAD: &str = "\
# Prometheus alerting rules over gpuwho's series as the OpenTelemetry Collector's or Prometheus' own
# OTLP receiver names them (dots to underscores, unit and _total suffixes). Written by `cargo xtask docs`
# from dashboards/alerts.toml: change figures and rules there.
groups:
";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    runbook_url: String,
    figures: BTreeMap<String, Figure>,
    rules: Vec<Rule>,
}

/// A value, and for how long it has to hold.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    value: toml::Value,
    #[serde(rename = "for")]
    hold: Option<String>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(default = "Rule::group")]
    group: String,
    comment: Option<String>,
    alert: Option<String>,
    record: Option<String>,
    /// The conditions of health, instead of an expression and a severity; `*` for all of no other alert.
    #[serde(default)]
    conditions: Vec<String>,
    #[serde(default)]
    expr: String,
    #[serde(rename = "for")]
    hold: Option<String>,
    severity: Option<String>,
    summary: Option<String>,
    description: Option<String>,
    /// The annotation with the place of the alert's section in the runbook.
    #[serde(skip)]
    runbook: (&'static str, String),
}

const BOARD: &str = include_str!("../../dashboards/overview.json");

/// The files, each with its text; Helm reads no file outside the chart.
pub(crate) fn files() -> Result<[(&'static str, String); 4]> {
    let rules = rules(TABLE)?;
    let prometheus = prometheus(&rules)?;
    Ok([
        ("dashboards/alerts.yaml", prometheus.clone()),
        ("deploy/helm/gpuwho/files/alerts.yaml", prometheus),
        ("deploy/helm/gpuwho/files/boards/overview.json", BOARD.to_owned()),
        ("dashboards/grafana-alerts.json", grafana(&rules)?),
    ])
}

impl Rule {
    fn group() -> String {
        "gpuwho".to_owned()
    }

    /// The summary with the host before it.
    fn summary(&self) -> String {
        let summary = self.summary.as_deref().unwrap_or_default();
        if summary.contains("$labels.host_name") {
            summary.into()
        } else {
            format!("{HOST}{summary}")
        }
    }

    /// The agent has judged already, and for how long: its figures stand in `health/rules.rs` alone.
    fn judged_by_the_agent(&mut self, claimed: &str) {
        let matcher = match self.conditions.as_slice() {
            [] => return,
            [all] if all == "*" => format!(r#"!~"{claimed}""#),
            [one] => format!(r#"="{one}""#),
            some => format!(r#"=~"{}""#, some.join("|")),
        };
        self.expr = format!("gpu_health_condition{{gpu_health_condition{matcher}}} == 1");
        self.severity = Some("{{ $labels.gpu_health_severity }}".to_owned());
    }

    /// Programs make a link of `runbook_url`: it is an address or absent.
    fn link(&mut self, address: &str) {
        let (key, page) = match address {
            "" => ("runbook", RUNBOOK),
            address => ("runbook_url", address),
        };
        let section = self.alert.as_deref().unwrap_or_default().to_lowercase();
        self.runbook = (key, format!("{page}#{section}"));
    }
}

/// The table's rules with the figures in their places.
fn rules(table: &str) -> Result<Vec<Rule>> {
    let table: Table = toml::from_str(table).context("dashboards/alerts.toml")?;
    let mut figures = Vec::new();
    for (name, figure) in &table.figures {
        let value = match &figure.value {
            toml::Value::String(text) => text.clone(),
            number => number.to_string(),
        };
        if let Some(hold) = &figure.hold {
            figures.push((format!("<<{name}.for>>"), hold.clone()));
        }
        if let Some(number) = figure.value.as_float() {
            figures.push((format!("<<{name}.percent>>"), format!("{:.0}", number * 100.0)));
        }
        figures.push((format!("<<{name}>>"), value));
    }
    let fill = |text: &mut String| {
        for (place, value) in &figures {
            *text = text.replace(place, value);
        }
        ensure!(!text.contains("<<"), "no figure for a place in: {text}");
        Ok(())
    };
    let mut rules = table.rules;
    let claimed: Vec<_> = rules.iter().flat_map(|rule| rule.conditions.clone()).collect();
    let claimed: Vec<_> = claimed.iter().map(String::as_str).filter(|name| *name != "*").collect();
    for rule in &mut rules {
        rule.judged_by_the_agent(&claimed.join("|"));
        rule.link(&table.runbook_url);
        fill(&mut rule.expr)?;
        let more = [&mut rule.hold, &mut rule.summary, &mut rule.description, &mut rule.comment];
        for text in more.into_iter().flatten() {
            fill(text)?;
        }
        let is_whole = rule.alert.is_none() || (rule.severity.is_some() && rule.summary.is_some());
        let is_whole = is_whole && !rule.expr.is_empty();
        ensure!(is_whole && rule.alert.is_some() != rule.record.is_some(), "{}", rule.expr);
    }
    Ok(rules)
}

fn groups(rules: &[Rule]) -> Vec<(&str, Vec<&Rule>)> {
    let mut groups: Vec<(&str, Vec<&Rule>)> = Vec::new();
    for rule in rules {
        match groups.iter_mut().find(|(name, _)| *name == rule.group) {
            Some((_, all)) => all.push(rule),
            None => groups.push((&rule.group, vec![rule])),
        }
    }
    groups
}

/// The file that Prometheus reads.
fn prometheus(rules: &[Rule]) -> Result<String> {
    let mut out = HEAD.to_owned();
    for (group, rules) in groups(rules) {
        writeln!(out, "  - name: {group}\n    rules:")?;
        for rule in rules {
            one(rule, &mut out)?;
        }
    }
    Ok(out)
}

fn one(rule: &Rule, out: &mut String) -> Result<()> {
    for line in wrapped(rule.comment.as_deref().unwrap_or_default()) {
        writeln!(out, "      # {line}")?;
    }
    match (&rule.alert, &rule.record) {
        (Some(alert), _) => writeln!(out, "      - alert: {alert}")?,
        (None, record) => writeln!(out, "      - record: {}", record.as_deref().unwrap_or("?"))?,
    }
    if rule.expr.contains('\n') {
        writeln!(out, "        expr: >-")?;
        for line in rule.expr.lines() {
            writeln!(out, "          {line}")?;
        }
    } else {
        writeln!(out, "        expr: {}", rule.expr)?;
    }
    if let Some(hold) = &rule.hold {
        writeln!(out, "        for: {hold}")?;
    }
    let (Some(_), Some(severity)) = (&rule.alert, &rule.severity) else { return Ok(()) };
    // A template is text, not a mapping.
    let severity = if severity.contains('{') { quoted(severity) } else { severity.clone() };
    writeln!(out, "        labels: {{severity: {severity}}}\n        annotations:")?;
    writeln!(out, "          summary: {}", quoted(&rule.summary()))?;
    let (key, runbook) = &rule.runbook;
    writeln!(out, "          {key}: {}", quoted(runbook))?;
    if let Some(description) = &rule.description {
        writeln!(out, "          description: {}", quoted(description))?;
    }
    Ok(())
}

/// A JSON string is one of YAML.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < 100 => *line = format!("{line} {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The file that Grafana provisions: `provisioning/alerting`. Its alerts read the same Prometheus,
/// whose data source has the UID in `GPUWHO_DATASOURCE`; recording rules stay in Prometheus.
fn grafana(rules: &[Rule]) -> Result<String> {
    let group = |(name, rules): (&str, Vec<&Rule>)| {
        let alerts: Vec<Value> = rules.into_iter().filter_map(alert).collect();
        (!alerts.is_empty()).then(|| {
            json!({"orgId": 1, "name": name, "folder": "gpuwho", "interval": "1m", "rules": alerts})
        })
    };
    let groups: Vec<Value> = groups(rules).into_iter().filter_map(group).collect();
    let file = json!({"apiVersion": 1, "groups": groups});
    Ok(format!("{}\n", serde_json::to_string_pretty(&file)?))
}

/// Grafana replaces `$NAME` by the environment in a label and a data source's UID (two dollars are
/// one there), but neither in annotations nor in a query's model (grafana/grafana#54975, #71006).
fn alert(rule: &Rule) -> Option<Value> {
    let name = rule.alert.as_ref()?;
    let expr = rule.expr.replace('\n', " ");
    // The series that fire, whatever their value is: a device that is down has 0.
    let fires = format!("({expr}) ^ 0");
    let query = |id: &str, expr: &str| {
        json!({
            "refId": id,
            "relativeTimeRange": {"from": 600, "to": 0},
            "datasourceUid": "$GPUWHO_DATASOURCE",
            "model": {"refId": id, "expr": expr, "instant": true, "range": false},
        })
    };
    let condition = json!({
        "refId": "C",
        "relativeTimeRange": {"from": 0, "to": 0},
        "datasourceUid": "__expr__",
        "model": {
            "refId": "C", "type": "threshold", "expression": "B",
            "conditions": [{"evaluator": {"type": "gt", "params": [0]}}],
        },
    });
    let text = |text: &str| text.replace("$value", "$values.A.Value");
    Some(json!({
        "uid": format!("gpuwho-{}", name.to_lowercase()),
        "title": name,
        "condition": "C",
        "data": [query("A", &expr), query("B", &fires), condition],
        "for": rule.hold.as_deref().unwrap_or("0s"),
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": {"severity": rule.severity.as_deref().unwrap_or_default().replace('$', "$$")},
        "annotations": {
            "summary": text(&rule.summary()),
            rule.runbook.0: rule.runbook.1,
            "description": text(rule.description.as_deref().unwrap_or_default()),
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        runbook_url = "https://wiki/gpu"
        [figures]
        full = { value = 0.9, for = "5m" }
        [[rules]]
        alert = "Full"
        expr = 'used / size > <<full>>'
        for = "<<full.for>>"
        severity = "warning"
        summary = 'above <<full.percent>> %, {{ $value }} of {{ $labels.gpu_index }}'
    "#;

    #[test]
    fn a_figure_stands_once_and_is_in_every_file() {
        let rules = rules(SMALL).unwrap();
        let text = prometheus(&rules).unwrap();
        assert!(text.contains("expr: used / size > 0.9\n        for: 5m\n"), "{text}");
        let grafana: Value = serde_json::from_str(&grafana(&rules).unwrap()).unwrap();
        let rule = &grafana["groups"][0]["rules"][0];
        assert_eq!(rule["data"][1]["model"]["expr"], "(used / size > 0.9) ^ 0");
        let summary = rule["annotations"]["summary"].as_str().unwrap();
        let expected = "above 90 %, {{ $values.A.Value }} of {{ $labels.gpu_index }}";
        assert!(summary.ends_with(expected), "{summary}");
        assert_eq!(rule["for"], "5m");
        assert_eq!(rule["annotations"]["runbook_url"], "https://wiki/gpu#full");
        assert!(text.contains("          runbook_url: \"https://wiki/gpu#full\"\n"), "{text}");
    }

    /// The commands of dashboards.md.
    #[test]
    fn the_files_have_what_sed_replaces() {
        let page = include_str!("../../agent/docs/dashboards.md");
        let rules = rules(TABLE).unwrap();
        let files = [prometheus(&rules).unwrap(), grafana(&rules).unwrap()];
        let commands: Vec<_> = page.lines().filter(|line| line.starts_with("sed -i 's|")).collect();
        assert_eq!(commands.len(), files.len());
        for (command, file) in commands.iter().zip(files) {
            let old = command.split('|').nth(1).unwrap();
            assert!(file.contains(&format!("{old}#gpulost\"")), "{command}");
        }
    }

    #[test]
    fn the_sample_of_an_alert_of_health_has_its_condition() {
        let runbook = include_str!("../../agent/docs/runbook.md");
        for rule in rules(TABLE).unwrap() {
            let heading = format!("\n### {}\n", rule.alert.unwrap_or_default());
            let (_, section) = runbook.split_once(&heading).unwrap_or_default();
            let sample = section.split("```").nth(1).unwrap_or_default();
            let has = |name: &String| name == "*" || sample.contains(&format!(" {name} since "));
            let is_shown = rule.conditions.is_empty() || rule.conditions.iter().any(has);
            assert!(is_shown, "{heading}: {sample}");
        }
    }

    /// Whoever is woken reads once.
    #[test]
    fn texts_are_short_sentences_without_relative_clauses() {
        for rule in rules(TABLE).unwrap() {
            for text in [rule.summary, rule.description].into_iter().flatten() {
                // A template stands for a word.
                let words = text.replace("{{ ", "{{").replace(" }}", "}}").replace("$labels.", "");
                for sentence in words.split(". ").flat_map(|part| part.split(": ")) {
                    assert!(sentence.split_whitespace().count() <= 25, "{sentence}");
                }
                for word in ["that", "which", "whose", "what", "granted"] {
                    let has = words.split(|c: char| !c.is_alphanumeric()).any(|one| one == word);
                    assert!(!has, "`{word}` in: {text}");
                }
            }
        }
    }

    #[test]
    fn a_place_without_a_figure_is_refused() {
        assert!(rules(&SMALL.replace("<<full>>", "<<none>>")).is_err());
    }

    #[test]
    fn each_condition_that_an_alert_names_is_one_of_the_agents() {
        let metrics = include_str!("../../agent/docs/metrics/devices.md");
        let list =
            metrics.lines().find(|line| line.starts_with("- `gpu.health.condition`: ")).unwrap();
        let mut named: Vec<_> =
            rules(TABLE).unwrap().into_iter().flat_map(|rule| rule.conditions).collect();
        named.retain(|name| name != "*");
        let unknown: Vec<_> =
            named.iter().filter(|name| !list.contains(&format!(" `{name}`"))).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let all = named.len();
        named.sort();
        named.dedup();
        assert_eq!(named.len(), all, "one alert a condition");
    }

    #[test]
    fn an_alert_of_the_rest_leaves_out_what_others_have() {
        let row = |name: &str, of: &str| {
            format!("[[rules]]\nalert = '{name}'\nconditions = {of}\nsummary = ''\n")
        };
        let table = [
            "runbook_url = ''\n[figures]\n",
            &row("Two", "['a', 'b']"),
            &row("One", "['c']"),
            &row("Rest", "['*']"),
        ];
        let rules = rules(&table.concat()).unwrap();
        let exprs: Vec<_> = rules.iter().map(|rule| rule.expr.as_str()).collect();
        assert_eq!(
            exprs,
            [
                r#"gpu_health_condition{gpu_health_condition=~"a|b"} == 1"#,
                r#"gpu_health_condition{gpu_health_condition="c"} == 1"#,
                r#"gpu_health_condition{gpu_health_condition!~"a|b|c"} == 1"#,
            ]
        );
    }

    /// Grafana's limits: a UID of 40 letters, no two alike.
    #[test]
    fn every_alert_of_the_table_is_one_of_grafanas() {
        let rules = rules(TABLE).unwrap();
        let alerts: Vec<_> = rules.iter().filter_map(alert).collect();
        let uids: std::collections::BTreeSet<_> =
            alerts.iter().map(|alert| alert["uid"].as_str().unwrap()).collect();
        assert_eq!(uids.len(), rules.iter().filter(|rule| rule.alert.is_some()).count());
        assert!(uids.iter().all(|uid| uid.len() <= 40), "{uids:?}");
    }
}
