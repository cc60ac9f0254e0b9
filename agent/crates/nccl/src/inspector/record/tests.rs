use super::*;
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;

fn recorded(name: &str) -> String {
    let dir =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/nccl-inspector");
    fs::read_to_string(dir.join(name)).unwrap()
}

/// Operation, sequence number, size, bus bytes, µs, algorithmic and bus bandwidth in MB/s.
type Row = (Operation, Option<u64>, u64, u64, u64, u64, u64);

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
fn rows(text: &str) -> Vec<Row> {
    let whole = |number: f64| number.round() as u64;
    text.lines()
        .map(|line| {
            let record = Record::parse(line.as_bytes()).unwrap();
            (
                record.operation,
                record.sequence,
                record.bytes,
                record.bus_bytes,
                whole(record.seconds * 1e6),
                whole(record.algorithm_bandwidth / 1e6),
                whole(record.bus_bandwidth / 1e6),
            )
        })
        .collect()
}

const MIB: u64 = 1 << 20;

/// The operations of the recorded program on each version.
fn collectives() -> Vec<Row> {
    use Operation::{AllGather, AllReduce, Broadcast, ReduceScatter};
    [
        (AllReduce, 0, 2, 602, 3_484, 6_096),
        (ReduceScatter, 0, 32, 652, 51_464, 45_031),
        (AllGather, 0, 48, 702, 71_698, 62_735),
        (Broadcast, 0, 8, 752, 11_155, 11_155),
        (AllReduce, 1, 10, 802, 13_075, 22_880),
        (ReduceScatter, 1, 96, 852, 118_149, 103_381),
        (AllGather, 1, 112, 902, 130_200, 113_925),
        (Broadcast, 1, 16, 952, 17_623, 17_623),
        (AllReduce, 2, 18, 1_002, 18_837, 32_964),
        (ReduceScatter, 2, 160, 1_052, 159_479, 139_544),
        (AllGather, 2, 176, 1_102, 167_468, 146_534),
        (Broadcast, 2, 24, 1_152, 21_845, 21_845),
    ]
    .into_iter()
    .map(|(operation, sequence, mib, us, algorithm, bus)| {
        let bytes = mib * MIB;
        let on_bus = match operation {
            AllReduce => bytes * 14 / 8,
            ReduceScatter | AllGather => bytes * 7 / 8,
            _ => bytes,
        };
        (operation, Some(sequence), bytes, on_bus, us, algorithm, bus)
    })
    .collect()
}

fn messages() -> Vec<Row> {
    [Operation::Send, Operation::Recv, Operation::Send]
        .map(|operation| (operation, None, 8 * MIB, 8 * MIB, 310, 27_060, 27_060))
        .into()
}

#[test]
fn every_recorded_line_is_read_to_the_last_figure() {
    let all = [collectives(), messages()].concat();
    assert_eq!(rows(&recorded("inspector-2.30.7-v4.0-plain.jsonl")), all);
    assert_eq!(rows(&recorded("inspector-2.30.7-v4.0-verbose.jsonl")), all);
    assert_eq!(rows(&recorded("inspector-2.28.9-v4.0.jsonl")), collectives());
    // This version lost one between two dumps.
    let mut seen = collectives();
    seen.remove(5);
    assert_eq!(rows(&recorded("inspector-2.29.7-v4.0.jsonl")), seen);
}

#[test]
fn a_recorded_header_identifies_the_rank() {
    let named = recorded("inspector-2.30.7-v4.0-plain.jsonl");
    let record = Record::parse(named.lines().next().unwrap().as_bytes()).unwrap();
    let expected = (HashText::Start(0x1d_b14a_8a71_3c2f), Some("TP Group 0"), 3, 8, 11_229);
    let who = |r: &Record<'_>| (r.hash, r.rank, r.ranks, r.pid);
    assert_eq!(who(&record), (expected.0, expected.2, expected.3, expected.4));
    assert_eq!(record.name.as_deref(), expected.1);
    let nameless = recorded("inspector-2.28.9-v4.0.jsonl");
    let record = Record::parse(nameless.lines().next().unwrap().as_bytes()).unwrap();
    assert_eq!((record.hash, record.name), (expected.0, None));
}

#[test]
fn our_calculation_matches_the_inspectors() {
    for line in recorded("inspector-2.30.7-v4.0-plain.jsonl").lines() {
        let reported = Record::parse(line.as_bytes()).unwrap();
        let ours = reported.bus_bytes as f64 / reported.seconds;
        assert!((ours / reported.bus_bandwidth - 1.0).abs() < 1e-6, "{ours}: {reported:?}");
        let ours = reported.bytes as f64 / reported.seconds;
        assert!((ours / reported.algorithm_bandwidth - 1.0).abs() < 1e-6, "{ours}: {reported:?}");
    }
}

