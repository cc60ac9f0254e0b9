use super::*;
use crate::attribute::fake::{FakeHost, of_path, opened, v2};
use crate::attribute::identities::Identities;
use crate::attribute::table::{MAX_ENDED, MAX_HOLDERS};
use crate::attribute::{KernelCgroups, Method, Workload, cgroup};
use crate::catalog::attributes::AttrSet;

const SECOND: u64 = 1_000_000_000;
const UID: &str = "aaaaaaaa-0000-4000-8000-000000000001";
/// Started one second after boot.
const KEY: ProcKey = ProcKey { pid: 7, start_ticks: 100 };

fn container(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn pod_path(uid: &str, digit: char) -> String {
    format!("/kubepods/burstable/pod{uid}/{}", container(digit))
}

fn job_path(job: u32) -> String {
    format!("/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_1")
}

/// A table whose clock stands at ten seconds.
fn table(host: &FakeHost) -> Ownership {
    Ownership::with_clock(&host.paths, || 10 * SECOND)
}

fn announce(table: &Ownership, id: u64, path: &str) {
    table.observe(Evidence::CgroupMade { id: v2(id), path: Arc::from(path) });
}

fn line(path: &str) -> String {
    format!("0::{path}\n")
}

fn text(set: &AttrSet) -> Vec<String> {
    set.iter().map(|(key, value)| format!("{}={value}", key.name)).collect()
}

#[test]
fn a_living_process_in_a_pod_is_owned_with_every_name() {
    let host = FakeHost::new();
    host.pod("ml", "train-0", UID, &["trainer"]);
    host.start(KEY, "python3", &line(&pod_path(UID, 'a')));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, 9 * SECOND)));

    let owner = table.owner(KEY).unwrap();
    assert_eq!(
        text(&owner.attributes()),
        [
            "process.pid=7".to_owned(),
            "process.executable.name=python3".to_owned(),
            "process.owner=ada".to_owned(),
            format!("container.id={}", container('a')),
            format!("k8s.pod.uid={UID}"),
            "k8s.pod.name=train-0".to_owned(),
            "k8s.namespace.name=ml".to_owned(),
            "k8s.container.name=trainer".to_owned(),
            "k8s.pod.qos_class=burstable".to_owned(),
            "gpuwho.owner.method=cgroup".to_owned(),
        ]
    );
    assert_eq!(
        (owner.method, owner.nodes.as_slice()),
        (Method::Proc, &["/dev/nvidia0".into()][..])
    );
    let mut latency = Histogram::new(LATENCY_BOUNDS);
    latency.observe(1.0);
    assert_eq!(table.latency(), latency);
    assert_eq!(table.holders(), [owner]);
}

#[test]
fn a_process_that_is_already_gone_is_owned_by_its_kernel_cgroup() {
    let host = FakeHost::new();
    let table = table(&host);
    announce(&table, 5, &job_path(42));
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 2 * SECOND });
    table.observe(Evidence::CgroupRemoved { id: v2(5) });

    let owner = table.owner(KEY).unwrap();
    assert_eq!(
        text(&owner.attributes()),
        [
            "process.pid=7",
            "process.executable.name=python",
            "process.owner=ada",
            "slurm.job.id=42",
            "slurm.job.user=ada",
            "slurm.facts.source=process",
            "slurm.step.id=0",
            "slurm.task.id=1",
            "systemd.unit=slurmstepd.scope",
            "gpuwho.owner.method=kernel",
        ]
    );
    assert_eq!((owner.method, owner.exited_ns), (Method::Kernel, Some(2 * SECOND)));
    assert_eq!(table.holders(), []);
}

#[test]
fn another_process_under_the_number_lends_nothing() {
    let host = FakeHost::new();
    host.start(ProcKey { pid: 7, start_ticks: 500 }, "other", &line(&pod_path(UID, 'b')));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));

    let owner = table.owner(KEY).unwrap();
    assert_eq!((owner.method, &owner.workload), (Method::Pending, &Workload::default()));
    assert_eq!(
        text(&owner.attributes()),
        [
            "process.pid=7",
            "process.executable.name=python",
            "process.owner=ada",
            "gpuwho.owner.method=none",
        ]
    );
    assert_eq!(table.counts().pending, 1);
    assert_eq!(table.latency().count(), 0);
}

