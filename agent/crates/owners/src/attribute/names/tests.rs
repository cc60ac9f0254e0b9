use super::*;
use crate::attribute::fake::{FakeHost, opened, v2};
use crate::attribute::ownership::Ownership;
use crate::attribute::{Evidence, KernelCgroups, Method};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::ids::ProcKey;

const UID: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const OTHER: &str = "bbbbbbbb-0000-4000-8000-000000000002";
const KEY: ProcKey = ProcKey { pid: 7, start_ticks: 100 };
const SECOND: u64 = 1_000_000_000;

fn id(digit: char) -> ContainerId {
    ContainerId::new(&digit.to_string().repeat(64))
}

fn pod(uid: &str, name: &str) -> PodFacts {
    let mut workload = AttrSet::new();
    workload.set(&attr::K8S_DEPLOYMENT_NAME, "train");
    PodFacts {
        uid: PodUid::new(uid),
        namespace: Arc::from("ml"),
        name: Arc::from(name),
        node: None,
        workload,
        details: AttrSet::new(),
    }
}

fn container(digit: char, name: &str, pod: Option<&str>, cgroup: Option<&str>) -> ContainerFacts {
    ContainerFacts {
        id: id(digit),
        name: Some(Arc::from(name)),
        image: Some(Arc::from("registry.example/train:1")),
        runtime: "containerd",
        pod: pod.map(PodUid::new),
        cgroup: cgroup.map(Arc::from),
        details: AttrSet::new(),
    }
}

/// A table in which [`KEY`] holds a device, at a given cgroup path.
fn holder(host: &FakeHost, path: &str) -> Ownership {
    host.start(KEY, "python3", &format!("0::{path}\n"));
    let table = Ownership::with_clock(&host.paths, || 10 * SECOND);
    table.observe(Evidence::Opened(opened(KEY, 5, 9 * SECOND)));
    table
}

fn pod_path(uid: &str, digit: char) -> String {
    format!("/kubepods/burstable/pod{uid}/{}", id(digit))
}

/// Namespace, pod, container and Deployment of [`KEY`].
fn reported(table: &Ownership) -> [Option<String>; 4] {
    let set = table.attribution(KEY).unwrap().attributes();
    let keys = [
        &attr::K8S_NAMESPACE_NAME,
        &attr::K8S_POD_NAME,
        &attr::K8S_CONTAINER_NAME,
        &attr::K8S_DEPLOYMENT_NAME,
    ];
    keys.map(|key| set.get(key).map(ToString::to_string))
}

fn texts<const N: usize>(texts: [&str; N]) -> [Option<String>; N] {
    texts.map(|text| Some(text.to_owned()))
}

#[test]
fn a_missing_entry_is_requested_once_and_names_the_process_when_it_arrives() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &format!("0::{}\n", pod_path(UID, 'a')));
    let table = Ownership::with_clock(&host.paths, || 10 * SECOND);
    let mut requests = table.names().requests();
    table.observe(Evidence::Opened(opened(KEY, 5, 9 * SECOND)));
    table.expire(10 * SECOND);
    assert_eq!(requests.try_recv().unwrap(), Some(LookupKey::Pod(PodUid::new(UID))));
    assert_eq!(requests.try_recv().unwrap(), Some(LookupKey::Container(id('a'))));
    assert!(requests.try_recv().is_err());
    assert_eq!(reported(&table), [None, None, None, None]);

    table.put_pod(Provider::Cri, pod(UID, "train-0"));
    table.put_container(Provider::Cri, container('a', "main", Some(UID), None));
    assert_eq!(reported(&table), texts(["ml", "train-0", "main", "train"]));
}

#[test]
fn the_first_provider_in_order_counts_whichever_answers_first() {
    let names = MetadataCache::default();
    assert!(names.put_pod(Provider::Engine, pod(UID, "of-engine")));
    assert!(names.put_pod(Provider::Cri, pod(UID, "of-cri")));
    assert!(!names.put_pod(Provider::Engine, pod(UID, "of-engine")));
    assert_eq!(&*names.pod(&PodUid::new(UID)).unwrap().name, "of-cri");
}

#[test]
fn a_reused_name_is_the_latest_pod_s() {
    let names = MetadataCache::default();
    names.put_pod(Provider::Cri, pod(UID, "train-0"));
    names.gone(Provider::Cri, &LookupKey::Pod(PodUid::new(UID)), SECOND);
    names.put_pod(Provider::Cri, pod(OTHER, "train-0"));
    assert_eq!(names.pod_named("ml", "train-0").unwrap().uid, PodUid::new(OTHER));
    names.expire(KEEP_GONE_NS + 2 * SECOND);
    assert_eq!(names.pod(&PodUid::new(UID)), None);
    assert_eq!(names.pod_named("ml", "train-0").unwrap().uid, PodUid::new(OTHER));
}