fn changed(from: &str, to: &str) -> Result<Record<'static>, LineOutcome> {
    let line = recorded("inspector-2.30.7-v4.0-plain.jsonl").lines().next().unwrap().to_owned();
    assert!(line.contains(from), "{from} is not in {line}");
    Record::parse(line.replace(from, to).leak().as_bytes())
}

#[test]
fn invalid_lines_are_counted_by_reason() {
    use LineOutcome::{Incomplete, Malformed, NotTimed, UnknownOperation};
    for (from, to, reason) in [
        ("{\"header\"", "{header", Malformed),
        ("}}", "", Malformed),
        ("\"rank\":3", "\"rank\":8", Incomplete),
        ("\"rank\":3", "\"rank\":-1", Incomplete),
        ("\"n_ranks\":8", "\"n_ranks\":0", Incomplete),
        ("\"n_ranks\":8", "\"n_ranks\":4000000", Incomplete),
        ("\"pid\":11229", "\"pidd\":11229", Incomplete),
        ("0x1db14a8a713c2f", "1db14a8a713c2f", Incomplete),
        ("0x1db14a8a713c2f", "0x0", Incomplete),
        ("\"coll_perf\"", "\"collperf\"", Incomplete),
        ("2097152", "18446744073709551615", Incomplete),
        ("\"coll_exec_time_us\":602", "\"coll_exec_time_us\":99999999999999", Incomplete),
        ("\"coll_exec_time_us\":602", "\"coll_exec_time_us\":0", NotTimed),
        ("kernel_gpu", "collective_cpu", NotTimed),
        ("\"AllReduce\"", "\"SendRecv\"", UnknownOperation),
    ] {
        assert_eq!(changed(from, to).unwrap_err(), reason, "{from} to {to}");
    }
    assert_eq!(Record::parse(b"").unwrap_err(), Malformed);
    assert_eq!(Record::parse(b"{}").unwrap_err(), Incomplete);
    assert_eq!(Record::parse(b"\xff\xfe").unwrap_err(), Malformed);
}

#[test]
fn an_invalid_bandwidth_is_calculated_from_size_and_time() {
    for text in ["\"nan\"", "0.000000", "0", "null_is_no_number"] {
        let text = if text.starts_with("null") { "\"-nan\"" } else { text };
        let record = changed("6.096372", text).unwrap();
        let expected = record.bus_bytes as f64 / record.seconds;
        assert!((record.bus_bandwidth - expected).abs() < 1.0, "{text}: {record:?}");
    }
}

#[test]
fn an_unknown_key_is_ignored() {
    assert!(changed("\"coll_sn\"", "\"algo\":\"RING\",\"coll_sn\"").is_ok());
    assert!(changed("\"nnodes\"", "\"nnodes_\"").is_ok());
}

#[test]
fn a_hash_is_matched_by_its_first_digits() {
    let hash = 0x1db1_4a8a_713c_2fa5_u64;
    let is_of = |text: &str, hash| HashText::parse(text).unwrap().is_of(hash);
    assert!(is_of("0x1db14a8a713c2f", hash));
    assert!(!is_of("0x1db14a8a713c2f", hash + 0x100));
    assert!(is_of("0x1db14a8a713c2fa5", hash));
    // Fifteen digits, one cut off; fourteen, none cut off; fewer.
    assert!(is_of("0x1db14a8a713c2f", 0x01db_14a8_a713_c2f7));
    assert!(is_of("0x1db14a8a713c2f", 0x001d_b14a_8a71_3c2f));
    assert!(is_of("0xdb14a8a713c2f", 0x000d_b14a_8a71_3c2f));
    assert!(!is_of("0xdb14a8a713c2f", 0x00db_14a8_a713_c2f0));
    for text in ["", "0x", "0xg", "0x+1", "1db14a8a713c2f", "0x11db14a8a713c2fa5"] {
        assert_eq!(HashText::parse(text), None, "{text}");
    }
}

proptest! {
    /// As `snprintf(text, 17, "0x%lx", hash)` writes it.
    #[test]
    fn every_hash_matches_its_text(hash in 1_u64..) {
        let mut text = format!("{hash:#x}");
        text.truncate(16);
        prop_assert!(HashText::parse(&text).unwrap().is_of(hash));
    }

    #[test]
    fn no_line_is_fatal(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..500) {
        let _ = Record::parse(&bytes);
        let mut line = recorded("inspector-2.30.7-v4.0-plain.jsonl").lines().next().unwrap().as_bytes().to_vec();
        let at = at.min(line.len());
        line.splice(at..at, bytes);
        let _ = Record::parse(&line);
    }
}