#[test]
fn a_pending_owner_is_known_once_its_cgroup_is() {
    let host = FakeHost::new();
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    announce(&table, 5, &job_path(42));
    table.expire(SECOND);
    assert_eq!(table.owner(KEY).unwrap().method, Method::Kernel);
    assert_eq!(table.latency().count(), 1);
}

#[test]
fn a_pods_name_that_comes_later_is_added() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&pod_path(UID, 'a')));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let before = table.owner(KEY).unwrap();
    assert_eq!(before.workload.pod.as_ref().unwrap().name, None);

    host.pod("ml", "train-0", UID, &["a", "b"]);
    table.expire(SECOND);
    let after = table.owner(KEY).unwrap();
    let pod = after.workload.pod.as_ref().unwrap();
    assert_eq!((pod.name.as_deref(), pod.container.as_deref()), (Some("train-0"), None));
    assert!(!Arc::ptr_eq(&before, &after));

    table.expire(2 * SECOND);
    assert!(Arc::ptr_eq(&after, &table.owner(KEY).unwrap()));
}

#[test]
fn a_moved_process_is_the_new_owners_or_nobodys() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&job_path(1)));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));

    host.start(KEY, "python3", &line(&job_path(2)));
    let moved = |id| Evidence::Moved { process: KEY, cgroups: KernelCgroups(vec![v2(id)]) };
    table.observe(moved(6));
    let job = |table: &Ownership| {
        let owner = table.owner(KEY).unwrap();
        owner.workload.slurm.as_ref().map(|slurm| slurm.job.to_string())
    };
    assert_eq!(job(&table).as_deref(), Some("2"));

    host.end(KEY);
    table.observe(moved(7));
    assert_eq!(job(&table), None);
    assert_eq!(table.owner(KEY).unwrap().method, Method::Pending);
}

#[test]
fn cgroups_told_in_another_order_or_in_part_are_no_move() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&job_path(1)));
    let table = table(&host);
    let memory = |id| crate::ids::CgroupId { hierarchy: crate::ids::Hierarchy::Memory, id };
    let observe = |cgroups: Vec<crate::ids::CgroupId>| {
        let cgroups = KernelCgroups(cgroups);
        table.observe(Evidence::Opened(Opened { cgroups, ..opened(KEY, 5, SECOND) }));
        table.owner(KEY).unwrap().method
    };
    assert_eq!(observe(vec![v2(5)]), Method::Proc);
    // It cannot be read again: a move would make it nobody's.
    host.end(KEY);
    for same in [vec![memory(6), v2(5)], vec![v2(5), memory(6)], vec![memory(6)], vec![v2(5)]] {
        assert_eq!(observe(same), Method::Proc);
    }
    assert_eq!(observe(vec![memory(7)]), Method::Pending);
}

#[test]
fn an_exec_changes_the_name_and_keeps_an_owner_that_cannot_be_read_again() {
    let host = FakeHost::new();
    host.start(KEY, "sh", &line(&job_path(1)));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    host.end(KEY);
    table.observe(Evidence::Execed { process: KEY, comm: Arc::from("train") });

    let owner = table.owner(KEY).unwrap();
    let job = owner.workload.slurm.as_ref().unwrap().job.as_str();
    assert_eq!((&*owner.comm, job, owner.method), ("train", "1", Method::Proc));
}

#[test]
fn a_child_holds_what_its_parent_held() {
    let host = FakeHost::new();
    let table = table(&host);
    announce(&table, 5, &job_path(42));
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let child = ProcKey { pid: 8, start_ticks: 150 };
    let mut fork = opened(child, 5, 2 * SECOND);
    fork.node = Arc::from("/dev/nvidia1");
    table.observe(Evidence::Forked { parent: KEY, child: fork });

    let owner = table.owner(child).unwrap();
    assert_eq!(owner.nodes, ["/dev/nvidia0".into(), "/dev/nvidia1".into()]);
    assert_eq!(owner.workload, table.owner(KEY).unwrap().workload);
}

