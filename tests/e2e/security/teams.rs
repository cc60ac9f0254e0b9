//! One namespace whose pods' labels name teams without end.

use super::usage::Received;
use fake_kubelet::{Allocation, Container, Devices, Kubelet, Pod};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::until::until;
use std::time::Duration;
use tempfile::TempDir;

/// More than there is room for teams of all.
const PODS: usize = 300;
/// Of these so many are one namespace's.
const OF_A_NAMESPACE: usize = 32;
const COST: &str = "gpu.owner.cost";
/// A replica of one of seven devices: a device is told with 64 owners.
fn replica(number: usize) -> String {
    format!("GPU-4f6b1c1e-8f0a-4c55-9d10-00000000000{}::{number}", number % 7)
}

/// The kubelet is asked every ten seconds; on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);

/// A pod with a device, whose label names a team.
fn label(kubelet: &Kubelet, namespace: &str, number: usize, team: &str) {
    let uid = format!("7d2c7f6a-3b0e-4c3e-9a51-0d6b9f0f{number:04x}");
    let mut pod = Pod::new(namespace, &format!("{namespace}-{number}"), &uid);
    pod.labels.insert("team".to_owned(), team.to_owned());
    let mut container = Container::new("train", &format!("containerd://{number:064x}"));
    container.allocation.devices.push(Devices::of("nvidia.com/gpu", &[&replica(number)]));
    pod.containers.push(container);
    kubelet.set_pod(pod);
}

#[test]
fn a_namespace_with_teams_without_end_leaves_another_its_own() {
    let folder = TempDir::new().unwrap();
    let nvml = FakeNvml::install(folder.path(), "h100x8").unwrap();
    let kubelet = Kubelet::start(&folder.path().join("kubelet")).unwrap();
    let replicas: Vec<_> = (0..=PODS).map(replica).collect();
    let replicas: Vec<_> = replicas.iter().map(String::as_str).collect();
    let devices = vec![Devices::of("nvidia.com/gpu", &replicas)];
    kubelet.set_allocatable(Allocation { devices, ..Allocation::default() });
    (0..PODS).for_each(|number| label(&kubelet, "mallory", number, &format!("team-{number}")));
    let (points, received) = Received::listen(folder.path(), &[COST]);
    let config = Config {
        file: Some(points),
        more: format!(
            "[kubernetes]\ncri = [{:?}]\npod_resources = {:?}\nlabels = [\"team\"]\n\
             [containers]\ndocker = \"\"\npodman = \"\"\n\
             [cost]\nprices = [{{ per_hour = 1.0 }}]\nteams = [{{ pod_label = \"team\" }}]\n",
            kubelet.cri().display().to_string(),
            kubelet.pod_resources().display().to_string()
        ),
        ..Config::default()
    };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    // Of each of mallory's whether it is told with this team.
    let count = |team: &dyn Fn(usize) -> String| {
        let is_told = |number: &usize| {
            let pod = format!("\"mallory-{number}\"");
            received.of(&[COST, &pod, &format!("{:?}", team(*number))]).is_some()
        };
        (0..PODS).filter(is_told).count()
    };
    let named = || [count(&|number| format!("team-{number}")), count(&|_| "other".to_owned())];
    let all = until(WITHIN, || Some(named()).filter(|named| named.iter().sum::<usize>() >= PODS));
    assert!(all.is_some(), "{:?} {:#?}", named(), agent.log());
    assert_eq!(named(), [OF_A_NAMESPACE, PODS - OF_A_NAMESPACE]);

    label(&kubelet, "bob", PODS, "vision");
    let vision = until(WITHIN, || received.of(&[COST, "\"bob-300\"", "\"vision\""]));
    let other = received.of(&[COST, "\"bob-300\""]);
    assert!(vision.is_some(), "{other:?} {:#?}", agent.log());
}
