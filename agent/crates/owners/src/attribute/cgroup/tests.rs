use super::*;
use crate::attribute::{SchedulerUnit, SlurmTask};
use proptest::prelude::*;
use std::path::PathBuf;

/// Every field of a workload, so that a comparison is of the whole value.
fn render(workload: &Workload) -> String {
    let Workload {
        container,
        pod,
        slurm,
        allocation,
        machine,
        unit,
        uid,
        node,
        nested,
        user_slice,
        facts: _,
        claimed,
    } = workload;
    let or_dash = |text: &Option<Arc<str>>| text.as_deref().unwrap_or("-").to_owned();
    let mut parts = Vec::new();
    if let Some(Pod { uid, qos, name, namespace, container, facts: _ }) = pod {
        assert_eq!((name, namespace, container), (&None, &None, &None));
        parts.push(format!("pod={uid}/{}", qos.unwrap_or("-")));
    }
    parts.extend(container.iter().map(|id| format!("container={id}")));
    if let Some(SlurmTask { job, step, task, daemon, in_pod, facts, rank }) = slurm {
        assert_eq!((in_pod, facts, rank), (&false, &None, &None));
        let daemon = if *daemon { "/daemon" } else { "" };
        parts.push(format!("slurm={job}/{}/{}{daemon}", or_dash(step), or_dash(task)));
    }
    if let Some(SchedulerUnit { scheduler, id, task }) = allocation {
        parts.push(format!("allocation={scheduler}/{id}/{}", or_dash(task)));
    }
    parts.extend(machine.iter().map(|name| format!("machine={name}")));
    parts.extend(unit.iter().map(|name| format!("unit={name}")));
    parts.extend(claimed.unit.iter().map(|name| format!("claimed-unit={name}")));
    parts.extend(uid.iter().map(|uid| format!("uid={uid}")));
    parts.extend(node.iter().map(|id| format!("node={id}")));
    parts.extend(nested.then(|| "nested".to_owned()));
    parts.extend(user_slice.then(|| "user-slice".to_owned()));
    if parts.is_empty() { "none".to_owned() } else { parts.join(" ") }
}

fn render_placement(placement: &Placement) -> String {
    match placement {
        Placement::Known { workload, .. } => render(workload),
        Placement::WrongNamespace => "wrong-namespace".to_owned(),
        Placement::Disagree => "disagree".to_owned(),
        Placement::Nothing => "nothing".to_owned(),
    }
}

fn fixture(name: &str) -> String {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/cgroup");
    std::fs::read_to_string(dir.join(name)).unwrap()
}

/// The rows of a table with column names in its first line; the expectation is the last column.
fn rows(name: &str) -> Vec<(Vec<String>, String)> {
    let text = fixture(name);
    let row = |line: &str| {
        let mut fields: Vec<String> = line.split('\t').map(str::to_owned).collect();
        let expected = fields.pop().unwrap();
        (fields, expected)
    };
    text.lines().skip(1).map(row).collect()
}

#[test]
fn every_recorded_path_has_the_expected_workload() {
    let rows = rows("paths.tsv");
    assert_eq!(rows.len(), 60);
    for (fields, expected) in rows {
        assert_eq!(render_placement(&parse_proc_cgroup(&fields[3])), expected, "{fields:?}");
    }
}

#[test]
fn every_slurm_path_has_the_expected_workload() {
    let rows = rows("slurm.tsv");
    assert_eq!(rows.len(), 24);
    for (fields, expected) in rows {
        assert_eq!(render(&parse_path(&fields[0])), expected, "{fields:?}");
    }
}

/// The processes of a recorded file: a hierarchy number that does not decrease starts a new
/// process.
fn processes(name: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut last = 0;
    for line in fixture(name).lines().filter(|line| !line.starts_with('#')) {
        let number: u32 = line.split(':').next().unwrap().parse().unwrap();
        if found.is_empty() || number >= last {
            found.push(String::new());
        }
        last = number;
        let process = found.last_mut().unwrap();
        process.push_str(line);
        process.push('\n');
    }
    found
}

