use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use tempfile::TempDir;

fn recorded(name: &str) -> String {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/slurm");
    fs::read_to_string(dir.join(name)).unwrap()
}

fn place(dir: &TempDir, name: &str) -> PathBuf {
    let path = dir.path().join(name);
    fs::create_dir(&path).unwrap();
    set_mode(&path, 0o755);
    path
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    set_mode(path, 0o644);
}

fn files(dir: &TempDir) -> (DropFiles, PathBuf, PathBuf, PathBuf) {
    let (jobs, map, gpustat) = (place(dir, "jobs"), place(dir, "map"), place(dir, "gpustat"));
    let settings = Settings {
        jobs: jobs.clone(),
        gpu_map: Some(map.clone()),
        gpustat: gpustat.clone(),
        environment: true,
        pod_namespaces: Vec::new(),
    };
    (DropFiles::new(&settings), jobs, map, gpustat)
}

#[test]
fn recorded_prolog_files_name_their_job() {
    let dir = tempfile::tempdir().unwrap();
    let (files, jobs, ..) = files(&dir);
    write(&jobs.join("7"), &recorded("prolog-job7-22.05.8.env"));
    write(&jobs.join("21"), &recorded("prolog-het-22.05.8.env"));
    write(&jobs.join("1"), &recorded("prolog-25.11.8.env"));
    let of = |job, labels: &[Label]| {
        let claims = files.job(job).unwrap();
        labels.iter().map(|label| claims.label(*label).unwrap_or("-").to_owned()).collect()
    };
    let labels = [Label::Account, Label::Partition, Label::User, Label::Gpus, Label::Nodes];
    let values: Vec<String> = of(7, &labels);
    assert_eq!(values, ["ml", "gpu", "alice", "0,1", "gpu01"]);
    let values: Vec<String> = of(21, &[Label::HetJob, Label::Partition, Label::Restarts]);
    assert_eq!(values, ["20", "debug", "0"]);
    let (number, claims) = files.run(&SlurmJobId::new("s8J1M7XYHE1Z00")).unwrap();
    assert_eq!((number, claims.label(Label::User)), (1, Some("alice")));
    assert_eq!(files.run(&SlurmJobId::new("s8J1M7XYHE1Z01")), None);
}

#[test]
fn a_file_that_others_can_write_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (files, jobs, ..) = files(&dir);
    let file = jobs.join("5");
    write(&file, "SLURM_JOB_ID=5\n");
    assert!(files.job(5).is_some());
    for mode in [0o664, 0o646] {
        set_mode(&file, mode);
        assert_eq!(files.job(5), None, "{mode:o}");
    }
    set_mode(&file, 0o644);
    set_mode(&jobs, 0o777);
    assert_eq!(files.job(5), None);
    assert!(files.jobs.warned.load(Ordering::Relaxed));
}

#[test]
fn another_users_file_is_rejected() {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (files, jobs, ..) = files(&dir);
    write(&jobs.join("5"), "SLURM_JOB_ID=5\n");
    std::os::unix::fs::chown(jobs.join("5"), Some(1000), None).unwrap();
    assert_eq!(files.job(5), None);
}

#[test]
fn links_pipes_and_files_of_another_job_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let (files, jobs, ..) = files(&dir);
    write(&dir.path().join("elsewhere"), "SLURM_JOB_ID=5\n");
    symlink(dir.path().join("elsewhere"), jobs.join("5")).unwrap();
    assert_eq!(files.job(5), None);
    write(&jobs.join("6"), "SLURM_JOB_ID=7\nSLURM_JOB_ACCOUNT=ml\n");
    assert_eq!(files.job(6), None);
    let mode = Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, jobs.join("8"), FileType::Fifo, mode, 0).unwrap();
    assert_eq!(files.job(8), None);
}

#[test]
fn mapping_files_of_other_tools_give_the_gpus() {
    let dir = tempfile::tempdir().unwrap();
    let (files, _, map, gpustat) = files(&dir);
    write(&gpustat.join("0"), "7 20001\n");
    write(&gpustat.join("1"), "8 20002\n");
    write(&gpustat.join("GPU-4e1a"), "7 20001\n");
    assert_eq!(files.gpus(7).as_deref(), Some("GPU-4e1a"));
    assert_eq!(files.gpus(8).as_deref(), Some("1"));
    assert_eq!(files.gpus(70), None);
    // dcgm-exporter's directory comes first: a file for each GPU or MIG instance, with a job on
    // each line.
    write(&map.join("10"), "7\n9\n");
    write(&map.join("2"), "9\n");
    write(&map.join("0.3"), "9\n");
    write(&map.join(".hidden"), "9\n");
    assert_eq!(files.gpus(9).as_deref(), Some("2,10,0.3"));
    assert_eq!(files.gpus(7).as_deref(), Some("10"));
}
