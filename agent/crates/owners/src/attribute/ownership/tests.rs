use super::*;
use crate::attribute::delegated::SelfClaims;
use crate::attribute::fake::{FakeHost, opened, v2};
use crate::attribute::{KernelCgroups, Method, Workload};
use gpuwho_model::catalog::attributes::AttrSet;
use std::thread;

pub(super) const SECOND: u64 = 1_000_000_000;
const UID: &str = "aaaaaaaa-0000-4000-8000-000000000001";
/// Started one second after boot.
pub(super) const KEY: ProcKey = ProcKey { pid: 7, start_ticks: 100 };

fn container(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn pod_path(uid: &str, digit: char) -> String {
    format!("/kubepods/burstable/pod{uid}/{}", container(digit))
}

pub(super) fn job_path(job: u32) -> String {
    format!("/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_1")
}

/// A table with its clock at ten seconds.
pub(super) fn table(host: &FakeHost) -> Ownership {
    Ownership::with_clock(&host.paths, || 10 * SECOND)
}

pub(super) fn announce(table: &Ownership, id: u64, path: &str) {
    table.observe(Evidence::CgroupMade { id: v2(id), path: Arc::from(path) });
}

pub(super) fn line(path: &str) -> String {
    format!("0::{path}\n")
}

fn text(set: &AttrSet) -> Vec<String> {
    set.iter().map(|(key, value)| format!("{}={value}", key.name)).collect()
}

#[test]
fn a_drivers_list_waits_for_the_owner_that_another_thread_is_resolving() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&job_path(7)));
    let table = table(&host);
    let resolution = table.write().opened(&opened(KEY, 5, 9 * SECOND), &[]).unwrap();
    let method_seen = thread::scope(|scope| {
        let tick = scope.spawn(|| {
            table.processes(&[KEY.pid], 10 * SECOND);
            table.attribution(KEY).unwrap().method
        });
        thread::sleep(Duration::from_millis(50));
        table.resolve(resolution);
        tick.join().unwrap()
    });
    assert_eq!(method_seen, Method::Proc);
}

#[test]
fn a_living_process_in_a_pod_is_owned_with_every_name() {
    let host = FakeHost::new();
    host.pod("ml", "train-0", UID, &["trainer"]);
    host.start(KEY, "python3", &line(&pod_path(UID, 'a')));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, 9 * SECOND)));

    let owner = table.attribution(KEY).unwrap();
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
    assert_eq!(table.openers(), [owner]);
}

#[test]
fn a_process_that_is_already_gone_is_owned_by_its_kernel_cgroup() {
    let host = FakeHost::new();
    let table = table(&host);
    announce(&table, 5, &job_path(42));
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 2 * SECOND });
    table.observe(Evidence::CgroupRemoved { id: v2(5) });

    let owner = table.attribution(KEY).unwrap();
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
    assert_eq!(table.openers(), []);
}

#[test]
fn another_process_with_the_pid_contributes_nothing() {
    let host = FakeHost::new();
    host.start(ProcKey { pid: 7, start_ticks: 500 }, "other", &line(&pod_path(UID, 'b')));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));

    let owner = table.attribution(KEY).unwrap();
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
    assert_eq!(table.attribution(KEY).unwrap().method, Method::Kernel);
    assert_eq!(table.latency().count(), 1);
}

#[test]
fn a_pods_name_that_arrives_later_is_added() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&pod_path(UID, 'a')));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let before = table.attribution(KEY).unwrap();
    assert_eq!(before.workload.pod.as_ref().unwrap().name, None);

    host.pod("ml", "train-0", UID, &["a", "b"]);
    table.expire(SECOND);
    let after = table.attribution(KEY).unwrap();
    let pod = after.workload.pod.as_ref().unwrap();
    assert_eq!((pod.name.as_deref(), pod.container.as_deref()), (Some("train-0"), None));
    assert!(!Arc::ptr_eq(&before, &after));

    table.expire(2 * SECOND);
    assert!(Arc::ptr_eq(&after, &table.attribution(KEY).unwrap()));
}

#[test]
fn a_moved_process_belongs_to_the_new_owner_or_to_none() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&job_path(1)));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));

    host.start(KEY, "python3", &line(&job_path(2)));
    let moved = |id| Evidence::Moved { process: KEY, cgroups: KernelCgroups(vec![v2(id)]) };
    table.observe(moved(6));
    let job = |table: &Ownership| {
        let owner = table.attribution(KEY).unwrap();
        owner.workload.slurm.as_ref().map(|slurm| slurm.job.to_string())
    };
    assert_eq!(job(&table).as_deref(), Some("2"));

    host.end(KEY);
    table.observe(moved(7));
    assert_eq!(job(&table), None);
    assert_eq!(table.attribution(KEY).unwrap().method, Method::Pending);
}

