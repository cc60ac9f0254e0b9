use super::super::Kubernetes;
use super::super::fake_kubelet::{Kubelet as Fake, Office, Reply, run};
use super::wire::{ContainerResources, PodResources};
use super::*;
use crate::attribute::allocations::Allocation;
use crate::attribute::names::{LookupKey, PodFacts, Provider};
use crate::catalog::attributes::AttrSet;
use crate::ids::PodUid;
use crate::paths::Paths;
use prost::Message as _;
use tokio::task::spawn_local;

const QUICK: Timing = Timing {
    // An answer that is late on a busy machine would be asked for again.
    deadline: Duration::from_hours(1),
    every: Duration::from_millis(40),
    followed: Duration::from_hours(1),
    soonest: Duration::from_millis(10),
    gather: Duration::from_millis(2),
    first_retry: Duration::from_millis(10),
    last_retry: Duration::from_millis(50),
};
/// So seldom that only news explains a list.
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

fn runs(office: &Office, uid: &str, name: &str) {
    let facts = PodFacts {
        uid: PodUid::new(uid),
        namespace: "ml".into(),
        name: name.into(),
        node: None,
        workload: AttrSet::new(),
        details: AttrSet::new(),
    };
    office.ownership.put_pod(Provider::Cri, facts);
}

fn start(office: &Office, pace: Timing) {
    let pod_resources = Some(office.socket());
    let (desk, _) = office.context(Kubernetes { pod_resources, ..Kubernetes::default() });
    drop(spawn_local(at_pace(pace, desk)));
}

fn granted(office: &Office) -> Vec<Allocation> {
    office.ownership.allocations().all().iter().flat_map(|list| list.to_vec()).collect()
}

fn says(office: &Office, state: SourceState, words: &str) -> bool {
    let report = office.report();
    report.is_some_and(|report| report.state == state && report.reason.contains(words))
}

#[test]
fn what_the_kubelet_lists_is_granted_and_what_it_leaves_out_is_not() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        let all = AllocatableResourcesResponse { devices: vec![devices(&[GPU, "GPU-x"])] };
        kubelet
            .reply("List", list(&["a", "b"]))
            .reply("GetAllocatableResources", Reply::Message(all.encode_to_vec()));
        runs(&office, "u1", "a");
        runs(&office, "u2", "b");
        start(&office, QUICK);
        office.until("two grants", |office| granted(office).len() == 2).await;
        let words = "2 devices granted of 2";
        office.until("ready", |office| says(office, SourceState::Ready, words)).await;
        kubelet.reply("List", list(&["a"]));
        office.until("one grant", |office| granted(office).len() == 1).await;
    });
}

#[test]
fn an_old_kubelet_is_asked_once_for_what_it_does_not_have() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&office, "u1", "a");
        start(&office, QUICK);
        kubelet.called("List", 3).await;
        assert_eq!(kubelet.calls("GetAllocatableResources").len(), 1);
        assert!(says(&office, SourceState::Ready, "1 devices granted"), "{:?}", office.report());
    });
}

#[test]
fn news_of_a_pod_brings_the_next_list_forward() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a"]));
        start(&office, ON_NEWS);
        let words = "1 wait for their pod";
        office.until("waiting", |office| says(office, SourceState::Ready, words)).await;
        assert_eq!(granted(&office), []);
        runs(&office, "u1", "a");
        office.until("granted", |office| granted(office).len() == 1).await;
        assert_eq!(kubelet.calls("List").len(), 2);
    });
}

#[test]
fn a_kubelet_that_restarts_leaves_the_last_list() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&office, "u1", "a");
        start(&office, QUICK);
        office.until("granted", |office| !granted(office).is_empty()).await;
        let before = granted(&office);
        // The socket's file stays; nobody listens.
        drop(kubelet);
        let words = "the 1 devices of the last list stay granted";
        office.until("marked", |office| says(office, SourceState::Failed, words)).await;
        std::fs::remove_file(office.socket()).unwrap();
        let gone = "not answering (there is no such socket); the 1 devices";
        office.until("marked again", |office| says(office, SourceState::Failed, gone)).await;
        assert_eq!(granted(&office), before);
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a", "b"]));
        runs(&office, "u2", "b");
        office.until("its own list", |office| granted(office).len() == 2).await;
    });
}

#[test]
fn a_kubelet_over_its_limit_is_left_alone_for_longer() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&office, "u1", "a");
        start(&office, QUICK);
        office.until("granted", |office| !granted(office).is_empty()).await;
        kubelet.reply("List", Reply::Status(8, "rejected by rate limit"));
        let words = "rejected by rate limit; the 1 devices";
        office.until("refused", |office| says(office, SourceState::Failed, words)).await;
        let before = kubelet.calls("List").len();
        kubelet.called("List", before + 3).await;
        // 10 ms after the first refusal, then 20, then 40.
        let times = kubelet.times("List");
        let pauses: Vec<_> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses.iter().any(|pause| *pause >= Duration::from_millis(40)), "{pauses:?}");
        kubelet.reply("List", list(&["a"]));
        office.until("ready", |office| says(office, SourceState::Ready, "")).await;
    });
}

