use super::*;
use proptest::prelude::*;
use std::path::PathBuf;

fn fixture(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/");
    std::fs::read_to_string(PathBuf::from(folder).join(name)).unwrap()
}

/// The series of a page as `tests/fixtures/exposition/reference.py` writes them.
fn series(page: &str, times_in_a_second: f64) -> Vec<String> {
    let mut series = Vec::new();
    for text in page.lines() {
        let Line::Sample(sample) = line(text.as_bytes()).unwrap() else { continue };
        let number = |number: f64| match number {
            number if number.is_nan() => "nan".to_owned(),
            number => format!("{:016x}", number.to_bits()),
        };
        let mut labels = sample.labels.clone();
        labels.sort();
        let time = sample.time.map(|time| number(time / times_in_a_second));
        let line = (sample.name, labels, number(sample.value), time, sample.has_exemplar);
        series.push(serde_json::to_string(&line).unwrap());
    }
    series.sort();
    series
}

#[test]
fn both_formats_are_read_as_the_client_for_python_reads_them() {
    for (page, times) in [("traps.prom", 1000.0), ("traps.om", 1.0)] {
        let reference = fixture(&format!("exposition/{page}.reference"));
        let reference: Vec<_> = reference.lines().collect();
        assert_eq!(series(&fixture(&format!("exposition/{page}")), times), reference, "{page}");
    }
    for reference in fixture("exposition/engines.reference").lines() {
        let page = reference.split(' ').next().unwrap();
        let series = series(&fixture(&format!("engines/{page}")), 1000.0);
        let sum = series.join("\n").bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        assert_eq!(format!("{page} {} {sum:016x}", series.len()), reference);
    }
}

#[test]
fn comments_say_types_and_the_end() {
    let of = |name: &'static str, of| Ok(Line::Type(Cow::Borrowed(name), of));
    assert_eq!(line(b"# TYPE a:b_total counter"), of("a:b_total", FamilyType::Counter));
    assert_eq!(line(b"#\tTYPE\ta\tuntyped \r"), of("a", FamilyType::Unknown));
    assert_eq!(line(b"# TYPE \"a b\" stateset"), of("a b", FamilyType::Other));
    assert_eq!(line(b"# EOF"), Ok(Line::End));
    for nothing in
        [&b""[..], b" \t", b"\r", b"#", b"# HELP a b", b"# UNIT a b", b"#EOFs", b"# EOF 1"]
    {
        assert_eq!(line(nothing), Ok(Line::Nothing), "{}", nothing.escape_ascii());
    }
    assert_eq!(line(b"# TYPE a counters"), Err(LineError::Type));
    assert_eq!(line(b"# TYPE"), Err(LineError::Name));
}

#[test]
fn what_is_no_line_says_what_is_wrong_with_it() {
    let errors = [
        ("1a 1", LineError::Name),
        ("<html>", LineError::Name),
        ("{} 1", LineError::Name),
        ("a", LineError::Value),
        ("a b", LineError::Value),
        ("a 0x10", LineError::Value),
        ("a 1_000", LineError::Value),
        ("a .", LineError::Value),
        ("a{b=\"c\"}", LineError::Value),
        ("a{b=\"c\" 1", LineError::Labels),
        ("a{b=\"c} 1", LineError::Labels),
        ("a{b=c} 1", LineError::Labels),
        ("a{=\"c\"} 1", LineError::Labels),
        ("a{b=\"c\"d=\"e\"} 1", LineError::Labels),
        ("a{b=\"c\\", LineError::Labels),
        ("a{\"b\"} 1", LineError::Labels),
        ("{\"a\",\"b\"} 1", LineError::Labels),
        ("a{b=\"c\",b=\"d\"} 1", LineError::LabelTwice),
        ("a 1 now", LineError::Rest),
        ("a 1 NaN", LineError::Rest),
        ("a 1 2 3", LineError::Rest),
        ("a 1 # trace", LineError::Rest),
        ("a 1 # {b=\"c\"}", LineError::Rest),
        ("a 1 # {b=\"c\" 1", LineError::Labels),
        ("a 1 # {} 1 2 3", LineError::Rest),
    ];
    for (text, error) in errors {
        assert_eq!(line(text.as_bytes()), Err(error), "{text}");
    }
    assert_eq!(line(b"a{b=\"\xff\"} 1"), Err(LineError::NotText));
    assert_eq!(line(&vec![b'a'; MAX_LINE + 1]), Err(LineError::TooLong));
    assert_eq!(line(&[&[b'a'; MAX_NAME + 1][..], b" 1"].concat()), Err(LineError::Name));
    let labels: Vec<_> = (0..=MAX_LABELS).map(|n| format!("l{n}=\"\"")).collect();
    let text = format!("a{{{}}} 1", labels.join(","));
    assert_eq!(line(text.as_bytes()), Err(LineError::TooManyLabels));
}

#[test]
fn an_escape_that_there_is_not_stays_and_quotes_and_braces_end_nothing_in_text() {
    let text = br##"a{b="\x\n\"}\\",c="}"} 1 # {d="}\"#"} 2 3"##;
    let Ok(Line::Sample(sample)) = line(text) else { panic!() };
    assert_eq!((sample.label("b"), sample.label("c")), (Some("\\x\n\"}\\"), Some("}")));
    assert!(sample.has_exemplar);
}

proptest! {
    #[test]
    fn no_bytes_panic_and_a_sample_s_value_is_where_it_says(
        bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..100),
            "[#a{}\",= \\\\0-9.\\-]{0,40}".prop_map(String::into_bytes),
        ],
    ) {
        if let Ok(Line::Sample(sample)) = line(&bytes) {
            let value = value_and_rest(&bytes[sample.value_at..]).unwrap();
            prop_assert_eq!(value.to_bits(), sample.value.to_bits());
        }
    }

    #[test]
    fn numbers_are_rounded_as_the_standard_library_does(
        text in "[0-9]{0,17}(\\.[0-9]{0,17})?(e[+-]?[0-9]{1,3})?",
    ) {
        prop_assert_eq!(number(text.as_bytes()).map(f64::to_bits), text.parse().ok().map(f64::to_bits));
    }
}
