use super::*;
use inotify::{Inotify, WatchMask};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const PIDS: [u32; 3] = [11, 12, 13];

fn process(pid: u32) -> ProcKey {
    ProcKey { pid, start_ticks: 7 }
}

/// Processes as files, and counts of what is read of them.
struct Scene {
    folder: tempfile::TempDir,
    read: Inotify,
    scan: ProcessScan,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let read = Inotify::init().unwrap();
        let (paths, now) = (Paths::under(folder.path()), Instant::now());
        for pid in PIDS {
            let of = paths.proc.join(pid.to_string());
            fs::create_dir_all(&of).unwrap();
            fs::write(of.join("stat"), stat(7)).unwrap();
            fs::write(of.join("maps"), "none\n").unwrap();
            map(&paths.proc, pid, [100, 40], 8);
            read.watches().add(&of, WatchMask::ACCESS).unwrap();
        }
        let candidates = Box::new(|| PIDS.map(process).to_vec());
        let files = TenantFiles::direct(&paths);
        Self { folder, read, scan: ProcessScan::new(files, &paths, candidates, now), now }
    }

    /// The files that a check reads after this time, and whether a library gained or lost a user.
    fn check(&mut self, later: Duration) -> (BTreeMap<String, usize>, bool) {
        self.files_read();
        self.now += later;
        let changed = self.scan.check(self.now);
        (self.files_read(), changed)
    }

    fn files_read(&mut self) -> BTreeMap<String, usize> {
        let mut files = BTreeMap::new();
        let mut buffer = [0; 4096];
        loop {
            match self.read.read_events(&mut buffer) {
                Ok(events) => {
                    for event in events {
                        let name = event.name.unwrap().to_str().unwrap().to_owned();
                        *files.entry(name).or_default() += 1;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return files,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn stat(start: u64) -> String {
    format!("11 (python) S 1{} 1 0 {start}{}\n", " 0".repeat(15), " 0".repeat(30))
}

/// Pages mapped and those of data, and the code of libraries.
fn map(proc: &Path, pid: u32, [size, data]: [u64; 2], code_kb: u64) {
    let of = proc.join(pid.to_string());
    fs::write(of.join("statm"), format!("{size} 20 10 1 0 {data} 0\n")).unwrap();
    fs::write(of.join("status"), format!("Name:\tpython\nVmLib:\t{code_kb:8} kB\n")).unwrap();
}

fn reads<const N: usize>(of: [(&str, usize); N]) -> BTreeMap<String, usize> {
    of.map(|(name, count)| (name.to_owned(), count)).into()
}

#[test]
fn an_unchanged_process_costs_one_read_a_check_and_none_in_between() {
    let mut scene = Scene::new();
    let proc = scene.folder.path().join("proc");
    let all = reads([("maps", 3), ("stat", 6), ("statm", 3), ("status", 3)]);
    assert_eq!(scene.check(Duration::ZERO), (all, false));
    assert_eq!(scene.check(YOUNG_EVERY / 2), (reads([]), false));
    assert_eq!(scene.check(YOUNG_EVERY / 2), (reads([("statm", 3)]), false));
    // An allocation is data.
    map(&proc, 11, [900, 840], 8);
    assert_eq!(scene.check(YOUNG_EVERY), (reads([("statm", 3)]), false));
    // A file is not, and is not code.
    map(&proc, 11, [910, 840], 8);
    let file = reads([("stat", 1), ("statm", 3), ("status", 1)]);
    assert_eq!(scene.check(YOUNG_EVERY), (file, false));
    map(&proc, 11, [930, 845], 40);
    let code = reads([("maps", 1), ("stat", 2), ("statm", 3), ("status", 1)]);
    assert_eq!(scene.check(YOUNG_EVERY), (code, false));
    assert_eq!(scene.check(YOUNG_EVERY), (reads([("statm", 3)]), false));
}

#[test]
fn a_reused_pid_is_not_taken_for_its_predecessor() {
    let mut scene = Scene::new();
    scene.check(Duration::ZERO);
    let of = scene.folder.path().join("proc/12");
    fs::write(of.join("stat"), stat(8)).unwrap();
    fs::write(of.join("statm"), "70 20 10 1 0 40 0\n").unwrap();
    let other = reads([("stat", 1), ("statm", 3)]);
    assert_eq!(scene.check(YOUNG_EVERY), (other, false));
    assert_eq!(scene.check(YOUNG_EVERY), (reads([("statm", 3)]), false));
}

#[test]
fn a_process_is_checked_less_often_the_longer_it_is_known() {
    let part = |age| OLD_EVERY.as_nanos() / step(Duration::from_secs_f64(age)).as_nanos();
    let parts = [0.0, 0.9, 1.0, 7.4, 7.6, 59.0, 61.0, 3600.0].map(part);
    assert_eq!(parts, [256, 256, 128, 32, 16, 4, 2, 1]);
    assert_eq!(YOUNG_EVERY, OLD_EVERY / (1 << HALVINGS));
}

#[test]
fn a_process_that_executes_another_program_is_checked_like_a_new_one() {
    let mut scene = Scene::new();
    scene.check(Duration::ZERO);
    let hour = Duration::from_hours(1);
    scene.check(hour);
    assert_eq!(scene.scan.due(), Some(after(scene.scan.began, OLD_EVERY, scene.now)));
    scene.scan.request_rescan(process(12), scene.now);
    // Its size may be unchanged.
    let all = reads([("maps", 1), ("stat", 2), ("statm", 1), ("status", 1)]);
    assert_eq!(scene.check(Duration::ZERO), (all, false));
    assert_eq!(scene.check(YOUNG_EVERY), (reads([("statm", 1)]), false));
    // This adds no candidate.
    scene.scan.request_rescan(process(99), scene.now);
    assert_eq!(scene.check(YOUNG_EVERY), (reads([("statm", 1)]), false));
}

#[test]
fn processes_that_came_one_by_one_share_their_wakes() {
    let (began, folder) = (Instant::now(), tempfile::tempdir().unwrap());
    let known = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let listed = std::sync::Arc::clone(&known);
    let count = move || listed.load(std::sync::atomic::Ordering::Relaxed);
    let candidates = Box::new(move || (0..count()).map(process).collect());
    let paths = Paths::under(folder.path());
    let mut scan = ProcessScan::new(TenantFiles::direct(&paths), &paths, candidates, began);
    let mut now = began;
    for _ in 0..200 {
        now += Duration::from_millis(37);
        known.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        scan.check(now);
    }
    let mut wakes = |until: u64| {
        let mut wakes = 0;
        while scan.due().unwrap() <= began + Duration::from_secs(until) {
            scan.check(scan.due().unwrap());
            wakes += 1;
        }
        wakes
    };
    // Each until the end of its first minute, then a quarter of its age.
    wakes(70);
    assert_eq!([wakes(100), wakes(320), wakes(920)], [2, 9, 20]);
}
