use super::super::Kubernetes;
use super::super::fake_kubelet::{Kubelet as Fake, Office, Reply, run};
use super::wire::{ContainerStatus, ObjectMeta, PodSpec, PodStatus};
use super::*;
use crate::ids::{ContainerId, PodUid};
use tokio::task::spawn_local;

const QUICK: Timing = Timing {
    // An answer that is late on a busy machine would be asked for again.
    deadline: Duration::from_hours(1),
    relist: Duration::from_millis(50),
    soonest: Duration::from_millis(5),
    look_again: Duration::from_millis(20),
    first_retry: Duration::from_millis(5),
    last_retry: Duration::from_millis(50),
    gather: Duration::from_millis(10),
    doubt: Duration::from_hours(1),
};

fn pod(uid: &str, name: &str) -> Vec<u8> {
    let metadata = ObjectMeta {
        name: name.into(),
        namespace: "ml".into(),
        uid: uid.into(),
        ..ObjectMeta::default()
    };
    let container = ContainerStatus {
        name: "main".into(),
        image: "vllm:1".into(),
        container_id: format!("containerd://{uid}-main"),
    };
    let status = PodStatus { regular: vec![container], ..PodStatus::default() };
    let spec = PodSpec { node_name: "node-a".into() };
    Pod { metadata: Some(metadata), spec: Some(spec), status: Some(status) }.encode_to_vec()
}

fn event(kind: i32, pod: Vec<u8>) -> WatchPodsEvent {
    WatchPodsEvent { kind, pod }
}

fn watch(events: &[WatchPodsEvent]) -> Reply {
    let synced = event(INITIAL_SYNC_COMPLETE, Vec::new());
    let events = events.iter().chain([&synced]);
    Reply::Stream(events.map(prost::Message::encode_to_vec).collect())
}

fn start(office: &Office) {
    start_at(QUICK, office);
}

fn start_at(pace: Timing, office: &Office) {
    let kubernetes = Kubernetes { pods_api: Some(office.socket()), ..Kubernetes::default() };
    let (desk, wants) = office.context(kubernetes);
    drop(spawn_local(at_pace(pace, desk, wants)));
}

fn knows(office: &Office, uid: &str) -> bool {
    let names = office.ownership.names();
    names.pod(&PodUid::new(uid)).is_some()
        && names.container(&ContainerId::new(&format!("{uid}-main"))).is_some()
}

fn named(office: &Office, name: &str) -> Option<String> {
    let facts = office.ownership.names().pod_named("ml", name)?;
    Some(facts.uid.as_str().to_owned())
}

fn state(office: &Office) -> Option<SourceState> {
    office.report().map(|report| report.state)
}

#[test]
fn a_watch_tells_pods_as_they_come_change_and_go() {
    run(async {
        let office = Office::new("pods_api");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("WatchPods", watch(&[event(ADDED, pod("u1", "a"))]));
        start(&office);
        office.until("told of the first pod", |office| knows(office, "u1")).await;
        office.until("ready", |office| state(office) == Some(SourceState::Ready)).await;
        kubelet.send(&event(ADDED, pod("u2", "b")));
        office.until("told of the second", |office| knows(office, "u2")).await;
        kubelet.send(&event(DELETED, pod("u1", "a")));
        office.until("rid of the first", |office| named(office, "a").is_none()).await;
        // Kept for evidence that comes late.
        assert!(knows(&office, "u1"));
    });
}

#[test]
fn a_kubelet_that_restarts_takes_nothing_back_and_a_stale_socket_is_waited_out() {
    run(async {
        let office = Office::new("pods_api");
        let kubelet = Fake::listen(&office.socket());
        let events = [event(ADDED, pod("u1", "a")), event(ADDED, pod("u2", "b"))];
        kubelet.reply("WatchPods", watch(&events));
        start(&office);
        office.until("told of both", |office| knows(office, "u2")).await;
        // The socket's file stays; nobody listens.
        drop(kubelet);
        office.until("refused", |office| state(office) == Some(SourceState::Failed)).await;
        assert!(knows(&office, "u1") && named(&office, "b").as_deref() == Some("u2"));
        std::fs::remove_file(office.socket()).unwrap();
        let kubelet = Fake::listen(&office.socket());
        let events = [event(ADDED, pod("u2", "b")), event(ADDED, pod("u3", "a"))];
        kubelet.reply("WatchPods", watch(&events));
        let next = |office: &Office| named(office, "a").as_deref() == Some("u3");
        office.until("told of the next pod of the name", next).await;
        assert_eq!(named(&office, "b").as_deref(), Some("u2"));
    });
}

