//! The agent starts on the real driver and says which devices it reads.

use crate::report::{Row, Verdict};
use crate::watch::Watched;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::device as metric;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

const CHECK: &str = "devices";
/// Opening the library of an eight-GPU host takes seconds where persistence mode is off.
const OPENS_WITHIN: Duration = Duration::from_mins(1);

/// The UUIDs of the devices, and the rows.
pub(super) fn check(watched: &Watched) -> (Vec<String>, Vec<Row>) {
    let seen = watched.wait_for(SystemTime::UNIX_EPOCH, OPENS_WITHIN, |points| {
        let infos = points.iter().filter(|point| point.metric == metric::INFO.def().name);
        let reported: BTreeSet<(String, String)> = infos
            .filter_map(|point| {
                let text = |key| point.attribute(key).map(str::to_owned);
                Some((text(attr::GPU_UUID.name)?, text(attr::GPU_MODEL.name).unwrap_or_default()))
            })
            .collect();
        (!reported.is_empty()).then_some(reported)
    });
    let Some(seen) = seen else {
        let log = watched.agent.log().join("\n");
        return (Vec::new(), vec![Row::new(CHECK, Verdict::Fail, format!("none is read\n{log}"))]);
    };
    let lines: Vec<String> = seen.iter().map(|(uuid, model)| format!("{uuid} {model}")).collect();
    let row = Row::new(CHECK, Verdict::Pass, format!("{} read\n{}", seen.len(), lines.join("\n")));
    (seen.into_iter().map(|(uuid, _)| uuid).collect(), vec![row])
}
