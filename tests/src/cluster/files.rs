//! The configurations of a cluster's daemons, and their command lines.

use super::{ADDRESS, ClusterError, NODE, at};
use crate::containerd::settings_text;
use crate::nvml::FakeNvml;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

/// Who calls the API server, each with its token, which is its name, and its groups.
const USERS: [(&str, &str, &str); 4] = [
    ("admin", "admin", "system:masters"),
    ("controller-manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
    ("kubelet", "system:node:NODE", "system:nodes"),
];

/// Who asked for what, of every request.
const AUDIT_POLICY: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";

/// Pods are on a bridge, and reach the node as their gateway.
const NETWORK: &str = r#"{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [{
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": true,
    "ipam": {
      "type": "host-local",
      "ranges": [[{"subnet": "10.88.0.0/16"}]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }]
}"#;

/// Restarts are judged in seconds, and the machine's own settings are not the kubelet's to change.
const KUBELET: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: CGROUP
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, imagefs.available: 0%}
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: true
makeIPTablesUtilChains: false
oomScoreAdj: 0
resolvConf: \"\"
imageGCHighThresholdPercent: 100
syncFrequency: 10s
nodeStatusUpdateFrequency: 2s
";

pub(super) fn write_all(folder: &Path, cgroup: &str) -> Result<(), ClusterError> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(at(&path))
    };
    write("audit-policy.yaml", AUDIT_POLICY)?;
    write("kubelet.yaml", &KUBELET.replace("CGROUP", cgroup))?;
    let cni = folder.join("cni");
    fs::create_dir(&cni).map_err(at(&cni))?;
    write("cni/10-pods.conflist", NETWORK)?;
    let token = |(name, user, groups): (&str, &str, &str)| {
        let user = user.replace("NODE", NODE);
        format!("{name}-token,{user},{name},\"{groups}\"\n")
    };
    write("tokens.csv", &USERS.map(token).concat())?;
    for (name, _, _) in USERS {
        write(&format!("{name}.kubeconfig"), &kubeconfig(name))?;
    }
    // Signs the tokens of service accounts.
    let key = folder.join("accounts.key");
    let mut openssl = Command::new("openssl");
    let output = openssl.args(["genrsa", "-out"]).arg(&key).output().map_err(at(&key))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(ClusterError::Refused { what: format!("{openssl:?}"), said })
}

fn kubeconfig(name: &str) -> String {
    let cluster = json!({
        "server": format!("https://{ADDRESS}:6443"), "insecure-skip-tls-verify": true,
    });
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "test", "cluster": cluster }],
        "users": [{ "name": name, "user": { "token": format!("{name}-token") } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": name } }],
        "current-context": "test",
    })
    .to_string()
}

fn words(text: &str, folder: &str) -> Vec<String> {
    let text = text.replace("FOLDER", folder).replace("ADDRESS", ADDRESS).replace("NODE", NODE);
    text.split_whitespace().map(str::to_owned).collect()
}

pub(super) fn api_server(folder: &str) -> Vec<String> {
    let text = "--etcd-servers=http://127.0.0.1:2379 --bind-address=ADDRESS \
        --advertise-address=ADDRESS --secure-port=6443 --cert-dir=FOLDER/certificates \
        --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC \
        --token-auth-file=FOLDER/tokens.csv --anonymous-auth=false \
        --service-account-issuer=https://kubernetes.default.svc \
        --service-account-key-file=FOLDER/accounts.key \
        --service-account-signing-key-file=FOLDER/accounts.key \
        --enable-admission-plugins=NodeRestriction --allow-privileged=true \
        --kubelet-preferred-address-types=InternalIP --endpoint-reconciler-type=none \
        --audit-policy-file=FOLDER/audit-policy.yaml --audit-log-path=FOLDER/audit.jsonl";
    words(text, folder)
}

pub(super) fn controller_manager(folder: &str) -> Vec<String> {
    let text = "--kubeconfig=FOLDER/controller-manager.kubeconfig --leader-elect=false \
        --secure-port=0 --use-service-account-credentials=true \
        --service-account-private-key-file=FOLDER/accounts.key \
        --root-ca-file=FOLDER/certificates/apiserver.crt";
    words(text, folder)
}

pub(super) fn scheduler(folder: &str) -> Vec<String> {
    words("--kubeconfig=FOLDER/scheduler.kubeconfig --leader-elect=false --secure-port=0", folder)
}

pub(super) fn kubelet(folder: &str) -> Vec<String> {
    let text = "--config=FOLDER/kubelet.yaml --kubeconfig=FOLDER/kubelet.kubeconfig \
        --hostname-override=NODE --node-ip=ADDRESS --root-dir=/var/lib/kubelet";
    words(text, folder)
}

/// containerd with a runtime `nvidia`.
pub(super) fn containerd(folder: &Path, plugins: &Path, networks: &Path, spec: &Path) -> String {
    let text = settings_text(folder);
    let folder = folder.display();
    let (bin, conf) =
        (format!("bin_dir = \"{folder}/cni\""), format!("conf_dir = \"{folder}/cni\""));
    let text = text
        .replace(&bin, &format!("bin_dir = \"{}\"", plugins.display()))
        .replace(&conf, &format!("conf_dir = \"{}\"", networks.display()));
    format!(
        "{text}  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n    \
         runtime_type = \"io.containerd.runc.v2\"\n    base_runtime_spec = \"{}\"\n",
        spec.display()
    )
}

/// What NVIDIA's container runtime adds to a container that may see every device: the driver's library
/// and the device nodes. And what the fake library reads.
pub(super) fn nvidia_spec(spec: &str, folder: &Path, nvml: &FakeNvml) -> io::Result<String> {
    let mut spec: Value = serde_json::from_str(spec)?;
    let bind = |source: &Path, destination: &str| {
        json!({
            "type": "bind", "source": source, "destination": destination, "options": ["rbind", "ro"],
        })
    };
    let library = format!("/usr/lib/{}-linux-gnu/libnvidia-ml.so.1", std::env::consts::ARCH);
    let scenario = nvml.scenario();
    let data = scenario.parent().unwrap_or(folder);
    push(&mut spec["mounts"], bind(&nvml.library(), &library));
    push(&mut spec["mounts"], bind(data, &data.display().to_string()));
    let mut command = Command::new("gpuwho");
    for (name, value) in nvml.apply(&mut command).get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        push(&mut spec["process"]["env"], json!(format!("{}={value}", name.to_string_lossy())));
    }
    for entry in fs::read_dir(folder.join("dev"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("nvidia") {
            continue;
        }
        let number = entry.metadata()?.st_rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let rule = json!({
            "allow": true, "type": "c", "major": major, "minor": minor, "access": "rw",
        });
        let node = json!({
            "path": format!("/dev/{name}"), "type": "c", "major": major, "minor": minor,
            "fileMode": 0o666, "uid": 0, "gid": 0,
        });
        push(&mut spec["linux"]["devices"], node);
        push(&mut spec["linux"]["resources"]["devices"], rule);
    }
    // What a pod may do is its own to say.
    for name in ["capabilities", "rlimits", "noNewPrivileges"] {
        spec["process"].as_object_mut().map(|process| process.remove(name));
    }
    Ok(spec.to_string())
}

/// Adds to a list, which is made where there is none.
fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        _ => *list = json!([item]),
    }
}
