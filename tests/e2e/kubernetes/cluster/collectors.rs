//! The Collectors of `deploy/collector` that ask the API server and the kubelet, under the service account of
//! `kubernetes.yaml`. In Prometheus their points and the agent's join by pod.

use super::{HOLDERS, Holder, Scene, WITHIN};
use gpuwho_tests::cluster::{ADDRESS, NODE};
use gpuwho_tests::collector::deployed::{Deployed, path};
use gpuwho_tests::prometheus::Prometheus;
use gpuwho_tests::sys::die_with_us;
use gpuwho_tests::until::until;
use std::env;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The variable that names a Collector with their receivers.
const PROGRAM: &str = "GPUWHO_TEST_COLLECTORS";
/// Who they are to the API server.
pub(super) const USER: &str = "system:serviceaccount:observability:gpuwho-collectors";
/// Where a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const NAMESPACE: &str = "--namespace=observability";
const README: &str = include_str!("../../../../deploy/collector/README.md");
const QUERIES: &str = include_str!("../../../../agent/docs/queries.md");
/// No waiting, and no port of its own.
const FAST: [&str; 2] = [
    "yaml:processors::batch: {send_batch_size: 1, timeout: 50ms}",
    "yaml:service::telemetry::metrics::level: none",
];

/// A Collector; ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whose work is on the devices, as the API server, the kubelet and the agent say it.
pub(super) fn join_by_pod(scene: &Scene) {
    let Some(program) = env::var_os(PROGRAM) else {
        println!("  skipped: needs {PROGRAM}");
        return;
    };
    let folder = scene.cluster.folder().join("collectors");
    let (_, configuration) = README.split_once("```yaml\notlp:\n").unwrap();
    let configuration = format!("otlp:\n{}", configuration.split_once("```").unwrap().0);
    let prometheus = match Prometheus::otlp(&folder.join("prometheus"), &configuration) {
        Ok(prometheus) => prometheus,
        Err(error) => {
            println!("  skipped: needs {error}");
            return;
        }
    };
    let account = account(scene);
    let url = prometheus.otlp_url();
    let files = ["gateway.yaml", "to-prometheus.yaml"];
    let gateway =
        Deployed::start(&folder.join("gateway"), &files, &[("METRICS_URL", &url)]).unwrap();
    let often = |receiver: &str| format!("yaml:receivers::{receiver}::collection_interval: 2s");
    let running = ["cluster.yaml", "kubelet.yaml"].map(|name| {
        let receiver = if name == "cluster.yaml" { "k8s_cluster" } else { "kubeletstats" };
        start(Path::new(&program), &folder, &[name, &often(receiver)], &gateway)
    });
    let logs = || {
        let log = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
        format!("{}\n{}\n{}", gateway.log(), log("cluster.yaml.log"), log("kubelet.yaml.log"))
    };
    let of_pod = |(start, ..): &Holder| {
        let (_, uid) = scene.pod(start).unwrap();
        let process = format!("gpu_process_info{{k8s_pod_uid=\"{uid}\"}}");
        format!("{process} and on (k8s_pod_uid) k8s_pod_phase == 2")
    };
    let queries: Vec<_> = HOLDERS.iter().map(of_pod).chain(joins()).collect();
    for (query, rows) in rows(scene, &gateway, &prometheus, &queries) {
        assert!(rows > 0, "{query} has no row: {}", logs());
        println!("  {rows} rows of {query}");
    }
    drop(running);
    let path = folder.join("account.yaml");
    fs::write(&path, account).unwrap();
    let path = path.display().to_string();
    scene.cluster.kubectl(&["delete", "--filename", &path]).unwrap();
    scene.cluster.kubectl(&["delete", "namespace", "observability"]).unwrap();
}

/// The rows of each query, once all have some or time is up.
fn rows<'a>(
    scene: &Scene,
    gateway: &Deployed,
    prometheus: &Prometheus,
    queries: &'a [String],
) -> Vec<(&'a String, usize)> {
    let (mut sent, mut rows) = (0, Vec::new());
    // Without an answer in time the last rows say which query has none.
    let _answered = until(WITHIN, || {
        sent += replay(scene, gateway, sent);
        let count =
            |query: &'a String| (query, prometheus.query(query).map_or(0, |rows| rows.len()));
        rows = queries.iter().map(count).collect();
        rows.iter().all(|(_, count)| *count > 0).then_some(())
    });
    rows
}

