//! The spool against damage, full disks and ends at every moment.

use super::files::PREFIX;
use super::*;
use crate::small_disk::on_small_disk;
use proptest::prelude::*;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use tempfile::TempDir;

const LIMITS: Limits = Limits { bytes: 1 << 20, age: Duration::from_hours(1) };

fn now() -> SystemTime {
    SystemTime::now()
}

fn open(folder: &Path) -> Spool {
    Spool::open(folder, LIMITS).unwrap().0
}

/// Stores requests whose body and number of points are `n`.
fn store(spool: &mut Spool, all: impl IntoIterator<Item = u64>) {
    for n in all {
        assert!(spool.store(now(), 7, n, format!("body {n}").as_bytes()).unwrap(), "{n}");
    }
}

fn take(spool: &mut Spool) -> Option<u64> {
    let taken = spool.take(now()).unwrap()?;
    assert_eq!(taken.body, format!("body {}", taken.points).into_bytes());
    assert_eq!(taken.encoding, 7);
    Some(taken.points)
}

/// Takes all, as accepted.
fn drain(spool: &mut Spool) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(points) = take(spool) {
        spool.done(points, 0);
        all.push(points);
    }
    all
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_file = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(PREFIX);
    let mut files: Vec<_> = all.filter(is_file).collect();
    files.sort();
    files
}

fn sum(totals: Totals) -> u64 {
    let Totals { accepted, refused, full, expired, damaged } = totals;
    accepted + refused + full + expired + damaged
}

#[test]
fn requests_come_out_in_order_and_those_that_are_done_do_not_come_again() {
    let folder = TempDir::new().unwrap();
    let mut spool = open(folder.path());
    store(&mut spool, 1..=5);
    assert_eq!(take(&mut spool), Some(1));
    spool.done(1, 0);
    assert_eq!(take(&mut spool), Some(2));
    spool.put_back();
    assert_eq!((take(&mut spool), spool.points(), spool.requests()), (Some(2), 14, 4));
    drop(spool);
    let mut spool = open(folder.path());
    assert_eq!(drain(&mut spool), [2, 3, 4, 5]);
    assert_eq!(sum(spool.totals()), 15);
}

#[test]
fn an_end_at_any_moment_repeats_at_most_the_request_that_was_sent() {
    let folder = TempDir::new().unwrap();
    let (mut next, mut received) = (1, Vec::new());
    // Each round ends as by kill -9: nothing is closed, and every second one between sending and done.
    for round in 0..12 {
        let mut spool = open(folder.path());
        store(&mut spool, next..next + 3);
        next += 3;
        for at in 0..3 {
            let Some(points) = take(&mut spool) else { break };
            received.push(points);
            if round % 2 == 1 && at == 2 {
                break;
            }
            spool.done(points, 0);
        }
        std::mem::forget(spool);
    }
    let mut spool = open(folder.path());
    received.extend(drain(&mut spool));
    let repeated = received.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(repeated, 6);
    received.dedup();
    assert_eq!(received, (1..next).collect::<Vec<_>>());
    assert!(files(folder.path()).len() <= 1, "what is sent is deleted");
}

