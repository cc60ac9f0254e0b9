//! [`SOURCES`]: every source that is neither a vendor's devices (`DEVICES`) nor a probe (`PROBES`).
//! To add one, write its file and its row here.

use crate::agent::probes::PROBES;
use gpuwho_collect as collect;
use gpuwho_collect::source::SourceDef;
use gpuwho_devices::{self as device, DEVICES};

/// The sources. Each row names the sources that must start before it.
pub static SOURCES: &[SourceDef] = &[
    gpuwho_nccl::INSPECTOR,
    gpuwho_nccl::RAS,
    gpuwho_engines::SOURCE,
    collect::host::SOURCE,
    collect::host::CGROUPS,
    collect::kmsg::SOURCE,
    collect::events::SOURCE,
    super::own::SOURCE,
];

/// The rows of all tables.
pub fn all() -> Vec<SourceDef> {
    let devices = DEVICES.iter().map(device::source::def);
    let probes = PROBES.iter().map(|probe| probe.source);
    devices.chain(probes).chain(SOURCES.iter().copied()).collect()
}

/// The names, as `gpuwho collect` takes them.
pub fn names() -> Vec<&'static str> {
    all().iter().map(|source| source.name).collect()
}

/// Indexes of `sources` in start order: each after the sources that it names, otherwise as they are
/// listed. Sources that wait for each other in a circle come last.
pub(super) fn start_order(sources: &[SourceDef]) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::new();
    while order.len() < sources.len() {
        let is_listed = |name: &str| sources.iter().any(|source| source.name == name);
        let has_started =
            |name: &str| order.iter().any(|at| sources.get(*at).is_some_and(|s| s.name == name));
        let left = || (0..sources.len()).filter(|at| !order.contains(at));
        let is_ready = |at: &usize| {
            let after = sources.get(*at).map_or(&[][..], |source| source.after);
            after.iter().all(|name| has_started(name) || !is_listed(name))
        };
        match left().find(is_ready).or_else(|| left().next()) {
            Some(next) => order.push(next),
            None => break,
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_collect::source::Alone;
    use gpuwho_model::config::ConfigError;
    use std::collections::BTreeSet;

    fn row(name: &'static str, after: &'static [&'static str]) -> SourceDef {
        SourceDef {
            name,
            about: "",
            section: None,
            after,
            alone: Alone::Named,
            configure: |name, _| Err(ConfigError::no_such("source", name)),
        }
    }

    fn order(rows: &[SourceDef]) -> Vec<&'static str> {
        start_order(rows).into_iter().map(|at| rows[at].name).collect()
    }

    #[test]
    fn a_source_starts_after_those_it_names_whatever_the_order_of_lines() {
        let rows = [row("opens", &["calls"]), row("calls", &[]), row("log", &[])];
        assert_eq!(order(&rows), ["calls", "opens", "log"]);
        let rows = [row("log", &[]), row("calls", &[]), row("opens", &["calls"])];
        assert_eq!(order(&rows), ["log", "calls", "opens"]);
    }

    #[test]
    fn the_other_sources_start_before_a_circle() {
        let rows = [row("a", &["b"]), row("b", &["a"]), row("c", &[]), row("d", &["gone"])];
        assert_eq!(order(&rows), ["c", "d", "a", "b"]);
    }

    #[test]
    fn every_row_starts_after_rows_that_exist_and_no_two_share_a_name() {
        let all = all();
        let names: BTreeSet<_> = names().into_iter().collect();
        assert_eq!(names.len(), all.len(), "{names:?}");
        let order = start_order(&all);
        for (place, at) in order.iter().enumerate() {
            for after in all[*at].after {
                let before = order.iter().position(|other| all[*other].name == *after);
                assert!(before.is_some_and(|before| before < place), "{after}");
            }
        }
    }
}