/// The parsed placement of each process in a recorded file, with container ids shortened.
fn placements(name: &str) -> Vec<String> {
    let short = |text: &str| {
        let parts = text.split(' ').map(|part| match part.strip_prefix("container=") {
            Some(id) => format!("container={}", &id[..8]),
            None => part.to_owned(),
        });
        parts.collect::<Vec<_>>().join(" ")
    };
    let placements = processes(name);
    placements.iter().map(|text| short(&render_placement(&parse_proc_cgroup(text)))).collect()
}

#[test]
fn every_line_of_a_recorded_pod_process_counts() {
    let pod = |uid: &str, id: &str| format!("pod={uid}/burstable container={id}");
    let uid = "3c9b1de2-77aa-4f0b-a1c2-5d6e7f809102";
    assert_eq!(
        placements("proc-cgroup-containerd-cgroupfs-hybrid.txt"),
        [pod("7d2c7f6a-3b0e-4c3e-9a51-0d6b9f0f5a11", "263043c9")]
    );
    assert_eq!(
        placements("proc-cgroup-containerd-cgroupfs-v2.txt"),
        [
            pod("8e3d8f7b-4c1f-4d4f-8b62-1e7cad1a6b22", "3ff7fcaf"),
            "wrong-namespace".to_owned(),
            "none".to_owned(),
            "wrong-namespace".to_owned(),
        ]
    );
    assert_eq!(
        placements("proc-cgroup-containerd-driver-mismatch-v1.txt"),
        ["pod=77777777-1111-4222-8333-444455556666/besteffort container=5df5632d"]
    );
    assert_eq!(
        placements("proc-cgroup-containerd-systemd-v1.txt"),
        [pod(uid, "2f513d77"), pod(uid, "41c0f040")]
    );
    assert_eq!(
        placements("proc-cgroup-containerd-systemd-v2-vm.txt"),
        [pod(uid, "a7dfcba2"), pod(uid, "17ab24c5")]
    );
    assert_eq!(
        placements("proc-cgroup-containerd-systemd-v2.txt"),
        [
            pod(uid, "5fc93d8a"),
            pod(uid, "5fc93d8a"),
            "pod=bb11bb22-0000-4000-8000-cc33dd44ee55/guaranteed container=d4629b79".to_owned(),
            pod("0123456789abcdef0123456789abcdef", "c2c56edf"),
            pod(uid, "4a4eb419"),
            pod(uid, "5fc93d8a"),
            "pod=aa11bb22-0000-4000-8000-cc33dd44ee55/besteffort container=42b1d013".to_owned(),
        ]
    );
}

#[test]
fn recorded_docker_and_podman_processes_are_their_containers() {
    assert_eq!(placements("proc-cgroup-docker-cgroupfs-hybrid.txt"), ["container=116168f4"]);
    assert_eq!(placements("proc-cgroup-podman-cgroupfs-hybrid.txt"), ["container=47204d5c"]);
}

const POD_A: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const POD_B: &str = "bbbbbbbb-0000-4000-8000-000000000002";

fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

#[test]
fn a_container_that_builds_another_pods_directories_stays_its_own() {
    let (a, b) = (id('a'), id('b'));
    let own = format!("pod={POD_A}/burstable container={a}");
    for forged in [
        format!("/kubepods/burstable/pod{POD_B}/{b}"),
        format!("/kubelet/kubepods/besteffort/pod{POD_B}/{b}"),
        format!("/kubepods.slice/kubepods-pod{}.slice/crio-{b}.scope", POD_B.replace('-', "_")),
        format!("/docker/{b}"),
        "/system.slice/slurmstepd.scope/job_5/step_0/user/task_0".to_owned(),
        "/slurm/uid_0/job_5/step_0".to_owned(),
        "/system.slice/kubelet.service".to_owned(),
        "/user.slice/user-0.slice/session-1.scope".to_owned(),
        "/lxc.payload.web01".to_owned(),
    ] {
        let path = format!("/kubepods/burstable/pod{POD_A}/{a}{forged}");
        assert_eq!(render(&parse_path(&path)), own, "{forged}");
    }
}