#[test]
fn the_oldest_give_way_in_whole_files_and_are_counted() {
    let folder = TempDir::new().unwrap();
    let mut spool = open(folder.path());
    let body = vec![b'x'; 10_000];
    for _ in 0..300 {
        assert!(spool.store(now(), 7, 2, &body).unwrap());
    }
    assert!(spool.bytes() <= LIMITS.bytes, "{}", spool.bytes());
    let on_disk: u64 = files(folder.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert_eq!(on_disk, spool.bytes());
    let totals = spool.totals();
    assert!(totals.full > 300, "{totals:?}");
    assert_eq!(totals.full + spool.points(), 600);
    drop(spool);
    assert_eq!(open(folder.path()).totals(), totals);
}

#[test]
fn a_request_that_is_being_sent_is_not_deleted_and_counted_once() {
    let folder = TempDir::new().unwrap();
    let mut spool = open(folder.path());
    let body = vec![b'x'; 10_000];
    assert!(spool.store(now(), 7, 1, &body).unwrap());
    assert!(spool.take(now()).unwrap().is_some());
    let stored = (0..300).filter(|_| spool.store(now(), 7, 1, &body).unwrap()).count() as u64;
    assert!(stored < 300 && spool.bytes() <= LIMITS.bytes + 64 * 1024, "{stored}");
    spool.done(1, 0);
    let mut left = 0;
    while spool.take(now()).unwrap().is_some() {
        spool.done(1, 0);
        left += 1;
    }
    assert_eq!(left, stored);
    assert_eq!(sum(spool.totals()), 1 + stored);
}

#[test]
fn what_is_larger_than_the_spool_takes_is_refused() {
    let folder = TempDir::new().unwrap();
    let mut spool = open(folder.path());
    assert!(!spool.store(now(), 7, 1, &vec![0; 300_000]).unwrap());
    assert!(!spool.store(now(), 7, 0, b"no points").unwrap());
    store(&mut spool, [4]);
    assert_eq!(drain(&mut spool), [4]);
}

#[test]
fn old_requests_are_dropped_and_a_clock_set_back_makes_none_old() {
    let folder = TempDir::new().unwrap();
    let mut spool = open(folder.path());
    let start = now();
    let minutes = |n: u64| start + Duration::from_mins(n);
    for n in [0_u64, 30, 100] {
        assert!(spool.store(minutes(n), 7, n + 1, b"b").unwrap());
    }
    let taken = spool.take(minutes(80)).unwrap().unwrap();
    assert_eq!((taken.points, spool.totals().expired), (31, 1));
    spool.done(31, 0);
    assert_eq!(spool.take(start - Duration::from_hours(24)).unwrap().unwrap().points, 101);
}

/// Changes one byte.
fn damage(path: &Path, at: usize) {
    let mut text = fs::read(path).unwrap();
    text[at] ^= 0x40;
    fs::write(path, text).unwrap();
}

#[test]
fn damage_anywhere_costs_what_is_damaged_and_is_counted_exactly() {
    let folder = TempDir::new().unwrap();
    store(&mut open(folder.path()), 1..=4);
    let file = &files(folder.path())[0];
    let whole = fs::read(file).unwrap();
    for at in HEADER..whole.len() {
        fs::write(file, &whole).unwrap();
        let position = folder.path().join("position");
        if position.exists() {
            fs::remove_file(&position).unwrap();
        }
        damage(file, at);
        let mut spool = open(folder.path());
        let received = drain(&mut spool);
        // The last one cannot be told from one that was never written whole.
        let is_last = (at - HEADER) / (HEADER + 6) == 3;
        let lost: u64 = 10 - received.iter().sum::<u64>();
        assert_eq!((received.len(), received.is_sorted()), (3, true), "{at}: {received:?}");
        if !is_last {
            assert_eq!(spool.totals().damaged, lost, "{at}");
        }
        assert_eq!(spool.points(), 0);
        store(&mut spool, [9]);
        assert_eq!(drain(&mut spool), [9], "{at}");
        drop(spool);
        for left in files(folder.path()) {
            fs::remove_file(left).unwrap();
        }
    }
}

#[test]
fn a_damaged_file_header_costs_its_file_and_the_gap_is_counted() {
    let folder = TempDir::new().unwrap();
    for n in 1..=3 {
        store(&mut open(folder.path()), [n]);
    }
    let all = files(folder.path());
    assert_eq!(all.len(), 3, "one for each start");
    damage(&all[1], 20);
    let (mut spool, opened) = Spool::open(folder.path(), LIMITS).unwrap();
    assert_eq!((opened.damaged_files, opened.foreign), (1, None));
    assert_eq!(drain(&mut spool), [1, 3]);
    assert_eq!(spool.totals().damaged, 2);
}

#[test]
fn files_of_another_version_are_discarded_and_named() {
    let folder = TempDir::new().unwrap();
    store(&mut open(folder.path()), 1..=2);
    let file = &files(folder.path())[0];
    let mut text = fs::read(file).unwrap();
    text[8] = 2;
    fs::write(file, &text).unwrap();
    let (mut spool, opened) = Spool::open(folder.path(), LIMITS).unwrap();
    assert_eq!(opened.foreign, Some((1, text.len() as u64, 2)));
    store(&mut spool, [5]);
    assert_eq!(drain(&mut spool), [5]);
}

#[test]
fn a_power_failure_that_cut_the_last_write_short_costs_that_one_only() {
    let folder = TempDir::new().unwrap();
    store(&mut open(folder.path()), 1..=3);
    let file = &files(folder.path())[0];
    let whole = fs::read(file).unwrap();
    for len in HEADER + 2 * (HEADER + 6)..whole.len() {
        fs::write(file, &whole[..len]).unwrap();
        let mut spool = open(folder.path());
        assert_eq!((spool.requests(), spool.points()), (2, 3), "{len}");
        assert_eq!(take(&mut spool), Some(1));
    }
}

#[test]
fn a_position_behind_the_last_request_is_the_end() {
    let folder = TempDir::new().unwrap();
    let mut spool = open(folder.path());
    store(&mut spool, 1..=3);
    let begin = fs::read(&files(folder.path())[0]).unwrap();
    assert_eq!(drain(&mut spool), [1, 2, 3]);
    drop(spool);
    // The file's second half did not reach the disk, the position did.
    let path = folder.path().join(format!("{PREFIX}{:020}", 0));
    fs::write(&path, &begin[..HEADER + HEADER + 6]).unwrap();
    let mut spool = open(folder.path());
    assert_eq!((spool.requests(), take(&mut spool)), (0, None));
    store(&mut spool, [4]);
    assert_eq!(drain(&mut spool), [4]);
    assert_eq!(sum(spool.totals()), 10);
}

#[test]
fn a_torn_position_leaves_the_one_before() {
    let folder = TempDir::new().unwrap();
    let mut spool = open(folder.path());
    store(&mut spool, 1..=3);
    assert_eq!(take(&mut spool), Some(1));
    spool.done(1, 0);
    drop(spool);
    let path = folder.path().join("position");
    let whole = fs::read(&path).unwrap();
    // Whichever slot is lost, at most one request is repeated.
    for slot in [0, 4096] {
        let mut torn = whole.clone();
        torn[slot + 30] ^= 1;
        fs::write(&path, torn).unwrap();
        let mut spool = open(folder.path());
        let first = take(&mut spool).unwrap();
        assert!((1..=2).contains(&first), "{first}");
    }
    fs::write(&path, b"garbage").unwrap();
    let (mut spool, opened) = Spool::open(folder.path(), LIMITS).unwrap();
    assert!(opened.lost_position);
    assert_eq!(drain(&mut spool), [1, 2, 3]);
}

#[test]
fn the_folder_is_the_agent_s_alone_and_links_in_it_are_not_followed() {
    let folder = TempDir::new().unwrap();
    let spool = folder.path().join("a/b");
    fs::create_dir_all(&spool).unwrap();
    fs::set_permissions(&spool, Permissions::from_mode(0o777)).unwrap();
    drop(open(&spool));
    assert_eq!(spool.metadata().unwrap().mode() & 0o777, 0o700);
    assert_eq!(spool.join("position").metadata().unwrap().mode() & 0o777, 0o600);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&spool, &link).unwrap();
    assert!(Spool::open(&link, LIMITS).is_err());
    let victim = folder.path().join("victim");
    fs::write(&victim, "text of another").unwrap();
    fs::remove_file(spool.join("position")).unwrap();
    std::os::unix::fs::symlink(&victim, spool.join("position")).unwrap();
    assert!(Spool::open(&spool, LIMITS).is_err());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "text of another");
}

