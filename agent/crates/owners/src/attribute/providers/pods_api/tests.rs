use super::super::Kubernetes;
use super::super::fake_kubelet::{Fixture, Kubelet as Fake, Reply, run};
use super::wire::{ContainerStatus, ObjectMeta, PodSpec, PodStatus};
use super::*;
use gpuwho_model::ids::{ContainerId, PodUid};
use tokio::task::spawn_local;

const QUICK: Timing = Timing {
    // A late answer on a busy machine would be requested again.
    deadline: Duration::from_hours(1),
    relist: Duration::from_millis(50),
    min_interval: Duration::from_millis(5),
    reconnect: Duration::from_millis(20),
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

fn start(fixture: &Fixture) {
    start_at(QUICK, fixture);
}

fn start_at(timing: Timing, fixture: &Fixture) {
    let kubernetes = Kubernetes { pods_api: Some(fixture.socket()), ..Kubernetes::default() };
    let (context, lookups) = fixture.context(kubernetes);
    drop(spawn_local(provide_at(timing, context, lookups)));
}

fn knows(fixture: &Fixture, uid: &str) -> bool {
    let names = fixture.ownership.names();
    names.pod(&PodUid::new(uid)).is_some()
        && names.container(&ContainerId::new(&format!("{uid}-main"))).is_some()
}

fn named(fixture: &Fixture, name: &str) -> Option<String> {
    let facts = fixture.ownership.names().pod_named("ml", name)?;
    Some(facts.uid.as_str().to_owned())
}

fn state(fixture: &Fixture) -> Option<SourceState> {
    fixture.report().map(|report| report.state)
}

#[test]
fn a_watch_delivers_pods_as_they_appear_change_and_end() {
    run(async {
        let fixture = Fixture::new("pods_api");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("WatchPods", watch(&[event(ADDED, pod("u1", "a"))]));
        start(&fixture);
        fixture.until("first pod known", |fixture| knows(fixture, "u1")).await;
        fixture.until("ready", |fixture| state(fixture) == Some(SourceState::Ready)).await;
        kubelet.send(&event(ADDED, pod("u2", "b")));
        fixture.until("second pod known", |fixture| knows(fixture, "u2")).await;
        kubelet.send(&event(DELETED, pod("u1", "a")));
        fixture.until("rid of the first", |fixture| named(fixture, "a").is_none()).await;
        // Still known, for late evidence.
        assert!(knows(&fixture, "u1"));
    });
}

#[test]
fn pods_stay_while_a_kubelet_restarts_and_a_stale_socket_is_waited_out() {
    run(async {
        let fixture = Fixture::new("pods_api");
        let kubelet = Fake::listen(&fixture.socket());
        let events = [event(ADDED, pod("u1", "a")), event(ADDED, pod("u2", "b"))];
        kubelet.reply("WatchPods", watch(&events));
        start(&fixture);
        fixture.until("both known", |fixture| knows(fixture, "u2")).await;
        // The socket's file stays; nothing listens.
        drop(kubelet);
        fixture.until("refused", |fixture| state(fixture) == Some(SourceState::Failed)).await;
        assert!(knows(&fixture, "u1") && named(&fixture, "b").as_deref() == Some("u2"));
        std::fs::remove_file(fixture.socket()).unwrap();
        let kubelet = Fake::listen(&fixture.socket());
        let events = [event(ADDED, pod("u2", "b")), event(ADDED, pod("u3", "a"))];
        kubelet.reply("WatchPods", watch(&events));
        let next = |fixture: &Fixture| named(fixture, "a").as_deref() == Some("u3");
        fixture.until("next pod of the name known", next).await;
        assert_eq!(named(&fixture, "b").as_deref(), Some("u2"));
    });
}

#[test]
fn a_kubelet_without_pods_yet_ends_none_and_one_that_knows_some_again_ends_the_others() {
    run(async {
        let fixture = Fixture::new("pods_api");
        let kubelet = Fake::listen(&fixture.socket());
        let events = [event(ADDED, pod("u1", "a")), event(ADDED, pod("u2", "b"))];
        kubelet.reply("WatchPods", watch(&events));
        start(&fixture);
        fixture.until("both known", |fixture| knows(fixture, "u2")).await;
        kubelet.reply("WatchPods", watch(&[]));
        kubelet.end_streams();
        fixture.until("degraded", |fixture| state(fixture) == Some(SourceState::Degraded)).await;
        let both =
            |fixture: &Fixture| named(fixture, "a").is_some() && named(fixture, "b").is_some();
        assert!(both(&fixture));
        kubelet.send(&event(ADDED, pod("u2", "b")));
        fixture.until("rid of the first", |fixture| named(fixture, "a").is_none()).await;
        fixture.until("ready", |fixture| state(fixture) == Some(SourceState::Ready)).await;
        assert_eq!(named(&fixture, "b").as_deref(), Some("u2"));
    });
}

#[test]
fn a_watch_that_ends_is_restarted() {
    run(async {
        let fixture = Fixture::new("pods_api");
        let kubelet = Fake::listen(&fixture.socket());
        let stays = || event(ADDED, pod("u3", "c"));
        kubelet.reply("WatchPods", watch(&[event(ADDED, pod("u1", "a")), stays()]));
        start(&fixture);
        fixture.until("pod known", |fixture| knows(fixture, "u1")).await;
        kubelet.reply("WatchPods", watch(&[event(ADDED, pod("u2", "b")), stays()]));
        kubelet.end_streams();
        fixture.until("other pod known", |fixture| knows(fixture, "u2")).await;
        fixture.until("rid of the first", |fixture| named(fixture, "a").is_none()).await;
    });
}

#[test]
fn without_a_watch_pods_are_listed() {
    run(async {
        let fixture = Fixture::new("pods_api");
        let kubelet = Fake::listen(&fixture.socket());
        let list = |pods: Vec<Vec<u8>>| Reply::Message(ListPodsResponse { pods }.encode_to_vec());
        kubelet.reply("ListPods", list(vec![pod("u1", "a"), b"\xff\xff".to_vec()]));
        start(&fixture);
        fixture.until("first pod known", |fixture| knows(fixture, "u1")).await;
        kubelet.reply("ListPods", list(vec![pod("u2", "b")]));
        fixture.until("second pod known", |fixture| knows(fixture, "u2")).await;
        assert_eq!(named(&fixture, "a"), None);
    });
}

#[test]
fn a_draft_of_the_protocol_is_listed_not_misread() {
    run(async {
        let fixture = Fixture::new("pods_api");
        let kubelet = Fake::listen(&fixture.socket());
        // In the draft, 0 is an addition and 2 a deletion.
        let draft = [event(0, pod("u1", "a")), event(2, pod("u1", "a"))];
        let draft = draft.iter().map(prost::Message::encode_to_vec).collect();
        kubelet.reply("WatchPods", Reply::Stream(draft));
        let pods = vec![pod("u2", "b")];
        kubelet.reply("ListPods", Reply::Message(ListPodsResponse { pods }.encode_to_vec()));
        start(&fixture);
        fixture.until("known by a list", |fixture| knows(fixture, "u2")).await;
        assert_eq!(named(&fixture, "a"), None);
    });
}

#[test]
fn a_kubelet_that_hangs_is_reported_and_asked_again() {
    run(async {
        let fixture = Fixture::new("pods_api");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("WatchPods", Reply::Hang);
        start_at(Timing { deadline: Duration::from_millis(400), ..QUICK }, &fixture);
        fixture.until("hung", |fixture| state(fixture) == Some(SourceState::Hung)).await;
        kubelet.reply("WatchPods", watch(&[event(ADDED, pod("u1", "a"))]));
        fixture.until("known", |fixture| knows(fixture, "u1")).await;
    });
}

#[test]
fn a_pod_that_a_watch_did_not_deliver_is_requested() {
    run(async {
        let fixture = Fixture::new("pods_api");
        let kubelet = Fake::listen(&fixture.socket());
        let one = GetPodResponse { pod: pod("u9", "late") };
        kubelet.reply("WatchPods", watch(&[])).reply("GetPod", Reply::Message(one.encode_to_vec()));
        start(&fixture);
        fixture.until("ready", |fixture| state(fixture) == Some(SourceState::Ready)).await;
        fixture.request(LookupKey::Pod(PodUid::new("u9")));
        fixture.until("known", |fixture| knows(fixture, "u9")).await;
        let request = GetPodRequest { pod_uid: "u9".into() }.encode_to_vec();
        assert_eq!(kubelet.calls("GetPod"), [request]);
    });
}

#[test]
fn a_refused_request_does_not_end_the_watch() {
    run(async {
        let fixture = Fixture::new("pods_api");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("WatchPods", watch(&[])).reply("GetPod", Reply::Status(5, "no such pod"));
        start(&fixture);
        fixture.until("ready", |fixture| state(fixture) == Some(SourceState::Ready)).await;
        fixture.request(LookupKey::Pod(PodUid::new("u9")));
        kubelet.called("GetPod", 1).await;
        kubelet.send(&event(ADDED, pod("u1", "a")));
        fixture.until("known by the same watch", |fixture| knows(fixture, "u1")).await;
        assert_eq!(kubelet.calls("WatchPods").len(), 1);
    });
}

#[test]
fn a_node_without_the_socket_is_absent() {
    run(async {
        let fixture = Fixture::new("pods_api");
        start(&fixture);
        fixture.until("absent", |fixture| state(fixture) == Some(SourceState::Absent)).await;
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("WatchPods", watch(&[event(ADDED, pod("u1", "a"))]));
        fixture.until("found when it appears", |fixture| knows(fixture, "u1")).await;
    });
}
