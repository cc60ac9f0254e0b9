use super::*;
use proptest::prelude::*;
use std::path::PathBuf;

fn recorded(name: &str) -> String {
    let dir =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/nccl-inspector");
    std::fs::read_to_string(dir.join(name)).unwrap()
}

fn read(text: &str) -> (Exposition, Vec<LineOutcome>) {
    let mut outcomes = Vec::new();
    let rows = parse(text, &mut |outcome| outcomes.push(outcome));
    (rows, outcomes)
}

const MIB: u64 = 1 << 20;

/// Operation, MiB, µs and MB/s of a row.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
fn figures(rows: &Exposition) -> Vec<(Operation, u64, u64, u64)> {
    rows.iter()
        .map(|(row, levels)| {
            let us = (levels.seconds.unwrap() * 1e6).round() as u64;
            let bus = (levels.bus_bandwidth.unwrap() / 1e6).round() as u64;
            (row.operation().unwrap(), row.size / MIB, us, bus)
        })
        .collect()
}

#[test]
fn the_recorded_means_of_2_30_are_read_to_the_last_figure() {
    use Operation::{AllGather, AllReduce, Broadcast, Recv, ReduceScatter, Send};
    let (rows, outcomes) = read(&recorded("inspector-2.30.7-v5.1.prom"));
    assert_eq!(outcomes, [LineOutcome::Taken; 28]);
    let expected = [
        (Send, 8, 310, 27_060),
        (Recv, 8, 310, 27_060),
        (AllReduce, 2, 602, 6_096),
        (AllGather, 6, 702, 62_735),
        (ReduceScatter, 4, 652, 45_031),
        (Broadcast, 8, 752, 11_155),
        (AllReduce, 10, 802, 22_880),
        (AllGather, 14, 902, 113_925),
        (ReduceScatter, 12, 852, 103_381),
        (Broadcast, 16, 952, 17_623),
        (AllReduce, 18, 1_002, 32_964),
        (AllGather, 22, 1_102, 146_534),
        (ReduceScatter, 20, 1_052, 139_544),
        (Broadcast, 24, 1_152, 21_845),
    ];
    let sorted = |mut rows: Vec<(Operation, u64, u64, u64)>| {
        rows.sort_by_key(|row| (row.0 as u8, row.1));
        rows
    };
    assert_eq!(sorted(figures(&rows)), sorted(expected.to_vec()));
    for row in rows.keys() {
        let communicator =
            RowCommunicator { hash: None, rank: None, name: Some("TP Group 0".into()), ranks: 8 };
        assert_eq!(row.communicator, communicator);
        let is_message = matches!(row.operation(), Some(Send | Recv));
        let how = if is_message { None } else { Some(("ring", "simple")) };
        assert_eq!(row.method.map(|method| (method.algorithm(), method.protocol())), how);
    }
}

#[test]
fn the_recorded_last_collective_of_2_29_has_its_communicator_and_rank() {
    let (rows, outcomes) = read(&recorded("inspector-2.29.7.prom"));
    assert_eq!(outcomes, [LineOutcome::Taken; 3]);
    let (row, levels) = rows.iter().next().unwrap();
    let hash = HashText::parse("0x1db14a8a713c2f");
    assert_eq!(row.communicator, RowCommunicator { hash, rank: Some(3), name: None, ranks: 8 });
    assert_eq!((row.operation(), row.size), (Some(Operation::Broadcast), 24 * MIB));
    let levels = (levels.seconds, levels.algorithm_bandwidth, levels.bus_bandwidth);
    assert_eq!(levels, (Some(0.001_152), Some(21.8453e9), Some(21.8453e9)));
}

#[test]
fn an_incomplete_file_gives_its_complete_lines() {
    let text = recorded("inspector-2.30.7-v5.1.prom");
    let (rows, outcomes) = read(&text[..text.len() - 10]);
    assert_eq!((rows.len(), outcomes.len()), (14, 27));
    assert_eq!(rows.values().filter(|levels| levels.seconds.is_none()).count(), 1);
}

