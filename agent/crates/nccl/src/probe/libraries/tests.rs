use super::files::MAX_PATH_LEN;
use super::mappings::Mapping;
use super::*;
use gpuwho_model::paths::Paths;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

const PROCESS: ProcKey = ProcKey { pid: 11, start_ticks: 7 };

/// A process as files, which maps files of the directory.
struct Scene {
    folder: tempfile::TempDir,
    paths: Paths,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::under(folder.path());
        let scene = Self { folder, paths };
        std::fs::create_dir_all(scene.of("map_files")).unwrap();
        let stat = format!("11 (python) S 1{} 1 0 7{}\n", " 0".repeat(15), " 0".repeat(30));
        std::fs::write(scene.of("stat"), stat).unwrap();
        scene
    }

    fn of(&self, name: &str) -> PathBuf {
        self.paths.proc.join("11").join(name)
    }

    /// A line for a file, which can be opened only if `is_there`.
    fn line(&self, number: u64, file: &Path, is_there: bool) -> String {
        let (begin, end) = (0x1000 * number, 0x1000 * (number + 1));
        let range = format!("{begin:x}-{end:x}");
        if is_there {
            symlink(file, self.of("map_files").join(&range)).unwrap();
        }
        let found = std::fs::metadata(file).unwrap();
        let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        let (inode, path) = (found.ino(), file.display());
        format!("{range} r-xp 00000000 {major:02x}:{minor:02x} {inode} {path}\n")
    }

    fn maps(&self, lines: &str) -> Libraries {
        std::fs::write(self.of("maps"), lines).unwrap();
        Libraries::new(TenantFiles::direct(&self.paths), &self.paths)
    }

    /// A file with one function of the library; its length makes it distinct.
    fn library(&self, number: u64) -> PathBuf {
        let path = self.folder.path().join(format!("libnccl.so.{number}"));
        let mut file = elf::tests::sample(&[("ncclAllReduce", 0x12, 0x1000)]);
        file.extend(number.to_le_bytes());
        std::fs::write(&path, file).unwrap();
        path
    }
}

#[test]
fn only_regular_files_are_opened_and_never_by_path() {
    let scene = Scene::new();
    let fifo = scene.folder.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    // Not mapped any more; and mapped, as a device can be. Opening it would block for a writer.
    let lines = scene.line(1, &fifo, false) + &scene.line(2, &fifo, true);
    let lines = lines + &scene.line(3, &scene.library(1), false);
    let mut libraries = scene.maps(&lines);
    let nothing = ScanOutcome { changed: false, again: Some(MIN_RETRY) };
    assert_eq!(libraries.scan(PROCESS, Instant::now()), nothing);
    assert_eq!((libraries.in_use().count(), libraries.problem()), (0, None));
}

#[test]
fn a_mapping_that_disappears_is_retried_a_few_times_and_found_when_it_is_back() {
    let scene = Scene::new();
    let library = scene.library(1);
    let mut libraries = scene.maps(&scene.line(1, &library, false));
    let now = Instant::now();
    for _ in 0..GONE_TRIES {
        let outcome = libraries.scan(PROCESS, now);
        assert_eq!(outcome, ScanOutcome { changed: false, again: Some(MIN_RETRY) });
    }
    assert_eq!(libraries.scan(PROCESS, now), ScanOutcome::default(), "not for ever");
    scene.line(1, &library, true);
    assert_eq!(libraries.scan(PROCESS, now), ScanOutcome { changed: true, again: None });
    assert_eq!(libraries.in_use().count(), 1);
}

#[test]
fn files_are_distinguished_by_content_and_not_by_shown_device_or_path() {
    let scene = Scene::new();
    let (one, two) = (scene.library(1), scene.library(2));
    // As an overlay over several file systems shows them: `ff:ff 7`, which is neither's.
    let shown = |line: String, path: &str| {
        let range = line.split(' ').next().unwrap();
        format!("{range} r-xp 00000000 ff:ff 7 {path}\n")
    };
    let lines = [(1, &one, "/a"), (2, &two, "/b"), (3, &two, "/c")];
    let lines = lines.map(|(at, file, path)| shown(scene.line(at, file, true), path));
    let mut libraries = scene.maps(&lines.concat());
    let mut look = |lines: &[String]| {
        std::fs::write(scene.of("maps"), lines.concat()).unwrap();
        let outcome = libraries.scan(PROCESS, Instant::now());
        assert_eq!(outcome.again, None);
        (outcome.changed, libraries.in_use().count())
    };
    assert_eq!(look(&lines), (true, 2));
    assert_eq!(look(&lines), (false, 2));
    assert_eq!(look(&lines[..2]), (false, 2), "its other path is still mapped");
    let deleted = lines[1].replace("/b", "/b (deleted)");
    assert_eq!(look(&[lines[0].clone(), deleted]), (false, 2));
    assert_eq!(look(&lines[..1]), (true, 1));
}

#[test]
fn the_libraries_of_a_process_are_bounded_and_reported() {
    let scene = Scene::new();
    let lines: String = (0..70).map(|at| scene.line(at, &scene.library(at), true)).collect();
    let mut libraries = scene.maps(&lines);
    let mut now = Instant::now();
    // Each scan uses its CPU time limit, which does not go far on a slow machine.
    while libraries.scan(PROCESS, now).again.is_some() {
        now += Duration::from_mins(10);
    }
    assert_eq!(libraries.in_use().count(), room::MAX_PER_PROCESS);
    let why = "process 11: it maps more than 64 collective libraries";
    assert_eq!(libraries.problem().as_deref(), Some(why));
    assert!(libraries.remove(PROCESS));
    assert_eq!((libraries.in_use().count(), libraries.problem()), (0, None));
}

#[test]
fn a_truncated_list_is_reported_and_its_start_is_used() {
    let scene = Scene::new();
    let lines = scene.line(1, &scene.library(1), true) + &scene.line(2, &scene.library(2), true);
    let lines = format!("{lines}{}", "1000-2000 r--p 00000000 00:00 0\n".repeat(65_536));
    let mut libraries = scene.maps(&lines);
    assert!(libraries.scan(PROCESS, Instant::now()).changed);
    assert_eq!(libraries.in_use().count(), 2);
    let why = "process 11: it has more than 65536 mappings";
    assert_eq!((libraries.problem().as_deref(), libraries.refused), (Some(why), 1));
    std::fs::write(scene.of("maps"), scene.line(3, &scene.library(2), true)).unwrap();
    assert!(libraries.scan(PROCESS, Instant::now()).changed);
    assert_eq!((libraries.in_use().count(), libraries.problem()), (1, None));
}

#[test]
fn a_path_is_sanitised() {
    let path = [b"/tmp/\x1b[2J\xff", &b"x".repeat(4_000)[..]].concat();
    let key = FileKey { device: (0, 1), inode: 2 };
    let mapping = Mapping { range: (0, 1), offset: 0, key, is_code: true, path: &path };
    let reported = New::of(&mapping).path;
    assert!(reported.starts_with("/tmp/\u{fffd}[2J\u{fffd}xxx"), "{reported}");
    assert_eq!(reported.chars().count(), MAX_PATH_LEN);
}
