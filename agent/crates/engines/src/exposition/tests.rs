use super::*;
use proptest::prelude::*;
use std::fmt::Write as _;
use std::path::PathBuf;

fn fixture(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures/");
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

/// Numbers that look random and are the same each time (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

/// A page as an engine may write it.
fn generated(dice: &mut Dice) -> String {
    let mut page = String::new();
    for family in 0..=dice.below(6) {
        let kind = dice.of(&["counter", "gauge", "untyped"]);
        let prefix = dice.of(&["vllm:", "sglang:", "nv_", "_", "a:b:"]);
        let name = format!("{prefix}f{family}{}", if kind == "counter" { "_total" } else { "" });
        let help = dice.of(&["Plain.", "With \\\\ and \\n.", "\u{e9}\u{1f680}", ""]);
        if dice.below(3) > 0 {
            writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}").unwrap();
        }
        for series in 0..=dice.below(5) {
            let mut labels = vec![format!("series=\"{series}\"")];
            for label in 0..dice.below(4) {
                let value = dice.of(&[
                    "",
                    "plain",
                    "a\\\"b",
                    "c\\\\d",
                    "e\\nf",
                    "{g=\u{201e}h,}",
                    " i # j ",
                ]);
                labels.push(format!("l{label}=\"{value}\""));
            }
            let comma = dice.of(&["", "", ","]);
            let blank = dice.of(&[" ", "  ", "\t"]);
            let number = dice.of(&[
                "0",
                "1",
                "-1.5",
                "1e3",
                "1.15891634176e+011",
                "NaN",
                "+Inf",
                "-Inf",
                "0.1",
                "9007199254740993",
                "123456.789012345",
                "5e-324",
                "1.7976931348623157e308",
            ]);
            let time = dice.of(&["", "", " 1795219200123"]);
            let labels = labels.join(",");
            writeln!(page, "{name}{{{labels}{comma}}}{blank}{number}{time}").unwrap();
        }
        page += dice.of(&["", "\n", "# a comment\n"]);
    }
    page
}

/// `GPUWHO_TEST_PYTHON` is a Python with `prometheus_client`, as `cargo xtask engines` installs it.
#[test]
fn generated_pages_are_read_as_the_client_for_python_reads_them() {
    let Some(python) = std::env::var_os("GPUWHO_TEST_PYTHON") else {
        println!("skipped: needs Python's prometheus_client, of cargo xtask engines");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut dice = Dice(17);
    let pages: Vec<_> = (0..500)
        .map(|number| {
            let (path, page) = (folder.path().join(format!("{number}.prom")), generated(&mut dice));
            std::fs::write(&path, &page).unwrap();
            (path, page)
        })
        .collect();
    let script =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures/exposition/reference.py");
    let paths = pages.iter().map(|(path, _)| path);
    let output = std::process::Command::new(python).arg(script).args(paths).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = format!("\n{}", String::from_utf8(output.stdout).unwrap());
    let mut theirs = read.split("\n# ").skip(1).map(|page| page.split_once('\n').unwrap().1);
    let mut count = 0;
    for (_, page) in &pages {
        let ours = series(page, 1000.0);
        count += ours.len();
        assert_eq!(ours, theirs.next().unwrap().lines().collect::<Vec<_>>(), "{page}");
    }
    println!("{} pages, {count} series", pages.len());
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
            let token = bytes[sample.value_at..].split(|byte| b" \t\r".contains(byte)).next();
            let value = number(token.unwrap()).unwrap();
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
