use super::*;
use crate::attribute::names::{MetadataCache, Provider};
use gpuwho_kubernetes::cri::{ContainerMetadata, PodSandboxMetadata};
use proptest::prelude::*;
use std::collections::BTreeMap;

const UID: &str = "d0d0d0d0-1111-4222-8333-444455556666";

fn sandbox(id: &str, uid: &str, attempt: u32, app: &str) -> PodSandbox {
    PodSandbox {
        id: id.to_owned(),
        metadata: Some(PodSandboxMetadata {
            name: format!("pod-{uid}"),
            uid: uid.to_owned(),
            namespace: "ml".to_owned(),
            attempt,
        }),
        created_at: 0,
        labels: [("statefulset.kubernetes.io/pod-name".to_owned(), app.to_owned())].into(),
        annotations: BTreeMap::new(),
    }
}

fn container(id: &str, sandbox: &str, uid: &str, name: &str) -> Container {
    Container {
        id: id.to_owned(),
        pod_sandbox_id: sandbox.to_owned(),
        metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: Some(ImageSpec { image: "lab.local/gpuload:1".into(), ..ImageSpec::default() }),
        image_ref: format!("sha256:{}", "c".repeat(64)),
        labels: [(POD_UID.to_owned(), uid.to_owned())].into(),
    }
}

fn cache() -> PodCache {
    let mut cache = PodCache::new(WantedLabels::default(), None);
    cache.set_runtime("containerd");
    cache
}

/// The names of pods and containers, in the order of the updates.
fn named(reported: &[MetadataUpdate]) -> Vec<String> {
    let line = |reported: &MetadataUpdate| match reported {
        MetadataUpdate::Pod(pod) => format!("pod {} is {}/{}", pod.uid, pod.namespace, pod.name),
        MetadataUpdate::Container(one) => {
            let pod = one.pod.as_ref().unwrap();
            format!("{} is {:?} of {pod}", one.id, one.name.as_deref())
        }
        MetadataUpdate::Gone(Change::Pod(uid)) => format!("pod {uid} ended"),
        MetadataUpdate::Gone(Change::Container(id)) => format!("{id} ended"),
    };
    reported.iter().map(line).collect()
}

#[test]
fn a_list_describes_pods_their_containers_and_the_sandbox_itself() {
    let reported =
        cache().list(vec![sandbox("s", UID, 0, "")], vec![container("c", "s", UID, "main")]);
    let pod = format!("pod {UID} is ml/pod-{UID}");
    let expected = [pod, format!("s is None of {UID}"), format!("c is Some(\"main\") of {UID}")];
    assert_eq!(named(&reported), expected);
    let Some(MetadataUpdate::Container(facts)) = reported.last() else { panic!("{reported:?}") };
    let image = facts.image.as_deref();
    assert_eq!((image, facts.runtime), (Some("lab.local/gpuload:1"), "containerd"));
}

#[test]
fn a_container_listed_without_its_sandbox_belongs_to_its_label_s_pod() {
    let reported = cache().some(Vec::new(), vec![container("c", "s", UID, "main")]);
    assert_eq!(named(&reported), [format!("c is Some(\"main\") of {UID}")]);
}

#[test]
fn a_container_without_sandbox_and_label_is_ignored() {
    let stray = Container { labels: BTreeMap::new(), ..container("c", "s", UID, "main") };
    assert_eq!(named(&cache().some(Vec::new(), vec![stray])), [""; 0]);
}

#[test]
fn a_container_with_a_label_that_contradicts_its_sandbox_is_ignored() {
    let mut cache = cache();
    cache.some(vec![sandbox("s", UID, 0, "")], Vec::new());
    let reported = cache.some(Vec::new(), vec![container("c", "s", "another", "main")]);
    assert_eq!(named(&reported), [""; 0]);
}

#[test]
fn init_and_ephemeral_containers_have_the_names_the_pod_gives_them() {
    let containers = [("i", "copy-model"), ("d", "debugger-x7b9k")]
        .map(|(id, name)| container(id, "s", UID, name))
        .to_vec();
    let reported = cache().some(vec![sandbox("s", UID, 0, "")], containers);
    let expected = ["i is Some(\"copy-model\")", "d is Some(\"debugger-x7b9k\")"];
    assert_eq!(named(&reported)[2..], expected.map(|line| format!("{line} of {UID}")));
}