#[test]
fn cgroups_reported_in_another_order_or_in_part_are_no_move() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&job_path(1)));
    let table = table(&host);
    let memory =
        |id| gpuwho_model::ids::CgroupId { hierarchy: gpuwho_model::ids::Hierarchy::Memory, id };
    let observe = |cgroups: Vec<gpuwho_model::ids::CgroupId>| {
        let cgroups = KernelCgroups(cgroups);
        table.observe(Evidence::Opened(Opened { cgroups, ..opened(KEY, 5, SECOND) }));
        table.attribution(KEY).unwrap().method
    };
    assert_eq!(observe(vec![v2(5)]), Method::Proc);
    // It cannot be read again: a move would leave it without an owner.
    host.end(KEY);
    for same in [vec![memory(6), v2(5)], vec![v2(5), memory(6)], vec![memory(6)], vec![v2(5)]] {
        assert_eq!(observe(same), Method::Proc);
    }
    assert_eq!(observe(vec![memory(7)]), Method::Pending);
}

#[test]
fn an_exec_changes_the_name_and_not_an_owner_that_cannot_be_read_again() {
    let host = FakeHost::new();
    host.start(KEY, "sh", &line(&job_path(1)));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    host.end(KEY);
    table.observe(Evidence::Execed { process: KEY, comm: Arc::from("train") });

    let owner = table.attribution(KEY).unwrap();
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

    let owner = table.attribution(child).unwrap();
    assert_eq!(owner.nodes, ["/dev/nvidia0".into(), "/dev/nvidia1".into()]);
    assert_eq!(owner.workload, table.attribution(KEY).unwrap().workload);
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
        table.attribution(child).unwrap().nodes.clone()
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
    let before = table.attribution(KEY).unwrap();
    host.start(KEY, "python3", &line(&job_path(2)));
    table.observe(Evidence::Opened(opened(KEY, 5, 2 * SECOND)));
    assert!(Arc::ptr_eq(&before, &table.attribution(KEY).unwrap()));
}

fn claims(pod: &str, container: &str) -> SelfClaims {
    let pod = Some(gpuwho_model::ids::PodUid::new(pod));
    let container = Some(gpuwho_model::ids::ContainerId::new(container));
    SelfClaims { pod, container, ..SelfClaims::default() }
}

#[test]
fn a_docker_container_that_names_a_pod_of_this_node_stays_a_docker_container() {
    let host = FakeHost::new();
    let nested = format!("/docker/{}/kubelet{}", container('d'), pod_path(UID, 'a'));
    host.start(KEY, "python3", &line(&nested));
    let believing = Settings { nested: true, ..Settings::default_settings(&host.paths) };
    let table = Ownership::with_settings(&host.paths, believing);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let kind = table.attribution(KEY).unwrap();
    assert_eq!(kind.workload.node.as_ref().unwrap().as_str(), container('d'));

    host.pod("ml", "train-0", UID, &["trainer"]);
    let forger = ProcKey { pid: 8, start_ticks: 200 };
    host.start(forger, "python3", &line(&nested));
    table.observe(Evidence::Opened(opened(forger, 6, 2 * SECOND)));
    let owner = table.attribution(forger).unwrap();
    let docker = Some(gpuwho_model::ids::ContainerId::new(&container('d')));
    let claimed = claims(UID, &container('a'));
    assert_eq!(owner.workload, Workload { container: docker, claimed, ..Workload::default() });
}

#[test]
fn a_service_that_names_a_pod_of_this_node_stays_a_service() {
    let host = FakeHost::new();
    host.pod("ml", "train-0", UID, &["trainer"]);
    host.start(KEY, "python3", &line(&format!("/system.slice/x.service{}", pod_path(UID, 'a'))));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let owner = table.attribution(KEY).unwrap();
    let unit = Some(Arc::from("x.service"));
    let claimed = claims(UID, &container('a'));
    assert_eq!(owner.workload, Workload { unit, claimed, ..Workload::default() });
}

#[test]
fn an_agent_in_another_cgroup_namespace_reports_so_and_attributes_nothing() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&format!("/..{}", pod_path(UID, 'a'))));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    assert_eq!(table.attribution(KEY).unwrap().method, Method::Pending);
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
    let memory =
        gpuwho_model::ids::CgroupId { hierarchy: gpuwho_model::ids::Hierarchy::Memory, id: 1 };
    announce(&table, 1, "/");
    table.observe(Evidence::CgroupMade { id: memory, path: Arc::from("/") });

    table.observe(Evidence::Opened(opened(KEY, 1, SECOND)));
    assert_eq!(table.attribution(KEY).unwrap().method, Method::Pending);

    let other = ProcKey { pid: 8, start_ticks: 100 };
    let mut both = opened(other, 1, SECOND);
    both.cgroups.0.push(memory);
    table.observe(Evidence::Opened(both));
    let owner = table.attribution(other).unwrap();
    assert_eq!((owner.method, &owner.workload), (Method::Kernel, &Workload::default()));
    assert_eq!(table.layout(), Layout::Hybrid);
}

#[test]
fn lookups_of_a_known_process_read_no_file() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&job_path(1)));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let owner = table.attribution(KEY).unwrap();
    host.end(KEY);
    std::fs::remove_dir_all(&host.paths.proc).unwrap();
    for _ in 0..1000 {
        let process = table.process(7, 2 * SECOND).unwrap();
        assert!(Arc::ptr_eq(&owner, &table.attribution(process).unwrap()));
    }
}