#[test]
fn a_name_may_hold_what_the_inspector_does_not_escape() {
    let text = recorded("inspector-2.30.7-v5.1.prom");
    let line = text.lines().next().unwrap();
    for name in [r#"a"b"#, r#"a",b"#, "a=b} 3", "{x}", "ü"] {
        let (rows, outcomes) = read(&(line.replace("TP Group 0", name) + "\n"));
        assert_eq!(outcomes, [LineOutcome::Taken], "{name}");
        assert_eq!(rows.keys().next().unwrap().communicator.name.as_deref(), Some(name));
    }
}

#[test]
fn other_lines_are_counted_by_reason() {
    use LineOutcome::{Incomplete, Malformed, Taken, UnknownOperation};
    let text = recorded("inspector-2.30.7-v5.1.prom");
    let line = text.lines().next().unwrap();
    for (from, to, expected) in [
        ("nccl_bus", "# nccl_bus", None),
        ("nccl_bus_bandwidth_gbs", "node_load1", Some(Malformed)),
        ("11.1551", "fast", Some(Malformed)),
        ("{", "", Some(Malformed)),
        ("\"}", "}", Some(Malformed)),
        ("nranks=\"8\"", "nranks=\"0\"", Some(Incomplete)),
        ("8-9MB", "8-9XB", Some(Incomplete)),
        ("8-9MB", "", Some(Incomplete)),
        ("collective=", "collectiv=", Some(Incomplete)),
        ("Broadcast", "AllGatherV", Some(UnknownOperation)),
        ("11.1551", "nan", Some(Taken)),
    ] {
        let (_, outcomes) = read(&(line.replace(from, to) + "\n"));
        assert_eq!(outcomes, expected.as_slice(), "{from} to {to}");
    }
    let (rows, _) = read(&(line.replace("11.1551", "nan") + "\n"));
    assert_eq!(rows.values().next(), Some(&Levels::default()));
}

#[test]
fn sizes_and_methods_are_parsed_as_the_inspector_writes_them() {
    for (text, bytes) in [
        ("0B", Some(0)),
        ("512-513B", Some(512)),
        ("4-5GB", Some(4 << 30)),
        ("1-2TB", Some(1 << 40)),
        ("8.00MB", Some(8 << 20)),
        ("1.50KB", Some(1536)),
        ("2000-2001KB", None),
        ("-1-0KB", None),
        ("KB", None),
        ("8", None),
        ("8é", None),
    ] {
        assert_eq!(lower_bound(text), bytes, "{text}");
    }
    for (text, expected) in [
        ("RING_SIMPLE", ("ring", "simple")),
        ("Ring_ll", ("ring", "ll")),
        ("COLLNET_DIRECT_SIMPLE", ("collnet_direct", "simple")),
        ("NVLS_TREE_LL128", ("nvls_tree", "ll128")),
        ("unknown_unknown", ("unknown", "unknown")),
        ("", ("unknown", "unknown")),
    ] {
        let method = Method::parse(text);
        assert_eq!((method.algorithm(), method.protocol()), expected, "{text}");
    }
}

#[test]
fn rows_beyond_the_limit_are_counted() {
    let line = recorded("inspector-2.30.7-v5.1.prom").lines().next().unwrap().to_owned();
    let text: String = (0..MAX_ROWS + 5)
        .map(|row| line.replace("8-9MB", &format!("{row}-{}KB", row + 1)) + "\n")
        .collect();
    let (rows, outcomes) = read(&text);
    let refused = outcomes.iter().filter(|outcome| **outcome == LineOutcome::NoRoom).count();
    assert_eq!((rows.len(), refused), (MAX_ROWS, 5));
}

proptest! {
    #[test]
    fn no_text_is_fatal(text in "[a-z_{}=\", 0-9.\\n]{0,200}", at in 0_usize..200) {
        read(&text);
        let mut line = recorded("inspector-2.30.7-v5.1.prom").lines().next().unwrap().to_owned();
        line.insert_str(at.min(line.len()), &text);
        read(&line);
    }
}