#[test]
fn a_fork_that_names_no_node_adds_none() {
    let host = FakeHost::new();
    let table = table(&host);
    announce(&table, 5, &job_path(42));
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let nodes_of_fork = |parent: ProcKey, pid: u32| {
        let child = ProcKey { pid, start_ticks: 150 };
        let mut fork = opened(child, 5, 2 * SECOND);
        fork.node = Arc::from("");
        table.observe(Evidence::Forked { parent, child: fork });
        table.owner(child).unwrap().nodes.clone()
    };
    assert_eq!(nodes_of_fork(KEY, 8), ["/dev/nvidia0".into()]);
    let unknown = ProcKey { pid: 9, start_ticks: 1 };
    assert_eq!(nodes_of_fork(unknown, 10), Vec::<Arc<str>>::new());
}

#[test]
fn a_repeated_open_costs_no_second_resolution() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&job_path(1)));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let before = table.owner(KEY).unwrap();
    host.start(KEY, "python3", &line(&job_path(2)));
    table.observe(Evidence::Opened(opened(KEY, 5, 2 * SECOND)));
    assert!(Arc::ptr_eq(&before, &table.owner(KEY).unwrap()));
}

#[test]
fn an_open_reported_after_the_end_does_not_bring_a_process_back() {
    let host = FakeHost::new();
    let table = table(&host);
    announce(&table, 5, &job_path(42));
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 3 * SECOND });
    table.observe(Evidence::Opened(opened(KEY, 5, 2 * SECOND)));
    assert_eq!(table.owner(KEY).unwrap().exited_ns, Some(3 * SECOND));
}

#[test]
fn the_drivers_number_finds_the_process_that_had_it_then() {
    let host = FakeHost::new();
    let table = table(&host);
    let later = ProcKey { pid: 7, start_ticks: 500 };
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 5 * SECOND + 1_000_000 });
    table.observe(Evidence::Opened(opened(later, 6, 6 * SECOND)));

    assert_eq!(table.process(7, SECOND - 1), None);
    assert_eq!(table.process(7, SECOND), Some(KEY));
    assert_eq!(table.process(7, 5 * SECOND + 1_000_000), Some(KEY));
    assert_eq!(table.process(7, 5 * SECOND + 1_000_001), Some(later));
    assert_eq!(table.process(8, SECOND), None);
}

#[test]
fn a_process_only_the_driver_knows_is_found_in_proc() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&job_path(1)));
    let table = table(&host);

    assert_eq!(table.process(7, SECOND - 1), None);
    assert_eq!(table.owner(KEY), None);
    assert_eq!(table.process(7, 2 * SECOND), Some(KEY));
    let owner = table.owner(KEY).unwrap();
    assert_eq!((owner.method, owner.user.as_deref()), (Method::Proc, Some("ada")));

    // Nobody announces its end: the next tick finds it.
    host.end(KEY);
    table.expire(20 * SECOND);
    assert_eq!(table.owner(KEY).unwrap().exited_ns, Some(20 * SECOND));
    assert_eq!(table.holders(), []);
}

#[test]
fn a_driver_that_still_lists_an_ended_process_finds_it_for_ten_seconds() {
    let host = FakeHost::new();
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 2 * SECOND });
    assert_eq!(table.process(7, 12 * SECOND), Some(KEY));
    assert_eq!(table.process(7, 12 * SECOND + 1), None);

    // Unless the number is somebody else's by then.
    let other = ProcKey { pid: 7, start_ticks: 300 };
    host.start(other, "other", &line("/"));
    assert_eq!(table.process(7, 11 * SECOND), Some(other));
}

#[test]
fn an_end_that_was_never_reported_is_found() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line("/"));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.expire(40 * SECOND);
    assert_eq!(table.counts().holders, 1);
    host.end(KEY);
    table.expire(60 * SECOND);
    assert_eq!(table.counts().holders, 1);
    table.expire(70 * SECOND);
    assert_eq!(table.counts(), Counts { ended: 1, ..Counts::default() });
}

