//! The chart in a real Kubernetes, from its installation to its removal, and what arrives at a real
//! Collector meanwhile. Only where `cargo xtask kubernetes` has started it.

mod changed;
mod collectors;
mod installed;
mod traces;

use gpuwho_tests::cluster::{ADDRESS, Cluster, MACHINE_ID, NODE};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::ReceivedPoint;
use gpuwho_tests::until::until;
use gpuwho_tests::{or_skip, program};
use installed::Installed;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

/// Pods start, and a kubelet and a runtime come back, in seconds; this is for a busy machine.
const WITHIN: Duration = Duration::from_secs(90);

/// What every container of the workloads has besides its name and command.
const CONTAINER: &str = "image: 'registry.test/research/trainer:1.4', \
    resources: {limits: {nvidia.com/gpu: 1}}, volumeMounts: [\
    {name: usr, mountPath: /usr, readOnly: true}, {name: lib, mountPath: /lib, readOnly: true}, \
    {name: lib64, mountPath: /lib64, readOnly: true}, \
    {name: worker, mountPath: /gpuwho-worker, readOnly: true}, \
    {name: orders, mountPath: /orders, readOnly: true}]";

/// Holds every device that the container was granted.
const HOLD: &str = "/gpuwho-worker --contained \
    $(for node in /dev/nvidia[0-9]*; do echo --gpu=${node#/dev/nvidia}; done)";

type Holder = (&'static str, &'static str, Option<(&'static str, &'static str)>);

/// Containers that are granted a device for as long as they live: pod's name or its beginning, container,
/// and the workload that the pod is of.
const HOLDERS: [Holder; 6] = [
    ("server-", "serve", Some(("k8s.deployment.name", "server"))),
    ("train-", "learn", Some(("k8s.job.name", "train"))),
    ("store-0", "index", Some(("k8s.statefulset.name", "store"))),
    ("with-init", "work", None),
    ("with-sidecar", "cache", None),
    ("with-sidecar", "work", None),
];

/// A cluster with work on it, and a Collector on its node.
struct Scene {
    collector: Collector,
    cluster: Cluster,
}

#[test]
fn the_chart_in_a_real_cluster() {
    let cluster = or_skip!(Cluster::start());
    let folder = cluster.folder().join("collector");
    let collector = or_skip!(Collector::start_on(ADDRESS.parse().unwrap(), &folder));
    let mut scene = Scene { collector, cluster };
    // A namespace's service account, without which it takes no pods, is made after it.
    let workloads = scene.workloads();
    let applied = until(WITHIN, || scene.cluster.apply(&workloads, &[]).ok());
    assert!(applied.is_some(), "{:?}", scene.cluster.apply(&workloads, &[]));
    step("the combinations of values are taken by the API server");
    installed::are_taken_by_the_server(&scene.cluster);
    changed::provide_driver(&scene.cluster);
    let before = traces::folders();
    step("install");
    let installed = Installed::new(&scene);
    step("owners and grants");
    scene.wait_for_init_container();
    scene.owners_and_grants_are_the_clusters(0);
    step("the cluster's own Collectors");
    collectors::join_by_pod(&scene);
    step("upgrade and rollback");
    installed.is_upgraded_and_rolled_back(&scene);
    step("restarts");
    scene.restarts_blank_nothing("containerd");
    scene.restarts_blank_nothing("kubelet");
    scene.a_pod_that_is_replaced_has_its_successors_name();
    traces::no_mount_of_another_pod_is_kept(&scene);
    step("uninstall");
    traces::nothing_is_left_by(&scene, &before);
    traces::nothing_was_asked_of_the_server(&scene.cluster);
    scene.all_is_of_the_node();
}

fn step(what: &str) {
    println!("{}: {what}", humantime::format_rfc3339_seconds(std::time::SystemTime::now()));
}

impl Scene {
    fn workloads(&self) -> String {
        let hold = format!("[/usr/bin/bash, -c, 'exec {HOLD}']");
        let prepare = format!(
            "[/usr/bin/bash, -c, '{HOLD} & until [ -e /orders/prepared ]; do sleep 0.2; done; \
             kill -9 $!']"
        );
        let host = |name: &str, path: &str| format!("{{name: {name}, hostPath: {{path: {path}}}}}");
        let orders = self.cluster.folder().join("orders");
        fs::create_dir(&orders).unwrap();
        let volumes = [
            host("usr", "/usr"),
            host("lib", "/lib"),
            host("lib64", "/lib64"),
            host("worker", &program::worker().unwrap().display().to_string()),
            host("orders", &orders.display().to_string()),
        ];
        include_str!("cluster/workloads.yaml")
            .replace("VOLUMES", &format!("[{}]", volumes.join(", ")))
            .replace("PREPARE", &prepare)
            .replace("HOLD", &hold)
            .replace("CONTAINER", CONTAINER)
    }