#[test]
fn a_docker_container_cannot_become_a_job_a_unit_or_another_container() {
    let (a, b) = (id('a'), id('b'));
    for forged in [
        format!("/docker/{b}"),
        "/slurmstepd.scope/job_5/step_0".to_owned(),
        "/slurm/uid_0/job_5/step_0".to_owned(),
        "/kubelet.service".to_owned(),
        "/lxc.payload.web01".to_owned(),
        "/nomad.slice/share.slice/4744f0ea-7616-ab3a-a420-8e25056e3861.train.scope".to_owned(),
    ] {
        let path = format!("/docker/{a}{forged}");
        assert_eq!(render(&parse_path(&path)), format!("container={a}"), "{forged}");
    }
}

#[test]
fn a_user_cannot_forge_a_job_in_the_user_s_own_slice() {
    let path = "/user.slice/user-7.slice/user@7.service/slurmstepd.scope/job_5/step_0/user/task_0";
    assert_eq!(
        render(&parse_path(path)),
        "unit=user@7.service claimed-unit=slurmstepd.scope uid=7 user-slice"
    );
    // A service with `Delegate=yes` can make any directories.
    let path = "/system.slice/theirs.service/slurm/uid_9/job_5/step_0/task_0";
    assert_eq!(render(&parse_path(path)), "unit=theirs.service");
    let path = "/system.slice/theirs.service/slurmstepd.scope/job_5/step_0/user/task_0";
    assert_eq!(render(&parse_path(path)), "unit=theirs.service");
    let path = "/system.slice/theirs.scope/slurmstepd.scope/job_5/step_0/user/task_0";
    assert_eq!(render(&parse_path(path)), "unit=theirs.scope");
    let path = "/user.slice/user-7.slice/user@7.service/slurm/uid_9/job_5/step_0/task_0";
    assert_eq!(render(&parse_path(path)), "unit=user@7.service uid=7 user-slice");
}

#[test]
fn a_service_cannot_become_an_allocation_another_unit_a_machine_or_a_user() {
    for forged in [
        "/htcondor/condor_var_lib_condor_execute_slot1_1@node01",
        "/nomad.slice/share.slice/4744f0ea-7616-ab3a-a420-8e25056e3861.train.scope",
        "/ecs/529630467358463ab6bbba4e73afe704",
        "/other.service",
        "/other.scope/deeper.service",
        "/lxc.payload.web01",
        "/lxc/web01",
        "/machine-qemu.scope",
        "/systemd-nspawn@web01.service",
        "/user.slice/user-7.slice/session-1.scope",
    ] {
        let path = format!("/system.slice/theirs.service{forged}");
        assert_eq!(render(&parse_path(&path)), "unit=theirs.service", "{forged}");
    }
}

#[test]
fn a_slot_below_the_schedulers_own_service_belongs_to_the_scheduler() {
    let path = "/system.slice/condor.service/htcondor/condor_var_lib_condor_execute_slot1_1@node01";
    let found = parse_path(path);
    assert_eq!(found.allocation.map(|of| of.scheduler), Some("htcondor"));
}

#[test]
fn a_pod_below_a_service_that_is_not_a_runtime_is_marked_nested() {
    let a = id('a');
    let slice = format!("kubepods-pod{}.slice", POD_A.replace('-', "_"));
    for (below, nested) in [
        ("theirs.service", " nested"),
        ("theirs@containerd.service", " nested"),
        ("containerd.service", ""),
        ("containerd@second.service", ""),
    ] {
        for pod in [
            format!("kubepods/pod{POD_A}/{a}"),
            format!("kubepods.slice/{slice}/cri-containerd-{a}.scope"),
            format!("{slice}:cri-containerd:{a}"),
        ] {
            assert_eq!(
                render(&parse_path(&format!("/system.slice/{below}/{pod}"))),
                format!("pod={POD_A}/guaranteed container={a} unit={below}{nested}"),
            );
        }
    }
}

