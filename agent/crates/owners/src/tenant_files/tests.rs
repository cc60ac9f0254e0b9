use super::*;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

fn own() -> ProcKey {
    let paths = Paths::default();
    crate::process::Living::find(&paths, std::process::id()).unwrap().key
}

fn files() -> TenantFiles {
    TenantFiles::direct(&Paths::default())
}

fn descriptor(file: &File) -> Link {
    Link::Descriptor(u32::try_from(file.as_raw_fd()).unwrap())
}

#[test]
fn a_file_in_proc_is_read_to_its_end() {
    let mut text = String::new();
    files().proc_file(own(), ProcFile::CommandLine).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, fs::read_to_string("/proc/self/cmdline").unwrap());
}

#[test]
fn a_long_file_in_proc_goes_on_where_the_first_answer_ended() {
    let long = |letter: &str| letter.repeat(100_000);
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .env_clear()
        .envs([("A", long("a")), ("B", long("b"))])
        .spawn()
        .unwrap();
    let process = crate::process::Living::find(&Paths::default(), child.id());
    let mut text = String::new();
    let reader = files().proc_file(process.unwrap().key, ProcFile::Environment);
    reader.unwrap().read_to_string(&mut text).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(text, format!("A={}\0B={}\0", long("a"), long("b")));
}

#[test]
fn memory_is_read_by_address() {
    let word = *b"some bytes of this test's own";
    let at = word.as_ptr().expose_provenance() as u64;
    assert_eq!(files().memory(own(), at, word.len()).unwrap(), word);
    assert_eq!(files().memory(own(), 0, 8), Err(ReadError::Failed(Errno::IO)));
}

#[test]
fn a_file_that_a_process_has_open_is_read_through_its_link() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"0123456789").unwrap();
    let opened = files().open(own(), &descriptor(&file)).unwrap();
    let known = file.metadata().unwrap();
    assert_eq!((opened.stat().inode, opened.stat().size), (known.ino(), 10));
    let mut room = [0; 4];
    assert_eq!(opened.read_at(&mut room, 3).unwrap(), 4);
    assert_eq!(&room, b"3456");
    assert_eq!(opened.read_at(&mut room, 8).unwrap(), 2);
    assert_eq!(opened.read_at(&mut room, 11).unwrap(), 0);
    file.write_all(b"more").unwrap();
    assert_eq!(opened.stat_now().unwrap().size, 14);
}

#[test]
fn only_regular_files_are_opened() {
    for path in ["/dev/zero", "/proc", "/dev/ptmx"] {
        let file = rustix::fs::open(path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        let refused = files().open(own(), &descriptor(&File::from(file.unwrap())));
        assert_eq!(refused.unwrap_err(), ReadError::Failed(Errno::INVAL), "{path}");
    }
}

#[test]
fn another_process_with_the_same_pid_is_not_read() {
    let other = ProcKey { start_ticks: own().start_ticks + 1, ..own() };
    let refused = files().proc_file(other, ProcFile::Environment).unwrap_err();
    assert_eq!(refused, ReadError::Failed(Errno::SRCH));
    assert!(files().open(other, &Link::Descriptor(0)).is_err());
    assert!(files().directory(other, Path::new("/")).is_err());
}

#[test]
fn a_program_that_is_not_a_helper_is_an_error_and_not_a_hang() {
    let files =
        TenantFiles::running(&Paths::default(), "/bin/true".into(), crate::attribute::tenant);
    let refused = files.proc_file(own(), ProcFile::Environment).unwrap_err();
    assert!(matches!(refused, ReadError::Helper(_)), "{refused:?}");
    let missing =
        TenantFiles::running(&Paths::default(), "/nowhere".into(), crate::attribute::tenant);
    assert!(matches!(missing.memory(own(), 0, 8), Err(ReadError::Helper(_))));
    assert_eq!(missing.status().failed, 1);
}

#[test]
fn a_tenant_that_hangs_a_helper_is_refused_and_four_tenants_exhaust_all() {
    let (_folder, files) = silent(Duration::from_hours(1));
    for name in ["a", "b", "c", "d"] {
        assert!(matches!(ask(&files, name), ReadError::Hung { .. }));
        assert!(matches!(ask(&files, name), ReadError::Hung { .. }), "one helper a tenant");
    }
    assert_eq!(ask(&files, "e"), ReadError::Exhausted);
    let status = files.status();
    assert_eq!((status.stuck, status.hung.len(), status.exhausted), (4, 4, 1));
    assert_eq!(status.report().state, SourceState::Hung);
}

#[test]
fn a_late_helper_is_killed_and_its_tenant_waits_longer_than_the_others() {
    let (_folder, files) = silent(Duration::ZERO);
    assert!(matches!(ask(&files, "a"), ReadError::Hung { .. }));
    until(|| files.status().helpers == 0);
    assert_eq!(files.status().misses, 1);
    assert_eq!(files.status().report().state, SourceState::Degraded);
    assert!(matches!(ask(&files, "a"), ReadError::Hung { .. }));
    assert_eq!(files.status().misses, 1, "before the back-off is over");
    assert!(matches!(ask(&files, "b"), ReadError::Hung { .. }));
    until(|| files.status().misses == 2);
}

/// Helpers that neither read their socket nor end with it, like one that hangs in the kernel.
fn silent(deadline: Duration) -> (tempfile::TempDir, TenantFiles) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("silent");
    fs::write(&program, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let paths = Paths::default();
    let means = Means::Helpers(Arc::new(Pool::new(program, &paths.proc, deadline)), |_, _| None);
    let timeout = Duration::from_millis(20);
    let (paths, tenants) = (Arc::new(paths), RecentTenants::default());
    (folder, TenantFiles { paths, means, timeout, by_process: false, tenants })
}

fn ask(files: &TenantFiles, name: &str) -> ReadError {
    let outcome = files.ask(&FileOwner::named(name), &Request::Stat, &[]);
    outcome.map(|_| ()).unwrap_err()
}

fn until(is: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_mins(1);
    while !is() {
        assert!(std::time::Instant::now() < end, "in a minute");
        std::thread::yield_now();
    }
}