#[test]
fn a_kubelet_that_hangs_or_is_slow_changes_nothing_until_it_answers() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&office, "u1", "a");
        runs(&office, "u2", "b");
        start(&office, Timing { deadline: Duration::from_millis(300), ..QUICK });
        office.until("granted", |office| !granted(office).is_empty()).await;
        kubelet.reply("List", Reply::Hang);
        let words = "no answer within 300ms; the 1 devices";
        office.until("hung", |office| says(office, SourceState::Hung, words)).await;
        assert_eq!(granted(&office).len(), 1);
        let Reply::Message(both) = list(&["a", "b"]) else { unreachable!() };
        kubelet.reply("List", Reply::Slow(Duration::from_millis(50), both));
        office.until("both granted", |office| granted(office).len() == 2).await;
    });
}

/// What the kubelet says of one pod.
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
/// No list comes by itself, nor on news.
const NEVER: Timing = Timing { soonest: Duration::from_hours(1), ..ON_NEWS };

#[test]
fn a_new_pod_is_asked_for_at_once_and_keeps_the_others_grants() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a"])).reply("Get", one("b", &[B]));
        runs(&office, "u1", "a");
        start(&office, NEVER);
        office.until("the listed grant", |office| granted(office).len() == 1).await;
        runs(&office, "u2", "b");
        office.until("the new pod's grant too", |office| granted(office).len() == 2).await;
        assert_eq!(kubelet.calls("List").len(), 1);
        let asked = GetPodResourcesRequest { pod_name: "b".into(), pod_namespace: "ml".into() };
        assert_eq!(kubelet.calls("Get"), [asked.encode_to_vec()]);
        // Told again by anybody it is no news.
        runs(&office, "u2", "b");
        runs(&office, "u3", "c");
        kubelet.called("Get", 2).await;
        assert_eq!(kubelet.calls("Get").len(), 2);
    });
}

#[test]
fn a_kubelet_that_does_not_offer_single_pods_is_asked_once() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&office, "u1", "a");
        start(&office, ON_NEWS);
        office.until("the grant", |office| granted(office).len() == 1).await;
        for number in 2..6 {
            runs(&office, &format!("u{number}"), &format!("b{number}"));
            kubelet.called("List", number).await;
        }
        assert_eq!(kubelet.calls("Get").len(), 1);
    });
}

#[test]
fn a_list_that_says_the_same_in_another_order_is_not_worked_up_again() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        let Reply::Message(all) = list(&["a", "b"]) else { unreachable!() };
        let mut all = ListPodResourcesResponse::decode(&*all).unwrap();
        all.pod_resources[0].containers[0].devices.push(devices(&[B]));
        kubelet.reply("List", Reply::Message(all.encode_to_vec()));
        runs(&office, "u1", "a");
        runs(&office, "u2", "b");
        start(&office, QUICK);
        office.until("three grants", |office| granted(office).len() == 3).await;
        let before = office.ownership.allocations().all();
        all.pod_resources[0].containers[0].devices.reverse();
        all.pod_resources.reverse();
        kubelet.reply("List", Reply::Message(all.encode_to_vec()));
        let asked = kubelet.calls("List").len();
        kubelet.called("List", asked + 3).await;
        let after = office.ownership.allocations().all();
        assert!(std::sync::Arc::ptr_eq(&before[0], &after[0]));
    });
}

/// Lists without end, unless something holds it back.
const RESTLESS: Timing = Timing { every: Duration::ZERO, ..QUICK };

#[test]
fn while_somebody_tells_of_every_pod_the_list_waits_for_news() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a"]));
        let following = office.ownership.names().follow();
        start(&office, RESTLESS);
        kubelet.called("List", 1).await;
        runs(&office, "u1", "a");
        office.until("the grant", |office| granted(office).len() == 1).await;
        kubelet.called("List", 2).await;
        runs(&office, "u2", "b");
        kubelet.called("List", 3).await;
        assert_eq!(kubelet.calls("List").len(), 3);
        drop(following);
        kubelet.called("List", 10).await;
    });
}

#[test]
fn an_empty_list_after_a_restart_ends_no_grant_of_a_pod_that_runs_on() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a", "b"]));
        runs(&office, "u1", "a");
        runs(&office, "u2", "b");
        start(&office, QUICK);
        office.until("granted", |office| granted(office).len() == 2).await;
        let before = granted(&office);
        drop(kubelet);
        office.until("away", |office| says(office, SourceState::Failed, "not answering")).await;
        std::fs::remove_file(office.socket()).unwrap();
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&[]));
        let words = "leaves out 2 pods";
        office.until("told", |office| says(office, SourceState::Degraded, words)).await;
        assert_eq!(granted(&office), before);
        // The runtime says that one has ended meanwhile.
        office.ownership.gone(Provider::Cri, &LookupKey::Pod(PodUid::new("u2")));
        office.until("one grant", |office| granted(office).len() == 1).await;
        kubelet.reply("List", list(&["a"]));
        office.until("ready", |office| says(office, SourceState::Ready, "1 devices")).await;
        assert_eq!(granted(&office), before[..1]);
    });
}

