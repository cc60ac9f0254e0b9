//! An upgrade to other values than the chart's own, and what each of them does: configuration, Secret,
//! resources, no spool, and the driver by its folder instead of a runtime class.

use super::Scene;
use super::installed::{NAMESPACE, agent_pod};
use super::traces::{agents, programs};
use gpuwho_tests::cluster::{ADDRESS, Cluster};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

/// Where a driver container has its library.
const DRIVER: &str = "/run/nvidia/driver";
const LIBRARIES: &str = "/run/nvidia/driver/usr/lib64";

const CONFIG: &str = "[agent]\ninterval = \"1s\"\n[devices]\nbpf = false\n\
    [slurm]\npod_namespaces = [\"research\"]\n";
const HEADER: &str = "x-tenant: team-a";

/// Puts the driver's library where a driver container has it.
pub(super) fn provide_driver(cluster: &Cluster) {
    fs::create_dir_all(LIBRARIES).unwrap();
    fs::copy(cluster.nvml.library(), Path::new(LIBRARIES).join("libnvidia-ml.so.1")).unwrap();
}

/// Between the agent and the Collector: hands on what both say, and keeps what the agent said.
pub(super) struct Tap {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    /// To the Collector at an `http://` address.
    pub(super) fn start(to: &str) -> Self {
        let to: SocketAddr = to.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind((ADDRESS, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&heard);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(to).unwrap();
                let (from, into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let keep = Arc::clone(&keep);
                let keep = move |said: &[u8]| keep.lock().unwrap().extend_from_slice(said);
                thread::spawn(move || hand_on(from, into, keep));
                thread::spawn(move || hand_on(server, client, |_| {}));
            }
        });
        Self { address, heard }
    }

    fn has_heard(&self, text: &str) -> bool {
        self.heard.lock().unwrap().windows(text.len()).any(|part| part == text.as_bytes())
    }
}

/// Until either end closes.
fn hand_on(mut from: TcpStream, mut to: TcpStream, mut keep: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        keep(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The other direction may have done so.
    let _closed = to.shutdown(std::net::Shutdown::Both);
}

/// The values, behind what they need: a file and a Secret.
pub(super) fn values(scene: &Scene, tap: &Tap) -> Vec<String> {
    let nvml = &scene.cluster.nvml;
    let config = scene.cluster.folder().join("gpuwho.toml");
    fs::write(&config, CONFIG).unwrap();
    let header = HEADER.replace(": ", "=");
    let mut secret = vec![format!("--from-literal=OTEL_EXPORTER_OTLP_HEADERS={header}")];
    // What the fake library reads, which a runtime class would give it.
    for (name, value) in nvml.apply(&mut Command::new("gpuwho")).get_envs() {
        let [name, value] = [name, value.unwrap()].map(|text| text.to_string_lossy());
        secret.push(format!("--from-literal={name}={value}"));
    }
    let make = ["create", "secret", "generic", "headers", "--namespace", NAMESPACE];
    let literals: Vec<_> = secret.iter().map(String::as_str).collect();
    scene.cluster.kubectl(&[&make, &literals[..]].concat()).unwrap();
    let data = nvml.scenario().parent().unwrap().display().to_string();
    vec![
        format!("--set-file=config={}", config.display()),
        format!(
            "--set=otlp.secretName=headers,otlp.insecureSecrets=true,otlp.endpoint=http://{}",
            tap.address
        ),
        "--set=resources.limits.memory=300Mi,spool.enabled=false".to_owned(),
        format!("--set=runtimeClassName=,privileged=true,driverFolders={{{DRIVER},{data}}}"),
    ]
}

/// All of them are in force.
pub(super) fn is_in_force(scene: &Scene, tap: &Tap) {
    let pod = agent_pod(&scene.cluster);
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"]["memory"], "300Mi");
    assert_eq!(container["resources"]["requests"]["memory"], "40Mi");
    assert_eq!(pod["spec"]["runtimeClassName"], serde_json::Value::Null);
    let environment = container["env"].to_string();
    assert!(environment.contains("GPUWHO_PATHS") && !environment.contains("GPUWHO_SPOOL"));
    let from = scene.received();
    let (devices, gaps) = scene.wait("points of eight devices each second", from, |points| {
        let up = points.iter().filter(|point| {
            let cluster = point.resource.get("k8s.cluster.name");
            point.metric == "gpu.up" && cluster.is_some_and(|name| name == "second")
        });
        let mut times = BTreeSet::new();
        let mut devices = BTreeSet::new();
        for point in up.filter(|point| point.number() == Some(1.0)) {
            times.insert(point.time);
            devices.insert(point.attrs.get("gpu.uuid")?.clone());
        }
        let times: Vec<_> = times.into_iter().collect();
        let gaps: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000_000).collect();
        (devices.len() == 8 && gaps.len() >= 5).then_some((devices.len(), gaps))
    });
    let mut sorted = gaps.clone();
    sorted.sort_unstable();
    assert!((500..1_500).contains(&sorted[sorted.len() / 2]), "milliseconds: {gaps:?}");
    assert!(tap.has_heard(HEADER), "the receiver saw no header of the Secret");
    assert_eq!(programs(&agents(&scene.cluster)), 0, "bpf = false");
    println!(
        "  {devices} devices by {DRIVER} every {gaps:?} ms, {HEADER:?}, 300Mi, no spool, no BPF"
    );
}
