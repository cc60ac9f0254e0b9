//! `cargo xtask chart`: the Helm chart, linted and rendered by the real Helm, the page of its values, and the
//! plain manifest in `deploy/kubernetes` that is rendered from it. The manifest has a hash of the chart in it, so that a test
//! without Helm knows whether it is the chart's.

pub(crate) mod values;

use crate::archive::{Stage, compress};
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
pub const KUBERNETES: &str = "1.34.0";

/// What `cargo xtask chart` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Only say whether the manifest is up to date
    #[arg(long)]
    check: bool,
}

/// The installations that the values are for: each rendered here, and taken by a real API server in
/// `cargo xtask kubernetes`.
const COMBINATIONS: &str = include_str!("../chart-combinations.json");

/// An installation.
#[derive(serde::Deserialize)]
struct Combination {
    /// What Helm is told.
    options: Vec<String>,
    /// What the manifests then have.
    has: Vec<String>,
    /// What they do not have.
    #[serde(default)]
    lacks: Vec<String>,
}

fn combinations() -> Result<Vec<Combination>> {
    serde_json::from_str(COMBINATIONS).context("reading xtask/chart-combinations.json")
}

/// Values that the schema must refuse.
const REFUSED: &[&str] = &[
    "otlp.endpiont=http://collector:4318",
    "unknown=1",
    "clusterName=a\\,b",
    "spool.enabled=perhaps",
    "spool.maxBytes=1",
    "spool.folder=/tmp",
    "runtimeSockets={containerd.sock}",
    "driverFolders={/usr/lib/x86_64-linux-gnu}",
    "driverFolders={run/nvidia}",
    "privileged=maybe",
    "image.pullPolicy=Sometimes",
    "nodeSelector.gpu=true",
    "networkPolicy.enabled=maybe",
    "prometheus.port=metrics",
    "prometheus.names={datadog}",
    "otlp.names={dcgm}",
    "prometheus.podMonitor.enabled=true",
    "prometheus.serviceMonitor.enabled=true",
    "nodes=some",
    "nodes=gpu,affinity.nodeAffinity.a=b",
    "vendors.matrox=true",
    "engines=maybe",
    "cost.prices[0].model=H100",
    "cost.currency=dollars",
    "slurm.gpuMap=run/map",
    "dashboards.enabled=maybe",
    "prometheusRule.runbookUrl=wiki",
    "prometheusRule.labels.release=true",
    "openshift.enabled=maybe",
];

/// `cargo xtask chart`.
pub(crate) fn chart(request: &Request) -> Result<()> {
    let helm = Helm(tools::build_go_program(tools::HELM)?);
    for Combination { options, has, lacks } in combinations()? {
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        let fixed = ["lint", CHART, "--strict", "--quiet", "--kube-version", KUBERNETES];
        helm.run(&[&fixed, &options[..]].concat())?;
        let rendered = helm.template("test", &options)?;
        let missing = has.iter().find(|text| !rendered.contains(*text));
        if let Some(text) = missing.or_else(|| lacks.iter().find(|text| rendered.contains(*text))) {
            bail!(
                "with {options:?} the chart must have {has:?} and not {lacks:?}; {text:?} is wrong:\n{rendered}"
            );
        }
    }
    for values in REFUSED {
        ensure!(helm.template("test", &["--set", values]).is_err(), "the schema takes {values}");
    }
    if !request.check {
        // It is a file of the chart.
        let path = place::root().join(values::README);
        fs::write(&path, values::readme()?)
            .with_context(|| format!("writing {}", path.display()))?;
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

/// The same with `--check`, where Helm has been built already: that takes minutes.
pub(crate) fn check_if_built() -> Result<bool> {
    let is_built = tools::is_built(tools::HELM)?;
    if is_built {
        chart(&Request { check: true })?;
    }
    Ok(is_built)
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
pub fn package(out: &Path, epoch: u64) -> Result<()> {
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
}
