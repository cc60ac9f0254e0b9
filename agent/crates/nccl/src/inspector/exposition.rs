//! Parses the Inspector's Prometheus text: means over its last interval, one row for each
//! communicator, operation, size, algorithm and protocol (2.30), or the last collective of each
//! communicator (2.29).

use super::record::{HashText, operation, recorded_name, speed};
use gpuwho_common::nccl::MAX_RANKS;
use gpuwho_model::catalog::inspector::LineOutcome;
use gpuwho_model::catalog::nccl::Operation;
use gpuwho_model::subject::Method;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Upper limit of a file; the Inspector's have some kilobytes.
pub(super) const MAX_FILE: u64 = 1 << 20;
/// Upper limit of the rows of a file, and so of its series.
pub(super) const MAX_ROWS: usize = 128;
const MAX_DURATION_US: f64 = 86_400e6;

/// The communicator of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowCommunicator {
    /// Only 2.29 writes the hash and the rank.
    pub hash: Option<HashText>,
    pub rank: Option<u32>,
    /// Only 2.30 writes the name.
    pub name: Option<String>,
    pub ranks: u32,
}

/// The key of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub communicator: RowCommunicator,
    /// Position in [`Operation::ALL`].
    pub operation: u8,
    /// The lower bound of the size in bytes.
    pub size: u64,
    pub method: Option<Method>,
}

impl Row {
    /// The operation.
    pub(super) fn operation(&self) -> Option<Operation> {
        Operation::ALL.get(usize::from(self.operation)).copied()
    }
}

/// The values of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Levels {
    pub seconds: Option<f64>,
    /// In bytes a second.
    pub algorithm_bandwidth: Option<f64>,
    pub bus_bandwidth: Option<f64>,
}

/// The content of a file.
pub(super) type Exposition = BTreeMap<Row, Levels>;

/// The value that a line has.
#[derive(Clone, Copy)]
enum Which {
    Microseconds,
    AlgorithmGbs,
    BusGbs,
}

/// Parses the complete lines of a file and reports each line's outcome to `count`.
pub(super) fn parse(text: &str, count: &mut dyn FnMut(LineOutcome)) -> Exposition {
    let mut rows = Exposition::new();
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    for line in whole.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match row(line) {
            Ok((row, ..)) if rows.len() >= MAX_ROWS && !rows.contains_key(&row) => {
                count(LineOutcome::NoRoom);
            }
            Ok((row, which, value)) => {
                let levels = rows.entry(row).or_default();
                match which {
                    Which::Microseconds => levels.seconds = value,
                    Which::AlgorithmGbs => levels.algorithm_bandwidth = value,
                    Which::BusGbs => levels.bus_bandwidth = value,
                }
                count(LineOutcome::Taken);
            }
            Err(outcome) => count(outcome),
        }
    }
    rows
}

fn row(line: &str) -> Result<(Row, Which, Option<f64>), LineOutcome> {
    let (name, rest) = line.split_once('{').ok_or(LineOutcome::Malformed)?;
    let (labels, value) = rest.rsplit_once("} ").ok_or(LineOutcome::Malformed)?;
    let value: f64 = value.trim_end().parse().map_err(|_| LineOutcome::Malformed)?;
    let labels = labels_of(labels).ok_or(LineOutcome::Malformed)?;
    let (which, value) = match name {
        "nccl_collective_exec_time_microseconds" | "nccl_p2p_exec_time_microseconds" => {
            let is_time = value > 0.0 && value <= MAX_DURATION_US;
            (Which::Microseconds, is_time.then_some(value / 1e6))
        }
        "nccl_algorithm_bandwidth_gbs" => (Which::AlgorithmGbs, speed(value)),
        "nccl_bus_bandwidth_gbs" | "nccl_p2p_bus_bandwidth_gbs" => (Which::BusGbs, speed(value)),
        _ => return Err(LineOutcome::Malformed),
    };
    let get = |key: &str| labels.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
    let name = get("collective").or_else(|| get("p2p_operation"));
    let operation =
        operation(name.ok_or(LineOutcome::Incomplete)?).ok_or(LineOutcome::UnknownOperation)?;
    let method = get("algo_proto").map(Method::parse);
    let ranks = get("nranks").and_then(|text| text.parse().ok());
    let ranks = ranks.filter(|ranks| (1..=MAX_RANKS).contains(ranks));
    let size = get("message_size").and_then(lower_bound);
    let (Some(ranks), Some(size)) = (ranks, size) else { return Err(LineOutcome::Incomplete) };
    let communicator = RowCommunicator {
        hash: get("comm_id").and_then(HashText::parse),
        rank: get("rank").and_then(|rank| rank.parse().ok()).filter(|rank| *rank < ranks),
        name: get("comm_name").and_then(|name| recorded_name(name.into())).map(Cow::into_owned),
        ranks,
    };
    Ok((Row { communicator, operation: operation as u8, size, method }, which, value))
}

/// Parses `a="b",c="d"`. The Inspector does not escape values: a quote ends a value only before a
/// comma and the next name, or at the end.
fn labels_of(mut text: &str) -> Option<Vec<(&str, &str)>> {
    let mut labels = Vec::new();
    while !text.is_empty() {
        let (key, rest) = text.split_once("=\"")?;
        let end = rest.match_indices("\",").map(|(at, _)| at).find(|at| {
            let next = rest.get(at + 2..).unwrap_or_default();
            let name = next.split_once("=\"").map_or("", |(name, _)| name);
            !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_lowercase() || b"_0123456789".contains(&b))
        });
        let (value, next) = match end {
            Some(at) => (rest.get(..at)?, rest.get(at + 2..)?),
            None => (rest.strip_suffix('"')?, ""),
        };
        labels.push((key, value));
        text = next;
    }
    Some(labels)
}

/// Parses `4-5GB` (at least 4 GiB and less than 5), `512B`, or 2.29's `8.00MB`, rounded to bytes.
fn lower_bound(text: &str) -> Option<u64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at_checked(at)?;
    let number = number.split_once('-').map_or(number, |(least, _)| least);
    let number: f64 = number.parse().ok().filter(|number| (0.0..=1024.0).contains(number))?;
    let power = ["B", "KB", "MB", "GB", "TB"].iter().position(|known| *known == unit)?;
    let bytes = number * 1024_f64.powi(i32::try_from(power).ok()?);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within 0 and 2^50"
    )]
    let bytes = bytes.round() as u64;
    Some(bytes)
}

#[cfg(test)]
mod tests;
