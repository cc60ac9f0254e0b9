//! `cargo xtask chart`: the Helm chart, linted and rendered by the real Helm, and the plain manifest in
//! `deploy/kubernetes` that is rendered from it. The manifest has a hash of the chart in it, so that a test
//! without Helm knows whether it is the chart's.

use crate::dist::archive::{Stage, compress};
use crate::setup::dist as tools;
use crate::{place, shell};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// The chart.
const CHART: &str = "deploy/helm/gpuwho";
/// What is rendered from it, with its own values.
const MANIFEST: &str = "deploy/kubernetes/daemonset.yaml";
/// How the line of the manifest begins that has the chart's hash.
const RENDERED: &str =
    "# Rendered from deploy/helm/gpuwho by `cargo xtask chart`; the chart's hash: ";
/// The Kubernetes that is rendered for, unless said otherwise.
pub(crate) const KUBERNETES: &str = "1.34.0";

/// What `cargo xtask chart` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Only say whether the manifest is up to date
    #[arg(long)]
    check: bool,
}

/// Options of an installation, and what the manifests must then have.
type Combination = (&'static [&'static str], &'static [&'static str]);

/// The installations that the values are for.
const COMBINATIONS: &[Combination] = &[
    (
        &[],
        &[
            "kind: DaemonSet",
            "name: test-gpuwho",
            "priorityClassName: \"system-node-critical\"",
            "{name: GPUWHO_PATHS_MACHINE_ID, value: /host/etc/machine-id}",
        ],
    ),
    (
        &["--set", "otlp.endpoint=https://otlp.example:4317,otlp.secretName=otlp"],
        &["value: \"https://otlp.example:4317\"", "envFrom: [{secretRef: {name: \"otlp\"}}]"],
    ),
    (
        &["--set", "spool.metrics=true,spool.maxBytes=1073741824"],
        &[
            "{name: GPUWHO_SPOOL_FOLDER, value: /var/lib/gpuwho/spool}",
            "{name: GPUWHO_SPOOL_METRICS, value: \"true\"}",
            "{name: GPUWHO_SPOOL_MAX_BYTES, value: \"1073741824\"}",
        ],
    ),
    (&["--set", "spool.enabled=false"], &["kind: DaemonSet"]),
    (
        &["--set", "otlp.names={native,semconv}"],
        &["{name: GPUWHO_OTLP_NAMES, value: '[\"native\",\"semconv\"]'}"],
    ),
    (&["--set", "clusterName=prod-1"], &["\"host.name=$(NODE_NAME),k8s.cluster.name=prod-1\""]),
    (
        &["--set-string", "config=[agent]\ninterval = \"30s\"\n"],
        &[
            "gpuwho.toml: \"[agent]\\ninterval = \\\"30s\\\"\\n\"",
            "mountPath: /etc/gpuwho",
            "gpuwho/config: ",
        ],
    ),
    (
        &["--set", "runtimeClassName=nvidia,nodeSelector.nvidia\\.com/gpu\\.present=yes"],
        &["runtimeClassName: \"nvidia\"", "nodeSelector: {\"nvidia.com/gpu.present\":\"yes\"}"],
    ),
    // MicroK8s
    (
        &[
            "--set",
            "runtimeSockets={/var/snap/microk8s/common/run/containerd.sock},\
             kubeletRoot=/var/snap/microk8s/common/var/lib/kubelet",
        ],
        &[
            "'[\"/host/var/snap/microk8s/common/run/containerd.sock\"]'",
            "{name: var-snap-microk8s-common-run, mountPath: /host/var/snap/microk8s/common/run, readOnly: true, mountPropagation: HostToContainer}",
            "hostPath: {path: /var/snap/microk8s/common/var/lib/kubelet/pod-resources, type",
        ],
    ),
    (&["--set-json", "runtimeSockets=[]"], &["value: '[]'"]),
    (
        &[
            "--set",
            "image.repository=registry.example/gpuwho,image.tag=1.2.3,imagePullSecrets[0].name=pull",
        ],
        &["image: \"registry.example/gpuwho:1.2.3\"", "imagePullSecrets: [{\"name\":\"pull\"}]"],
    ),
    (
        &["--set", "prometheusRule.enabled=true,prometheusRule.labels.release=prometheus"],
        &[
            "kind: PrometheusRule",
            "\"release\":\"prometheus\"",
            "      - alert: GpuLost\n",
            "{{ with $labels.host_name }}",
        ],
    ),
    (
        &["--namespace", "gpu", "--set", "openshift.enabled=true"],
        &[
            "kind: SecurityContextConstraints",
            "name: gpu-test-gpuwho",
            "users: [\"system:serviceaccount:gpu:test-gpuwho\"]",
            "serviceAccountName: test-gpuwho",
        ],
    ),
    (&["--set", "networkPolicy.enabled=true"], &["kind: NetworkPolicy", "ingress: []"]),
    (
        &[
            "--set",
            "prometheus.port=9464,prometheus.names={native,dcgm},networkPolicy.enabled=true",
            "--set-json",
            "networkPolicy.from=[{\"namespaceSelector\":{}}]",
        ],
        &[
            "{name: GPUWHO_PROMETHEUS_LISTEN, value: \"0.0.0.0:9464\"}",
            "{name: GPUWHO_PROMETHEUS_NAMES, value: '[\"native\",\"dcgm\"]'}",
            "ports: [{name: metrics, containerPort: 9464}]",
            "readinessProbe: {httpGet: {path: /readyz, port: metrics}",
            "ingress: [{ports: [{port: 9464}], from: [{\"namespaceSelector\":{}}]}]",
        ],
    ),
    (
        &[
            "--set",
            "prometheus.port=9464,prometheus.podMonitor.enabled=true,\
             prometheus.podMonitor.labels.release=prometheus",
        ],
        &["kind: PodMonitor", "\"release\":\"prometheus\"", "honorLabels: true"],
    ),
    (
        &[
            "--set",
            "updateStrategy.type=OnDelete,updateStrategy.rollingUpdate=null,priorityClassName=",
        ],
        &["updateStrategy: {\"type\":\"OnDelete\"}"],
    ),
    (
        &["--set-json", "tolerations=[]", "--set-json", "affinity={\"nodeAffinity\":{}}"],
        &["tolerations: []", "affinity: {\"nodeAffinity\":{}}"],
    ),
    // Before the field for AppArmor.
    (
        &["--kube-version", "1.29.0"],
        &["container.apparmor.security.beta.kubernetes.io/gpuwho: unconfined\n    spec:"],
    ),
];

