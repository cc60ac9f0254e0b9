//! Rules about alerts and queries: who is woken by an alert learns on which host it is and what to do;
//! each query of the documents is tried.

use super::Finding;
use super::tree::Tree;

const ALERTS: &str = "dashboards/alerts.yaml";
const RUNBOOK: &str = "agent/docs/runbook.md";

/// What a section has below its meaning: how to see it, and what to do.
const PARTS: [&str; 4] = ["\n```\n", "- **Do**: ", "- **Escalate**: ", "- **Harmless**: "];

/// Each alert's summary names its host, and the runbook has a section for it.
pub(super) fn alerts(tree: &Tree) -> Vec<Finding> {
    let (Some(text), Some(runbook)) = (tree.text(ALERTS), tree.text(RUNBOOK)) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let mut find = |line, rule, remedy| {
        findings.push(Finding { file: ALERTS.to_owned(), line, rule, remedy });
    };
    let mut alert = "";
    for (line, content) in (1..).zip(text.lines().map(str::trim)) {
        if let Some(name) = content.strip_prefix("- alert: ") {
            alert = name;
            let section = format!(
                "annotations name {RUNBOOK}#{}, which has a sample and {PARTS:?}",
                name.to_lowercase()
            );
            let has_link = text.contains(&format!("\"{RUNBOOK}#{}\"", name.to_lowercase()));
            let (_, below) = runbook.split_once(&format!("\n### {name}\n")).unwrap_or_default();
            let own = below.split("\n### ").next().unwrap_or_default();
            if !has_link || !PARTS.iter().all(|part| own.contains(part)) {
                find(line, "each alert has a section in the runbook", section);
            }
        }
        if content.starts_with("summary: ") && !content.contains("$labels.host_name") {
            let remedy = format!("begin the summary of {alert} with the host's name or instance");
            find(line, "each alert names its host", remedy);
        }
    }
    findings
}

const QUERIES: &str = "agent/docs/queries.md";
const NOTES: &str = "deploy/helm/gpuwho/templates/NOTES.txt";
const TRIED: &str = "dashboards/queries.test.yaml";

/// Each query of the page, and of what Helm says after an installation, is in the tests of `promtool`.
pub(super) fn queries(tree: &Tree) -> Vec<Finding> {
    let Some(tried) = tree.text(TRIED) else { return Vec::new() };
    let of_page = |line: &str| {
        let row = line.strip_prefix("| ")?;
        row.split_once('`')?.1.rsplit_once('`').map(|(query, _)| query.to_owned())
    };
    // Indented, as commands are.
    let of_notes = |line: &str| {
        line.strip_prefix("  ").filter(|text| !text.starts_with("kubectl ")).map(str::to_owned)
    };
    let missing = |file: &str, query_of: &dyn Fn(&str) -> Option<String>| {
        let lines = (1..).zip(tree.text(file).unwrap_or_default().lines());
        let queries = lines.filter_map(|(line, text)| Some((line, query_of(text)?)));
        let missing =
            queries.filter(|(_, query)| !tried.contains(&format!("expr: count({query})\n")));
        let finding = |(line, query)| Finding {
            file: file.to_owned(),
            line,
            rule: "each of the first queries is tried against Prometheus",
            remedy: format!("add count({query}) to {TRIED}"),
        };
        missing.map(finding).collect::<Vec<_>>()
    };
    [missing(QUERIES, &of_page), missing(NOTES, &of_notes)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_was_not_tried_is_found() {
        let page = "| question | query |\n|---|---|\n| Who? | `gpu_info` |\n| Up? | `gpu_up` |\n";
        let tried = "      - expr: count(gpu_info)\n        eval_time: 1m\n";
        let notes = "Queries:\n\n  kubectl get pods\n  gpu_info\n  gpu_up_ratio\n";
        let found = queries(&Tree::of([(QUERIES, page), (NOTES, notes), (TRIED, tried)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [4, 5]);
    }

    #[test]
    fn an_alert_without_host_or_section_is_found() {
        let rules = "- alert: GpuLost\n  summary: \"{{ $labels.host_name }}: lost\"\n  \
                     runbook: \"agent/docs/runbook.md#gpulost\"\n\
                     - alert: GpuHot\n  summary: \"hot\"\n  \
                     runbook: \"agent/docs/runbook.md#gpuhot\"\n";
        let runbook = "# Runbook\n\n### GpuLost\n\nGone.\n\n```\n$ gpuwho\n```\n\n\
                       - **Do**: a\n- **Escalate**: b\n- **Harmless**: c\n";
        let found = alerts(&Tree::of([(ALERTS, rules), (RUNBOOK, runbook)]));
        let found: Vec<_> = found.iter().map(|finding| (finding.line, finding.rule)).collect();
        let expected =
            [(4, "each alert has a section in the runbook"), (5, "each alert names its host")];
        assert_eq!(found, expected);
    }
}
