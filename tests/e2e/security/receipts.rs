//! A tenant who puts something else in the place of his job's output, and waits for whoever writes to it.

use super::usage::fifo;
use crate::slurm::hooks::{LINE, answers, receipt};
use gpuwho_tests::attacker::NOBODY;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The script waited five seconds for a pipe; gpuwho itself waits two for a file system.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Runs the epilog's script for a job of the tenant's.
fn write(folder: &Path, output: &Path) {
    let nobody = NOBODY.to_string();
    let output = output.display().to_string();
    receipt(folder, &[("gpuwho", &answers())], &[], [&nobody, &nobody, &output]);
}

/// Processes of the tenant's with a path among their words.
fn left(path: &Path) -> Vec<String> {
    let path = path.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        words.contains(&path).then_some(words)
    });
    processes.collect()
}

#[test]
fn what_a_tenant_puts_for_his_jobs_output_holds_no_epilog_and_leaves_no_process() {
    // As root, with mounts.
    let _stage = or_skip!(Stage::new());
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    let (own, other) = (home.join("own.out"), home.join("other.out"));
    for file in [&own, &other] {
        fs::write(file, "").unwrap();
    }
    fs::set_permissions(&other, Permissions::from_mode(0o666)).unwrap();
    let pipe = fifo(&home, "pipe.out");
    let (link, directory) = (home.join("link.out"), home.join("directory.out"));
    symlink(&own, &link).unwrap();
    fs::create_dir(&directory).unwrap();
    for path in [&home, &own, &pipe, &directory] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let absent = home.join("absent.out");
    let zero = Path::new("/dev/zero");
    for output in [&*pipe, &link, &directory, &other, &absent, zero, Path::new("/proc/self/mem")] {
        let began = Instant::now();
        write(folder.path(), output);
        let took = began.elapsed();
        assert!(took < AT_ONCE, "{took:?} for {}", output.display());
        assert_eq!(left(&home), Vec::<String>::new(), "{}", output.display());
    }
    for file in [&own, &other] {
        assert_eq!(fs::read_to_string(file).unwrap(), "", "{}", file.display());
    }
    assert!(!absent.exists());
    write(folder.path(), &own);
    assert_eq!(fs::read_to_string(&own).unwrap(), format!("{LINE}\n"));
}

/// Programs that run another one as a user, and their options.
const AS_A_USER: &[&str] = &[
    "setpriv", "runuser", "su", "sudo", "doas", "gosu", "su-exec", "chroot", "nsenter", "--reuid",
];

#[test]
fn no_script_that_is_deployed_runs_anything_as_a_user() {
    fn files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                files(&entry.path(), found);
            } else {
                found.push(entry.path());
            }
        }
    }
    let mut all = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy"), &mut all);
    let mut scripts = 0;
    for file in all {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let is_script = text.starts_with("#!");
        scripts += usize::from(is_script);
        let is_prose = file.extension().is_some_and(|ext| ext == "md");
        for line in text.lines().filter(|line| !is_prose && !line.trim_start().starts_with('#')) {
            let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '-'));
            let found = words.find(|word| AS_A_USER.contains(word));
            assert_eq!(found, None, "{}: {line}", file.display());
            // Only gpuwho opens a path that is a user's.
            let redirects = line.contains(">\"$SLURM") || line.contains("> \"$SLURM");
            assert!(!(is_script && redirects), "{}: {line}", file.display());
        }
    }
    assert!(scripts >= 5, "{scripts}");
}
