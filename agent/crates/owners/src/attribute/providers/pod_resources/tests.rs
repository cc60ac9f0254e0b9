use super::super::Kubernetes;
use super::super::fake_kubelet::{Fixture, Kubelet as Fake, Reply, run};
use super::*;
use crate::attribute::allocations::Allocation;
use crate::attribute::names::{LookupKey, PodFacts, Provider};
use gpuwho_kubernetes::pod_resources::{
    ContainerResources, GetPodResourcesResponse, ListPodResourcesResponse,
};
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::ids::PodUid;
use gpuwho_model::paths::Paths;
use prost::Message as _;
use tokio::task::spawn_local;

const QUICK: Timing = Timing {
    // A late answer on a busy machine would be requested again.
    deadline: Duration::from_hours(1),
    every: Duration::from_millis(40),
    followed: Duration::from_hours(1),
    min_interval: Duration::from_millis(10),
    gather: Duration::from_millis(2),
    first_retry: Duration::from_millis(10),
    last_retry: Duration::from_millis(50),
};
/// So rarely that only a change explains a list.
const ON_NEWS: Timing = Timing { every: Duration::from_hours(1), ..QUICK };
const GPU: &str = "GPU-11111111-2222-3333-4444-555555555555";

fn devices(ids: &[&str]) -> ContainerDevices {
    let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    ContainerDevices { resource_name: "nvidia.com/gpu".into(), device_ids, topology: None }
}

fn list(pods: &[&str]) -> Reply {
    let pods = pods.iter().enumerate().map(|(at, name)| {
        let ids = [format!("{}{at}", &GPU[..GPU.len() - 1])];
        let main = ContainerResources {
            name: "main".into(),
            devices: vec![devices(&ids.each_ref().map(String::as_str))],
            ..ContainerResources::default()
        };
        PodResources {
            name: (*name).into(),
            namespace: "ml".into(),
            containers: vec![main],
            ..PodResources::default()
        }
    });
    Reply::Message(ListPodResourcesResponse { pod_resources: pods.collect() }.encode_to_vec())
}

fn runs(fixture: &Fixture, uid: &str, name: &str) {
    let facts = PodFacts {
        uid: PodUid::new(uid),
        namespace: "ml".into(),
        name: name.into(),
        node: None,
        workload: AttrSet::new(),
        details: AttrSet::new(),
    };
    fixture.ownership.put_pod(Provider::Cri, facts);
}

fn start(fixture: &Fixture, timing: Timing) {
    let pod_resources = Some(fixture.socket());
    let (context, _) = fixture.context(Kubernetes { pod_resources, ..Kubernetes::default() });
    drop(spawn_local(provide_at(timing, context)));
}

fn allocated(fixture: &Fixture) -> Vec<Allocation> {
    fixture.ownership.allocations().all().iter().flat_map(|list| list.to_vec()).collect()
}

fn reports(fixture: &Fixture, state: SourceState, text: &str) -> bool {
    let report = fixture.report();
    report.is_some_and(|report| report.state == state && report.reason.contains(text))
}

#[test]
fn the_kubelet_s_list_is_the_allocations() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        let all = AllocatableResourcesResponse {
            devices: vec![devices(&[GPU, "GPU-x"])],
            ..<_>::default()
        };
        kubelet
            .reply("List", list(&["a", "b"]))
            .reply("GetAllocatableResources", Reply::Message(all.encode_to_vec()));
        runs(&fixture, "u1", "a");
        runs(&fixture, "u2", "b");
        start(&fixture, QUICK);
        fixture.until("two allocations", |fixture| allocated(fixture).len() == 2).await;
        let text = "2 devices allocated of 2";
        fixture.until("ready", |fixture| reports(fixture, SourceState::Ready, text)).await;
        kubelet.reply("List", list(&["a"]));
        fixture.until("one allocation", |fixture| allocated(fixture).len() == 1).await;
    });
}

#[test]
fn an_old_kubelet_is_asked_once_for_a_method_it_does_not_have() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&fixture, "u1", "a");
        start(&fixture, QUICK);
        kubelet.called("List", 3).await;
        assert_eq!(kubelet.calls("GetAllocatableResources").len(), 1);
        assert!(
            reports(&fixture, SourceState::Ready, "1 devices allocated"),
            "{:?}",
            fixture.report()
        );
    });
}