/// The documented queries, where pods neither fail nor restart and request no processor.
fn joins() -> Vec<String> {
    let (_, own) = QUERIES.split_once("## With the cluster Collector").unwrap();
    let rows = own.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let queries: Vec<_> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    assert_eq!(queries.len(), 4, "{queries:?}");
    let here = |query: &&str| {
        query
            .replace("k8s_container_restarts > 0", "k8s_container_restarts")
            .replace("unless on", "and on")
            .replace("k8s_container_cpu_request", "k8s_container_ready")
    };
    queries.iter().map(here).collect()
}

/// Applies the service account and its rights, lets the API server judge the rest, and puts the account's
/// token where a pod has it. Gives what was applied.
fn account(scene: &Scene) -> String {
    let cluster = &scene.cluster;
    cluster.kubectl(&["create", "namespace", "observability"]).unwrap();
    let all = fs::read_to_string(path("kubernetes.yaml")).unwrap();
    let said = cluster.apply(&all, &["--dry-run=server", "--validate=strict"]).unwrap();
    for kind in ["deployment.apps/gpuwho-cluster", "daemonset.apps/gpuwho-kubelet"] {
        assert!(said.contains(&format!("{kind}-collector created (server dry run)")), "{said}");
    }
    let (account, _) = all.split_once("---\napiVersion: apps/v1").unwrap();
    cluster.apply(account, &["--validate=strict"]).unwrap();
    let token = ["create", "token", "gpuwho-collectors", NAMESPACE];
    let token = cluster.kubectl(&token).unwrap();
    fs::create_dir_all(ACCOUNT).unwrap();
    let own = Path::new(ACCOUNT);
    fs::write(own.join("token"), token.trim()).unwrap();
    fs::write(own.join("namespace"), "observability").unwrap();
    fs::copy(cluster.folder().join("certificates/apiserver.crt"), own.join("ca.crt")).unwrap();
    account.to_owned()
}

/// Starts a Collector where the node has its name.
fn start(program: &Path, folder: &Path, files: &[&str], gateway: &Deployed) -> Running {
    let hosts = folder.join("hosts");
    fs::write(&hosts, format!("127.0.0.1 localhost\n{ADDRESS} {NODE}\n")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.args(["mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"", "sh"]);
    command.arg(hosts).arg(program);
    for name in files.iter().chain(&FAST) {
        let file = if name.starts_with("yaml:") { (*name).into() } else { path(name) };
        command.arg("--config").arg(file);
    }
    let address = gateway.grpc_address();
    command.envs([
        ("OTLP_GATEWAY", address.as_str()),
        ("OTLP_INSECURE", "true"),
        ("CLUSTER_NAME", "first"),
        ("NODE_NAME", NODE),
        // A kubelet without a certificate of the cluster makes its own.
        ("KUBELET_CA", "/var/lib/kubelet/pki/kubelet.crt"),
        ("KUBERNETES_SERVICE_HOST", ADDRESS),
        ("KUBERNETES_SERVICE_PORT", "6443"),
    ]);
    let log = File::create(folder.join(format!("{}.log", files[0]))).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Running(die_with_us(&mut command).spawn().unwrap())
}

/// Sends what the agent has sent since; gives the number of requests.
fn replay(scene: &Scene, gateway: &Deployed, sent: usize) -> usize {
    scene.cluster.list_processes().unwrap();
    let text = scene.cluster.folder().join("collector/received.jsonl");
    let text = fs::read_to_string(text).unwrap();
    // The last line may be half written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let requests: Vec<_> = whole.lines().skip(sent).collect();
    for request in requests.iter().filter(|request| request.contains("\"resourceMetrics\"")) {
        let address = gateway.http_endpoint();
        let mut stream = TcpStream::connect(address.trim_start_matches("http://")).unwrap();
        let head = format!(
            "POST /v1/metrics HTTP/1.0\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            request.len()
        );
        stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(request.as_bytes()))
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
    }
    requests.len()
}
