//! The prolog and epilog of `deploy/slurm`, run by Slurm and by hand.

use super::{cluster, one};
use gpuwho_tests::or_skip;
use gpuwho_tests::slurm::{JobSpec, Plugin, Setup};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

#[test]
fn a_job_has_a_file_as_long_as_it_lives() {
    let slurm = or_skip!(cluster(Setup::of(Plugin::V1)));
    let (job, task) = one(&slurm, &JobSpec { gpus: 2, ..JobSpec::default() });
    let (id, node) = (job.id, slurm.node_names()[0]);
    let expected = format!(
        "\
SLURM_CLUSTER_NAME=lab
SLURMD_NODENAME={node}
SLURM_JOB_ID={id}
SLURM_JOB_USER=alice
SLURM_JOB_UID=20001
SLURM_JOB_GID=20001
SLURM_JOB_ACCOUNT=ml
SLURM_JOB_PARTITION=gpu
SLURM_JOB_RESTART_COUNT=0
SLURM_JOB_NUM_NODES=1
SLURM_NODELIST={node}
SLURM_JOB_NTASKS=1
SLURM_JOB_GPUS=0,1
"
    );
    let written = slurm.drop_file(id).unwrap();
    // A newer Slurm says more, which is no error here.
    let known = |line: &&str| expected.lines().any(|known| known == *line);
    let lines: Vec<_> = written.lines().filter(known).collect();
    assert_eq!(lines, expected.lines().collect::<Vec<_>>(), "of {written}");
    let file = fs::metadata(slurm.prolog_dir().join(id.to_string())).unwrap();
    assert_eq!((file.uid(), file.mode() & 0o777), (0, 0o644));
    drop(task);
    slurm.wait_ended(&job).unwrap();
    assert_eq!(fs::read_dir(slurm.prolog_dir()).unwrap().count(), 0);
}

#[test]
fn a_user_cannot_add_a_line_through_slurm() {
    let slurm = or_skip!(cluster(Setup::of(Plugin::V1)));
    let account = "ml\nSLURM_JOB_UID=0";
    let more: &[&str] = &["--comment=a\nSLURM_JOB_UID=0"];
    let spec = JobSpec { account, more, ..JobSpec::default() };
    let (job, _task) = one(&slurm, &spec);
    let written = slurm.drop_file(job.id).unwrap();
    let of = |key: &str| written.lines().filter(|line| line.starts_with(key)).collect::<Vec<_>>();
    assert_eq!(of("SLURM_JOB_UID"), ["SLURM_JOB_UID=20001"]);
    // Slurm itself makes small letters of an account's.
    assert_eq!(of("SLURM_JOB_ACCOUNT"), ["SLURM_JOB_ACCOUNT=ml?slurm_job_uid=0"]);
    assert_eq!(of("SLURM_JOB_COMMENT"), Vec::<&str>::new());
}

fn hook(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/slurm").join(name)
}

/// Runs a hook as slurmd does, with nothing else in its environment; it must not fail.
fn run(name: &str, folder: &Path, variables: &[(&str, &OsStr)]) {
    let mut command = Command::new(hook(name));
    command.arg(folder).env_clear().envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!((output.stdout, output.stderr), (Vec::new(), Vec::new()));
}

fn names(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// A folder that the hook makes by itself.
fn jobs() -> Result<(TempDir, PathBuf), &'static str> {
    if !is_root() {
        return Err("root (try sudo)");
    }
    let folder = TempDir::new().unwrap();
    let jobs = folder.path().join("gpuwho/slurm/jobs");
    Ok((folder, jobs))
}