/// Values that the schema must refuse.
const REFUSED: &[&str] = &[
    "otlp.endpiont=http://collector:4318",
    "unknown=1",
    "clusterName=a\\,b",
    "spool.enabled=perhaps",
    "spool.maxBytes=1",
    "spool.folder=/tmp",
    "runtimeSockets={containerd.sock}",
    "image.pullPolicy=Sometimes",
    "nodeSelector.gpu=true",
    "networkPolicy.enabled=maybe",
    "prometheus.port=metrics",
    "prometheus.names={datadog}",
    "otlp.names={dcgm}",
    "prometheus.podMonitor.enabled=true",
    "prometheusRule.labels.release=true",
    "openshift.enabled=maybe",
];

/// `cargo xtask chart`.
pub(crate) fn chart(request: &Request) -> Result<()> {
    let helm = Helm(tools::build_go_program(tools::HELM)?);
    helm.run(&["lint", CHART, "--strict", "--kube-version", KUBERNETES])?;
    for (options, wanted) in COMBINATIONS {
        let rendered = helm.template("test", options)?;
        if let Some(text) = wanted.iter().find(|text| !rendered.contains(*text)) {
            bail!("with {options:?} the chart renders no {text:?}:\n{rendered}");
        }
    }
    for values in REFUSED {
        ensure!(helm.template("test", &["--set", values]).is_err(), "the schema takes {values}");
    }
    let rendered = format!("{RENDERED}{:016x}\n{}", hash()?, helm.template("gpuwho", &[])?);
    let path = place::root().join(MANIFEST);
    if request.check {
        let written = fs::read_to_string(&path).with_context(|| format!("reading {MANIFEST}"))?;
        ensure!(written == rendered, "{MANIFEST} is not the chart's: run `cargo xtask chart`");
    } else {
        fs::write(&path, rendered).with_context(|| format!("writing {MANIFEST}"))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// The real Helm.
struct Helm(PathBuf);

impl Helm {
    fn run(&self, arguments: &[&str]) -> Result<String> {
        shell::capture(&mut shell::program(&self.0, arguments))
    }

    /// The manifests of an installation, without the lines in which Helm names its files.
    fn template(&self, name: &str, options: &[&str]) -> Result<String> {
        // Of an option that is there twice the last counts.
        let fixed = ["template", name, CHART, "--kube-version", KUBERNETES];
        let arguments: Vec<_> = fixed.iter().chain(options).copied().collect();
        let text = self.run(&arguments)?;
        let lines = text.split_inclusive('\n').filter(|line| !line.starts_with("# Source: "));
        Ok(lines.collect::<String>().trim_start_matches("---\n").to_owned())
    }
}

/// The chart's package, as `helm package` names it: Helm itself would write the time into it.
pub(crate) fn package(out: &Path, epoch: u64) -> Result<()> {
    let stage = Stage::new(&place::target("dist").join("chart"))?;
    for path in files()? {
        let name = path.strip_prefix(chart_folder()).context("a file outside the chart")?;
        stage.copy(&path, &format!("gpuwho/{}", name.display()), 0o644)?;
    }
    let unfinished = out.join("chart.tar");
    stage.tar(&unfinished, &["gpuwho"], epoch)?;
    compress(&unfinished)?;
    let finished = out.join(format!("gpuwho-{}.tgz", env!("CARGO_PKG_VERSION")));
    fs::rename(out.join("chart.tar.gz"), &finished)
        .with_context(|| format!("moving to {}", finished.display()))
}

fn chart_folder() -> PathBuf {
    place::root().join(CHART)
}

/// The chart's files, sorted.
fn files() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![chart_folder()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    Ok(files)
}

/// Changes whenever a file of the chart does.
fn hash() -> Result<u64> {
    files()?.iter().try_fold(place::FNV_OFFSET, |hash, path| {
        let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let name = path.strip_prefix(chart_folder()).unwrap_or(path);
        let hash = place::fnv1a(hash, name.as_os_str().as_encoded_bytes());
        Ok(place::fnv1a(hash, &bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::{CHART, MANIFEST, RENDERED, hash};
    use crate::place;
    use std::fs;

    #[test]
    fn the_manifest_is_rendered_from_this_chart() {
        let manifest = fs::read_to_string(place::root().join(MANIFEST)).unwrap();
        let wanted = format!("{RENDERED}{:016x}\n", hash().unwrap());
        assert!(manifest.starts_with(&wanted), "run `cargo xtask chart`");
    }

    #[test]
    fn chart_and_program_have_one_version() {
        let chart = fs::read_to_string(place::root().join(CHART).join("Chart.yaml")).unwrap();
        for key in ["version", "appVersion"] {
            let line = format!("\n{key}: {}\n", env!("CARGO_PKG_VERSION"));
            assert!(chart.contains(&line), "{key}");
        }
    }

    #[test]
    fn every_value_is_in_the_schema_and_the_other_way_round() {
        let read = |name: &str| fs::read_to_string(place::root().join(CHART).join(name)).unwrap();
        let schema: serde_json::Value = serde_json::from_str(&read("values.schema.json")).unwrap();
        let schema = schema["properties"].as_object().unwrap();
        let mut described: Vec<_> = schema.keys().map(String::as_str).collect();
        described.retain(|name| *name != "global");
        let values = read("values.yaml");
        let is_key = |line: &&str| line.starts_with(|first: char| first.is_ascii_alphabetic());
        let keys = values.lines().filter(is_key).filter_map(|line| line.split(':').next());
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable();
        described.sort_unstable();
        assert_eq!(keys, described);
    }
}