#[test]
fn ended_facts_are_removed_and_those_that_returned_are_not() {
    let names = MetadataCache::default();
    for digit in ['a', 'b'] {
        names.put_container(Provider::Cri, container(digit, "main", None, None));
        names.gone(Provider::Cri, &LookupKey::Container(id(digit)), SECOND);
    }
    names.put_container(Provider::Cri, container('b', "again", None, None));
    names.expire(KEEP_GONE_NS + 2 * SECOND);
    assert_eq!(names.container(&id('a')), None);
    assert_eq!(names.container(&id('b')).unwrap().name.as_deref(), Some("again"));
}

#[test]
fn a_source_that_loses_its_data_never_removes_a_known_owner() {
    let host = FakeHost::new();
    let table = holder(&host, &pod_path(UID, 'a'));
    table.put_pod(Provider::Cri, pod(UID, "train-0"));
    table.put_container(Provider::Cri, container('a', "main", Some(UID), None));
    table.gone(Provider::Cri, &LookupKey::Pod(PodUid::new(UID)));
    table.gone(Provider::Cri, &LookupKey::Container(id('a')));
    table.expire(20 * KEEP_GONE_NS);
    assert_eq!(table.names().pod(&PodUid::new(UID)), None);

    table.observe(Evidence::Execed { process: KEY, comm: Arc::from("other") });
    assert_eq!(reported(&table), texts(["ml", "train-0", "main", "train"]));
}

#[test]
fn a_container_that_names_another_s_directory_gets_none_of_its_names() {
    // A user's slice, a machine and a container can all hold directories of these names.
    let inner = pod_path(UID, 'a');
    let outer = id('c');
    for path in [
        format!("/user.slice/user-1000.slice/user@1000.service{inner}"),
        format!("/lxc/guest{inner}"),
        format!("/docker/{outer}{inner}"),
    ] {
        let host = FakeHost::new();
        let table = holder(&host, &path);
        table.put_pod(Provider::Cri, pod(UID, "train-0"));
        table.put_container(Provider::Cri, container('a', "main", Some(UID), None));
        assert_eq!(reported(&table), [None, None, None, None], "{path}");
    }
}

#[test]
fn names_that_a_user_or_a_guest_made_are_not_requested() {
    let inner = pod_path(UID, 'a');
    for (path, requested) in [
        (inner.clone(), vec![LookupKey::Pod(PodUid::new(UID)), LookupKey::Container(id('a'))]),
        (format!("/user.slice/user-1000.slice/user@1000.service{inner}"), Vec::new()),
        (format!("/lxc/guest{inner}"), Vec::new()),
        // The container around them belongs to the host.
        (format!("/docker/{}{inner}", id('c')), vec![LookupKey::Container(id('c'))]),
        (format!("/system.slice/theirs.service{inner}"), Vec::new()),
    ] {
        let host = FakeHost::new();
        host.start(KEY, "python3", &format!("0::{path}\n"));
        let table = Ownership::with_clock(&host.paths, || 10 * SECOND);
        let mut requests = table.names().requests();
        table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
        let all: Vec<_> = std::iter::from_fn(|| requests.try_recv().ok()?).collect();
        assert_eq!(all, requested, "{path}");
    }
}

#[test]
fn a_container_that_its_runtime_has_in_another_pod_gives_this_one_no_name() {
    let host = FakeHost::new();
    let table = holder(&host, &pod_path(UID, 'a'));
    table.put_pod(Provider::Cri, pod(UID, "train-0"));
    table.put_container(Provider::Cri, container('a', "main", Some(OTHER), None));
    let owner = table.attribution(KEY).unwrap();
    let pod = owner.workload.pod.as_ref().unwrap();
    assert_eq!((pod.name.as_deref(), pod.container.as_deref()), (Some("train-0"), None));
    assert_eq!(owner.workload.facts, None);
}

#[test]
fn a_cgroup_is_a_container_s_only_by_whole_names() {
    let facts = container('a', "web", None, Some("/docker/web"));
    let is_its = |place| is_about(&facts, &Workload::default(), Some(place));
    let places = ["/docker/web", "/docker/web/below", "/docker/web2", "/docker"];
    assert_eq!(places.map(is_its), [true, true, false, false]);
}

