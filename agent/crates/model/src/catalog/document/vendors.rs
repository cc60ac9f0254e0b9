//! The tables of vendors in `METRICS.md`: which vendor has which metric, from what, or why not; and
//! the bits of throttle reasons.

use super::super::device::ThrottleReason;
use super::super::{MetricDef, cost, health, share};
use std::fmt::Write as _;

/// A vendor's column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The vendor.
    pub name: &'static str,
    /// The source of a metric, or the reason why the vendor has none.
    pub source: fn(&'static MetricDef) -> Result<&'static str, &'static str>,
    /// Its throttle bits.
    pub bits: &'static [(u32, ThrottleReason)],
    /// The names of its throttle reasons, where it has no bits.
    pub names: &'static [(&'static str, ThrottleReason)],
}

/// The subjects of a device reader's metrics.
const SUBJECTS: [&str; 4] = ["gpu", "instance", "process", "xid"];

const HEAD: &str = "
## By vendor

Whether a vendor has a metric: `yes`, or the number of the reason below why it has not. Unit, kind and
meaning are the same for all. The state of a device, the age of its reading, and counts by owner are the
agent's own; its health (`gpu.health.*`) is judged by the same rules for all, from the readings that there
are.

";

const REASONS: &str = "
Why a vendor has no value:

";

const THROTTLE: &str = "
## Throttle reasons

Each vendor's bits (positions in its word of reasons), or the ends of the names of its files of reasons, the
reason that `gpu.throttle.*` has for them, and the kinds of that reason. A bit that no table has is reported
as `other`, and its number in `gpu.unknown_code`; a name that no table has as `other`. AMD's bits are those of
`indep_throttle_status`; from MI300 on its firmware counts the time of five reasons instead, which are
`hardware_slowdown`, `power_cap`, `thermal`, `regulator_thermal` and `memory_thermal`.

";

/// Writes all of them.
pub(super) fn tables(columns: &[Column], out: &mut String) {
    let defs: Vec<_> = super::super::all().filter(|def| is_read(def)).collect();
    matrix(columns, &defs, out);
    sources(columns, &defs, out);
    throttle(columns, out);
}

// Writing to a String cannot fail.

/// Whether a vendor's reader may have a metric.
fn is_read(def: &'static MetricDef) -> bool {
    // These are the agent's own.
    let own = [health::ALL, share::ALL, cost::ALL];
    SUBJECTS.contains(&def.subject) && !own.iter().any(|all| all.contains(&def))
}

fn matrix(columns: &[Column], defs: &[&'static MetricDef], out: &mut String) {
    out.push_str(HEAD);
    let names: Vec<_> = columns.iter().map(|column| column.name).collect();
    let _ =
        writeln!(out, "| metric | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    let mut reasons: Vec<&str> = Vec::new();
    for def in defs {
        let cells = columns.iter().map(|column| match (column.source)(def) {
            Ok(_) => "yes".to_owned(),
            Err(why) => {
                let place = reasons.iter().position(|known| *known == why);
                let place = place.unwrap_or_else(|| {
                    reasons.push(why);
                    reasons.len() - 1
                });
                (place + 1).to_string()
            }
        });
        let cells: Vec<_> = cells.collect();
        let _ = writeln!(out, "| `{}` | {} |", def.name, cells.join(" | "));
    }
    out.push_str(REASONS);
    for (number, why) in (1..).zip(&reasons) {
        let _ = writeln!(out, "{number}. {why}");
    }
}

/// What each vendor's metrics are read from, except where the metric's own section says it.
fn sources(columns: &[Column], defs: &[&'static MetricDef], out: &mut String) {
    for column in columns {
        let _ = write!(out, "\n### What is read: {}\n\n", column.name);
        let own =
            |def: &&'static MetricDef| (column.source)(def).ok().filter(|of| *of != def.source);
        let rows: Vec<_> = defs.iter().filter_map(|def| Some((def.name, own(def)?))).collect();
        if rows.is_empty() {
            out.push_str("The sources in the sections of the metrics.\n");
            continue;
        }
        out.push_str("| metric | source |\n|---|---|\n");
        for (name, source) in rows {
            let _ = writeln!(out, "| `{name}` | {source} |");
        }
    }
}

fn throttle(columns: &[Column], out: &mut String) {
    out.push_str(THROTTLE);
    let has_any = |column: &&Column| !column.bits.is_empty() || !column.names.is_empty();
    let with_bits: Vec<_> = columns.iter().filter(has_any).collect();
    let names: Vec<_> = with_bits.iter().map(|column| column.name).collect();
    let rule = "---|".repeat(names.len());
    let _ = writeln!(out, "| reason | kinds | {} |\n|---|---|{rule}", names.join(" | "));
    for reason in ThrottleReason::ALL {
        let cells = with_bits.iter().map(|column| {
            let bits = column.bits.iter().filter(|(_, of)| of == reason);
            let names = column.names.iter().filter(|(_, of)| of == reason);
            let bits = bits.map(|(bit, _)| bit.to_string());
            let bits: Vec<_> = bits.chain(names.map(|(name, _)| format!("`{name}`"))).collect();
            if bits.is_empty() { "–".to_owned() } else { bits.join(", ") }
        });
        let cells: Vec<_> = cells.collect();
        let kinds = reason.kinds().join(", ");
        let _ = writeln!(out, "| `{}` | {kinds} | {} |", reason.as_str(), cells.join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(def: &'static MetricDef) -> Result<&'static str, &'static str> {
        if def.name == "gpu.power" { Ok("a file") } else { Err("no file has it") }
    }

    #[test]
    fn every_cell_is_yes_or_the_number_of_a_reason() {
        let columns = [
            Column { name: "one", source: of, bits: &[(3, ThrottleReason::PowerCap)], names: &[] },
            Column {
                name: "two",
                source: |def| Ok(def.source),
                bits: &[],
                names: &[("hot", ThrottleReason::Thermal)],
            },
        ];
        let mut out = String::new();
        tables(&columns, &mut out);
        assert!(out.contains("| `gpu.power` | yes | yes |\n"), "{out}");
        assert!(out.contains("| `gpu.energy` | 1 | yes |\n"), "{out}");
        assert!(out.contains("\n1. no file has it\n"), "{out}");
        assert!(out.contains("| `gpu.power` | a file |\n"), "{out}");
        assert!(out.contains("| `power_cap` | power, software | 3 | – |\n"), "{out}");
        assert!(out.contains("| `thermal` | thermal | – | `hot` |\n"), "{out}");
        assert!(!out.contains("2. "), "one reason is listed once");
    }
}