#[test]
fn a_reused_number_ends_a_process_whose_end_was_lost() {
    let host = FakeHost::new();
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Opened(opened(ProcKey { pid: 7, start_ticks: 500 }, 6, 6 * SECOND)));
    assert_eq!(table.owner(KEY).unwrap().exited_ns, Some(5 * SECOND - 1));
}

#[test]
fn a_number_used_again_between_two_scans_is_the_later_process_at_once() {
    let host = FakeHost::new();
    let (later, listed) = (ProcKey { start_ticks: 1_100, ..KEY }, ProcKey { pid: 8, ..KEY });
    let again = ProcKey { pid: 8, ..later };
    let table = table(&host);
    table.ends_are_unannounced();
    for key in [KEY, listed] {
        host.start(key, "python3", &line(&job_path(1)));
    }
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let identities = Identities::new(&table);
    assert_eq!(*identities.of(&[7, 8], 10 * SECOND), BTreeMap::from([(7, KEY), (8, listed)]));

    for key in [later, again] {
        host.start(key, "python3", &line(&job_path(2)));
    }
    // The driver's list is the same, and no scan has been since.
    assert_eq!(*identities.of(&[7, 8], 12 * SECOND), BTreeMap::from([(7, later), (8, again)]));
    assert_eq!(table.process(7, 12 * SECOND), Some(later));
    let owner = table.owner(later).unwrap();
    assert_eq!(of_path(&owner.workload), cgroup::parse_path(&job_path(2)));
}

#[test]
fn a_number_that_only_the_driver_named_is_looked_at_again_where_bpf_announces_ends() {
    let host = FakeHost::new();
    let later = ProcKey { start_ticks: 1_100, ..KEY };
    let table = table(&host);
    host.start(KEY, "python3", &line(&job_path(1)));
    let identities = Identities::new(&table);
    assert_eq!(*identities.of(&[7], 10 * SECOND), BTreeMap::from([(7, KEY)]));
    host.start(later, "python3", &line(&job_path(2)));
    assert_eq!(*identities.of(&[7], 12 * SECOND), BTreeMap::from([(7, later)]));
}

#[test]
fn a_look_that_a_move_overtook_changes_nothing() {
    let mut table = Table::default();
    let found = |case: Option<Case>, job| {
        let mut case = case.unwrap();
        case.owner.method = Method::Proc;
        case.owner.workload = cgroup::parse_path(&job_path(job));
        case
    };
    let before = found(table.opened(&opened(KEY, 5, SECOND), &[]), 1);
    let after = found(table.moved(KEY, KernelCgroups(vec![v2(6)])), 2);
    for case in [after, before] {
        table.settle(case);
        assert_eq!(table.owner(KEY).unwrap().workload, cgroup::parse_path(&job_path(2)));
    }
}

#[test]
fn the_path_of_a_removed_cgroup_is_forgotten_after_five_minutes() {
    let host = FakeHost::new();
    let table = table(&host);
    let later = ProcKey { pid: 8, ..KEY };
    announce(&table, 5, &job_path(1));
    table.observe(Evidence::CgroupRemoved { id: v2(5) });
    for (process, seconds, method) in [(KEY, 309, Method::Kernel), (later, 311, Method::Pending)] {
        table.expire(seconds * SECOND);
        table.observe(Evidence::Opened(opened(process, 5, SECOND)));
        assert_eq!(table.owner(process).unwrap().method, method, "{seconds} s");
    }
}

#[test]
fn an_ended_process_is_forgotten_after_five_minutes() {
    let host = FakeHost::new();
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 2 * SECOND });
    table.expire(302 * SECOND);
    assert!(table.owner(KEY).is_some());
    table.expire(302 * SECOND + 1);
    assert_eq!(table.owner(KEY), None);
    assert_eq!(table.counts(), Counts::default());
}

#[test]
fn a_storm_of_ended_processes_costs_bounded_memory() {
    let mut table = Table::default();
    let key = |index: usize| ProcKey { pid: u32::try_from(index).unwrap(), start_ticks: 1 };
    for index in 0..MAX_ENDED + 10 {
        table.opened(&opened(key(index), 5, SECOND), &[]);
        table.exited(key(index), 2 * SECOND);
    }
    assert_eq!(table.ended_count(), MAX_ENDED);
    assert_eq!((table.owner(key(9)), table.owner(key(10)).is_some()), (None, true));
}

