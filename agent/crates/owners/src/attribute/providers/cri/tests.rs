use super::super::fake::{Node, wait_for};
use super::*;
use crate::attribute::ProcessAttribution;
use crate::local::fake::{Call, Reply, Server};
use gpuwho_kubernetes::cri::{
    ContainerMetadata, ContainerStatus, PodSandboxMetadata, PodSandboxStatus,
};
use gpuwho_model::ids::{ContainerId, ProcKey};
use std::sync::{Arc, Mutex};
use tonic::Code;

const UID: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const OTHER: &str = "bbbbbbbb-0000-4000-8000-000000000002";

/// A runtime's state, shared by its servers through a restart.
#[derive(Default)]
struct World {
    pods: Vec<PodSandbox>,
    containers: Vec<Container>,
    /// The calls received, in order.
    calls: Vec<String>,
    /// Open event streams; `None` if the runtime has no events.
    events: Option<Vec<Reply>>,
    mode: Mode,
    /// Calls that wait for ever.
    hung: Vec<Reply>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Mode {
    #[default]
    Well,
    Hangs,
    Garbles,
    HasNoCri,
}

type Shared = Arc<Mutex<World>>;

fn runtime(world: &Shared, socket: &std::path::Path) -> Server {
    let world = Arc::clone(world);
    Server::grpc(socket, move |call| answer(&mut world.lock().unwrap(), call))
}

fn answer(world: &mut World, call: Call) {
    world.calls.push(call.path.rsplit('/').next().unwrap().to_owned());
    match world.mode {
        Mode::Well => {}
        Mode::Hangs => return world.hung.push(call.reply),
        Mode::Garbles => {
            call.reply.bytes(&[0xff; 9]);
            return;
        }
        Mode::HasNoCri => return call.reply.end(Code::Unimplemented, "unknown service"),
    }
    match call.path.as_str() {
        VERSION => call.reply.only(&VersionResponse {
            runtime_name: "containerd".into(),
            runtime_version: if world.events.is_some() { "1.7.24" } else { "1.6.20" }.into(),
        }),
        LIST_SANDBOXES => {
            let filter = call.question::<ListPodSandboxRequest>().filter.unwrap_or_default();
            let is_meant = |pod: &&PodSandbox| {
                (filter.id.is_empty() || filter.id == pod.id)
                    && filter
                        .label_selector
                        .iter()
                        .all(|(key, value)| pod.labels.get(key) == Some(value))
            };
            let items = world.pods.iter().filter(is_meant).cloned().collect();
            call.reply.only(&ListPodSandboxResponse { items });
        }
        LIST_CONTAINERS => {
            let filter = call.question::<ListContainersRequest>().filter.unwrap_or_default();
            let is_meant = |one: &&Container| filter.id.is_empty() || filter.id == one.id;
            let containers = world.containers.iter().filter(is_meant).cloned().collect();
            call.reply.only(&ListContainersResponse { containers });
        }
        EVENTS => match &mut world.events {
            Some(events) => events.push(call.reply),
            None => call.reply.end(Code::Unimplemented, "not implemented"),
        },
        other => panic!("called {other}"),
    }
}

fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn sandbox(digit: char, uid: &str, name: &str) -> PodSandbox {
    let metadata = PodSandboxMetadata {
        name: name.into(),
        uid: uid.into(),
        namespace: "ml".into(),
        attempt: 0,
    };
    PodSandbox {
        id: id(digit),
        metadata: Some(metadata),
        created_at: 1,
        labels: [(POD_UID.to_owned(), uid.to_owned())].into(),
        annotations: std::collections::BTreeMap::new(),
    }
}

fn container(digit: char, sandbox: char, name: &str) -> Container {
    Container {
        id: id(digit),
        pod_sandbox_id: id(sandbox),
        metadata: Some(ContainerMetadata { name: name.into(), attempt: 0 }),
        image: None,
        image_ref: "registry.example/train:1".into(),
        labels: std::collections::BTreeMap::new(),
    }
}

/// One pod of two containers.
fn world() -> Shared {
    Arc::new(Mutex::new(World {
        pods: vec![sandbox('1', UID, "train-0")],
        containers: vec![container('a', '1', "main"), container('b', '1', "sidecar")],
        events: Some(Vec::new()),
        ..World::default()
    }))
}

fn without_events(world: &Shared) {
    world.lock().unwrap().events = None;
}

fn place(uid: &str, digit: char) -> String {
    format!("/kubepods/burstable/pod{uid}/{}", id(digit))
}

/// Namespace, pod and container of a process.
fn reported(owner: &ProcessAttribution) -> [Option<&str>; 3] {
    let pod = owner.workload.pod.as_ref();
    [
        pod.and_then(|pod| pod.namespace.as_deref()),
        pod.and_then(|pod| pod.name.as_deref()),
        pod.and_then(|pod| pod.container.as_deref()),
    ]
}

fn wait_for_name(node: &Node, process: ProcKey, pod: &str, container: Option<&str>) {
    let expected = [Some("ml"), Some(pod), container];
    // The values in the failure message say more than a missing one.
    node.wait_for_owner(process, |owner| {
        reported(owner) == expected && owner.workload.facts.is_some()
    });
}

fn start(world: &Shared) -> (Node, Server) {
    let mut node = Node::new(&["cri.sock"], None);
    let server = runtime(world, &node.sockets[0]);
    node.providers.start().unwrap();
    (node, server)
}

/// Runs until the first list is in.
fn settled(world: &Shared) -> (Node, Server) {
    let (node, server) = start(world);
    node.wait_for_report("cri", |report| report.state == SourceState::Ready);
    (node, server)
}

#[test]
fn containers_that_run_at_the_start_are_named_each_with_its_own_name() {
    let (node, _server) = start(&world());
    let (main, side) = (node.holder(7, &place(UID, 'a')), node.holder(8, &place(UID, 'b')));
    wait_for_name(&node, main, "train-0", Some("main"));
    wait_for_name(&node, side, "train-0", Some("sidecar"));
    let facts = node.ownership.attribution(main).unwrap().workload.facts.clone().unwrap();
    assert_eq!(
        (facts.runtime, facts.image.as_deref()),
        ("containerd", Some("registry.example/train:1"))
    );
}

#[test]
fn a_sandbox_process_belongs_to_the_pod_and_to_none_of_its_containers() {
    let (node, _server) = start(&world());
    node.host.pod("ml", "train-0", UID, &["main"]);
    let pause = node.holder(7, &place(UID, '1'));
    wait_for_name(&node, pause, "train-0", None);
}

#[test]
fn a_container_started_later_is_looked_up_by_id_without_events() {
    let world = world();
    without_events(&world);
    let (node, _server) = start(&world);
    // The refusal of events comes after the first list.
    node.wait_for_report("cri", |report| report.reason.contains("is polled"));
    {
        let mut world = world.lock().unwrap();
        world.pods.push(sandbox('2', OTHER, "serve-0"));
        world.containers.push(container('c', '2', "vllm"));
        world.calls.clear();
    }
    let process = node.holder(7, &place(OTHER, 'c'));
    wait_for_name(&node, process, "serve-0", Some("vllm"));
    let mut calls = world.lock().unwrap().calls.clone();
    calls.sort();
    assert_eq!(calls[..2], ["ListContainers", "ListPodSandbox"], "{calls:?}");
    assert!(calls.len() <= 3, "{calls:?}");
}

#[test]
fn many_lookups_are_answered_by_one_list() {
    let world = world();
    without_events(&world);
    let mut node = Node::new(&["cri.sock"], None);
    let _server = runtime(&world, &node.sockets[0]);
    for pid in 0..60 {
        node.holder(100 + pid, &format!("/kubepods/pod{UID}/{pid:064x}"));
    }
    node.providers.start().unwrap();
    node.providers.wait(Duration::from_mins(1));
    let calls = world.lock().unwrap().calls.clone();
    let lists = calls.iter().filter(|call| *call == "ListContainers").count();
    assert!(lists <= 2, "{calls:?}");
}

#[test]
fn an_event_names_a_container_before_a_lookup() {
    let world = world();
    let (node, _server) = settled(&world);
    let events = wait_for(|| {
        let mut world = world.lock().unwrap();
        let open = world.events.as_mut().unwrap().pop();
        open.ok_or("no stream")
    });
    let PodSandbox { id: sandbox_id, metadata, created_at, labels, annotations } =
        sandbox('2', OTHER, "serve-0");
    let status = PodSandboxStatus { id: sandbox_id, metadata, created_at, labels, annotations };
    let Container { id: container_id, metadata, image, image_ref, labels, .. } =
        container('c', '2', "vllm");
    let running = ContainerStatus {
        id: container_id.clone(),
        metadata,
        image,
        image_ref,
        labels,
        ..<_>::default()
    };
    let event = ContainerEventResponse {
        container_id,
        container_event_type: 1,
        pod_sandbox_status: Some(status),
        containers_statuses: vec![running],
    };
    assert!(events.answer(&event));
    let names = node.ownership.names();
    let facts = wait_for(|| names.container(&ContainerId::new(&id('c'))).ok_or("no name"));
    assert_eq!(
        (facts.name.as_deref(), facts.pod.as_ref().unwrap().as_str()),
        (Some("vllm"), OTHER)
    );
}

#[test]
fn a_runtime_that_hangs_is_reported_and_removes_no_name() {
    let world = world();
    without_events(&world);
    let (node, _server) = settled(&world);
    let process = node.holder(7, &place(UID, 'a'));
    wait_for_name(&node, process, "train-0", Some("main"));
    world.lock().unwrap().mode = Mode::Hangs;
    let unnamed = node.holder(8, &place(OTHER, 'c'));
    let report = node.wait_for_report("cri", |report| report.state == SourceState::Hung);
    assert!(
        report.reason.contains("ListContainers: no answer within 5s")
            || report.reason.contains("ListPodSandbox: no answer within 5s"),
        "{}",
        report.reason
    );
    assert_eq!(reported(&node.ownership.attribution(process).unwrap())[1], Some("train-0"));
    assert_eq!(reported(&node.ownership.attribution(unnamed).unwrap()), [None; 3]);
    let mut world_now = world.lock().unwrap();
    world_now.mode = Mode::Well;
    world_now.pods.push(sandbox('2', OTHER, "serve-0"));
    world_now.containers.push(container('c', '2', "vllm"));
    drop(world_now);
    wait_for_name(&node, unnamed, "serve-0", Some("vllm"));
}

#[test]
fn a_restarted_runtime_is_read_again_and_nothing_is_removed_meanwhile() {
    let world = world();
    let (node, server) = settled(&world);
    let process = node.holder(7, &place(UID, 'a'));
    wait_for_name(&node, process, "train-0", Some("main"));
    drop(server);
    node.wait_for_report("cri", |report| report.state == SourceState::Failed);
    let young = node.holder(8, &place(OTHER, 'c'));
    assert_eq!(reported(&node.ownership.attribution(process).unwrap())[1], Some("train-0"));
    world.lock().unwrap().pods.push(sandbox('2', OTHER, "serve-0"));
    world.lock().unwrap().containers.push(container('c', '2', "vllm"));
    let _server = runtime(&world, &node.sockets[0]);
    wait_for_name(&node, young, "serve-0", Some("vllm"));
}

#[test]
fn a_runtime_that_was_upgraded_under_its_socket_is_asked_for_events_at_the_next_list() {
    let world = world();
    without_events(&world);
    let (node, server) = start(&world);
    node.wait_for_report("cri", |report| report.reason.contains("is polled"));
    drop(server);
    world.lock().unwrap().events = Some(Vec::new());
    let _server = runtime(&world, &node.sockets[0]);
    node.holder(7, &place(OTHER, 'c'));
    let report = node.wait_for_report("cri", |report| report.reason.contains("sends events"));
    assert!(report.reason.starts_with("containerd 1.7.24 at "), "{}", report.reason);
}

#[test]
fn garbage_is_a_failure_with_a_reason_and_the_next_valid_answer_ends_it() {
    let world = world();
    world.lock().unwrap().mode = Mode::Garbles;
    let (node, _server) = start(&world);
    let report = node.wait_for_report("cri", |report| report.state == SourceState::Failed);
    assert!(
        report.reason.contains("RuntimeService/Version: answered Internal"),
        "{}",
        report.reason
    );
    world.lock().unwrap().mode = Mode::Well;
    let process = node.holder(7, &place(UID, 'a'));
    wait_for_name(&node, process, "train-0", Some("main"));
}

#[test]
fn a_containerd_without_cri_is_no_failure() {
    let world = world();
    world.lock().unwrap().mode = Mode::HasNoCri;
    let (node, _server) = start(&world);
    let report = node.wait_for_report("cri", |_| true);
    assert_eq!(report.state, SourceState::Absent);
    assert!(report.reason.starts_with("no runtime answers at "), "{}", report.reason);
}

#[test]
fn a_socket_that_appears_later_is_used() {
    let mut node = Node::new(&["none.sock", "cri.sock"], None);
    node.providers.start().unwrap();
    let report = node.wait_for_report("cri", |_| true);
    assert_eq!(report.state, SourceState::Absent);
    let process = node.holder(7, &place(UID, 'a'));
    let _server = runtime(&world(), &node.sockets[1]);
    wait_for_name(&node, process, "train-0", Some("main"));
    let report = node.wait_for_report("cri", |report| report.state == SourceState::Ready);
    assert!(report.reason.starts_with("containerd 1.7.24 at "), "{}", report.reason);
}

#[test]
fn waiting_ends_with_the_names_or_at_the_timeout() {
    let (node, _server) = start(&world());
    let process = node.holder(7, &place(UID, 'a'));
    node.providers.wait(Duration::from_mins(1));
    assert_eq!(reported(&node.ownership.attribution(process).unwrap())[2], Some("main"));
}
