//! `stat`, `status` and `cgroup` of a process that holds a device, as files in a folder that stands
//! for `/proc`: any bytes. A process that is found, by its number or by its device, is the one that
//! was asked for, and alive.

#![no_main]

use gpuwho_model::paths::Paths;
use gpuwho_owners::nodes::{Nodes, Settings};
use gpuwho_owners::proc_scan::{ScanPass, is_alive, living};
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::LazyLock;

const PID: u32 = 77;

/// In memory, one for each process that fuzzes.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = PathBuf::from(format!("/dev/shm/gpuwho-fuzz-{}", std::process::id()));
    let files = root.join(format!("proc/{PID}/fd"));
    fs::create_dir_all(&files).unwrap();
    symlink("/dev/null", files.join("3")).unwrap();
    root
});

/// `/dev/null` stands for a device.
static NODES: LazyLock<Nodes> = LazyLock::new(|| {
    let nodes = vec!["/dev/null".to_owned()];
    let settings = Settings { nodes, drivers: Vec::new(), vendors: &[] };
    Nodes::read(&settings, &Paths::default())
});

fuzz_target!(|bytes: &[u8]| {
    let paths = Paths::under(&ROOT);
    let folder = paths.proc.join(PID.to_string());
    let mut parts = bytes.splitn(3, |byte| *byte == 0);
    for name in ["stat", "status", "cgroup"] {
        fs::write(folder.join(name), parts.next().unwrap_or_default()).unwrap();
    }
    let found = living(&paths, PID);
    let mut pass = ScanPass::begin(&paths);
    let mut holders = std::iter::from_fn(|| pass.step(&paths, &NODES)).flatten();
    let holder = holders.next().map(|holder| holder.process);
    for process in found.into_iter().chain(holder) {
        assert_eq!(process.pid, PID);
        assert!(is_alive(&paths, process));
    }
    if let (Some(found), Some(holder)) = (found, holder) {
        assert_eq!(found, holder);
    }
});
