use super::*;
use crate::attribute::providers::pods_api::wire::{self, PodSpec, Time};

fn pod(uid: &str, name: &str) -> Pod {
    let metadata = ObjectMeta {
        name: name.into(),
        namespace: "ml".into(),
        uid: uid.into(),
        creation_timestamp: Some(Time { seconds: 1_790_000_000 }),
        annotations: [(SOURCE.into(), "api".into())].into(),
        ..ObjectMeta::default()
    };
    let spec = PodSpec { node_name: "node-a".into() };
    Pod { metadata: Some(metadata), spec: Some(spec), status: None }
}

fn annotated(mut pod: Pod, annotations: &[(&str, &str)]) -> Pod {
    let metadata = pod.metadata.as_mut().unwrap();
    let all = annotations.iter().map(|(key, value)| ((*key).into(), (*value).into()));
    metadata.annotations.extend(all);
    pod
}

fn status(name: &str, id: &str) -> ContainerStatus {
    let image = "registry.example/vllm:1".into();
    ContainerStatus { name: name.into(), image, container_id: id.into() }
}

fn facts(uid: &str, name: &str) -> MetadataUpdate {
    MetadataUpdate::Pod(PodFacts {
        uid: PodUid::new(uid),
        namespace: "ml".into(),
        name: name.into(),
        node: Some("node-a".into()),
        workload: AttrSet::new(),
        details: AttrSet::new(),
    })
}

fn container(pod: &str, name: &str, id: &str) -> MetadataUpdate {
    MetadataUpdate::Container(ContainerFacts {
        id: ContainerId::new(id),
        name: Some(name.into()),
        image: Some("registry.example/vllm:1".into()),
        runtime: "containerd",
        pod: Some(PodUid::new(pod)),
        cgroup: None,
        details: AttrSet::new(),
    })
}

fn cache() -> PodCache {
    PodCache::new(WantedLabels::default())
}

const HASHED: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn a_pod_describes_its_containers_of_all_three_kinds() {
    let status = PodStatus {
        regular: vec![status("main", "containerd://aa"), status("late", "")],
        init: vec![status("setup", "containerd://bb")],
        ephemeral: vec![status("debugger", "containerd://cc")],
    };
    let reported = cache().pod(Pod { status: Some(status), ..pod("u1", "a") });
    let wanted = [
        facts("u1", "a"),
        container("u1", "setup", "bb"),
        container("u1", "main", "aa"),
        container("u1", "debugger", "cc"),
    ];
    assert_eq!(reported, wanted);
}

#[test]
fn a_restarted_container_is_a_new_one_and_the_first_is_gone() {
    let mut cache = cache();
    let with = |id: &str| {
        let regular = vec![status("main", id)];
        let status = PodStatus { regular, ..PodStatus::default() };
        Pod { status: Some(status), ..pod("u1", "a") }
    };
    cache.pod(with("containerd://aa"));
    let wanted = [
        facts("u1", "a"),
        container("u1", "main", "bb"),
        MetadataUpdate::Gone(Change::Container(ContainerId::new("aa"))),
    ];
    assert_eq!(cache.pod(with("containerd://bb")), wanted);
    let wanted = [
        MetadataUpdate::Gone(Change::Container(ContainerId::new("bb"))),
        MetadataUpdate::Gone(Change::Pod(PodUid::new("u1"))),
    ];
    assert_eq!(cache.deleted(&pod("u1", "a")), wanted);
}

#[test]
fn owner_references_and_age_name_the_workload() {
    let mut meta = pod("u1", "nightly-29833333-abcde");
    let metadata = meta.metadata.as_mut().unwrap();
    metadata.owner_references.push(wire::OwnerReference {
        kind: "Job".into(),
        name: "nightly-29833333".into(),
        api_version: "batch/v1".into(),
        controller: true,
    });
    let reported = cache().pod(meta);
    let Some(MetadataUpdate::Pod(facts)) = reported.first() else { panic!("{reported:?}") };
    let workload: Vec<_> =
        facts.workload.iter().map(|(key, value)| (key.name, value.to_string())).collect();
    let wanted = [
        ("k8s.job.name", "nightly-29833333"),
        ("k8s.cronjob.name", "nightly"),
        ("gpuwho.workload.kind", "CronJob"),
        ("gpuwho.workload.name", "nightly"),
    ];
    assert_eq!(workload, wanted.map(|(key, value)| (key, value.to_owned())));
}

#[test]
fn a_static_pod_is_known_by_the_uid_in_its_cgroup() {
    let from_file = annotated(pod(HASHED, "etcd"), &[(SOURCE, "file"), (HASH, HASHED)]);
    assert_eq!(cache().pod(from_file), [facts(HASHED, "etcd")]);
    // Its mirror, if only that is reported.
    let mirror = annotated(pod("u-mirror", "etcd"), &[(MIRROR, HASHED)]);
    assert_eq!(cache().pod(mirror), [facts(HASHED, "etcd")]);
}

#[test]
fn a_mirror_changes_nothing_of_the_static_pod() {
    let mut cache = cache();
    cache.pod(annotated(pod(HASHED, "etcd"), &[(SOURCE, "file"), (HASH, HASHED)]));
    let mirror = annotated(pod("u-mirror", "not-etcd"), &[(MIRROR, HASHED)]);
    assert_eq!(cache.pod(mirror.clone()), []);
    assert_eq!(cache.deleted(&mirror), []);
}

#[test]
fn an_annotation_never_gives_a_pod_the_uid_of_another() {
    let affected = "11111111-2222-3333-4444-555555555555";
    for forged in [
        annotated(pod("u-forger", "x"), &[(HASH, affected), (MIRROR, affected)]),
        annotated(pod("u-forger", "x"), &[(HASH, HASHED)]),
        annotated(pod("u-forger", "x"), &[(SOURCE, "file"), (HASH, affected)]),
    ] {
        assert_eq!(cache().pod(forged), [facts("u-forger", "x")]);
    }
}

#[test]
fn a_pod_that_a_complete_sync_leaves_out_has_ended() {
    let mut cache = cache();
    cache.pod(pod("u1", "a"));
    cache.pod(pod("u2", "b"));
    cache.begin_sync();
    cache.pod(pod("u2", "b"));
    cache.pod(pod("u3", "c"));
    assert_eq!(cache.synced(), [MetadataUpdate::Gone(Change::Pod(PodUid::new("u1")))]);
    assert_eq!(cache.pods(), 2);
}

#[test]
fn a_pod_without_a_name_or_a_uid_is_ignored() {
    assert_eq!(cache().pod(pod("", "a")), []);
    assert_eq!(cache().pod(pod("u1", "")), []);
    assert_eq!(cache().pod(Pod::default()), []);
}

#[test]
fn a_digest_is_no_image_name() {
    let sum = "sha256:0123".to_owned();
    let reported = container_of(&ContainerStatus { image: sum, ..status("main", "cri-o://aa") });
    assert_eq!(reported.map(|facts| (facts.image, facts.runtime)), Some((None, "cri-o")));
}

fn container_of(status: &ContainerStatus) -> Option<ContainerFacts> {
    super::container(&PodUid::new("u1"), status)
}
