//! What must arrive of each vendor's two devices: the scenario's values, of every metric that vendors.md
//! says the vendor has; and of what grows the values ten seconds later.

mod rows;

use super::arrived;
use crate::device::reader::amd;
use gpuwho_model::catalog;
use gpuwho_tests::collector::received::ReceivedPoint;
use rows::{ALL, COMMON, ELSEWHERE, LATER, OF_ONE, Row, SERVED_GROWS, Truth};
use std::collections::BTreeMap;

/// A row with its dimensions' names and its value.
struct Expected {
    name: &'static str,
    attrs: Vec<(&'static str, &'static str)>,
    value: f64,
}

/// The truth of a vendor's device of an index.
fn expected(vendor: &str, rows: &[Row], index: u32) -> Vec<Expected> {
    let i = f64::from(index);
    let own = rows.iter().map(|(name, attrs, truth)| Expected {
        name,
        attrs: attrs.to_vec(),
        value: truth(i),
    });
    let of_reader = if vendor == "amd" { amd::truth(i) } else { Vec::new() };
    let of_reader = of_reader.into_iter().filter(|row| rows.iter().all(|own| own.0 != row.0));
    let of_reader = of_reader.map(|(name, words, value)| {
        let metric = catalog::all().find(|metric| metric.name == name).unwrap();
        let dims = metric.dims.iter().map(|dim| dim.key.name);
        Expected { name, attrs: dims.zip(words.split(',')).collect(), value }
    });
    own.chain(of_reader).collect()
}

/// Whether a value is the expected one.
fn is_right(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= expected.abs() * 1e-9
}

/// The metrics that vendors.md says each vendor has.
fn documented() -> BTreeMap<&'static str, Vec<&'static str>> {
    let text = include_str!("../../../../agent/docs/metrics/vendors.md");
    let cells = |line: &'static str| line.split('|').map(str::trim).collect::<Vec<_>>();
    let head = text.lines().find(|line| line.starts_with("| metric | nvidia | amd |")).unwrap();
    let names = cells(head);
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in
        text.lines().skip_while(|line| *line != head).take_while(|line| line.starts_with('|'))
    {
        let row = cells(line);
        for (vendor, _) in names.iter().zip(&row).filter(|(_, cell)| **cell == "yes") {
            all.entry(*vendor).or_default().push(row[1].trim_matches('`'));
        }
    }
    all
}

/// Whether a metric of a vendor is of one device or elsewhere.
fn is_apart(vendor: &str, name: &str) -> bool {
    let mut of_one = OF_ONE.iter().filter(|(of, ..)| *of == vendor);
    of_one.any(|(_, _, rows)| rows.iter().any(|row| row.0 == name))
        || (vendor, name) == ("tpu", SERVED_GROWS)
        || ELSEWHERE.iter().any(|row| (row.0, row.1) == (vendor, name))
}

/// What has not arrived of what vendors.md says, by vendor.
pub(super) fn missing(points: &[ReceivedPoint]) -> Vec<(&'static str, &'static str)> {
    let documented = documented();
    let mut missing = Vec::new();
    for (vendor, rows, uuid) in ALL {
        for name in documented.get(vendor).into_iter().flatten() {
            let of_both = (0..2).all(|index| {
                // Processes are on the first device only.
                let uuid = uuid(if *name == "gpu.process.info" { 0 } else { index });
                !arrived(points, name, &[("gpu.uuid", &uuid)]).is_empty()
            });
            if !is_apart(vendor, name) && !of_both {
                missing.push((vendor, *name));
            }
        }
        let uuid = uuid(1);
        for row in expected(vendor, rows, 1) {
            let attrs = [&[("gpu.uuid", uuid.as_str())], &*row.attrs].concat();
            if arrived(points, row.name, &attrs).is_empty() {
                missing.push((vendor, row.name));
            }
        }
    }
    for (vendor, uuid, rows) in OF_ONE {
        let of = |row: &&Row| arrived(points, row.0, &[&[("gpu.uuid", *uuid)], row.1].concat());
        missing.extend(rows.iter().filter(|row| of(row).is_empty()).map(|row| (*vendor, row.0)));
    }
    missing
}

