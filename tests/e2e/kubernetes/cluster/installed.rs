//! The chart, installed, upgraded and rolled back by the real Helm.

use super::Scene;
use super::changed::{self, Tap};
use gpuwho_tests::cluster::Cluster;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// The chart.
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/gpuwho");
/// Where it is installed.
pub(super) const NAMESPACE: &str = "monitoring";
const NAME: &str = "gpuwho";

/// The installations that `cargo xtask chart` renders.
const COMBINATIONS: &str = include_str!("../../../../xtask/chart-combinations.json");

/// A kind that the chart can make and Kubernetes does not have, and what its definition refuses.
const KINDS: &[(&str, &str, &str)] = &[
    ("podmonitor.monitoring.coreos.com", "honorLabels: true", "honorLables: true"),
    ("servicemonitor.monitoring.coreos.com", "honorLabels: true", "honorLables: true"),
    ("prometheusrule.monitoring.coreos.com", "- alert: GpuLost\n", "- alarm: GpuLost\n"),
    (
        "securitycontextconstraints.security.openshift.io",
        "allowHostPID: true\n",
        "allowHostPids: true\n",
    ),
];

/// The API server takes the manifests of every combination.
pub(super) fn are_taken_by_the_server(cluster: &Cluster) {
    let definitions = cluster.definitions().display().to_string();
    // The server's own apply: their text is too long for an annotation.
    cluster.kubectl(&["apply", "--server-side", "--filename", &definitions]).unwrap();
    let wait = ["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"];
    cluster.kubectl(&wait).unwrap();
    let mut kinds = BTreeSet::new();
    let combinations: Vec<Value> = serde_json::from_str(COMBINATIONS).unwrap();
    for combination in &combinations {
        let options = combination["options"].as_array().unwrap().iter();
        let options: Vec<_> = options.map(|option| option.as_str().unwrap()).collect();
        // With the version of the cluster, whatever an option says.
        let fixed = ["template", "try", CHART, "--namespace=research", "--validate"];
        let text = cluster.helm(&[&fixed, &options[..]].concat()).unwrap();
        let dry = ["--dry-run=server", "--namespace=research", "--validate=strict"];
        let said =
            cluster.apply(&text, &dry).unwrap_or_else(|error| panic!("{options:?}: {error}"));
        assert!(said.contains("daemonset.apps/try-gpuwho created (server dry run)"), "{said}");
        let is_there = |kind: &&(&'static str, _, _)| said.contains(&format!("{}/", kind.0));
        for (kind, right, wrong) in KINDS.iter().filter(is_there) {
            assert!(text.contains(right), "{kind} has no {right}");
            let answer = cluster.apply(&text.replace(right, wrong), &dry);
            let said = answer.expect_err("the definitions refuse nothing").to_string();
            let word = wrong.split(':').next().unwrap().trim_start_matches("- ");
            assert!(said.contains("unknown field") && said.contains(word), "{said}");
            kinds.insert(*kind);
        }
    }
    assert_eq!(kinds.len(), KINDS.len(), "no combination has the others: {kinds:?}");
    let manifest = Path::new(CHART).join("../../kubernetes/daemonset.yaml");
    let dry =
        ["apply", "--dry-run=server", "--namespace=research", "--validate=strict", "--filename"];
    cluster.kubectl(&[&dry[..], &[&manifest.display().to_string()]].concat()).unwrap();
    println!("  {} combinations; {kinds:?} against their definitions", combinations.len());
}

/// An installation.
pub(super) struct Installed {
    values: Vec<String>,
}

impl Installed {
    /// Installs it and waits until the DaemonSet is ready.
    pub(super) fn new(scene: &Scene) -> Self {
        let values = vec![
            "--set=runtimeClassName=nvidia".to_owned(),
            // The probes are Prometheus' port's.
            "--set=prometheus.port=9464".to_owned(),
            format!("--set=otlp.endpoint={}", scene.collector.http_endpoint()),
        ];
        let installed = Self { values };
        installed.run(scene, &["install", NAME, CHART, "--create-namespace"], "first", &[]);
        installed
    }

    fn run(&self, scene: &Scene, command: &[&str], cluster_name: &str, more: &[String]) {
        let name = format!("--set=clusterName={cluster_name}");
        let fixed = ["--namespace", NAMESPACE, "--wait", "--timeout=90s", &name];
        // Of a value that is set twice the last counts.
        let values = self.values.iter().chain(more).map(String::as_str);
        let all: Vec<_> = command.iter().copied().chain(fixed).chain(values).collect();
        let failed = |error| panic!("{error}\n{}", describe(&scene.cluster));
        scene.cluster.helm(&all).unwrap_or_else(failed);
        Self::is_ready(scene, cluster_name);
    }

    /// The DaemonSet is ready, and its points arrive under the cluster's name.
    fn is_ready(scene: &Scene, cluster_name: &str) {
        // Helm is content with a DaemonSet that lacks as many pods as an update may: one of one.
        let status =
            ["rollout", "status", "daemonset/gpuwho", "--timeout=90s", "--namespace", NAMESPACE];
        let failed = |error| panic!("{error}\n{}", describe(&scene.cluster));
        scene.cluster.kubectl(&status).unwrap_or_else(failed);
        let set = scene.cluster.get(&["daemonset", NAME, "--namespace", NAMESPACE]).unwrap();
        let status = &set["status"];
        let counts = ["desiredNumberScheduled", "numberReady", "updatedNumberScheduled"]
            .map(|key| status[key].as_u64());
        assert_eq!(counts, [Some(1); 3], "{status:#}");
        scene.wait(&format!("points of the cluster {cluster_name}"), 0, |points| {
            let of = |key: &str, value: &str| {
                points
                    .last()
                    .is_some_and(|point| point.resource.get(key).map(String::as_str) == Some(value))
            };
            of("k8s.cluster.name", cluster_name).then_some(())
        });
    }

    /// Other values, and back.
    pub(super) fn is_upgraded_and_rolled_back(&self, scene: &Scene) {
        let first = pod(&scene.cluster);
        let tap = Tap::start(&scene.collector.http_endpoint());
        let values = changed::values(scene, &tap);
        self.run(scene, &["upgrade", NAME, CHART], "second", &values);
        changed::is_in_force(scene, &tap);
        let second = pod(&scene.cluster);
        let rollback =
            ["rollback", NAME, "1", "--namespace", NAMESPACE, "--wait", "--timeout=180s"];
        scene.cluster.helm(&rollback).unwrap();
        Self::is_ready(scene, "first");
        let third = pod(&scene.cluster);
        assert!(first != second && second != third, "{first} {second} {third}");
        println!("  {first}, then {second}, then {third}");
    }

    /// Removes it.
    pub(super) fn uninstall(scene: &Scene) {
        let command = ["uninstall", NAME, "--namespace", NAMESPACE, "--wait", "--timeout=120s"];
        scene.cluster.helm(&command).unwrap();
        let wait = ["wait", "--for=delete", "pod", "--all", "--timeout=120s", "--namespace"];
        scene.cluster.kubectl(&[&wait[..], &[NAMESPACE]].concat()).unwrap();
    }
}

/// The name of the agent's pod.
fn pod(cluster: &Cluster) -> String {
    agent_pod(cluster)["metadata"]["name"].as_str().unwrap().to_owned()
}

/// The agent's pod, as the API server has it.
pub(super) fn agent_pod(cluster: &Cluster) -> Value {
    let pods = cluster.get(&["pods", "--namespace", NAMESPACE]).unwrap();
    let pods = pods["items"].as_array().unwrap().iter();
    let living = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let living: Vec<&Value> = living.collect();
    assert_eq!(living.len(), 1, "{living:#?}");
    living[0].clone()
}

/// Why a pod does not start.
fn describe(cluster: &Cluster) -> String {
    let of =
        |arguments: &[&str]| cluster.kubectl(arguments).unwrap_or_else(|error| error.to_string());
    let pods = of(&["describe", "pods", "--namespace", NAMESPACE]);
    let logs = ["logs", "daemonset/gpuwho", "--tail=60", "--namespace", NAMESPACE];
    let daemons = ["kubelet", "kube-controller-manager", "kube-scheduler", "containerd"]
        .map(|name| format!("{name}:\n{}\n", cluster.log(name)));
    format!("{pods}\n{}\n{}", of(&logs), daemons.concat())
}
