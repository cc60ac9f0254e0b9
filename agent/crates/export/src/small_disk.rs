//! A small file system for tests of full disks, in a mount namespace of its own.

use std::env;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Set where the test runs again beside the small file system: the folder with it.
const FOLDER: &str = "GPUWHO_TEST_SMALL_DISK";

/// Runs `test` in a folder with a file system of `size`, by running the calling test again there.
pub(super) fn on_small_disk(size: &str, test: fn(&Path)) {
    if let Some(folder) = env::var_os(FOLDER) {
        return test(Path::new(&folder));
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root to mount a small file system");
        return;
    }
    let folder = TempDir::new().unwrap();
    let this = env::current_exe().unwrap();
    let name = std::thread::current().name().unwrap().to_owned();
    let script = format!("mount -t tmpfs -o size={size} none \"$0\" && exec \"$@\"");
    let mut alone = Command::new("unshare");
    alone.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    alone.arg(folder.path()).arg(this).args(["--exact", &name]);
    let output = alone.env(FOLDER, folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