pub(super) fn is_complete(points: &[ReceivedPoint]) -> bool {
    missing(points).is_empty() && are_counted(points)
}

/// Whether each device's last count of processes is right: a process that was just started counts
/// until it has become another program.
fn are_counted(points: &[ReceivedPoint]) -> bool {
    let of = |(_, rows, uuid): &Truth| {
        let count = rows.iter().find(|row| row.0 == "gpu.process.count");
        count.is_none_or(|(name, _, truth)| {
            (0..2).all(|index| {
                let uuid = uuid(index);
                let found = arrived(points, name, &[("gpu.uuid", &uuid)]);
                found.last() == Some(&truth(f64::from(index)))
            })
        })
    };
    ALL.iter().all(of)
}

/// Every value that has arrived is the scenario's, and every metric has a row.
pub(super) fn holds(points: &[ReceivedPoint]) {
    let documented = documented();
    for (vendor, uuid, rows) in OF_ONE {
        for (name, dims, truth) in *rows {
            let attrs = [&[("gpu.uuid", *uuid), ("gpu.vendor", *vendor)], *dims].concat();
            let found = arrived(points, name, &attrs);
            let right = found.iter().all(|found| is_right(*found, truth(0.0)));
            assert!(right, "{vendor} {uuid} {name} {dims:?}: {found:?}");
        }
    }
    let idle = arrived(points, "gpu.utilization", &[("gpu.uuid", "TPU-0000:81:00.0")]);
    assert!(idle.is_empty(), "a chip without a process: {idle:?}");
    for (vendor, rows, uuid) in ALL {
        let of_first = expected(vendor, rows, 0);
        for name in &documented[vendor] {
            let is_here = of_first.iter().any(|row| row.name == *name) || COMMON.contains(name);
            let is_owners = *name == "gpu.process.info";
            assert!(is_here || is_apart(vendor, name) || is_owners, "{vendor} {name} has no truth");
        }
        for (index, row) in
            (0..2).flat_map(|i| expected(vendor, rows, i).into_iter().map(move |row| (i, row)))
        {
            let uuid = uuid(index);
            let own = [("gpu.uuid", uuid.as_str()), ("gpu.vendor", vendor)];
            let found = arrived(points, row.name, &[&own[..], &*row.attrs].concat());
            let right = |found: &f64| is_right(*found, row.value);
            // Processes come one after the other.
            let is_right = match row.name {
                "gpu.process.count" => found.last().is_some_and(right),
                _ => !found.is_empty() && found.iter().all(right),
            };
            let Expected { name, attrs, value } = row;
            assert!(is_right, "{vendor} {index} {name} {attrs:?}: {value} and not {found:?}");
        }
    }
}

/// What is not yet as it is ten seconds later, with its last value.
pub(super) fn stale(points: &[ReceivedPoint]) -> Vec<String> {
    let mut stale = Vec::new();
    for (vendor, (name, dims, truth)) in LATER {
        let (_, _, uuid) = ALL.iter().find(|(known, ..)| known == vendor).unwrap();
        for index in 0..2 {
            let uuid = uuid(index);
            let attrs = [&[("gpu.uuid", uuid.as_str())], *dims].concat();
            let last = arrived(points, name, &attrs).last().copied();
            if !last.is_some_and(|last| is_right(last, truth(f64::from(index)))) {
                stale.push(format!("{vendor} {index} {name} {dims:?}: {last:?}"));
            }
        }
    }
    let served = arrived(points, SERVED_GROWS, &[("gpu.vendor", "tpu")]);
    // A process that is slow to answer has its last value once more.
    let grows = served.windows(2).filter(|two| two[0] < two[1]).count();
    if grows < 3 || served.windows(2).any(|two| two[0] > two[1]) {
        stale.push(format!("tpu {SERVED_GROWS}: {served:?}"));
    }
    stale
}
