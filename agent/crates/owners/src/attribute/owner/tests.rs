use super::*;
use crate::attribute::cgroup::parse_path;
use gpuwho_model::ids::ProcKey;

const UID: &str = "aaaaaaaa-0000-4000-8000-000000000001";

fn owner(path: &str) -> ProcessAttribution {
    ProcessAttribution {
        process: ProcKey { pid: 7, start_ticks: 1 },
        comm: Arc::from("python3"),
        uid: 1000,
        user: Some(Arc::from("ada")),
        cgroup: Some(Arc::from(path)),
        workload: parse_path(path),
        method: Method::Proc,
        nodes: Vec::new(),
        exited_ns: None,
        owner: OwnerId::UNATTRIBUTED,
    }
}

fn container(digit: char) -> String {
    digit.to_string().repeat(64)
}

#[test]
fn the_owner_is_the_innermost_work_that_the_host_s_schedulers_named() {
    let id = container('a');
    let alloc = "8b6c2c52-0000-4000-8000-000000000001";
    for (path, kind) in [
        (format!("/kubepods/pod{UID}/{id}"), "pod"),
        ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_1".into(), "slurm_job"),
        (format!("/nomad.slice/share.slice/{alloc}.train.scope"), "allocation"),
        (format!("/docker/{id}"), "container"),
        ("/lxc/guest".into(), "machine"),
        (format!("/lxc/guest/docker/{id}"), "machine"),
        (format!("/machine.slice/systemd-nspawn@guest.service/payload/docker/{id}"), "machine"),
        ("/system.slice/infer.service".into(), "service"),
        (format!("/system.slice/infer.service/docker/{id}"), "service"),
        (format!("/system.slice/containerd.service/{id}"), "container"),
        (format!("/system.slice/infer.service/ecs/{}", &id[..32]), "service"),
        ("/user.slice/user-1000.slice/session-3.scope".into(), "user"),
        (format!("/user.slice/user-1000.slice/user@1000.service/user.slice/{id}"), "user"),
        ("/".into(), "user"),
    ] {
        assert_eq!(Owner::of(&owner(&path)).kind(), kind, "{path}");
    }
    let pending = ProcessAttribution { method: Method::Pending, ..owner("/") };
    assert_eq!(Owner::of(&pending), Owner::Unattributed);
}

#[test]
fn pods_of_one_uid_in_different_clusters_of_a_host_are_different_owners() {
    let id = container('a');
    let paths = [
        String::new(),
        format!("/docker/{}", container('b')),
        format!("/docker/{}", container('c')),
        "/lxc/guest".to_owned(),
        format!("/lxc/guest/docker/{}", container('b')),
        "/user.slice/user-7.slice/user@7.service".to_owned(),
        "/user.slice/user-8.slice/user@8.service".to_owned(),
        "/system.slice/theirs.service".to_owned(),
    ];
    let owner_id = |above: &String| Owner::of(&owner(&format!("{above}/kubepods/pod{UID}/{id}")));
    let within = |owner_id: Owner| match owner_id {
        Owner::Pod { within, .. } => within.map(|within| *within),
        other => panic!("{other:?}"),
    };
    let expected = [
        None,
        Some(Owner::Container(ContainerId::new(&container('b')))),
        Some(Owner::Container(ContainerId::new(&container('c')))),
        Some(Owner::Machine(Arc::from("guest"))),
        Some(Owner::Machine(Arc::from("guest"))),
        Some(Owner::User(7)),
        Some(Owner::User(8)),
        Some(Owner::Service(Arc::from("theirs.service"))),
    ];
    assert_eq!(paths.each_ref().map(|above| within(owner_id(above))), expected);
}