#[test]
fn a_change_of_a_pod_brings_the_next_list_forward() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a"]));
        start(&fixture, ON_NEWS);
        let text = "1 wait for their pod";
        fixture.until("waiting", |fixture| reports(fixture, SourceState::Ready, text)).await;
        assert_eq!(allocated(&fixture), []);
        runs(&fixture, "u1", "a");
        fixture.until("allocated", |fixture| allocated(fixture).len() == 1).await;
        assert_eq!(kubelet.calls("List").len(), 2);
    });
}

#[test]
fn the_last_list_stays_while_a_kubelet_restarts() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&fixture, "u1", "a");
        start(&fixture, QUICK);
        fixture.until("allocated", |fixture| !allocated(fixture).is_empty()).await;
        let before = allocated(&fixture);
        // The socket's file stays; nothing listens.
        drop(kubelet);
        let text = "the 1 devices of the last list stay allocated";
        fixture.until("marked", |fixture| reports(fixture, SourceState::Failed, text)).await;
        let gone = "not answering (there is no such socket); the 1 devices";
        fixture.until("marked again", |fixture| reports(fixture, SourceState::Failed, gone)).await;
        assert_eq!(allocated(&fixture), before);
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a", "b"]));
        runs(&fixture, "u2", "b");
        fixture.until("its own list", |fixture| allocated(fixture).len() == 2).await;
    });
}

#[test]
fn a_kubelet_over_its_limit_is_asked_less_often() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&fixture, "u1", "a");
        start(&fixture, QUICK);
        fixture.until("allocated", |fixture| !allocated(fixture).is_empty()).await;
        kubelet
            .reply("List", Reply::Status(tonic::Code::ResourceExhausted, "rejected by rate limit"));
        let text = "rejected by rate limit; the 1 devices";
        fixture.until("refused", |fixture| reports(fixture, SourceState::Failed, text)).await;
        let before = kubelet.calls("List").len();
        kubelet.called("List", before + 3).await;
        // 10 ms after the first refusal, then 20, then 40.
        let times = kubelet.times("List");
        let pauses: Vec<_> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses.iter().any(|pause| *pause >= Duration::from_millis(40)), "{pauses:?}");
        kubelet.reply("List", list(&["a"]));
        fixture.until("ready", |fixture| reports(fixture, SourceState::Ready, "")).await;
    });
}

#[test]
fn a_kubelet_that_hangs_or_is_slow_changes_nothing_until_it_answers() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&fixture, "u1", "a");
        runs(&fixture, "u2", "b");
        start(&fixture, Timing { deadline: Duration::from_millis(300), ..QUICK });
        fixture.until("allocated", |fixture| !allocated(fixture).is_empty()).await;
        kubelet.reply("List", Reply::Hang);
        let text = "no answer within 300ms; the 1 devices";
        fixture.until("hung", |fixture| reports(fixture, SourceState::Hung, text)).await;
        assert_eq!(allocated(&fixture).len(), 1);
        let Reply::Message(both) = list(&["a", "b"]) else { unreachable!() };
        kubelet.reply("List", Reply::Slow(Duration::from_millis(50), both));
        fixture.until("both allocated", |fixture| allocated(fixture).len() == 2).await;
    });
}

/// The kubelet's entry of one pod.
fn one(name: &str, ids: &[&str]) -> Reply {
    let main = ContainerResources {
        name: "main".into(),
        devices: vec![devices(ids)],
        ..ContainerResources::default()
    };
    let pod = PodResources {
        name: name.into(),
        namespace: "ml".into(),
        containers: vec![main],
        ..PodResources::default()
    };
    Reply::Message(GetPodResourcesResponse { pod_resources: Some(pod) }.encode_to_vec())
}

const B: &str = "GPU-11111111-2222-3333-4444-55555555555b";
/// No list is due by itself or after a change.
const NEVER: Timing = Timing { min_interval: Duration::from_hours(1), ..ON_NEWS };

