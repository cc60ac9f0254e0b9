use super::*;
use gpuwho_model::catalog::cgroup::{
    self as metric, CgroupCpuMode, PressureResource, PressureStall,
};
use gpuwho_model::catalog::level::Level;
use gpuwho_model::catalog::selection::Selection;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::sample::Sample;
use gpuwho_owners::attribute::Evidence;
use gpuwho_owners::attribute::fake::{FakeHost, opened};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const KEY: ProcKey = ProcKey { pid: 7, start_ticks: 100 };
const JOB: &str = "/slurm/uid_1000/job_5";

/// A cgroup's files, as directories and files that stand for a hierarchy.
fn group(root: &Path, path: &str, files: &[(&str, &str)]) {
    fs::create_dir_all(root).unwrap();
    fs::write(root.join("cgroup.procs"), "").unwrap();
    let folder = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// The files of a cgroup of version 2, as Linux 6.18 writes them.
const V2: &[(&str, &str)] = &[
    (
        "cpu.stat",
        "usage_usec 6500000\nuser_usec 4250000\nsystem_usec 2250000\nnice_usec 0\n\
         core_sched.force_idle_usec 0\nnr_periods 40\nnr_throttled 7\nthrottled_usec 1500000\n\
         nr_bursts 0\nburst_usec 0\n",
    ),
    ("cpu.max", "150000 100000\n"),
    ("memory.current", "5000000\n"),
    ("memory.max", "8000000\n"),
    ("memory.stat", "anon 3000000\nfile 2000000\ninactive_anon 1\ninactive_file 1250000\n"),
    (
        "cpu.pressure",
        "some avg10=1.00 avg60=0.50 avg300=0.10 total=2500000\n\
         full avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n",
    ),
    ("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=250000\n"),
];

/// The same of the controllers of version 1.
const CPUACCT: &[(&str, &str)] =
    &[("cpuacct.usage_user", "4250000000\n"), ("cpuacct.usage_sys", "2250000000\n")];
const CPU: &[(&str, &str)] = &[
    ("cpu.stat", "nr_periods 40\nnr_throttled 7\nthrottled_time 1500000000\n"),
    ("cpu.cfs_quota_us", "150000\n"),
    ("cpu.cfs_period_us", "100000\n"),
];
const MEMORY: &[(&str, &str)] = &[
    ("memory.usage_in_bytes", "5000000\n"),
    ("memory.limit_in_bytes", "8000000\n"),
    ("memory.stat", "rss 1\ninactive_file 1\ntotal_rss 3000000\ntotal_inactive_file 1250000\n"),
];

struct Scene {
    host: FakeHost,
    ownership: Ownership,
    metrics: CgroupMetrics,
}

impl Scene {
    fn new() -> Self {
        let host = FakeHost::new();
        let ownership = Ownership::with_clock(&host.paths, || 2_000_000_000);
        let metrics = CgroupMetrics::new(&host.paths, ownership.clone());
        Self { host, ownership, metrics }
    }

    /// A process holds a device.
    fn holds(&self, process: ProcKey, cgroup: &str) -> OwnerCgroup {
        self.host.start(process, "python", &format!("0::{cgroup}\n"));
        self.ownership.observe(Evidence::Opened(opened(process, 1, 1_500_000_000)));
        OwnerCgroup(self.ownership.attribution(process).unwrap().owner)
    }

    fn read(&mut self) -> Vec<Sample> {
        let mut batch = Batch::new(NAME, SystemTime::now());
        self.metrics.collect(&mut batch);
        batch.samples.into_iter().map(|(_, sample)| sample).collect()
    }
}

fn without_pressure(owner: OwnerCgroup) -> Vec<Sample> {
    [usage(owner), limits(owner)].concat()
}

fn usage(owner: OwnerCgroup) -> Vec<Sample> {
    vec![
        metric::CPU_TIME.sample(owner, CgroupCpuMode::User, 4.25),
        metric::CPU_TIME.sample(owner, CgroupCpuMode::System, 2.25),
        metric::CPU_THROTTLED.sample(owner, (), 1.5),
        metric::MEMORY_USAGE.sample(owner, (), 5_000_000),
        metric::MEMORY_WORKING_SET.sample(owner, (), 3_750_000),
        metric::MEMORY_RSS.sample(owner, (), 3_000_000),
    ]
}

fn limits(owner: OwnerCgroup) -> Vec<Sample> {
    vec![
        metric::CPU_LIMIT.sample(owner, (), 1.5),
        metric::MEMORY_LIMIT.sample(owner, (), 8_000_000),
    ]
}

fn with_pressure(owner: OwnerCgroup) -> Vec<Sample> {
    let time = |of: (PressureResource, PressureStall), seconds| {
        metric::PRESSURE_TIME.sample(owner, of, seconds)
    };
    let mut samples = usage(owner);
    samples.extend([
        time((PressureResource::Cpu, PressureStall::Some), 2.5),
        time((PressureResource::Cpu, PressureStall::Full), 0.5),
        time((PressureResource::Memory, PressureStall::Some), 0.25),
    ]);
    samples.extend(limits(owner));
    samples
}

#[test]
fn a_jobs_resources_are_those_of_its_own_directory_whatever_version_it_is_in() {
    let mut scene = Scene::new();
    let root = scene.host.paths.cgroup.clone();
    group(&root, JOB, V2);
    group(&root, &format!("{JOB}/step_0/task_0"), &[("memory.current", "1\n")]);
    let owner = scene.holds(KEY, &format!("{JOB}/step_0/task_0"));
    assert_eq!(scene.read(), with_pressure(owner));

    let mut scene = Scene::new();
    let root = scene.host.paths.cgroup.clone();
    for (controller, files) in [("memory", MEMORY), ("cpu", CPU), ("cpuacct", CPUACCT)] {
        group(&root.join(controller), JOB, files);
    }
    let owner = scene.holds(KEY, &format!("{JOB}/step_0/task_0"));
    assert_eq!(scene.read(), without_pressure(owner));
    // Hybrid: pressure is of the unified hierarchy, and so is what has no controller of version 1.
    group(&root.join("unified"), JOB, V2);
    fs::remove_dir_all(root.join("cpuacct")).unwrap();
    fs::remove_dir_all(root.join("cpu")).unwrap();
    scene.metrics.owners.clear();
    scene.metrics.version = None;
    assert_eq!(scene.read(), with_pressure(owner));
    assert_eq!(scene.metrics.report(), Report::ready());
}

#[test]
fn what_a_file_does_not_say_is_not_sent() {
    let mut scene = Scene::new();
    let root = scene.host.paths.cgroup.clone();
    let files = [
        ("cpu.max", "max 100000\n"),
        ("cpu.stat", "usage_usec x\nuser_usec -1\nsystem_usec 1000000\n"),
        ("memory.max", "max\n"),
        ("memory.current", ""),
        ("cpu.pressure", "some avg10=nonsense\n"),
    ];
    group(&root, JOB, &files);
    let owner = scene.holds(KEY, JOB);
    let system = [metric::CPU_TIME.sample(owner, CgroupCpuMode::System, 1.0)];
    assert_eq!(scene.read(), system);
    group(&root, JOB, &[("cpu.max", "100000 0\n")]);
    assert_eq!(scene.read(), system);
}

#[test]
fn a_cgroup_that_goes_ends_and_one_of_the_same_name_is_another() {
    let mut scene = Scene::new();
    let root = scene.host.paths.cgroup.clone();
    group(&root, JOB, &[("memory.current", "1\n")]);
    let owner = scene.holds(KEY, JOB);
    let usage = |bytes| vec![metric::MEMORY_USAGE.sample(owner, (), bytes)];
    assert_eq!(scene.read(), usage(1));
    let folder = root.join(&JOB[1..]);
    fs::rename(&folder, root.join("away")).unwrap();
    group(&root, JOB, &[("memory.current", "2\n")]);
    assert_eq!(scene.read(), usage(1), "it is still the directory that was opened");
    // Where the kernel has removed a cgroup, its open files give an error.
    fs::write(root.join("away/memory.current"), "").unwrap();
    fs::remove_dir_all(root.join("away")).unwrap();
    assert_eq!(scene.read(), [], "gone between two readings");
    assert_eq!(scene.read(), usage(2));
    // Who holds no device any more is not read.
    scene.ownership.observe(Evidence::Exited { process: KEY, at_ns: 1_900_000_000 });
    assert_eq!(scene.read(), []);
    assert_eq!(scene.metrics.owners.len(), 0);
}

#[test]
fn links_and_climbing_names_lead_nowhere() {
    let mut scene = Scene::new();
    let root = scene.host.paths.cgroup.clone();
    group(&root, "/elsewhere", &[("memory.current", "1\n")]);
    fs::create_dir_all(root.join("slurm/uid_1000")).unwrap();
    std::os::unix::fs::symlink(root.join("elsewhere"), root.join(&JOB[1..])).unwrap();
    scene.holds(KEY, JOB);
    assert_eq!(scene.read(), []);
    fs::remove_file(root.join(&JOB[1..])).unwrap();
    group(&root, JOB, &[]);
    let file = root.join(&JOB[1..]).join("memory.current");
    std::os::unix::fs::symlink(root.join("elsewhere/memory.current"), file).unwrap();
    assert_eq!(scene.read(), []);
    let roots = Roots::find(&scene.host.paths);
    for path in ["/slurm/../elsewhere", "/./elsewhere", &"/a".repeat(100_000)] {
        assert!(roots.open(path).unified.is_none(), "{}", &path[..10]);
    }
    assert!(roots.open("/elsewhere").unified.is_some());
}

#[test]
fn owners_beyond_the_bound_and_the_time_are_left_out_and_counted() {
    let mut scene = Scene::new();
    let root = scene.host.paths.cgroup.clone();
    let more = u32::try_from(MAX_OWNERS).unwrap() + 2;
    for number in 0..more {
        let path = format!("/slurm/uid_1000/job_{}", number + 1);
        group(&root, &path, &[("memory.current", "1\n")]);
        scene.holds(ProcKey { pid: 10 + number, start_ticks: 100 }, &path);
    }
    let first = scene.read();
    assert_eq!((first.len(), scene.metrics.left_out), (MAX_OWNERS, 2));
    assert_eq!(scene.metrics.report().state, SourceState::Degraded);
    assert!(first == scene.read(), "always the same");
    let open = |scene: &Scene| {
        let open = scene.metrics.owners.values().filter(|cgroup| cgroup.directory.is_some());
        open.count()
    };
    assert_eq!(open(&scene), scene.metrics.max_open);
    scene.metrics.max_open = 42;
    assert!(first == scene.read(), "the others are opened for each reading");
    assert_eq!(open(&scene), 42);
    let mut batch = Batch::new(NAME, SystemTime::now());
    scene.metrics.collect_within(Duration::ZERO, &mut batch);
    assert_eq!((batch.samples.len(), scene.metrics.left_out), (0, MAX_OWNERS + 2));
}

#[test]
fn an_owner_in_several_cgroups_that_name_it_has_none_of_its_own() {
    let mut scene = Scene::new();
    let root = scene.host.paths.cgroup.clone();
    let allocation = "/nomad.slice/share.slice/11111111-2222-3333-4444-555555555555";
    let path = |task| format!("{allocation}.{task}.scope");
    for task in ["a", "b"] {
        group(&root, &path(task), &[("memory.current", "1\n")]);
    }
    let owner = scene.holds(KEY, &path("a"));
    assert_eq!(scene.read(), [metric::MEMORY_USAGE.sample(owner, (), 1)]);
    assert_eq!(scene.holds(ProcKey { pid: 8, ..KEY }, &path("b")), owner);
    assert_eq!(scene.read(), []);
}

#[test]
fn a_host_without_cgroups_says_so() {
    let mut scene = Scene::new();
    assert_eq!(scene.read(), []);
    let report = scene.metrics.report();
    assert_eq!(report.state, SourceState::Absent);
    assert!(report.reason.contains("no cgroup hierarchy is mounted at "), "{}", report.reason);
}

#[test]
fn what_nobody_receives_is_not_read_and_limits_seldom() {
    let mut scene = Scene::new();
    let root = scene.host.paths.cgroup.clone();
    group(&root, JOB, V2);
    let owner = scene.holds(KEY, JOB);
    let of = |level| Selection::new(level, &[], &[]).unwrap();
    let selection = SharedSelection::new(of(Level::Basic));
    scene.metrics.selection = Some(selection.clone());
    assert_eq!((scene.read(), scene.metrics.report()), (vec![], Report::ready()));
    assert_eq!(scene.metrics.owners.len(), 0, "nor is anything open");
    selection.set(of(Level::Default));
    assert_eq!(scene.read(), without_pressure(owner));
    group(&root, JOB, &[("memory.max", "9000000\n"), ("memory.current", "6000000\n")]);
    let memory = |samples: &[Sample]| {
        let of = |sample: &Sample, metric: &str| {
            let gpuwho_model::sample::Value::Int(value) = sample.value else { return None };
            (sample.metric.name == metric).then_some(value)
        };
        ["container.memory.usage", "cgroup.memory.limit"]
            .map(|metric| samples.iter().find_map(|sample| of(sample, metric)))
    };
    assert_eq!(memory(&scene.read()), [Some(6_000_000), Some(8_000_000)]);
    for cgroup in scene.metrics.owners.values_mut() {
        let (at, _) = cgroup.limits.0.as_mut().unwrap();
        *at = at.checked_sub(LIMITS_EVERY).unwrap();
    }
    assert_eq!(memory(&scene.read()), [Some(6_000_000), Some(9_000_000)]);
}

#[test]
fn a_file_longer_than_a_buffer_is_read_whole() {
    let mut scene = Scene::new();
    let root = scene.host.paths.cgroup.clone();
    let stat = format!("{}anon 3000000\n", "some_event_of_the_kernel 0\n".repeat(300));
    group(&root, JOB, &[("memory.stat", &stat)]);
    let owner = scene.holds(KEY, JOB);
    assert_eq!(scene.read(), [metric::MEMORY_RSS.sample(owner, (), 3_000_000)]);
}

#[test]
fn the_bound_of_open_cgroups_follows_the_limit_of_descriptors() {
    let bounds = [Some(1_024), Some(4_096), Some(65_536), None].map(max_open);
    assert_eq!(bounds, [21, 85, MAX_OWNERS, MAX_OWNERS]);
}

#[test]
fn memory_stat_is_read_seldom_and_owners_that_come_together_by_turns() {
    let mut scene = Scene::new();
    let root = scene.host.paths.cgroup.clone();
    group(&root, JOB, V2);
    let owner = scene.holds(KEY, JOB);
    assert_eq!(scene.read(), with_pressure(owner));
    group(&root, JOB, &[("memory.stat", "anon 4\ninactive_file 5\n")]);
    assert_eq!(scene.read(), with_pressure(owner), "known");
    group(&root, JOB, &[("memory.current", ""), ("cpu.stat", ""), ("cpu.pressure", "")]);
    group(&root, JOB, &[("memory.pressure", "")]);
    let rss = metric::MEMORY_RSS.sample(owner, (), 4);
    assert_eq!(scene.read()[0], rss, "it may be gone: read again");

    let age = |number| {
        let mut memory = Seldom::default();
        let owner = OwnerCgroup(OwnerId::numbered(number));
        memory.get(MEMORY_EVERY, owner, || 7);
        let (at, value) = memory.0.unwrap();
        assert_eq!(value, 7);
        at.elapsed().as_millis() / 250
    };
    assert_eq!([16, 17, 31].map(age), [0, 1, 15]);
}

/// A cgroup of the kernel's, which ends with the test.
struct Kernels(PathBuf);

impl Drop for Kernels {
    fn drop(&mut self) {
        // It may be gone.
        let _ = fs::remove_dir(&self.0);
    }
}

/// The kernel keeps a cgroup that somebody holds: as many as die without having gone.
#[test]
fn a_cgroup_that_is_removed_is_closed_at_the_next_reading_and_goes() {
    let mut scene = Scene::new();
    scene.metrics.paths.cgroup = "/sys/fs/cgroup".into();
    let name = format!("gpuwho-test-{}", std::process::id());
    let root = gpuwho_owners::proc_scan::unified_root(&scene.metrics.paths);
    let Some(parent) = root.map(|root| Kernels(root.join(&name))) else {
        return println!("skipped: needs cgroup version 2");
    };
    let path = format!("docker-{}.scope", "0123456789abcdef".repeat(4));
    let folder = Kernels(parent.0.join(&path));
    if fs::create_dir_all(&folder.0).is_err() {
        return println!("skipped: needs root and a writable cgroup2 mount");
    }
    scene.holds(KEY, &format!("/{name}/{path}"));
    let open = || {
        let all = fs::read_dir("/proc/self/fd").unwrap();
        let paths = all.filter_map(|one| fs::read_link(one.unwrap().path()).ok());
        paths.filter(|open| open.to_string_lossy().contains(&path)).count()
    };
    assert_ne!((scene.read(), open()), (Vec::new(), 0));
    fs::remove_dir(&folder.0).unwrap();
    assert_eq!((scene.read(), open()), (Vec::new(), 0));
    let end = Instant::now() + Duration::from_secs(10);
    let dying = || fs::read_to_string(parent.0.join("cgroup.stat")).unwrap();
    while !dying().contains("nr_dying_descendants 0\n") {
        assert!(Instant::now() < end, "{}", dying());
        std::thread::sleep(Duration::from_millis(10));
    }
}