#[test]
fn a_value_is_never_more_than_its_line() {
    let (_folder, jobs) = or_skip!(jobs());
    let values: [(&str, &[u8]); 8] = [
        ("SLURM_JOB_ID", b"7"),
        ("SLURM_JOB_USER", b"$(touch /tmp/no) `id` 'x' \"y\" \\n %s * -n"),
        ("SLURM_JOB_ACCOUNT", b"a\nSLURM_JOB_UID=0\r\t\x1b[31m\x7f\n"),
        ("SLURM_JOB_PARTITION", "größe \u{4e2d}".as_bytes()),
        ("SLURM_JOB_QOS", b"\xff\xfe \xc3"),
        ("SLURM_JOB_NAME", b"-e"),
        ("SLURM_JOB_COMMENT", b"secret"),
        ("SLURM_JOB_RESERVATION", b""),
    ];
    let variables = values.map(|(key, value)| (key, OsStr::from_bytes(value)));
    run("gpuwho-prolog.sh", &jobs, &variables);
    let expected = "\
SLURM_JOB_ID=7
SLURM_JOB_NAME=-e
SLURM_JOB_USER=$(touch /tmp/no) `id` 'x' \"y\" \\n %s * -n
SLURM_JOB_ACCOUNT=a?SLURM_JOB_UID=0???[31m??
SLURM_JOB_PARTITION=größe \u{4e2d}
SLURM_JOB_QOS=?? ?
";
    assert_eq!(fs::read_to_string(jobs.join("7")).unwrap(), expected);
    assert_eq!(names(&jobs), ["7"]);
    run("gpuwho-epilog.sh", &jobs, &variables);
    assert_eq!(names(&jobs), Vec::<OsString>::new());
}

#[test]
fn a_job_without_a_number_has_no_file() {
    let (_folder, jobs) = or_skip!(jobs());
    for id in ["", "../../etc/passwd", "7 8", "7\n8", "-1", "7.0"] {
        let variables = [("SLURM_JOB_ID", OsStr::new(id))];
        run("gpuwho-prolog.sh", &jobs, &variables);
        run("gpuwho-epilog.sh", &jobs, &variables);
        assert_eq!(names(&jobs), Vec::<OsString>::new(), "{id:?}");
    }
}

#[test]
fn nothing_is_written_where_others_may_write() {
    let (_folder, jobs) = or_skip!(jobs());
    fs::create_dir_all(&jobs).unwrap();
    let variables = [("SLURM_JOB_ID", OsStr::new("7"))];
    for mode in [0o777, 0o775] {
        fs::set_permissions(&jobs, Permissions::from_mode(mode)).unwrap();
        run("gpuwho-prolog.sh", &jobs, &variables);
        assert_eq!(names(&jobs), Vec::<OsString>::new());
    }
    fs::set_permissions(&jobs, Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&jobs, Some(54_321), None).unwrap();
    run("gpuwho-prolog.sh", &jobs, &variables);
    assert_eq!(names(&jobs), Vec::<OsString>::new());
}

#[test]
fn a_folder_that_cannot_be_had_fails_no_job() {
    let (folder, _jobs) = or_skip!(jobs());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let variables = [("SLURM_JOB_ID", OsStr::new("7"))];
    run("gpuwho-prolog.sh", &file, &variables);
    run("gpuwho-prolog.sh", &file.join("below"), &variables);
    run("gpuwho-epilog.sh", &file.join("below"), &variables);
}

#[test]
fn an_epilog_removes_its_own_job_only() {
    let (_folder, jobs) = or_skip!(jobs());
    for id in ["7", "77"] {
        run("gpuwho-prolog.sh", &jobs, &[("SLURM_JOB_ID", OsStr::new(id))]);
    }
    // What a prolog that was killed leaves.
    fs::write(jobs.join(".7.1234"), "").unwrap();
    run("gpuwho-epilog.sh", &jobs, &[("SLURM_JOB_ID", OsStr::new("7"))]);
    assert_eq!(names(&jobs), ["77"]);
}

#[test]
fn each_slurm_leaves_what_it_knows() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/slurm");
    let fixture = |name: String| fs::read_to_string(fixtures.join(name)).unwrap();
    for version in ["het-component-22.05.8", "25.11.8"] {
        let (_folder, jobs) = or_skip!(jobs());
        let environment = fixture(format!("prolog-environment-{version}.txt"));
        let pairs = environment.lines().filter_map(|line| line.split_once('='));
        let variables: Vec<_> = pairs.map(|(key, value)| (key, OsStr::new(value))).collect();
        run("gpuwho-prolog.sh", &jobs, &variables);
        let files: Vec<_> = names(&jobs).iter().map(|name| jobs.join(name)).collect();
        let written: Vec<_> = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        assert_eq!(written, [fixture(format!("drop-file-{version}.txt"))]);
    }
}