#[test]
fn a_new_pod_is_requested_at_once_and_the_others_allocations_stay() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a"])).reply("Get", one("b", &[B]));
        runs(&fixture, "u1", "a");
        start(&fixture, NEVER);
        fixture.until("the listed allocation", |fixture| allocated(fixture).len() == 1).await;
        runs(&fixture, "u2", "b");
        fixture
            .until("the new pod's allocation too", |fixture| allocated(fixture).len() == 2)
            .await;
        assert_eq!(kubelet.calls("List").len(), 1);
        let request = GetPodResourcesRequest { pod_name: "b".into(), pod_namespace: "ml".into() };
        assert_eq!(kubelet.calls("Get"), [request.encode_to_vec()]);
        // Reported again by another provider, it is not new.
        runs(&fixture, "u2", "b");
        runs(&fixture, "u3", "c");
        kubelet.called("Get", 2).await;
        assert_eq!(kubelet.calls("Get").len(), 2);
    });
}

#[test]
fn a_kubelet_without_single_pod_requests_is_asked_once() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&fixture, "u1", "a");
        start(&fixture, ON_NEWS);
        fixture.until("the allocation", |fixture| allocated(fixture).len() == 1).await;
        for number in 2..6 {
            runs(&fixture, &format!("u{number}"), &format!("b{number}"));
            kubelet.called("List", number).await;
        }
        assert_eq!(kubelet.calls("Get").len(), 1);
    });
}

#[test]
fn the_same_list_in_another_order_is_not_processed_again() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        let Reply::Message(all) = list(&["a", "b"]) else { unreachable!() };
        let mut all = ListPodResourcesResponse::decode(&*all).unwrap();
        all.pod_resources[0].containers[0].devices.push(devices(&[B]));
        kubelet.reply("List", Reply::Message(all.encode_to_vec()));
        runs(&fixture, "u1", "a");
        runs(&fixture, "u2", "b");
        start(&fixture, QUICK);
        fixture.until("three allocations", |fixture| allocated(fixture).len() == 3).await;
        let before = fixture.ownership.allocations().all();
        all.pod_resources[0].containers[0].devices.reverse();
        all.pod_resources.reverse();
        kubelet.reply("List", Reply::Message(all.encode_to_vec()));
        let calls = kubelet.calls("List").len();
        kubelet.called("List", calls + 3).await;
        let after = fixture.ownership.allocations().all();
        assert!(std::sync::Arc::ptr_eq(&before[0], &after[0]));
    });
}

/// Lists without end, unless a change is required.
const RESTLESS: Timing = Timing { every: Duration::ZERO, ..QUICK };

#[test]
fn while_a_provider_follows_pods_the_list_waits_for_a_change() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a"]));
        let following = fixture.ownership.names().follow();
        start(&fixture, RESTLESS);
        kubelet.called("List", 1).await;
        runs(&fixture, "u1", "a");
        fixture.until("the allocation", |fixture| allocated(fixture).len() == 1).await;
        kubelet.called("List", 2).await;
        runs(&fixture, "u2", "b");
        kubelet.called("List", 3).await;
        assert_eq!(kubelet.calls("List").len(), 3);
        drop(following);
        kubelet.called("List", 10).await;
    });
}

#[test]
fn an_empty_list_after_a_restart_ends_no_allocation_of_a_running_pod() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a", "b"]));
        runs(&fixture, "u1", "a");
        runs(&fixture, "u2", "b");
        start(&fixture, QUICK);
        fixture.until("allocated", |fixture| allocated(fixture).len() == 2).await;
        let before = allocated(&fixture);
        drop(kubelet);
        fixture
            .until("away", |fixture| reports(fixture, SourceState::Failed, "not answering"))
            .await;
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&[]));
        let text = "leaves out 2 running pods";
        fixture.until("degraded", |fixture| reports(fixture, SourceState::Degraded, text)).await;
        assert_eq!(allocated(&fixture), before);
        // The runtime reports the end of one meanwhile.
        fixture.ownership.gone(Provider::Cri, &LookupKey::Pod(PodUid::new("u2")));
        fixture.until("one allocation", |fixture| allocated(fixture).len() == 1).await;
        kubelet.reply("List", list(&["a"]));
        fixture.until("ready", |fixture| reports(fixture, SourceState::Ready, "1 devices")).await;
        assert_eq!(allocated(&fixture), before[..1]);
    });
}