#[test]
fn a_job_is_not_hidden_by_a_container_in_the_users_own_slice() {
    let text = format!(
        "5:devices:/slurm/uid_7/job_5/step_0/task_0\n0::/user.slice/user-7.slice/docker-{}.scope\n",
        id('c')
    );
    assert_eq!(render_placement(&parse_proc_cgroup(&text)), "slurm=5/0/0 uid=7");
}

#[test]
fn a_pod_in_a_users_slice_or_a_machine_is_marked_nested() {
    let a = id('a');
    let path = format!("/user.slice/user-7.slice/user@7.service/kubepods/pod{POD_A}/{a}");
    assert_eq!(
        render(&parse_path(&path)),
        format!("pod={POD_A}/guaranteed container={a} unit=user@7.service uid=7 nested user-slice")
    );
    let path = format!("/lxc.payload.node1/kubepods/pod{POD_A}/{a}");
    assert_eq!(
        render(&parse_path(&path)),
        format!("pod={POD_A}/guaranteed container={a} machine=node1 nested")
    );
}

#[test]
fn lines_that_name_two_owners_identify_neither() {
    let text = |one: &str, other: &str| format!("4:memory:{one}\n0::{other}\n");
    let pod = |uid: &str, digit| format!("/kubepods/pod{uid}/{}", id(digit));
    let placements = |text: String| render_placement(&parse_proc_cgroup(&text));
    assert_eq!(placements(text(&pod(POD_A, 'a'), &pod(POD_B, 'b'))), "disagree");
    assert_eq!(placements(text(&pod(POD_A, 'a'), &pod(POD_A, 'b'))), "disagree");
    assert_eq!(
        placements(text("/slurm/uid_1/job_1/step_0", "/slurm/uid_1/job_2/step_0")),
        "disagree"
    );
    assert_eq!(placements(text("/slurm/uid_1/job_1/step_0", &pod(POD_A, 'a'))), "disagree");
}

#[test]
fn what_a_service_names_on_one_line_does_not_outrank_what_the_host_wrote_on_another() {
    let placements = |one: &str, other: &str| {
        // In either order.
        let text = |one: &str, other: &str| format!("4:memory:{one}\n0::{other}\n");
        let [first, second] = [text(one, other), text(other, one)]
            .map(|text| render_placement(&parse_proc_cgroup(&text)));
        assert_eq!(first, second);
        first
    };
    let pod = |uid: &str, digit| format!("/kubepods/pod{uid}/{}", id(digit));
    let service = "/system.slice/theirs.service";
    let docker = format!("{service}/docker/{}", id('b'));
    let nested = format!("{service}{}", pod(POD_B, 'b'));
    for below in [&docker, &nested] {
        assert_eq!(placements("/slurm/uid_1/job_1/step_0", below), "slurm=1/0/- uid=1");
        let own = format!("pod={POD_A}/guaranteed container={}", id('a'));
        assert_eq!(placements(&pod(POD_A, 'a'), below), own);
        assert_eq!(
            placements(&format!("/docker/{}", id('a')), below),
            format!("container={}", id('a'))
        );
    }
    // If the host's lines name nothing more, the container is reported with the service's unit.
    assert_eq!(placements("/", &docker), format!("container={} unit=theirs.service", id('b')));
}

#[test]
fn hostile_lines_identify_nothing_or_only_what_the_host_wrote() {
    let placements = |text: &str| render_placement(&parse_proc_cgroup(text));
    assert_eq!(placements(""), "nothing");
    assert_eq!(placements("\n:\n::\nno path\n0::relative\n"), "nothing");
    assert_eq!(placements("0::/..\n"), "wrong-namespace");
    assert_eq!(placements("0::/a b:c/d\u{fffd}/..service/.scope\\012x\n"), "unit=..service");
    let deep = format!("0::/system.slice/a.service{}\n", "/x".repeat(2000));
    assert_eq!(placements(&deep), "unit=a.service");
    let long = format!("0::/{}\n", "f".repeat(4095));
    assert_eq!(placements(&long), "none");
    // A number too large for a uid, and a name that is not a job.
    assert_eq!(placements("4:memory:/slurm/uid_99999999999/job_1/step_0\n"), "none");
    assert_eq!(placements("4:memory:/slurm/uid_1/job_x/step_0\n"), "uid=1");
    assert_eq!(placements("0::/slurmstepd.scope/sILOU000000000/step_0\n"), "unit=slurmstepd.scope");
}