#[test]
fn a_static_pod_has_its_uid_of_32_digits() {
    let uid = "0123456789abcdef0123456789abcdef";
    let reported = cache().some(vec![sandbox("s", uid, 0, "")], Vec::new());
    assert_eq!(named(&reported)[0], format!("pod {uid} is ml/pod-{uid}"));
}

#[test]
fn the_latest_attempt_of_a_pod_s_sandboxes_describes_it() {
    let pods = vec![sandbox("new", UID, 1, "b-1"), sandbox("old", UID, 0, "a-0")];
    let reported = cache().some(pods, Vec::new());
    let expected = [
        format!("pod {UID} is ml/pod-{UID}"),
        format!("new is None of {UID}"),
        format!("old is None of {UID}"),
    ];
    assert_eq!(named(&reported), expected);
}

#[test]
fn a_pod_ends_with_its_last_sandbox() {
    let mut cache = cache();
    cache.list(vec![sandbox("old", UID, 0, ""), sandbox("new", UID, 1, "")], Vec::new());
    let reported = cache.list(vec![sandbox("new", UID, 1, "")], Vec::new());
    assert_eq!(named(&reported)[2..], ["old ended"]);
    let reported = cache.list(Vec::new(), Vec::new());
    assert_eq!(named(&reported), [format!("pod {UID} ended"), "new ended".to_owned()]);
}

#[test]
fn an_incomplete_list_ends_nothing() {
    let mut cache = cache();
    cache.list(vec![sandbox("s", UID, 0, "")], vec![container("c", "s", UID, "main")]);
    assert_eq!(named(&cache.some(Vec::new(), Vec::new())), [""; 0]);
}

#[test]
fn an_event_updates_what_it_contains_and_a_deletion_ends_its_container() {
    let PodSandbox { id, metadata, created_at, labels, annotations } = sandbox("s", UID, 0, "");
    let status = PodSandboxStatus { id, metadata, created_at, labels, annotations };
    let metadata = ContainerMetadata { name: "main".into(), attempt: 2 };
    let running =
        ContainerStatus { id: "c".into(), metadata: Some(metadata), ..ContainerStatus::default() };
    let event = |kind: ContainerEventType, about: &str| ContainerEventResponse {
        container_id: about.into(),
        container_event_type: kind.into(),
        pod_sandbox_status: Some(status.clone()),
        containers_statuses: vec![running.clone()],
    };
    let mut cache = cache();
    let reported = named(&cache.event(event(ContainerEventType::ContainerStartedEvent, "c")));
    let expected = [
        format!("pod {UID} is ml/pod-{UID}"),
        format!("s is None of {UID}"),
        format!("c is Some(\"main\") of {UID}"),
    ];
    assert_eq!(reported, expected);
    assert_eq!(
        named(&cache.event(event(ContainerEventType::ContainerDeletedEvent, "c"))).last().unwrap(),
        "c ended"
    );
    let bare = ContainerEventResponse {
        pod_sandbox_status: None,
        containers_statuses: Vec::new(),
        ..event(ContainerEventType::ContainerDeletedEvent, "s")
    };
    assert_eq!(named(&cache.event(bare)), [format!("pod {UID} ended"), "s ended".to_owned()]);
}

#[test]
fn an_image_has_the_name_that_the_pod_requested() {
    let digest = || format!("sha256:{}", "c".repeat(64));
    let spec = |image: &str, requested: &str| {
        Some(ImageSpec { image: image.into(), user_specified_image: requested.into() })
    };
    let named = |spec: Option<ImageSpec>, reference: String| {
        image(spec.as_ref(), &reference).map(|name| name.to_string())
    };
    assert_eq!(named(spec(&digest(), "vllm:1"), digest()).as_deref(), Some("vllm:1"));
    assert_eq!(named(spec("vllm:2", ""), digest()).as_deref(), Some("vllm:2"));
    let repo = format!("registry.example/vllm@{}", digest());
    assert_eq!(named(spec(&digest(), ""), repo.clone()), Some(repo));
    assert_eq!(named(spec(&digest(), ""), digest()), None);
}

#[test]
fn an_image_known_by_its_digest_alone_has_the_tag_of_the_runtime_s_list() {
    let digest = format!("sha256:{}", "c".repeat(64));
    let spec = ImageSpec { image: digest.clone(), ..ImageSpec::default() };
    let containers = [Container { image: Some(spec), ..container("c", "s", UID, "main") }];
    let mut cache = cache();
    assert!(cache.lacks_tags(&containers));
    let images = vec![Image { id: digest, repo_tags: vec!["lab.local/gpuload:1".into()] }];
    cache.tags(images, &containers);
    assert!(!cache.lacks_tags(&containers));
    let reported = cache.some(Vec::new(), containers.to_vec());
    let [MetadataUpdate::Container(facts)] = &*reported else { panic!("{reported:?}") };
    assert_eq!(facts.image.as_deref(), Some("lab.local/gpuload:1"));
}