#[test]
fn files_of_others_stay_where_they_are() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join(format!("{PREFIX}{:020}", 3))).unwrap();
    for name in ["requests-1", "notes.txt", "requests-0000000000000000000x"] {
        fs::write(folder.path().join(name), "x").unwrap();
    }
    let mut spool = open(folder.path());
    store(&mut spool, [1]);
    assert_eq!(drain(&mut spool), [1]);
    assert!(folder.path().join("notes.txt").exists() && folder.path().join("requests-1").exists());
}

#[test]
fn a_full_disk_refuses_what_is_new_keeps_what_is_there_and_works_again() {
    on_small_disk("128k", fill);
}

fn fill(root: &Path) {
    let folder = root.join("spool");
    let mut spool = open(&folder);
    let body = vec![b'x'; 5000];
    let mut stored = 0;
    let error = loop {
        match spool.store(now(), 7, 1, &body) {
            Ok(true) => stored += 1,
            Ok(false) => panic!("no room before the disk is full"),
            Err(error) => break error,
        }
    };
    assert_eq!(Trouble::of(&error), Trouble::Full);
    assert!(stored > 5, "{stored}");
    // The position has its room already.
    assert!(spool.take(now()).unwrap().is_some());
    spool.done(1, 0);
    assert!(spool.unsaved().is_none(), "{:?}", spool.unsaved());
    drop(spool);
    let mut spool = open(&folder);
    let mut left = 0;
    while spool.take(now()).unwrap().is_some() {
        spool.done(1, 0);
        left += 1;
    }
    assert_eq!(left, stored - 1, "no part of an entry was left");
    assert!(spool.store(now(), 7, 1, &body).unwrap(), "there is room again");
}

proptest! {
    // Each waits for the disk at every step.
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is done in whatever order: what was made is accepted, waiting or counted as dropped.
    #[test]
    fn made_is_accepted_and_waiting_and_dropped(actions in prop::collection::vec(0_u8..10, 1..120)) {
        let folder = TempDir::new().unwrap();
        let limits = Limits { bytes: 300 << 10, age: Duration::from_hours(1) };
        let mut spool = Spool::open(folder.path(), limits).unwrap().0;
        let (mut made, mut accepted, mut refused) = (0, 0, 0);
        let body = vec![b'x'; 9000];
        for action in actions {
            match action {
                0..=5 => made += u64::from(spool.store(now(), 7, 3, &body).unwrap()) * 3,
                6 => {
                    if spool.take(now()).unwrap().is_some() {
                        spool.done(2, 1);
                        (accepted, refused) = (accepted + 2, refused + 1);
                    }
                }
                7 => {
                    spool.take(now()).unwrap();
                }
                8 => spool.put_back(),
                _ => {
                    drop(spool);
                    spool = Spool::open(folder.path(), limits).unwrap().0;
                }
            }
            let totals = spool.totals();
            prop_assert_eq!((totals.accepted, totals.refused), (accepted, refused));
            prop_assert_eq!((totals.expired, totals.damaged), (0, 0));
            prop_assert_eq!(made, accepted + refused + totals.full + spool.points());
            let found = Found::read(folder.path()).unwrap();
            prop_assert_eq!((found.points, found.bytes), (spool.points(), spool.bytes()));
        }
    }

    /// What the fuzz target does, on fewer inputs.
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let folder = TempDir::new().unwrap();
        fuzz::folder(&folder.path().join("spool"), &bytes).unwrap();
    }
}
