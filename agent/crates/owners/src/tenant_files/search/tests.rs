use super::*;
use rustix::fs::{FileType, makedev, mknodat};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

fn all() -> FileFilter {
    FileFilter::default()
}

fn me() -> ProcKey {
    crate::proc_scan::living(&Paths::default(), std::process::id()).unwrap()
}

fn write_open(path: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(path).unwrap()
}

/// Inodes of this process's open files below a directory.
fn found_open(pid: u32, folder: &Path) -> Vec<u64> {
    let found = open_by(&Paths::default(), me(), pid, &all()).unwrap();
    let device = fs::metadata(folder).unwrap().dev();
    let mut inodes: Vec<u64> = found
        .files
        .iter()
        .filter(|(_, stat, _)| makedev(stat.device.0, stat.device.1) == device)
        .map(|(_, stat, _)| stat.inode)
        .collect();
    inodes.sort_unstable();
    inodes
}

fn named(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("node-pid{pid}.log"))
}

#[test]
fn a_file_is_found_among_its_writers_open_files_also_after_it_was_removed() {
    let folder = tempfile::tempdir().unwrap();
    // A PID that no other test in this process uses.
    let path = named(folder.path(), 910_001);
    let writer = write_open(&path);
    let inode = writer.metadata().unwrap().ino();
    assert_eq!(found_open(910_001, folder.path()), [inode]);
    fs::remove_file(&path).unwrap();
    assert_eq!(found_open(910_001, folder.path()), [inode]);
    drop(writer);
    assert_eq!(found_open(910_001, folder.path()), [0; 0]);
}

#[test]
fn a_reader_and_a_process_with_another_pid_are_not_writers() {
    let folder = tempfile::tempdir().unwrap();
    let path = named(folder.path(), 910_002);
    fs::write(&path, "").unwrap();
    let _reader = File::open(&path).unwrap();
    assert_eq!(found_open(910_002, folder.path()), [0; 0]);
    let _writer = write_open(&path);
    assert_eq!(found_open(910_003, folder.path()), [0; 0]);
}

#[test]
fn a_name_that_leads_to_a_device_or_a_fifo_is_refused_and_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let place = directory(folder.path()).unwrap();
    let make = |pid, kind, device| {
        let path = named(folder.path(), pid);
        mknodat(CWD, &path, kind, Mode::RUSR | Mode::WUSR, device)
    };
    // A plain open of a FIFO without a writer would block for ever.
    make(1, FileType::Fifo, 0).unwrap();
    symlink("/etc/passwd", named(folder.path(), 2)).unwrap();
    symlink("/proc/self/mem", named(folder.path(), 3)).unwrap();
    let _socket = UnixListener::bind(named(folder.path(), 4)).unwrap();
    fs::create_dir(named(folder.path(), 5)).unwrap();
    let mut refused = 5;
    // 1:5 is /dev/zero, which never ends.
    if make(6, FileType::CharacterDevice, makedev(1, 5)).is_ok() {
        refused += 1;
    }
    fs::write(named(folder.path(), 7), "x").unwrap();
    fs::write(folder.path().join("passwd"), "x").unwrap();
    let found = in_directory(place.as_fd(), &all()).unwrap();
    let kinds: Vec<_> = found.files.iter().map(|(kind, ..)| *kind).collect();
    assert_eq!((kinds, found.refused), (vec![Kind::Records { pid: 7 }], refused));
}

#[test]
fn a_fifo_that_a_process_holds_open_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = named(folder.path(), 910_004);
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _both = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let found = open_by(&Paths::default(), me(), 910_004, &all()).unwrap();
    assert_eq!((found.files.len(), found.refused), (0, 1));
}

#[test]
fn a_process_that_is_gone_is_an_error_and_not_a_panic() {
    let nobody = ProcKey { pid: u32::MAX - 1, start_ticks: 1 };
    assert!(open_by(&Paths::default(), nobody, 1, &all()).is_err());
    assert!(directory_of(&Paths::default(), nobody, Path::new("/")).is_err());
}

/// A `/proc` in which a process has its own root.
fn container() -> (tempfile::TempDir, Paths, PathBuf) {
    let host = tempfile::tempdir().unwrap();
    let root = host.path().join("merged");
    fs::create_dir_all(root.join("var/run/inspector")).unwrap();
    fs::create_dir_all(host.path().join("proc/7")).unwrap();
    fs::create_dir_all(host.path().join("secret")).unwrap();
    symlink(&root, host.path().join("proc/7/root")).unwrap();
    symlink(root.join("var"), host.path().join("proc/7/cwd")).unwrap();
    let paths = Paths { proc: host.path().join("proc"), ..Paths::default() };
    (host, paths, root)
}

fn inode_of(found: Result<OwnedFd, Errno>) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(found?)?.st_ino)
}

#[test]
fn a_directory_is_resolved_inside_the_processs_root() {
    let (host, paths, root) = container();
    let process = ProcKey { pid: 7, start_ticks: 1 };
    let of = |directory: &str| inode_of(directory_of(&paths, process, Path::new(directory)));
    let inside = Ok(fs::metadata(root.join("var/run/inspector")).unwrap().ino());
    assert_eq!(of("/var/run/inspector"), inside);
    assert_eq!(of("/../../../var/run/inspector"), inside);
    assert_eq!(of("run/inspector"), inside);
    symlink("/var/run/inspector", root.join("linked")).unwrap();
    assert_eq!(of("/linked"), inside);
    let secret = host.path().join("secret");
    symlink(&secret, root.join("out")).unwrap();
    assert_eq!(of("/out"), Err(Errno::NOENT));
    symlink("../../../secret", root.join("var/up")).unwrap();
    assert_eq!(of("/var/up"), Err(Errno::NOENT));
    assert_eq!(of("up"), Err(Errno::XDEV));
    assert_eq!(of("../../secret"), Err(Errno::XDEV));
    symlink("/proc/self/root", root.join("magic")).unwrap();
    assert_eq!(of("/magic"), Err(Errno::NOENT));
}