#[test]
fn what_runs_in_a_users_slice_belongs_to_the_user_with_any_uid() {
    let owners = OwnerRegistry::default();
    let session = "/user.slice/user-1001.slice/session-3.scope";
    let id = container('a');
    let rootless = format!("/user.slice/user-1001.slice/user@1001.service/user.slice/{id}");
    let eve = |uid| (uid == 1001).then(|| Arc::from("eve"));
    // With her own uid, by sudo, in a user namespace, in a container of her own.
    for (path, uid, user) in [
        (session, 1001, Some("eve")),
        (session, 0, Some("root")),
        (session, 165_537, None),
        (&rootless, 165_537, None),
    ] {
        let process = ProcessAttribution { uid, user: user.map(Arc::from), ..owner(path) };
        assert_eq!(Owner::of(&process), Owner::User(1001), "{uid}");
        let facts = owners.facts(owners.of(&process, eve)).unwrap();
        let user = facts.attributes.get(&attr::PROCESS_OWNER).map(ToString::to_string);
        assert_eq!(user.as_deref(), Some("eve"), "{uid}");
    }
    // Outside every slice, only the process's own uid counts.
    assert_eq!(Owner::of(&ProcessAttribution { uid: 0, ..owner("/") }), Owner::User(0));
}

#[test]
fn steps_of_a_job_and_restarts_of_a_container_are_one_owner() {
    let owners = OwnerRegistry::default();
    let scope = "/system.slice/slurmstepd.scope/job_7";
    let task = |task: &str| owners.of(&owner(&format!("{scope}/{task}")), |_| None);
    assert_eq!(task("step_0/user/task_0"), task("step_batch/user/task_0"));

    let named = |digit| {
        let mut owner = owner(&format!("/kubepods/pod{UID}/{}", container(digit)));
        owner.workload.pod.as_mut().unwrap().container = Some(Arc::from("main"));
        owners.of(&owner, |_| None)
    };
    assert_eq!(named('a'), named('b'));
    assert_ne!(named('a'), task("step_0/user/task_0"));
}

#[test]
fn names_that_change_are_replaced_and_equal_ones_have_the_same_pointer() {
    let owners = OwnerRegistry::default();
    let mut owner = owner(&format!("/kubepods/pod{UID}/{}", container('a')));
    let id = owners.of(&owner, |_| None);
    let before = owners.facts(id).unwrap();
    owners.of(&owner, |_| None);
    assert!(Arc::ptr_eq(&before, &owners.facts(id).unwrap()));

    owner.workload.pod.as_mut().unwrap().name = Some(Arc::from("train-0"));
    assert_eq!(owners.of(&owner, |_| None), id);
    let named = owners.facts(id).unwrap();
    let text = |key| named.attributes.get(key).map(ToString::to_string);
    assert_eq!(text(&attr::K8S_POD_NAME).as_deref(), Some("train-0"));
    assert_eq!(text(&attr::OWNER_KIND).as_deref(), Some("pod"));
    assert_eq!(text(&attr::CONTAINER_ID), None);
}

#[test]
fn an_owner_without_room_is_unattributed_until_others_are_removed() {
    let owners = OwnerRegistry::default();
    for uid in 2..u32::try_from(MAX_OWNERS).unwrap() {
        owners.put(Owner::User(uid), &Workload::default(), None);
    }
    let late = |owners: &OwnerRegistry| owners.put(Owner::User(0), &Workload::default(), None);
    assert_eq!(late(&owners), OwnerId::UNATTRIBUTED);
    owners.retain(|_| false);
    assert_eq!(late(&owners), OwnerId::UNATTRIBUTED);
    owners.retain(|_| false);
    assert_ne!(late(&owners), OwnerId::UNATTRIBUTED);
}

#[test]
fn an_owner_that_was_just_numbered_is_not_removed_before_it_is_used() {
    let owners = OwnerRegistry::default();
    let user = |uid| owners.put(Owner::User(uid), &Workload::default(), None);
    let (idle, taken, numbered_again) = (user(1), user(2), user(3));
    owners.retain(|_| false);
    user(3);
    owners.retain(|owner_id| owner_id == taken);
    let is_known = [idle, taken, numbered_again].map(|owner_id| owners.facts(owner_id).is_some());
    assert_eq!(is_known, [false, true, true]);
}

#[test]
fn an_allocator_that_knows_less_than_a_process_removes_nothing() {
    let owners = OwnerRegistry::default();
    let job = owner("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0");
    let id = owners.of(&job, |_| None);
    let before = owners.facts(id).unwrap();
    let job = Owner::Job(SlurmJobId::new("7"));
    let workload = parse_path("/system.slice/slurmstepd.scope/job_7");
    assert_eq!(owners.put(job, &workload, None), id);
    assert!(Arc::ptr_eq(&before, &owners.facts(id).unwrap()));
}
