//! The figures of a run as a table, a fleet of 1,000 nodes beside each, and 10,000 extrapolated.

use super::{Cost, Options};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// What surrounds the table in the page.
const BEGINS: &str = "<!-- measured by cargo xtask fleet -->";
const ENDS: &str = "<!-- end -->";

/// Nodes that are extrapolated.
const MANY: f64 = 10_000.0;

/// The table, with when, of what and where it was measured.
pub fn render(costs: &[Cost], options: &Options, source: &str) -> String {
    let mut text = format!(
        "{source}; a request every {} s, {} watched\n\n\
         | nodes | points/s | Collector: cores | RSS | MB/s in | MB/s out | Prometheus: cores | RSS | MB/s on disk | series | late | lost |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        options.every.as_secs_f64(),
        options.ticks,
    );
    for cost in costs {
        line(&mut text, &cost.nodes.to_string(), cost, None);
    }
    for cost in costs {
        line(&mut text, &format!("1,000, from {}", cost.nodes), cost, Some(1_000.0));
    }
    if let Some(cost) = costs.last() {
        let name = format!("*10,000, extrapolated from {}*", cost.nodes);
        line(&mut text, &name, cost, Some(MANY));
    }
    text.push('\n');
    for cost in costs {
        let cores = cost.cpu[2].as_secs_f64() / cost.took.as_secs_f64().max(f64::MIN_POSITIVE);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{} nodes used {cores:.2} cores themselves; {} of their points waited when the watch ended.",
            cost.nodes, cost.waiting
        );
    }
    text
}

/// A row: as it was measured, or as so many nodes would have it.
fn line(text: &mut String, name: &str, cost: &Cost, nodes: Option<f64>) {
    let times = nodes.map_or(1.0, |nodes| nodes / cost.nodes as f64);
    let rate =
        |amount: f64, time: Duration| amount * times / time.as_secs_f64().max(f64::MIN_POSITIVE);
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let [collector, prometheus, _] = cost.cpu.map(|cpu| rate(cpu.as_secs_f64(), cost.took));
    let [received, sent] = cost.network.map(|bytes| rate(megabytes(bytes), cost.took));
    let [collectors, prometheuss] = cost.resident.map(|bytes| megabytes(bytes) * times);
    let (late, lost) = match nodes {
        None => (format!("{:.0} s", cost.late.as_secs_f64()), cost.lost.to_string()),
        Some(_) => ("-".to_owned(), "-".to_owned()),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "| {name} | {:.0} | {collector:.2} | {collectors:.0} MB | {received:.2} | {sent:.2} | {prometheus:.2} | \
         {prometheuss:.0} MB | {:.2} | {:.0} | {late} | {lost} |",
        rate(cost.accepted as f64, cost.took),
        rate(megabytes(cost.disk), cost.ran),
        cost.series as f64 * times,
    );
}

/// Puts the table into the page.
pub fn write(page: &Path, table: &str) -> io::Result<()> {
    let text = fs::read_to_string(page)?;
    let missing = || io::Error::other(format!("no line `{BEGINS}` with `{ENDS}` behind it"));
    let (before, rest) = text.split_once(BEGINS).ok_or_else(missing)?;
    let (_, after) = rest.split_once(ENDS).ok_or_else(missing)?;
    fs::write(page, format!("{before}{BEGINS}\n{table}{ENDS}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_nodes_cost_ten_times_a_hundred() {
        let cost = Cost {
            nodes: 100,
            took: Duration::from_secs(10),
            accepted: 96_000,
            waiting: 2,
            lost: 1,
            late: Duration::from_secs(4),
            cpu: [1, 2, 3].map(Duration::from_secs),
            resident: [1_000_000, 2_000_000],
            network: [10_000_000, 20_000_000],
            disk: 60_000_000,
            ran: Duration::from_secs(20),
            series: 96_000,
        };
        let options = Options { sizes: vec![100], every: Duration::from_secs(10), ticks: 1 };
        let text = render(&[cost], &options, "today");
        let lines: Vec<_> = text.lines().skip(4).collect();
        let expected = [
            "| 100 | 9600 | 0.10 | 1 MB | 1.00 | 2.00 | 0.20 | 2 MB | 3.00 | 96000 | 4 s | 1 |",
            "| 1,000, from 100 | 96000 | 1.00 | 10 MB | 10.00 | 20.00 | 2.00 | 20 MB | 30.00 | 960000 | - | - |",
            "| *10,000, extrapolated from 100* | 960000 | 10.00 | 100 MB | 100.00 | 200.00 | 20.00 | 200 MB | 300.00 | 9600000 | - | - |",
            "",
            "100 nodes used 0.30 cores themselves; 2 of their points waited when the watch ended.",
        ];
        assert_eq!(lines, expected);
    }
}
