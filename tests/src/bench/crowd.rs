//! A full node: eight GPUs that 200 processes of 100 containers share, on a host of 500 containers,
//! with a kubelet that names all of them and has granted the GPUs.

use super::BenchError;
use crate::agent::{Agent, Config, Otlp};
use crate::nvml::FakeNvml;
use crate::stage::{Driver, Expected, PodSpec, Qos, Stage};
use crate::worker::Worker;
use crate::worker::script::Script;
use fake_kubelet::{Container, Devices, Kubelet, Owner, Pod};

/// GPUs.
const GPUS: u32 = 8;
/// Containers of the host.
pub const CONTAINERS: u32 = 500;
/// Those whose processes are on GPUs.
const PARTIES: u32 = 100;
/// Processes of each of those, on two GPUs.
const EACH: u32 = 2;
/// Processes on GPUs.
pub const PROCESSES: u32 = PARTIES * EACH;
/// GPUs between a container's two.
const APART: u32 = GPUS / EACH;

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
    pub fn start(mut stage: Stage) -> Result<Self, BenchError> {
        let nvml = FakeNvml::install(stage.folder(), "h100x8-crowded")?;
        let uuids: Vec<String> =
            nvml.truth()?.devices().map(|device| device.text(&device.group.uuid)).collect();
        let kubelet = Kubelet::start(&stage.folder().join("kubelet"))
            .map_err(BenchError::os("the fake kubelet"))?;
        let mut workers = Vec::new();
        let mut pids = vec![Vec::new(); GPUS as usize];
        for number in 0..CONTAINERS {
            let name = format!("trainer-{number}");
            let spec = PodSpec {
                namespace: "research",
                name: &name,
                container: "train",
                qos: Qos::Burstable,
                driver: Driver::Cgroupfs,
            };
            if number >= PARTIES {
                let group = stage.idle_pod(&spec)?;
                kubelet.set_pod(pod(&name, &group.expected, &[]));
                continue;
            }
            let group = stage.pod(&spec)?;
            let mut granted = Vec::new();
            for gpu in (0..EACH).map(|which| (number + which * APART) % GPUS) {
                let worker =
                    Worker::start(Some(&group), &Script { gpus: vec![gpu], ..Script::default() })?;
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

    /// An agent that sends to a receiver.
    pub fn agent(&self, every: &str, endpoint: &str) -> Result<Agent, BenchError> {
        let config = Config {
            default_metrics: true,
            interval: Some(every.to_owned()),
            pod_logs: Some(self.stage.pod_logs()),
            otlp: Some(Otlp { endpoint: endpoint.to_owned(), protocol: None }),
            more: format!(
                "[metrics]\ninclude = [\"gpuwho.stage.cpu.time\"]\n[cost]\nprices = [{{ per_hour = 2.5 }}]\nenergy_price = 0.2\ncarbon_intensity = 400\n\
                 [kubernetes]\ncri = []\npods_api = \"{}\"\npod_resources = \"{}\"\n\
                 [containers]\ndocker = \"\"\npodman = \"\"\n",
                self.kubelet.pods_api().display(),
                self.kubelet.pod_resources().display()
            ),
            ..Config::default()
        };
        Ok(Agent::start(self.stage.folder(), &config, Some(&self.nvml))?)
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

/// As the kubelet tells of a Deployment's pod with time-sliced GPUs.
fn pod(name: &str, expected: &Expected, granted: &[String]) -> Pod {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut pod = Pod::new("research", name, &text(&expected.pod_uid));
    for (key, value) in [
        ("pod-template-hash", "5d8f7c9b4d"),
        ("app.kubernetes.io/name", "trainer"),
        ("app.kubernetes.io/part-of", "research-platform"),
    ] {
        pod.labels.insert(key.into(), value.into());
    }
    pod.owners.push(Owner {
        api_version: "apps/v1".into(),
        kind: "ReplicaSet".into(),
        name: format!("{name}-5d8f7c9b4d"),
        controller: true,
        ..Owner::default()
    });
    let id = format!("containerd://{}", text(&expected.container_id));
    let mut container = Container::new("train", &id);
    let ids: Vec<&str> = granted.iter().map(String::as_str).collect();
    if !ids.is_empty() {
        container.allocation.devices.push(Devices::of("nvidia.com/gpu.shared", &ids));
    }
    pod.containers.push(container);
    pod
}