/// A step of the property test.
#[derive(Clone, Debug)]
enum Step {
    /// A complete list of these pods.
    List(Vec<usize>),
    /// The containers of a pod, without its sandbox.
    Containers(usize),
    /// A pod's sandbox, without its containers.
    Sandbox(usize),
    Event(usize, i32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        proptest::sample::subsequence((0..PODS).collect::<Vec<_>>(), 0..=PODS).prop_map(Step::List),
        (0..PODS).prop_map(Step::Containers),
        (0..PODS).prop_map(Step::Sandbox),
        (0..PODS, 0..4).prop_map(|(pod, kind)| Step::Event(pod, kind)),
    ]
}

const PODS: usize = 5;

/// Pod `n`'s sandbox and two containers; pods 0 and 1 are attempts of one.
fn world(pod: usize) -> (PodSandbox, Vec<Container>) {
    let uid = format!("uid-{}", pod.max(1));
    let id = format!("s{pod}");
    let attempt = u32::try_from(pod.min(1)).unwrap();
    let containers = ["a", "b"].map(|name| container(&format!("{name}{pod}"), &id, &uid, name));
    (sandbox(&id, &uid, attempt, "app-0"), containers.to_vec())
}

fn apply(cache: &mut PodCache, step: &Step) -> Vec<MetadataUpdate> {
    match step {
        Step::List(pods) => {
            let (sandboxes, containers): (Vec<_>, Vec<_>) = pods.iter().map(|n| world(*n)).unzip();
            cache.list(sandboxes, containers.concat())
        }
        Step::Containers(pod) => cache.some(Vec::new(), world(*pod).1),
        Step::Sandbox(pod) => cache.some(vec![world(*pod).0], Vec::new()),
        Step::Event(pod, kind) => {
            let (sandbox, containers) = world(*pod);
            let PodSandbox { id, metadata, created_at, labels, annotations } = sandbox;
            let sandbox = PodSandboxStatus { id, metadata, created_at, labels, annotations };
            let status = |one: Container| ContainerStatus {
                id: one.id,
                metadata: one.metadata,
                image: one.image,
                image_ref: one.image_ref,
                labels: one.labels,
                ..ContainerStatus::default()
            };
            let container_id = format!("a{pod}");
            let containers = containers.into_iter().map(status).collect();
            cache.event(ContainerEventResponse {
                container_id,
                container_event_type: *kind,
                pod_sandbox_status: Some(sandbox),
                containers_statuses: containers,
            })
        }
    }
}

proptest! {
    #[test]
    fn no_order_of_lists_events_and_lookups_gives_a_container_another_pod_s_name(
        steps in proptest::collection::vec(step(), 0..40),
    ) {
        let (mut cache, names) = (cache(), MetadataCache::default());
        for step in &steps {
            for reported in apply(&mut cache, step) {
                match reported {
                    MetadataUpdate::Pod(facts) => drop(names.put_pod(Provider::Cri, facts)),
                    MetadataUpdate::Container(facts) => drop(names.put_container(Provider::Cri, facts)),
                    MetadataUpdate::Gone(what) => names.gone(Provider::Cri, &what, 0),
                }
            }
            for (pod, name) in (0..PODS).flat_map(|pod| ["a", "b", "s"].map(|name| (pod, name))) {
                let uid = PodUid::new(&format!("uid-{}", pod.max(1)));
                if let Some(facts) = names.container(&ContainerId::new(&format!("{name}{pod}"))) {
                    let expected = (Some(&uid), (name != "s").then_some(name));
                    prop_assert_eq!((facts.pod.as_ref(), facts.name.as_deref()), expected);
                }
                if let Some(facts) = names.pod(&uid) {
                    prop_assert_eq!(&*facts.name, &*format!("pod-{uid}"));
                }
            }
        }
        let everything = Step::List((0..PODS).collect());
        prop_assert!(apply(&mut cache, &everything).iter().all(|reported| !matches!(reported, MetadataUpdate::Gone(_))));
        prop_assert_eq!(cache.containers(), PODS * 3);
    }
}