    /// Waits for points that are not the ends of their series, from a number of points on.
    fn wait<T>(
        &self,
        what: &str,
        from: usize,
        mut look: impl FnMut(&[&ReceivedPoint]) -> Option<T>,
    ) -> T {
        let found = self.collector.wait_for(WITHIN, |points| {
            self.cluster.list_processes().unwrap();
            let points = points.iter().skip(from).filter(|point| !point.ended());
            look(&points.collect::<Vec<_>>())
        });
        let pods =
            || self.cluster.kubectl(&["get", "pods", "--all-namespaces"]).unwrap_or_default();
        found.unwrap().unwrap_or_else(|| panic!("waited for {what}; pods:\n{}", pods()))
    }

    /// Points received so far.
    fn received(&self) -> usize {
        self.collector.points().unwrap().len()
    }

    /// While an init container works, its process is its own; then the pod's container begins.
    fn wait_for_init_container(&self) {
        let of = [("k8s.pod.name", "with-init"), ("k8s.container.name", "prepare")];
        self.wait("the init container's process", 0, |points| {
            points
                .iter()
                .any(|point| point.metric == "gpu.process.info" && point.has(&of))
                .then_some(())
        });
        fs::write(self.cluster.folder().join("orders/prepared"), "").unwrap();
    }

    /// For each container the kubelet's grant and the process on the same device, with the names and the
    /// UID that the API server has.
    fn owners_and_grants_are_the_clusters(&self, from: usize) {
        for (start, container, workload) in HOLDERS {
            let what = format!("process and grant of {container} in {start}");
            let (pod, uid) = self.wait(&what, from, |points| {
                let (pod, uid) = self.pod(start)?;
                let names = [
                    ("k8s.namespace.name", "research"),
                    ("k8s.pod.name", pod.as_str()),
                    ("k8s.pod.uid", uid.as_str()),
                    ("k8s.container.name", container),
                ];
                let of = |metric: &str, more: &[(&str, &str)]| -> BTreeSet<String> {
                    let found = points.iter().filter(|point| {
                        point.metric == metric && point.has(&names) && point.has(more)
                    });
                    found.filter_map(|point| point.attrs.get("gpu.uuid").cloned()).collect()
                };
                let workload: Vec<_> = workload.into_iter().collect();
                let grant = [
                    ("gpu.allocation.source", "kubelet"),
                    ("gpu.allocation.kind", "exclusive"),
                    ("gpu.allocation.resource", "nvidia.com/gpu"),
                ];
                let on = of("gpu.process.info", &workload);
                let granted = of("gpu.allocation.info", &[&grant[..], &workload].concat());
                (on.len() == 1 && on == granted).then_some((pod, uid))
            });
            println!("  {container} of {pod} ({uid})");
        }
    }

    /// A running pod whose name begins so: name and UID.
    fn pod(&self, start: &str) -> Option<(String, String)> {
        let pods = self.cluster.get(&["pods", "--namespace=research"]).ok()?;
        let pods = pods["items"].as_array()?;
        let text = |pod: &Value, key: &str| pod["metadata"][key].as_str().map(str::to_owned);
        pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).find_map(|pod| {
            let name = text(pod, "name").filter(|name| name.starts_with(start))?;
            Some((name, text(pod, "uid")?))
        })
    }

    /// A daemon of the node comes back, and what ran on kept its names and its grant.
    fn restarts_blank_nothing(&mut self, daemon: &'static str) {
        let from = self.received();
        self.cluster.restart(daemon).unwrap();
        self.kubectl_ready();
        let again = self.received();
        self.owners_and_grants_are_the_clusters(again);
        let points = self.collector.points().unwrap();
        let ended: Vec<_> = points[from..]
            .iter()
            .filter(|point| point.ended() && point.metric == "gpu.allocation.info")
            .map(|point| &point.attrs)
            .collect();
        assert!(ended.is_empty(), "a restart of {daemon} ended grants: {ended:#?}");
        println!("  {daemon} came back, no grant ended");
    }

    /// The node has heard of its kubelet.
    fn kubectl_ready(&self) {
        let wait = ["wait", "--for=condition=Ready", "--timeout=120s", "node", NODE];
        self.cluster.kubectl(&wait).unwrap();
    }

    fn a_pod_that_is_replaced_has_its_successors_name(&self) {
        let (first, _) = self.pod("server-").unwrap();
        self.cluster.kubectl(&["delete", "pod", "--namespace=research", &first]).unwrap();
        let from = self.received();
        let second = self.wait("the successor's process", from, |points| {
            let (name, uid) = self.pod("server-").filter(|(name, _)| *name != first)?;
            let names = [("k8s.pod.name", name.as_str()), ("k8s.pod.uid", uid.as_str())];
            let mut infos = points.iter().filter(|point| point.metric == "gpu.process.info");
            infos.any(|point| point.has(&names)).then_some(name)
        });
        println!("  {second} follows {first}");
    }

    /// Through every rollout the host was the node.
    fn all_is_of_the_node(&self) {
        let points = self.collector.points().unwrap();
        let hosts: BTreeSet<_> = points
            .iter()
            .map(|point| ["host.name", "host.id"].map(|key| point.resource.get(key).cloned()))
            .collect();
        let node = [NODE, MACHINE_ID].map(|word| Some(word.to_owned()));
        assert_eq!(hosts, BTreeSet::from([node]));
    }
}
