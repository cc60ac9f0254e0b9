use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

const PLENTY: u64 = 1 << 20;

struct Log {
    folder: tempfile::TempDir,
}

impl Log {
    fn new() -> Self {
        let log = Self { folder: tempfile::tempdir().unwrap() };
        File::create(log.path()).unwrap();
        log
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn open(&self) -> TenantFile {
        TenantFile::direct(&File::open(self.path()).unwrap())
    }

    fn append(&self, text: &str) {
        append(&self.path(), text.as_bytes());
    }
}

fn append(path: &Path, bytes: &[u8]) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn read(tail: &mut Tail, budget: u64) -> (Vec<String>, ReadCost) {
    let mut lines = Vec::new();
    let mut take = |piece: Piece<'_>| {
        lines.push(match piece {
            Piece::Line(line) => String::from_utf8(line.to_vec()).unwrap(),
            Piece::TooLong => "(too long)".to_owned(),
        });
    };
    let took = tail.read(budget, &mut take).unwrap();
    (lines, took)
}

#[test]
fn a_line_is_returned_once_when_it_is_complete() {
    let log = Log::new();
    let mut tail = Tail::from_start(log.open());
    log.append("one\ntw");
    assert_eq!(read(&mut tail, PLENTY), (vec!["one".into()], ReadCost { bytes: 6, skipped: 0 }));
    assert_eq!(read(&mut tail, PLENTY), (vec![], ReadCost::default()));
    log.append("o\n");
    assert_eq!(read(&mut tail, PLENTY), (vec!["two".into()], ReadCost { bytes: 2, skipped: 0 }));
}

#[test]
fn a_truncated_or_rewritten_file_is_read_from_its_start() {
    let log = Log::new();
    let mut tail = Tail::from_start(log.open());
    log.append("first\nsecond\nthi");
    read(&mut tail, PLENTY);
    std::fs::write(log.path(), "short\n").unwrap();
    assert_eq!(read(&mut tail, PLENTY).0, ["short"]);
    std::fs::write(log.path(), "longer than it was before\nand more\n").unwrap();
    assert_eq!(read(&mut tail, PLENTY).0, ["longer than it was before", "and more"]);
}

#[test]
fn existing_content_and_the_rest_of_its_last_line_are_skipped() {
    let log = Log::new();
    log.append("old\nhalf");
    let mut tail = Tail::from_end(log.open()).unwrap();
    log.append(" a line\nnew\n");
    assert_eq!(read(&mut tail, PLENTY), (vec!["new".into()], ReadCost { bytes: 12, skipped: 7 }));
}

#[test]
fn a_file_that_grows_too_fast_is_read_at_its_end() {
    let log = Log::new();
    let mut tail = Tail::from_start(log.open());
    log.append(&"0123456789\n".repeat(100));
    let (lines, took) = read(&mut tail, 30);
    assert_eq!(lines, ["0123456789", "0123456789"]);
    assert_eq!(took, ReadCost { bytes: 30, skipped: 1_070 + 7 });
}

#[test]
fn an_endless_line_is_reported_once_and_not_buffered() {
    let log = Log::new();
    let mut tail = Tail::from_start(log.open());
    log.append(&"x".repeat(3 * MAX_LINE));
    assert_eq!(read(&mut tail, PLENTY).0, ["(too long)"]);
    assert!(tail.rest.capacity() <= 2 * MAX_LINE);
    log.append("x\ny\n");
    assert_eq!(read(&mut tail, PLENTY).0, ["y"]);
}

#[test]
fn a_file_that_was_removed_is_read_to_its_end() {
    let log = Log::new();
    let mut tail = Tail::from_start(log.open());
    let mut writer = OpenOptions::new().append(true).open(log.path()).unwrap();
    std::fs::remove_file(log.path()).unwrap();
    writer.write_all(b"last\n").unwrap();
    assert_eq!(read(&mut tail, PLENTY).0, ["last"]);
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Half(usize),
    Cut,
    Anew(usize),
    Read(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1_usize..40).prop_map(Step::Write),
        2 => (1_usize..40).prop_map(Step::Half),
        1 => Just(Step::Cut),
        1 => (1_usize..60).prop_map(Step::Anew),
        4 => prop_oneof![Just(PLENTY), 1_u64..200].prop_map(Step::Read),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For any sequence of writes, truncations and rewrites: every returned line was written as a
    /// whole, none is returned twice, and without truncation or skipping all are returned in order.
    #[test]
    fn only_written_lines_are_returned(steps in steps()) {
        let log = Log::new();
        let mut tail = Tail::from_start(log.open());
        let (mut number, mut open) = (0_u32, String::new());
        let (mut written, mut given) = (Vec::new(), Vec::new());
        let mut is_kept = true;
        for step in steps {
            match step {
                Step::Write(width) => {
                    let line = format!("{open}{number:0width$}|");
                    let start = open.len();
                    append(&log.path(), format!("{}\n", &line[start..]).as_bytes());
                    written.push(line);
                    open.clear();
                    number += 1;
                }
                Step::Half(width) => {
                    let half = format!("{number:0width$}+");
                    append(&log.path(), half.as_bytes());
                    open.push_str(&half);
                    number += 1;
                }
                Step::Cut => {
                    File::create(log.path()).unwrap();
                    open.clear();
                    is_kept = false;
                }
                Step::Anew(width) => {
                    let line = format!("{number:0width$}!");
                    std::fs::write(log.path(), format!("{line}\n")).unwrap();
                    written.push(line);
                    open.clear();
                    number += 1;
                    is_kept = false;
                }
                Step::Read(budget) => {
                    let (lines, took) = read(&mut tail, budget);
                    prop_assert!(took.bytes <= budget);
                    is_kept &= took.skipped == 0;
                    given.extend(lines);
                }
            }
        }
        given.extend(read(&mut tail, PLENTY).0);
        let all: HashSet<&String> = written.iter().collect();
        let distinct: HashSet<&String> = given.iter().collect();
        prop_assert!(given.iter().all(|line| all.contains(line)), "{given:?} of {written:?}");
        prop_assert_eq!(distinct.len(), given.len());
        if is_kept {
            prop_assert_eq!(given, written);
        }
    }
}
