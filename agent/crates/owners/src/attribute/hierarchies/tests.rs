use super::*;
use crate::attribute::fake::{FakeHost, v2};

fn mounts(text: &str) -> Vec<(Hierarchy, String)> {
    let found = parse_mountinfo(text, Path::new("/sys/fs/cgroup"));
    found.into_iter().map(|(hierarchy, at)| (hierarchy, at.display().to_string())).collect()
}

#[test]
fn hybrid_v1_and_v2_mounts_are_distinguished() {
    let hybrid = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices,freezer rw,relatime shared:5 - cgroup cgroup rw,devices,freezer
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
42 31 0:38 /docker/x /sys/fs/cgroup/part rw,relatime - cgroup2 cgroup2 rw
43 23 0:38 / /mnt/elsewhere rw,relatime - cgroup2 cgroup2 rw
";
    assert_eq!(
        mounts(hybrid),
        [
            (Hierarchy::Memory, "/sys/fs/cgroup/memory".to_owned()),
            (Hierarchy::Devices, "/sys/fs/cgroup/devices,freezer".to_owned()),
            (Hierarchy::Freezer, "/sys/fs/cgroup/devices,freezer".to_owned()),
            (Hierarchy::V2, "/sys/fs/cgroup/unified".to_owned()),
        ]
    );
    let over = "\
31 23 0:28 / /sys/fs/cgroup rw - cgroup2 old rw
32 31 0:29 / /sys/fs/cgroup/a\\040b rw - cgroup2 new rw
";
    assert_eq!(mounts(over), [(Hierarchy::V2, "/sys/fs/cgroup/a b".to_owned())]);
    assert_eq!(mounts("nonsense\n - \n1 2 3 / - cgroup2\n"), []);
}

#[test]
fn a_removed_cgroup_s_path_stays_known_for_five_minutes() {
    let host = FakeHost::new();
    let hierarchies = Hierarchies::new(&host.paths);
    let path: Arc<str> = Arc::from("/kubepods/a");
    hierarchies.made(v2(u64::MAX), &path);
    hierarchies.removed(v2(u64::MAX), 1_000);

    hierarchies.expire(1_000 + KEEP_REMOVED_NS);
    assert_eq!(hierarchies.path(v2(u64::MAX)), Some(path));
    hierarchies.expire(1_001 + KEEP_REMOVED_NS);
    assert_eq!(hierarchies.path(v2(u64::MAX)), None);
}

#[test]
fn a_host_that_makes_cgroups_without_end_costs_bounded_memory() {
    let host = FakeHost::new();
    let hierarchies = Hierarchies::new(&host.paths);
    let path: Arc<str> = Arc::from("/x");
    let last = u64::try_from(MAX_PATHS).unwrap() + 100;
    for id in 0..=last {
        hierarchies.made(v2(id), &path);
        hierarchies.made(v2(id), &path);
    }
    let known = hierarchies.known.lock();
    assert_eq!((known.paths.len(), known.order.len()), (MAX_PATHS, MAX_PATHS));
    assert!(known.paths.contains_key(&v2(last)) && !known.paths.contains_key(&v2(0)));
}

#[test]
fn without_the_capability_one_walk_finds_the_path() {
    use std::os::unix::fs::MetadataExt as _;
    let host = FakeHost::new();
    let dir = host.paths.cgroup.join("kubepods/pod1");
    std::fs::create_dir_all(&dir).unwrap();
    let hierarchies = Hierarchies::new(&host.paths);
    hierarchies.handles_refused.store(true, Ordering::Relaxed);
    let id = |dir: &Path| v2(std::fs::metadata(dir).unwrap().ino());

    assert_eq!(hierarchies.path(id(&dir)).as_deref(), Some("/kubepods/pod1"));

    // Made later: not found again before the next tick.
    let late = host.paths.cgroup.join("late");
    std::fs::create_dir(&late).unwrap();
    assert_eq!(hierarchies.path(id(&late)), None);
    hierarchies.expire(0);
    assert_eq!(hierarchies.path(id(&late)).as_deref(), Some("/late"));
}

#[test]
fn hierarchies_mounted_later_are_found() {
    let host = FakeHost::new();
    let mountinfo = host.paths.proc.join("self/mountinfo");
    let text = std::fs::read(&mountinfo).unwrap();
    std::fs::remove_file(&mountinfo).unwrap();
    let hierarchies = Hierarchies::new(&host.paths);
    assert_eq!(hierarchies.layout(), Layout::None);
    std::fs::write(&mountinfo, text).unwrap();
    hierarchies.expire(0);
    assert_eq!(hierarchies.layout(), Layout::V2);
}

#[test]
fn a_directory_too_deep_to_be_named_has_the_path_of_the_nearest_above() {
    let folder = tempfile::tempdir().unwrap();
    let open = |at: &OwnedFd, name: &str| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(at, name, flags, Mode::empty()).unwrap()
    };
    // A few long names, and more short ones than one climb covers.
    for (name, levels) in [("x".repeat(250), 20), ("x".to_owned(), 5_000)] {
        let top = folder.path().join(format!("{levels}/own"));
        std::fs::create_dir_all(&top).unwrap();
        let root: OwnedFd = std::fs::File::open(&top).unwrap().into();
        let mut node = open(&root, ".");
        for _ in 0..levels {
            rustix::fs::mkdirat(&node, &name, Mode::RWXU).unwrap();
            node = open(&node, &name);
        }
        assert_eq!(path_of(&node), Err(Errno::NAMETOOLONG));
        let found = nearest_path_above(node).unwrap();
        assert!(found.starts_with(top.to_str().unwrap()), "{found}");
        assert!(found.len() + name.len() + 2 > MAX_PATH_LEN, "{} is not the nearest", found.len());
    }
}
