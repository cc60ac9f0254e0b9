//! `stat`, `status` and `cgroup` of a process, as files in a folder that stands for `/proc`: any bytes.
//! A process that is found is the one that was asked for.

#![no_main]

use gpuwho::collect::proc_scan::{is_alive, living};
use gpuwho::paths::Paths;
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

const PID: u32 = 77;

/// In memory, one for each process that fuzzes.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = PathBuf::from(format!("/dev/shm/gpuwho-fuzz-{}", std::process::id()));
    fs::create_dir_all(root.join(format!("proc/{PID}"))).unwrap();
    root
});

fuzz_target!(|bytes: &[u8]| {
    let paths = Paths::under(&ROOT);
    let folder = paths.proc.join(PID.to_string());
    let mut parts = bytes.splitn(3, |byte| *byte == 0);
    for name in ["stat", "status", "cgroup"] {
        fs::write(folder.join(name), parts.next().unwrap_or_default()).unwrap();
    }
    if let Some(process) = living(&paths, PID) {
        assert_eq!(process.pid, PID);
        assert!(is_alive(&paths, process));
    }
});
