//! A tree as Slurm 26.05 makes it, of real processes in real cgroups of this host. Needs root and a
//! writable cgroup2 mount; skipped with the reason without them.

use super::*;
use crate::attribute::hierarchies::Hierarchies;
use crate::attribute::ownership::Ownership;
use crate::attribute::users::Users;
use crate::attribute::{Evidence, Opened};
use crate::host::boot_time_ns;
use crate::tenant_files::TenantFiles;
use gpuwho_sys::bpf::fixture::{attach_device_program, unified};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const SLUID: &str = "sDNDM7XZ1H3600";
const USER: u32 = 65_534;

/// `…/slurmstepd.scope/SLUID/step_0/{slurm,user/task_0}`; removed when dropped.
struct Tree {
    mount: PathBuf,
    root: String,
    job: String,
    programs: TempDir,
    children: Vec<Child>,
}

impl Tree {
    fn make(test: &str) -> Option<Self> {
        let mount = unified();
        let root = format!("/gpuwho-test-{test}-{}", std::process::id());
        let job = format!("{root}/slurmstepd.scope/{SLUID}");
        let made = mount.as_ref().is_some_and(|mount| {
            ["slurm", "user/task_0"].iter().all(|place| {
                fs::create_dir_all(mount.join(&job[1..]).join("step_0").join(place)).is_ok()
            })
        });
        let Some(mount) = mount.filter(|_| made && rustix::process::geteuid().is_root()) else {
            eprintln!("skipped: needs root and a writable cgroup2 mount");
            return None;
        };
        let programs = tempfile::tempdir().unwrap();
        Some(Self { mount, root, job, programs, children: Vec::new() })
    }

    fn directory(&self, path: &str) -> PathBuf {
        self.mount.join(&path[1..])
    }

    /// Starts a `sleep` named `program`, with this title, in a cgroup of the job.
    fn start(&mut self, program: &str, place: &str, prepare: impl FnOnce(&mut Command)) -> u32 {
        let file = self.programs.path().join(program);
        if !file.exists() {
            // As on Debian: `slurmstepd` is a link to `slurmstepd-wlm`.
            let target = self.programs.path().join(format!("{program}-wlm"));
            fs::copy("/bin/sleep", &target).unwrap();
            symlink(target, &file).unwrap();
        }
        let mut command = Command::new(file);
        command.arg("600").stdin(Stdio::null());
        prepare(&mut command);
        // Another test's child may hold the copy open for writing for an instant, until its exec.
        let child = loop {
            match command.spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                other => break other.unwrap(),
            }
        };
        let procs = self.directory(&self.job).join(place).join("cgroup.procs");
        fs::write(procs, child.id().to_string()).unwrap();
        let pid = child.id();
        self.children.push(child);
        pid
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for place in ["step_0/slurm", "step_0/user/task_0", "step_0/user", "step_0", ""] {
            remove(&self.directory(&self.job).join(place));
        }
        remove(&self.directory(&format!("{}/slurmstepd.scope", self.root)));
        remove(&self.directory(&self.root));
    }
}

fn remove(directory: &Path) {
    // A directory that cannot be removed is empty and has a unique name.
    let _ = fs::remove_dir(directory);
}

fn observe(table: &Ownership, pid: u32) -> Arc<ProcessAttribution> {
    let living = Living::find(&Paths::default(), pid).unwrap();
    table.observe(Evidence::Opened(Opened {
        process: living.key,
        uid: living.uid().unwrap(),
        comm: Arc::clone(&living.comm),
        cgroups: KernelCgroups::default(),
        node: Arc::from("/dev/nvidia0"),
        at_ns: boot_time_ns(),
    }));
    table.attribution(living.key).unwrap()
}

/// `r4 = major; r5 = minor; if r4 != 240 goto +3; if r5 != MINOR goto +2; r0 = 1; exit; r0 = 0; exit`
fn allow_one(minor: u8) -> [[u8; 8]; 8] {
    [
        [0x61, 0x14, 4, 0, 0, 0, 0, 0],
        [0x61, 0x15, 8, 0, 0, 0, 0, 0],
        [0x55, 0x04, 3, 0, 240, 0, 0, 0],
        [0x55, 0x05, 2, 0, minor, 0, 0, 0],
        [0xb7, 0x00, 0, 0, 1, 0, 0, 0],
        [0x95, 0x00, 0, 0, 0, 0, 0, 0],
        [0xb7, 0x00, 0, 0, 0, 0, 0, 0],
        [0x95, 0x00, 0, 0, 0, 0, 0, 0],
    ]
}

