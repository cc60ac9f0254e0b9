//! The page of how many series there can be.

use super::super::level::{self, Level};
use super::super::{Dim, MetricDef, OneDim, attributes, interconnect, link};
use super::about;
use std::fmt::Write as _;

const SERIES: &str = "# How many series

`metrics.level` decides how much is exported: `basic`, `default` or `all`; `metrics.include` and
`metrics.exclude` add and remove metrics by pattern. Below `all`, state sets export
only the states that have occurred (counted as one here), and processes only their multiprocessor time.

These are upper bounds for a device that supports everything; unsupported metrics are not sent, so most
devices have fewer. The number of processes, owners and ranks is not bounded here, but all series together
never exceed `agent.series_limit`, not counting the agent's own. Series of NCCL's Inspector may use three
fifths of the limit, series of collectives in all four fifths, so that processes and owners always have
room. When room is short, the owner with the most series of collectives loses series, down to a fifth of
the limit. `metrics.limits` bounds families of metrics in the same way, without those fifths. Points that
are left out are counted in `gpuwho.dropped` as `series_limit` or `metric_limit` and by owner in
`gpuwho.owner.refused`; `gpuwho` and the log report it. `gpuwho config check FILE` prints the most that a
host's devices can have.

| of each | `basic` | `default` | `all` |
|---|---|---|---|
";

/// Writes the largest number of series of each kind of subject, computed from the closed
/// dimensions.
pub(super) fn table(out: &mut String) {
    out.push_str(SERIES);
    let mut counts: Vec<(&str, [usize; 3])> = Vec::new();
    for def in super::super::all() {
        let (of, all) = series_of(def);
        let is_one = level::is_sparse(def) || level::is_detailed(def);
        let unused = if is_one { all - all.min(1) } else { 0 };
        let count = Level::ALL.map(|level| match level {
            level if Level::of(def) > level => 0,
            Level::All => all,
            Level::Basic | Level::Default => all - unused,
        });
        match counts.iter_mut().find(|(known, _)| *known == of) {
            Some((_, sums)) => sums.iter_mut().zip(count).for_each(|(sum, more)| *sum += more),
            None => counts.push((of, count)),
        }
    }
    for (of, [basic, default, all]) in counts {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| {of} | {basic} | {default} | {all} |");
    }
}

/// The subject of a metric's series in the table, and the largest number of series of one subject.
fn series_of(def: &MetricDef) -> (&'static str, usize) {
    let all = def.series_per_subject();
    match def.dims.first().filter(|dim| dim.key.name == attributes::GPU_LINK_INDEX.name) {
        Some(links) => {
            let count = |dim: &Dim| dim.values.len();
            let of = match links.values.len() {
                many if many == count(<link::Link as OneDim>::DIM) => {
                    "an NVLink of a device (none with `nvidia.by_link = false`)"
                }
                many if many == count(<interconnect::PeerLink as OneDim>::DIM) => {
                    "another link of a device to a device"
                }
                _ => "a link of a device to the CPU of its module",
            };
            (of, all / links.values.len().max(1))
        }
        None => (about(def.subject), all),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::all;
    use super::{MetricDef, table};

    #[test]
    fn the_table_of_series_counts_every_metric() {
        let mut text = String::new();
        table(&mut text);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        let count =
            |row: &&str| row.rsplit('|').nth(1).and_then(|cell| cell.trim().parse::<usize>().ok());
        let nvlink = rows.iter().find(|row| row.starts_with("| an NVLink")).and_then(count);
        let link = |def: &MetricDef| def.name.starts_with("gpu.nvlink.link.");
        let all: usize = all().filter(|def| link(def)).map(MetricDef::series_per_subject).sum();
        assert_eq!(nvlink.map(|each| each * 36), Some(all));
        assert_eq!(rows.iter().filter_map(count).count(), rows.len(), "{rows:#?}");
        assert_eq!(rows.len(), 18, "{rows:#?}");
    }
}