#[test]
fn a_container_outside_pods_is_named_only_at_its_own_place() {
    let facts = container('a', "web", None, Some(&format!("/docker/{}", id('a'))));
    for (path, name) in [
        (format!("/docker/{}", id('a')), Some("web")),
        (format!("/docker/{}/below", id('a')), Some("web")),
        (format!("/system.slice/theirs.service/{}", id('a')), None),
    ] {
        let host = FakeHost::new();
        let table = holder(&host, &path);
        table.put_container(Provider::Engine, facts.clone());
        let owner = table.attribution(KEY).unwrap();
        assert_eq!(owner.method, Method::Proc);
        let found = owner.attributes().get(&attr::CONTAINER_NAME).map(ToString::to_string);
        assert_eq!(found.as_deref(), name, "{path}");
    }
}

#[test]
fn the_host_s_own_pod_of_that_uid_invalidates_a_forged_inner_name() {
    let host = FakeHost::new();
    let table = holder(&host, &format!("/docker/{}{}", id('c'), pod_path(UID, 'a')));
    table.put_pod(Provider::Cri, pod(UID, "train-0"));
    table.observe(Evidence::Moved { process: KEY, cgroups: KernelCgroups(vec![v2(6)]) });
    let owner = table.attribution(KEY).unwrap();
    assert_eq!(owner.workload.pod, None);
    assert_eq!(owner.workload.container, Some(id('c')));
}

#[test]
fn facts_that_arrive_while_a_process_is_resolved_are_not_missed() {
    let host = FakeHost::new();
    let table = Ownership::with_clock(&host.paths, || 10 * SECOND);
    let place = |n: u32| format!("/kubepods/burstable/pod{UID}/{n:064x}");
    let key = |n: u32| ProcKey { pid: 100 + n, start_ticks: 100 };
    for n in 0..200 {
        host.start(key(n), "python3", &format!("0::{}\n", place(n)));
    }
    let mut requests = table.names().requests();
    let provider = table.clone();
    let provider = std::thread::spawn(move || {
        let mut reports = 0;
        while reports < 200 {
            if let Ok(Some(LookupKey::Container(id))) = requests.blocking_recv() {
                let facts = ContainerFacts { id, ..container('a', "main", Some(UID), None) };
                provider.put_container(Provider::Cri, facts);
                reports += 1;
            }
        }
    });
    for n in 0..200 {
        table.observe(Evidence::Opened(opened(key(n), 5, 9 * SECOND)));
    }
    provider.join().unwrap();
    let is_named = |n: &u32| table.attribution(key(*n)).unwrap().workload.facts.is_some();
    assert_eq!((0..200).filter(|n| !is_named(n)).collect::<Vec<_>>(), [0; 0]);
}

#[test]
fn facts_that_are_reported_again_after_the_end_stay() {
    let names = MetadataCache::default();
    let reports = || container('a', "main", Some(UID), None);
    names.put_container(Provider::Cri, reports());
    names.gone(Provider::Cri, &LookupKey::Container(id('a')), 0);
    names.put_container(Provider::Cri, reports());
    names.expire(10_000 * SECOND);
    assert!(names.container(&id('a')).is_some());
}

#[test]
fn a_process_of_a_pod_s_sandbox_loses_the_container_name_its_logs_suggested() {
    let host = FakeHost::new();
    host.pod("ml", "train-0", UID, &["main"]);
    let table = holder(&host, &pod_path(UID, 'a'));
    assert_eq!(reported(&table)[2].as_deref(), Some("main"));
    let sandbox = ContainerFacts { name: None, ..container('a', "", Some(UID), None) };
    table.put_container(Provider::Cri, sandbox);
    assert_eq!(reported(&table)[2], None);
}

#[test]
fn a_pod_that_a_preferred_provider_describes_has_not_ended_when_another_says_so() {
    let names = MetadataCache::default();
    names.put_pod(Provider::Cri, pod(UID, "train-0"));
    names.gone(Provider::Engine, &LookupKey::Pod(PodUid::new(UID)), SECOND);
    names.expire(KEEP_GONE_NS + 2 * SECOND);
    assert_eq!(names.pod_named("ml", "train-0").unwrap().uid, PodUid::new(UID));
    names.gone(Provider::Cri, &LookupKey::Pod(PodUid::new(UID)), SECOND);
    assert_eq!(names.pod_named("ml", "train-0"), None);
}

#[test]
fn the_next_pod_of_a_name_has_it_when_the_last_ends_in_any_order() {
    for (first, second) in [(UID, OTHER), (OTHER, UID)] {
        let names = MetadataCache::default();
        names.put_pod(Provider::Cri, pod(first, "train-0"));
        names.put_pod(Provider::Cri, pod(second, "train-0"));
        names.gone(Provider::Cri, &LookupKey::Pod(PodUid::new(UID)), SECOND);
        let named = names.pod_named("ml", "train-0").map(|pod| pod.uid.clone());
        assert_eq!(named, Some(PodUid::new(OTHER)), "{first} first");
    }
}