/// Runs the hook of receipts where these scripts are the agent and Slurm: it looks in `/usr/sbin` first.
pub(crate) fn receipt(
    folder: &Path,
    programs: &[(&str, &str)],
    argument: &[&str],
    user: [&str; 3],
) {
    let path = folder.join("programs");
    fs::create_dir_all(&path).unwrap();
    for (name, script) in programs {
        let program = path.join(name);
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.args(["mount --bind \"$1\" /usr/sbin && shift && exec \"$@\"", "sh"]).arg(path);
    command.arg(hook("gpuwho-receipt.sh")).args(argument);
    command.envs([("SLURM_JOB_ID", "7"), ("SLURMD_NODENAME", "node-7")]);
    let [uid, gid, output] = user;
    command.envs([("SLURM_JOB_UID", uid), ("SLURM_JOB_GID", gid), ("SLURM_JOB_STDOUT", output)]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!((output.stdout, output.stderr), (Vec::new(), Vec::new()));
}

/// What the agent says, with the words it was asked with; the hook takes one line. The real one writes it.
pub(crate) fn answers() -> String {
    let real = gpuwho_tests::program::gpuwho().unwrap();
    let real = real.display();
    format!(
        "case $1 in append-line) exec {real} \"$@\" ;; esac; echo \"gpu_hours=1 of $*\"; echo more"
    )
}

pub(crate) const LINE: &str = "gpuwho node-7: gpu_hours=1 of receipt --line slurm_job/7";

#[test]
fn a_receipt_is_a_line_of_the_jobs_output_that_its_user_writes() {
    let (folder, _jobs) = or_skip!(jobs());
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(54_321), Some(54_322)).unwrap();
    let output = home.join("job.out");
    let user =
        |output: &Path| ["54321".to_owned(), "54322".to_owned(), output.display().to_string()];
    let run = |programs: &[_], [uid, gid, output]: [String; 3]| {
        receipt(folder.path(), programs, &[], [&uid, &gid, &output]);
    };
    let answers = answers();
    let answers = ("gpuwho", answers.as_str());
    run(&[answers], user(&output));
    assert!(!output.exists(), "a job whose output is gone gets none");
    fs::write(&output, "").unwrap();
    std::os::unix::fs::chown(&output, Some(54_321), Some(54_322)).unwrap();
    run(&[("gpuwho", "exit 7")], user(&output));
    let is_empty = fs::read_to_string(&output).unwrap().is_empty();
    assert!(is_empty, "a job without a device has no receipt");
    for lines in 1..=2 {
        run(&[answers], user(&output));
        assert_eq!(fs::read_to_string(&output).unwrap(), format!("{LINE}\n").repeat(lines));
    }
    let file = fs::metadata(&output).unwrap();
    assert_eq!((file.uid(), file.gid()), (54_321, 54_322));
    // What the user may not write, the hook does not write for them.
    let of_root = folder.path().join("of-root");
    fs::write(&of_root, "").unwrap();
    std::os::unix::fs::symlink(&of_root, home.join("link")).unwrap();
    run(&[answers], user(&home.join("link")));
    run(&[answers], ["0x".to_owned(), "0".to_owned(), of_root.display().to_string()]);
    assert_eq!(fs::read_to_string(&of_root).unwrap(), "");
}

#[test]
fn a_receipt_can_be_the_jobs_comment() {
    let (folder, _jobs) = or_skip!(jobs());
    let asked = folder.path().join("asked");
    let slurm = format!("printf '%s\\n' \"$@\" >'{}'", asked.display());
    receipt(
        folder.path(),
        &[("gpuwho", &answers()), ("scontrol", &slurm)],
        &["admincomment"],
        ["", "", ""],
    );
    let expected = format!("update\nJobId=7\nAdminComment={LINE}\n");
    assert_eq!(fs::read_to_string(asked).unwrap(), expected);
}
