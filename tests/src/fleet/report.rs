//! The figures of a run as a table, a fleet of 1,000 nodes beside each, and 10,000 extrapolated.

use super::{Cost, Options};
use crate::bench::table;
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
         | nodes | points/s | MB/s sent | lost | waiting | Collector: cores | RSS | Prometheus: cores | RSS | series | all nodes: cores |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
        options.every.as_secs_f64(),
        options.ticks,
    );
    for cost in costs {
        line(&mut text, &format!("{}", cost.nodes), cost, 1.0);
    }
    for cost in costs {
        line(&mut text, &format!("1,000, from {}", cost.nodes), cost, 1_000.0 / cost.nodes as f64);
    }
    if let Some(cost) = costs.last() {
        let name = format!("*10,000, extrapolated from {}*", cost.nodes);
        line(&mut text, &name, cost, MANY / cost.nodes as f64);
    }
    text
}

fn line(text: &mut String, name: &str, cost: &Cost, times: f64) {
    let seconds = cost.took.as_secs_f64().max(f64::MIN_POSITIVE);
    let requests = cost.nodes as f64 * f64::from(cost.ticks);
    let cores = |cpu: Duration| cpu.as_secs_f64() / seconds * times;
    let megabytes = |bytes: u64| bytes as f64 / 1e6 * times;
    let [collector, prometheus, nodes] = cost.cpu;
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "| {name} | {:.0} | {:.2} | {} | {} | {:.2} | {:.0} MB | {:.2} | {:.0} MB | {:.0} | {:.2} |",
        cost.accepted as f64 / seconds * times,
        requests * cost.bytes as f64 / 1e6 / seconds * times,
        if times == 1.0 { cost.lost.to_string() } else { "-".to_owned() },
        if times == 1.0 { cost.waiting.to_string() } else { "-".to_owned() },
        cores(collector),
        megabytes(cost.resident[0]),
        cores(prometheus),
        megabytes(cost.resident[1]),
        cost.series as f64 * times,
        cores(nodes),
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

/// When, of what and where.
pub fn source() -> String {
    table::source()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_nodes_cost_ten_times_a_hundred() {
        let cost = Cost {
            nodes: 100,
            took: Duration::from_secs(10),
            ticks: 1,
            accepted: 96_000,
            lost: 1,
            waiting: 2,
            bytes: 10_000,
            cpu: [1, 2, 3].map(Duration::from_secs),
            resident: [1_000_000, 2_000_000],
            series: 96_000,
        };
        let options = Options { sizes: vec![100], every: Duration::from_secs(10), ticks: 1 };
        let text = render(&[cost], &options, "today");
        let lines: Vec<_> = text.lines().skip(4).collect();
        let expected = [
            "| 100 | 9600 | 0.10 | 1 | 2 | 0.10 | 1 MB | 0.20 | 2 MB | 96000 | 0.30 |",
            "| 1,000, from 100 | 96000 | 1.00 | - | - | 1.00 | 10 MB | 2.00 | 20 MB | 960000 | 3.00 |",
            "| *10,000, extrapolated from 100* | 960000 | 10.00 | - | - | 10.00 | 100 MB | 20.00 | 200 MB | 9600000 | 30.00 |",
        ];
        assert_eq!(lines, expected);
    }
}
