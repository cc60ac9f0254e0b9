//! A full node: GPUs that many processes of many containers share, with a kubelet that names all of them
//! and has granted the GPUs.

use super::BenchError;
use crate::agent::{Agent, Config, Otlp};
use crate::nvml::FakeNvml;
use crate::stage::{Driver, Expected, PodSpec, Qos, Stage};
use crate::worker::Worker;
use crate::worker::script::Script;
use fake_kubelet::{Container, Devices, Kubelet, Pod};
use std::path::Path;

/// Nodes that the stage has: of more GPUs some share one.
const NODES: u32 = 8;

/// How many of each.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The machine.
    pub scenario: &'static str,
    /// Its GPUs.
    pub gpus: u32,
    /// Containers of the host.
    pub containers: u32,
    /// Those whose processes are on GPUs, each in a pod of its own.
    pub pods: u32,
    /// Processes of each of those, each on another GPU.
    pub each: u32,
}

impl Size {
    /// A full node of today.
    pub const USUAL: Self =
        Self { scenario: "h100x8-crowded", gpus: 8, containers: 500, pods: 100, each: 2 };
    /// The most that an agent has to bear.
    pub const LARGE: Self =
        Self { scenario: "v100x16-crowded", gpus: 16, containers: 500, pods: 500, each: 2 };
}

/// Everybody there, the driver that knows the processes, and the kubelet that knows the pods.
#[derive(Debug)]
pub struct Crowd {
    /// Dropped before the stage.
    _workers: Vec<Worker>,
    kubelet: Kubelet,
    nvml: FakeNvml,
    stage: Stage,
}

impl Crowd {
    /// Starts everybody.
    pub fn of(mut stage: Stage, size: Size) -> Result<Self, BenchError> {
        let Size { scenario, gpus, containers, pods, each } = size;
        let nvml = FakeNvml::install(stage.folder(), scenario)?;
        let uuids: Vec<String> =
            nvml.truth()?.devices().map(|device| device.text(&device.group.uuid)).collect();
        let kubelet = Kubelet::start(&stage.folder().join("kubelet"))
            .map_err(BenchError::os("the fake kubelet"))?;
        let mut workers = Vec::new();
        let mut pids = vec![Vec::new(); gpus as usize];
        for number in 0..containers {
            let name = format!("trainer-{number}");
            let spec = PodSpec {
                namespace: "research",
                name: &name,
                container: "train",
                qos: Qos::Burstable,
                driver: Driver::Cgroupfs,
            };
            if number >= pods {
                let group = stage.idle_pod(&spec)?;
                kubelet.set_pod(pod(&name, &group.expected, &[]));
                continue;
            }
            let group = stage.pod(&spec)?;
            let mut granted = Vec::new();
            for gpu in (0..each).map(|which| (number + which * gpus / each) % gpus) {
                let script = Script { gpus: vec![gpu % NODES], ..Script::default() };
                let worker = Worker::start(Some(&group), &script)?;
                if let Some(pids) = pids.get_mut(gpu as usize) {
                    pids.push(Some(worker.pid()));
                }
                granted.extend(uuids.get(gpu as usize).map(|uuid| format!("{uuid}::{number}")));
                workers.push(worker);
            }
            kubelet.set_pod(pod(&name, &group.expected, &granted));
        }
        for (gpu, pids) in (0..).zip(&pids) {
            nvml.set_processes(gpu, pids)?;
        }
        Ok(Self { _workers: workers, kubelet, nvml, stage })
    }

    /// An agent that sends to a receiver; `config` says what is special.
    pub fn agent(&self, every: &str, endpoint: &str, config: Config) -> Result<Agent, BenchError> {
        // All metrics include it already.
        let metrics = if config.default_metrics {
            "[metrics]\ninclude = [\"gpuwho.stage.cpu.time\"]\n"
        } else {
            ""
        };
        let config = Config {
            interval: Some(every.to_owned()),
            pod_logs: Some(self.stage.pod_logs()),
            otlp: Some(Otlp { endpoint: endpoint.to_owned(), protocol: None }),
            more: format!(
                "{}{metrics}[cost]\nprices = [{{ per_hour = 2.5 }}]\nenergy_price = 0.2\ncarbon_intensity = 400\n\
                 [kubernetes]\ncri = [\"{}\"]\npod_resources = \"{}\"\n\
                 [containers]\ndocker = \"\"\npodman = \"\"\n",
                config.more,
                self.kubelet.cri().display(),
                self.kubelet.pod_resources().display()
            ),
            ..config
        };
        Ok(Agent::start(self.stage.folder(), &config, Some(&self.nvml))?)
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.stage.folder()
    }

    /// Another container, whose processes come and go.
    pub fn passage(&mut self) -> Result<crate::stage::Group, BenchError> {
        let spec = PodSpec {
            namespace: "research",
            name: "passers-by",
            container: "train",
            qos: Qos::Burstable,
            driver: Driver::Cgroupfs,
        };
        let group = self.stage.pod(&spec)?;
        self.kubelet.set_pod(pod("passers-by", &group.expected, &[]));
        Ok(group)
    }
}

/// As the kubelet tells of a StatefulSet's pod with time-sliced GPUs.
fn pod(name: &str, expected: &Expected, granted: &[String]) -> Pod {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut pod = Pod::new("research", name, &text(&expected.pod_uid));
    for (key, value) in [
        ("controller-revision-hash", "trainer-5d8f7c9b4d"),
        ("statefulset.kubernetes.io/pod-name", name),
        ("app.kubernetes.io/name", "trainer"),
        ("app.kubernetes.io/part-of", "research-platform"),
    ] {
        pod.labels.insert(key.into(), value.into());
    }
    let id = format!("containerd://{}", text(&expected.container_id));
    let mut container = Container::new("train", &id);
    let ids: Vec<&str> = granted.iter().map(String::as_str).collect();
    if !ids.is_empty() {
        container.allocation.devices.push(Devices::of("nvidia.com/gpu.shared", &ids));
    }
    pod.containers.push(container);
    pod
}