#[test]
fn numbered_special_steps_have_their_names() {
    for (number, name) in
        [("4294967290", "interactive"), ("4294967291", "batch"), ("4294967292", "extern")]
    {
        let path = format!("/slurm/uid_1/job_2/step_{number}");
        assert_eq!(render(&parse_path(&path)), format!("slurm=2/{name}/- uid=1"));
    }
}

/// Components that mean something, in any order, and noise between them.
fn path() -> impl Strategy<Value = String> {
    let component = prop_oneof![
        Just("kubepods".to_owned()),
        Just("burstable".to_owned()),
        Just(format!("pod{POD_A}")),
        Just(format!("kubelet-kubepods-pod{}.slice", POD_B.replace('-', "_"))),
        Just("user.slice".to_owned()),
        Just("user-7.slice".to_owned()),
        Just("slurmstepd.scope".to_owned()),
        Just("uid_7".to_owned()),
        Just("job_3".to_owned()),
        Just("step_0".to_owned()),
        Just("lxc".to_owned()),
        Just("docker".to_owned()),
        "[0-9a-f]{64}",
        "(crio|docker|libpod|x)-[0-9a-f]{63,65}(\\.scope)?",
        "a\\.slice:cri-containerd:[0-9a-f]{64}",
        "machine-[a-z\\\\x2d]{0,12}\\.scope",
        ".{0,20}",
    ];
    proptest::collection::vec(component, 0..12).prop_map(|parts| format!("/{}", parts.join("/")))
}

#[test]
fn a_user_slice_made_inside_a_job_does_not_change_the_owner() {
    let job = parse_path("/slurmstepd.scope/job_3");
    assert!(job.slurm.is_some());
    assert_eq!(parse_path("/slurmstepd.scope/job_3/user.slice/user-7.slice"), job);
}

proptest! {
    #[test]
    fn nothing_makes_the_parser_fail(text in "\\PC*", bytes in any::<Vec<u8>>(), path in path()) {
        parse_path(&text);
        parse_proc_cgroup(&text);
        parse_proc_cgroup(&String::from_utf8_lossy(&bytes));
        parse_proc_cgroup(&format!("0::{path}\n4:memory:{path} (deleted)"));
    }

    #[test]
    fn ids_come_only_from_the_path(path in path()) {
        let workload = parse_path(&path);
        for id in workload.container.iter().chain(&workload.node) {
            prop_assert!(path.contains(id.as_str()));
            prop_assert!(is_container_id(id.as_str()));
        }
        if let Some(pod) = &workload.pod {
            prop_assert!(path.replace('_', "-").contains(pod.uid.as_str()));
        }
        if let Some(slurm) = &workload.slurm {
            let directory = format!("/job_{}", slurm.job);
            prop_assert!(path.contains(&directory));
            prop_assert!(!workload.user_slice && workload.pod.is_none());
        }
    }

    #[test]
    fn what_a_pods_container_writes_below_itself_changes_nothing(below in path()) {
        let own = format!("/kubepods/pod{POD_A}/{}", id('a'));
        prop_assert_eq!(parse_path(&format!("{own}{below}")), parse_path(&own));
    }

    #[test]
    fn what_a_service_writes_below_itself_names_no_other_owner(below in path()) {
        let found = parse_path(&format!("/system.slice/theirs.service{below}"));
        prop_assert_eq!(found.unit.as_deref(), Some("theirs.service"));
        prop_assert!(found.slurm.is_none() && found.allocation.is_none() && found.machine.is_none());
        prop_assert!(found.uid.is_none() && (found.pod.is_none() || found.nested));
    }
}