#[test]
fn a_kubelet_that_knows_no_pods_yet_ends_none_and_one_that_knows_some_again_ends_the_others() {
    run(async {
        let office = Office::new("pods_api");
        let kubelet = Fake::listen(&office.socket());
        let events = [event(ADDED, pod("u1", "a")), event(ADDED, pod("u2", "b"))];
        kubelet.reply("WatchPods", watch(&events));
        start(&office);
        office.until("told of both", |office| knows(office, "u2")).await;
        kubelet.reply("WatchPods", watch(&[]));
        kubelet.end_streams();
        office.until("told", |office| state(office) == Some(SourceState::Degraded)).await;
        let both = |office: &Office| named(office, "a").is_some() && named(office, "b").is_some();
        assert!(both(&office));
        kubelet.send(&event(ADDED, pod("u2", "b")));
        office.until("rid of the first", |office| named(office, "a").is_none()).await;
        office.until("ready", |office| state(office) == Some(SourceState::Ready)).await;
        assert_eq!(named(&office, "b").as_deref(), Some("u2"));
    });
}

#[test]
fn a_watch_that_ends_is_begun_again() {
    run(async {
        let office = Office::new("pods_api");
        let kubelet = Fake::listen(&office.socket());
        let stays = || event(ADDED, pod("u3", "c"));
        kubelet.reply("WatchPods", watch(&[event(ADDED, pod("u1", "a")), stays()]));
        start(&office);
        office.until("told of the pod", |office| knows(office, "u1")).await;
        kubelet.reply("WatchPods", watch(&[event(ADDED, pod("u2", "b")), stays()]));
        kubelet.end_streams();
        office.until("told of the other", |office| knows(office, "u2")).await;
        office.until("rid of the first", |office| named(office, "a").is_none()).await;
    });
}

#[test]
fn without_a_watch_pods_are_listed() {
    run(async {
        let office = Office::new("pods_api");
        let kubelet = Fake::listen(&office.socket());
        let list = |pods: Vec<Vec<u8>>| Reply::Message(ListPodsResponse { pods }.encode_to_vec());
        kubelet.reply("ListPods", list(vec![pod("u1", "a"), b"\xff\xff".to_vec()]));
        start(&office);
        office.until("told of the first", |office| knows(office, "u1")).await;
        kubelet.reply("ListPods", list(vec![pod("u2", "b")]));
        office.until("told of the second", |office| knows(office, "u2")).await;
        assert_eq!(named(&office, "a"), None);
    });
}

#[test]
fn a_draft_of_the_protocol_is_listed_not_misread() {
    run(async {
        let office = Office::new("pods_api");
        let kubelet = Fake::listen(&office.socket());
        // There, 0 is an addition and 2 a deletion.
        let draft = [event(0, pod("u1", "a")), event(2, pod("u1", "a"))];
        let draft = draft.iter().map(prost::Message::encode_to_vec).collect();
        kubelet.reply("WatchPods", Reply::Stream(draft));
        let pods = vec![pod("u2", "b")];
        kubelet.reply("ListPods", Reply::Message(ListPodsResponse { pods }.encode_to_vec()));
        start(&office);
        office.until("told by a list", |office| knows(office, "u2")).await;
        assert_eq!(named(&office, "a"), None);
    });
}

#[test]
fn a_kubelet_that_hangs_is_reported_and_asked_again() {
    run(async {
        let office = Office::new("pods_api");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("WatchPods", Reply::Hang);
        start_at(Timing { deadline: Duration::from_millis(400), ..QUICK }, &office);
        office.until("hung", |office| state(office) == Some(SourceState::Hung)).await;
        kubelet.reply("WatchPods", watch(&[event(ADDED, pod("u1", "a"))]));
        office.until("told", |office| knows(office, "u1")).await;
    });
}

#[test]
fn a_pod_that_a_watch_did_not_tell_is_asked_for() {
    run(async {
        let office = Office::new("pods_api");
        let kubelet = Fake::listen(&office.socket());
        let one = GetPodResponse { pod: pod("u9", "late") };
        kubelet.reply("WatchPods", watch(&[])).reply("GetPod", Reply::Message(one.encode_to_vec()));
        start(&office);
        office.until("ready", |office| state(office) == Some(SourceState::Ready)).await;
        office.ask(LookupKey::Pod(PodUid::new("u9")));
        office.until("told", |office| knows(office, "u9")).await;
        let asked = GetPodRequest { pod_uid: "u9".into() }.encode_to_vec();
        assert_eq!(kubelet.calls("GetPod"), [asked]);
    });
}

#[test]
fn a_refused_question_leaves_the_watch_alone() {
    run(async {
        let office = Office::new("pods_api");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("WatchPods", watch(&[])).reply("GetPod", Reply::Status(5, "no such pod"));
        start(&office);
        office.until("ready", |office| state(office) == Some(SourceState::Ready)).await;
        office.ask(LookupKey::Pod(PodUid::new("u9")));
        kubelet.called("GetPod", 1).await;
        kubelet.send(&event(ADDED, pod("u1", "a")));
        office.until("told on the same watch", |office| knows(office, "u1")).await;
        assert_eq!(kubelet.calls("WatchPods").len(), 1);
    });
}

#[test]
fn a_node_without_the_socket_is_a_state() {
    run(async {
        let office = Office::new("pods_api");
        start(&office);
        office.until("absent", |office| state(office) == Some(SourceState::Absent)).await;
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("WatchPods", watch(&[event(ADDED, pod("u1", "a"))]));
        office.until("found when it appears", |office| knows(office, "u1")).await;
    });
}