#[test]
fn a_kubelet_that_restarts_between_two_lists_and_lists_static_pods_alone_ends_no_grant() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a"]));
        runs(&office, "u1", "a");
        start(&office, ON_NEWS);
        office.until("granted", |office| granted(office).len() == 1).await;
        drop(kubelet);
        std::fs::remove_file(office.socket()).unwrap();
        let kubelet = Fake::listen(&office.socket());
        let proxy = PodResources { name: "proxy".into(), ..PodResources::default() };
        let alone = ListPodResourcesResponse { pod_resources: vec![proxy] };
        kubelet.reply("List", Reply::Message(alone.encode_to_vec()));
        runs(&office, "u2", "b");
        let words = "leaves out 1 pods";
        office.until("kept", |office| says(office, SourceState::Degraded, words)).await;
        assert_eq!(granted(&office).len(), 1);
    });
}

#[test]
fn a_kubelet_that_lists_no_pods_is_asked_again_though_somebody_tells_of_every_pod() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&[]));
        runs(&office, "u1", "a");
        let _following = office.ownership.names().follow();
        start(&office, QUICK);
        kubelet.called("List", 2).await;
        kubelet.reply("List", list(&["a"]));
        office.until("granted", |office| granted(office).len() == 1).await;
    });
}

#[test]
fn what_the_node_has_is_asked_with_each_list() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        let offer = |ids: &[&str]| {
            let all = AllocatableResourcesResponse { devices: vec![devices(ids)] };
            Reply::Message(all.encode_to_vec())
        };
        kubelet.reply("List", list(&["a"])).reply("GetAllocatableResources", offer(&[]));
        runs(&office, "u1", "a");
        start(&office, QUICK);
        let words = "1 devices granted of 0";
        office.until("no plugin yet", |office| says(office, SourceState::Ready, words)).await;
        kubelet.reply("GetAllocatableResources", offer(&[GPU, B]));
        let words = "1 devices granted of 2";
        office.until("plugins", |office| says(office, SourceState::Ready, words)).await;
        assert_eq!(office.ownership.allocations().offered().len(), 2);
    });
}

#[test]
fn what_the_node_has_is_asked_though_no_list_is_due() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        let offer = |ids: &[&str]| {
            let all = AllocatableResourcesResponse { devices: vec![devices(ids)] };
            Reply::Message(all.encode_to_vec())
        };
        kubelet.reply("List", list(&["a"])).reply("GetAllocatableResources", offer(&[]));
        runs(&office, "u1", "a");
        let _following = office.ownership.names().follow();
        start(&office, Timing { soonest: Duration::from_hours(1), ..QUICK });
        let words = "1 devices granted of 0";
        office.until("no plugin yet", |office| says(office, SourceState::Ready, words)).await;
        kubelet.reply("GetAllocatableResources", offer(&[GPU, B]));
        let words = "1 devices granted of 2";
        office.until("plugins", |office| says(office, SourceState::Ready, words)).await;
        assert_eq!(kubelet.calls("List").len(), 1);
        // A kubelet that has gone is noticed by it, and asked for its list when it is back.
        drop(kubelet);
        office.until("away", |office| says(office, SourceState::Failed, "not answering")).await;
    });
}

#[test]
fn where_nobody_tells_of_pods_a_granted_one_is_named_by_its_logs_if_one_pod_has_that_name() {
    run(async {
        let office = Office::new("pod_resources");
        let kubelet = Fake::listen(&office.socket());
        kubelet.reply("List", list(&["a"]));
        let uid = |last: u32| format!("aaaaaaaa-0000-4000-8000-00000000000{last}");
        let logs =
            |last| Paths::under(office.dir.path()).pod_logs.join(format!("ml_a_{}", uid(last)));
        std::fs::create_dir_all(logs(1)).unwrap();
        start(&office, QUICK);
        office.until("granted", |office| granted(office).len() == 1).await;
        let owner_id = office.ownership.owner(granted(&office)[0].owner).unwrap();
        assert!(format!("{:?}", owner_id.owner).contains(&uid(1)), "{owner_id:?}");
        // The logs of the last pod of the name are still there.
        std::fs::create_dir(logs(2)).unwrap();
        kubelet.reply("List", list(&["a", "b"]));
        office.until("not sure", |office| says(office, SourceState::Ready, "2 wait")).await;
        assert_eq!(granted(&office), []);
    });
}