#[test]
fn a_real_26_05_tree_gives_number_names_and_devices() {
    let Some(mut tree) = Tree::make("sluid") else { return };
    let job = fs::File::open(tree.directory(&tree.job)).unwrap();
    let attached = attach_device_program(job.as_fd(), c"Slurm_Cgroup_v2", &allow_one(3));
    tree.start("slurmstepd", "step_0/slurm", |command| {
        command.arg0("slurmstepd: [123.0]");
    });
    let task = tree.start("train", "step_0/user/task_0", |command| {
        let variables = [
            ("SLURM_JOB_ID", "123"),
            ("SLURM_JOB_SLUID", SLUID),
            ("SLURM_JOB_NAME", "train"),
            ("SLURM_ARRAY_JOB_ID", "120"),
            ("SLURM_ARRAY_TASK_ID", "3"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_PROCID", "4"),
        ];
        command.env_clear().envs(variables).uid(USER);
    });
    // The job is known before any process is resolved.
    let table = Ownership::new(&Paths::default());
    let is_ours = |job: &&Arc<Job>| *job.path == *tree.job;
    assert!(table.jobs().iter().any(|job| is_ours(&job)));

    let owner = observe(&table, task);
    let slurm = owner.workload.slurm.as_ref().unwrap();
    let facts = slurm.facts.as_ref().unwrap();
    let fact = |label: Label| facts.get(label).map(|fact| (&*fact.value, fact.source.as_str()));
    assert_eq!(fact(Label::JobId), Some(("123", "slurmstepd")));
    assert_eq!(fact(Label::Sluid), Some((SLUID, "cgroup")));
    assert_eq!(fact(Label::Name), Some(("train", "environment")));
    assert_eq!(fact(Label::ArrayTask), Some(("3", "environment")));
    assert_eq!(fact(Label::Uid), Some(("65534", "process")));
    assert_eq!(slurm.rank.as_ref().unwrap().rank, Some(4));
    let jobs = table.jobs();
    let devices = &jobs.iter().find(is_ours).unwrap().devices;
    match attached {
        Ok(()) => assert_eq!(
            *devices,
            DeviceAccess::Known {
                allowed: vec![DeviceNumber { major: 240, minor: 3 }],
                denied: Vec::new()
            }
        ),
        Err(_) => assert_eq!(*devices, DeviceAccess::Unknown(Undecided::NoProgram)),
    }
}

#[test]
fn a_real_process_with_slurmstepds_title_that_is_not_roots_gives_no_number() {
    let Some(mut tree) = Tree::make("forged") else { return };
    tree.start("slurmstepd", "step_0/slurm", |command| {
        command.arg0("slurmstepd: [99.0]").uid(USER);
    });
    // Root's, but another program.
    tree.start("sleep", "step_0/slurm", |command| {
        command.arg0("slurmstepd: [98.0]");
    });
    let task = tree.start("train", "step_0/user/task_0", |command| {
        command.env_clear().env("SLURM_JOB_ID", "97").uid(USER);
    });
    let owner = observe(&Ownership::new(&Paths::default()), task);
    let slurm = owner.workload.slurm.as_ref().unwrap();
    assert_eq!((&*slurm.number(), slurm.job.as_str()), (SLUID, SLUID));
}

#[test]
fn a_real_environment_of_the_largest_size_names_the_job_or_nothing() {
    let Some(mut tree) = Tree::make("large") else { return };
    tree.start("slurmstepd", "step_0/slurm", |command| {
        command.arg0("slurmstepd: [123.0]");
    });
    // The first variable is within the limit; all beyond 128 KiB are not read.
    let filler = "x".repeat(100_000);
    let first = tree.start("first", "step_0/user/task_0", |command| {
        let variables = [("A", &*filler), ("SLURM_JOB_ID", "123"), ("SLURM_JOB_NAME", "forged")];
        command.env_clear().envs(variables).env("Z", &filler).uid(USER);
    });
    let table = Ownership::new(&Paths::default());
    let owner = observe(&table, first);
    let number = owner.workload.slurm.as_ref().unwrap().number();
    assert_eq!((&*number, owner.uid), ("123", USER));
}

/// CPU time of this thread.
fn cpu_micros() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

#[test]
fn reading_a_real_process_and_its_job_takes_little() {
    const TIMES: u32 = 2_000;
    let Some(mut tree) = Tree::make("cost") else { return };
    tree.start("slurmstepd", "step_0/slurm", |command| {
        command.arg0("slurmstepd: [123.0]");
    });
    let job = fs::File::open(tree.directory(&tree.job)).unwrap();
    // Without it the read ends one call earlier.
    let _ = attach_device_program(job.as_fd(), c"Slurm_Cgroup_v2", &allow_one(3));
    let task = tree.start("train", "step_0/user/task_0", |command| {
        command.env("SLURM_JOB_ID", "123").env("SLURM_JOB_NAME", "train").uid(USER);
    });
    let table = Ownership::new(&Paths::default());
    observe(&table, task);
    let hierarchies = Hierarchies::new(&Paths::default());
    let users = Users::new(&Paths::default().passwd);
    let slurm = Slurm::new(
        &TenantFiles::direct(&Paths::default()),
        Settings::default_settings(&Paths::default()),
        &hierarchies,
    );
    let living = Living::find(&Paths::default(), task).unwrap();
    let directory = tree.directory(&tree.job);
    let micros = |what: &str, work: &dyn Fn()| {
        let start = cpu_micros();
        (0..TIMES).for_each(|_| work());
        let each = (cpu_micros() - start) / f64::from(TIMES);
        eprintln!("{what}: {each:.1} us");
        each
    };
    let environment = micros("an environment", &|| drop(slurm.environment(&living)));
    let devices = micros("a device program", &|| drop(devices::read(&directory)));
    let whole = micros("all of a job", &|| slurm.inspect(&hierarchies, &users, &tree.job, None));
    let tick = micros("a tick without news", &|| drop(slurm.expire(&hierarchies, &users, 1)));
    // Many times what an optimised build takes: it only detects unnecessary reads.
    let limits = [(environment, 1_000.0), (devices, 1_000.0), (whole, 10_000.0), (tick, 100.0)];
    for (took, limit) in limits {
        assert!(took < limit, "{took} us");
    }
}