#[test]
fn holders_beyond_the_bound_are_counted_not_kept() {
    let mut table = Table::default();
    for index in 0..=MAX_HOLDERS {
        let key = ProcKey { pid: u32::try_from(index).unwrap(), start_ticks: 1 };
        table.opened(&opened(key, 5, SECOND), &[]);
    }
    assert_eq!((table.holding(), table.refused), (MAX_HOLDERS, 1));
}

#[test]
fn a_docker_container_that_names_a_pod_of_this_node_stays_a_docker_container() {
    let host = FakeHost::new();
    let nested = format!("/docker/{}/kubelet{}", container('d'), pod_path(UID, 'a'));
    host.start(KEY, "python3", &line(&nested));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let kind = table.owner(KEY).unwrap();
    assert_eq!(kind.workload.node.as_ref().unwrap().as_str(), container('d'));

    host.pod("ml", "train-0", UID, &["trainer"]);
    let forger = ProcKey { pid: 8, start_ticks: 200 };
    host.start(forger, "python3", &line(&nested));
    table.observe(Evidence::Opened(opened(forger, 6, 2 * SECOND)));
    let owner = table.owner(forger).unwrap();
    let docker = Some(crate::ids::ContainerId::new(&container('d')));
    assert_eq!(owner.workload, Workload { container: docker, ..Workload::default() });
}

#[test]
fn a_service_that_names_a_pod_of_this_node_stays_a_service() {
    let host = FakeHost::new();
    host.pod("ml", "train-0", UID, &["trainer"]);
    host.start(KEY, "python3", &line(&format!("/system.slice/x.service{}", pod_path(UID, 'a'))));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let owner = table.owner(KEY).unwrap();
    let unit = Some(Arc::from("x.service"));
    assert_eq!(owner.workload, Workload { unit, ..Workload::default() });
}

#[test]
fn an_agent_in_another_cgroup_namespace_says_so_and_claims_nothing() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&format!("/..{}", pod_path(UID, 'a'))));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    assert_eq!(table.owner(KEY).unwrap().method, Method::Pending);
    assert_eq!(table.counts().wrong_namespace, 1);
}

#[test]
fn a_host_process_is_known_only_if_every_hierarchy_was_captured() {
    let host = FakeHost::new();
    let at = host.paths.cgroup.display();
    let mountinfo = format!(
        "41 31 0:38 / {at}/unified rw - cgroup2 cgroup2 rw\n\
         35 31 0:32 / {at}/memory rw - cgroup cgroup rw,memory\n"
    );
    std::fs::write(host.paths.proc.join("self/mountinfo"), mountinfo).unwrap();
    let table = table(&host);
    let memory = crate::ids::CgroupId { hierarchy: crate::ids::Hierarchy::Memory, id: 1 };
    announce(&table, 1, "/");
    table.observe(Evidence::CgroupMade { id: memory, path: Arc::from("/") });

    table.observe(Evidence::Opened(opened(KEY, 1, SECOND)));
    assert_eq!(table.owner(KEY).unwrap().method, Method::Pending);

    let other = ProcKey { pid: 8, start_ticks: 100 };
    let mut both = opened(other, 1, SECOND);
    both.cgroups.0.push(memory);
    table.observe(Evidence::Opened(both));
    let owner = table.owner(other).unwrap();
    assert_eq!((owner.method, &owner.workload), (Method::Kernel, &Workload::default()));
    assert_eq!(table.layout(), Layout::Hybrid);
}

#[test]
fn lookups_of_a_known_process_read_no_file() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&job_path(1)));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let owner = table.owner(KEY).unwrap();
    host.end(KEY);
    std::fs::remove_dir_all(&host.paths.proc).unwrap();
    for _ in 0..1000 {
        let process = table.process(7, 2 * SECOND).unwrap();
        assert!(Arc::ptr_eq(&owner, &table.owner(process).unwrap()));
    }
}