#[test]
fn a_kubelet_that_restarts_between_two_lists_and_lists_only_static_pods_ends_no_allocation() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&fixture, "u1", "a");
        start(&fixture, ON_NEWS);
        fixture.until("allocated", |fixture| allocated(fixture).len() == 1).await;
        drop(kubelet);
        let kubelet = Fake::listen(&fixture.socket());
        let proxy = PodResources { name: "proxy".into(), ..PodResources::default() };
        let alone = ListPodResourcesResponse { pod_resources: vec![proxy] };
        kubelet.reply("List", Reply::Message(alone.encode_to_vec()));
        runs(&fixture, "u2", "b");
        let text = "leaves out 1 running pods";
        fixture.until("degraded", |fixture| reports(fixture, SourceState::Degraded, text)).await;
        assert_eq!(allocated(&fixture).len(), 1);
    });
}

#[test]
fn a_kubelet_without_pods_is_asked_again_even_if_a_provider_follows_pods() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&[]));
        runs(&fixture, "u1", "a");
        let _following = fixture.ownership.names().follow();
        start(&fixture, QUICK);
        kubelet.called("List", 2).await;
        kubelet.reply("List", list(&["a"]));
        fixture.until("allocated", |fixture| allocated(fixture).len() == 1).await;
    });
}

#[test]
fn allocatable_devices_are_read_with_each_list() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        let offer = |ids: &[&str]| {
            let all =
                AllocatableResourcesResponse { devices: vec![devices(ids)], ..<_>::default() };
            Reply::Message(all.encode_to_vec())
        };
        kubelet.reply("List", list(&["a"])).reply("GetAllocatableResources", offer(&[]));
        runs(&fixture, "u1", "a");
        start(&fixture, QUICK);
        let text = "1 devices allocated of 0";
        fixture.until("no plugin yet", |fixture| reports(fixture, SourceState::Ready, text)).await;
        kubelet.reply("GetAllocatableResources", offer(&[GPU, B]));
        let text = "1 devices allocated of 2";
        fixture.until("plugins", |fixture| reports(fixture, SourceState::Ready, text)).await;
        assert_eq!(fixture.ownership.allocations().offered().len(), 2);
    });
}

#[test]
fn allocatable_devices_are_read_though_no_list_is_due() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        let offer = |ids: &[&str]| {
            let all =
                AllocatableResourcesResponse { devices: vec![devices(ids)], ..<_>::default() };
            Reply::Message(all.encode_to_vec())
        };
        kubelet.reply("List", list(&["a"])).reply("GetAllocatableResources", offer(&[]));
        runs(&fixture, "u1", "a");
        let _following = fixture.ownership.names().follow();
        start(&fixture, Timing { min_interval: Duration::from_hours(1), ..QUICK });
        let text = "1 devices allocated of 0";
        fixture.until("no plugin yet", |fixture| reports(fixture, SourceState::Ready, text)).await;
        kubelet.reply("GetAllocatableResources", offer(&[GPU, B]));
        let text = "1 devices allocated of 2";
        fixture.until("plugins", |fixture| reports(fixture, SourceState::Ready, text)).await;
        assert_eq!(kubelet.calls("List").len(), 1);
        // The read notices a kubelet that has gone; its list is read when it returns.
        drop(kubelet);
        fixture
            .until("away", |fixture| reports(fixture, SourceState::Failed, "not answering"))
            .await;
    });
}

#[test]
fn without_providers_of_pods_an_allocation_s_pod_is_named_by_its_unambiguous_logs() {
    run(async {
        let fixture = Fixture::new("pod_resources");
        let kubelet = Fake::listen(&fixture.socket());
        kubelet.reply("List", list(&["a"]));
        let uid = |last: u32| format!("aaaaaaaa-0000-4000-8000-00000000000{last}");
        let logs =
            |last| Paths::under(fixture.dir.path()).pod_logs.join(format!("ml_a_{}", uid(last)));
        std::fs::create_dir_all(logs(1)).unwrap();
        start(&fixture, QUICK);
        fixture.until("allocated", |fixture| allocated(fixture).len() == 1).await;
        let owner_id = fixture.ownership.owner(allocated(&fixture)[0].owner).unwrap();
        assert!(format!("{:?}", owner_id.owner).contains(&uid(1)), "{owner_id:?}");
        // The log directory of the last pod of the name still exists.
        std::fs::create_dir(logs(2)).unwrap();
        kubelet.reply("List", list(&["a", "b"]));
        fixture.until("not sure", |fixture| reports(fixture, SourceState::Ready, "2 wait")).await;
        assert_eq!(allocated(&fixture), []);
    });
}
