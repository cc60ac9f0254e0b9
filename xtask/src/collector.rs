//! Builds the real OpenTelemetry Collector of `tests/collector` once for each state of its sources.

use crate::setup::{self, Want, dist};
use crate::{place, shell};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The variable that tells the tests where the Collector is.
pub const VARIABLE: &str = "GPUWHO_COLLECTOR";

/// The variable that tells the tests where Prometheus 3 is.
pub(crate) const PROMETHEUS: &str = "GPUWHO_TEST_PROMETHEUS";

/// What a binary is made of.
const SOURCES: &[&str] = &["go.mod", "go.sum", "main.go"];

/// What the tests run.
const SMALL: &str = "tests/collector";

/// What has all components that `deploy/collector` names.
const FULL: &str = "tests/collector/full";

/// The configurations, each with those that it needs.
const DEPLOYED: &[&[&str]] = &[
    &["node.yaml"],
    &["node.yaml", "node-host.yaml"],
    &["cluster.yaml"],
    &["kubelet.yaml", "yaml:receivers::kubeletstats::auth_type: none"],
    &["gateway.yaml", "to-clickhouse.yaml"],
    &["gateway.yaml", "gateway-tls.yaml", "to-datadog.yaml"],
    &["gateway.yaml", "to-grafana-cloud.yaml"],
    // Without the extension, which could not be had.
    &[
        "gateway.yaml",
        "to-google-cloud.yaml",
        "yaml:extensions: null",
        "yaml:service::extensions: []",
        "yaml:exporters::otlp_http/google-cloud::auth: null",
    ],
    &["gateway.yaml", "to-last9.yaml"],
    &["gateway.yaml", "to-new-relic.yaml"],
    &["gateway.yaml", "to-prometheus.yaml", "to-loki.yaml"],
    &["gateway.yaml", "to-remote-write.yaml", "to-loki.yaml"],
];

/// A value for each variable that has no default.
const VARIABLES: &[(&str, &str)] = &[
    ("CLICKHOUSE_PASSWORD", "password"),
    ("CLICKHOUSE_URL", "tcp://127.0.0.1:9000"),
    ("CLICKHOUSE_USER", "user"),
    ("CLIENT_CA", "/etc/tls/ca.pem"),
    ("CLUSTER_NAME", "cluster"),
    ("DD_API_KEY", "key"),
    ("DD_SITE", "datadoghq.com"),
    ("GOOGLE_CLOUD_PROJECT", "project"),
    ("GRAFANA_CLOUD_AUTHORIZATION", "Basic key"),
    ("GRAFANA_CLOUD_URL", "https://otlp-gateway-prod-eu-west-0.grafana.net/otlp"),
    ("LAST9_AUTHORIZATION", "Basic key"),
    ("LAST9_URL", "https://otlp.last9.io"),
    ("LOGS_URL", "http://127.0.0.1:3100/otlp"),
    ("METRICS_URL", "http://127.0.0.1:9090/api/v1/otlp"),
    ("NEW_RELIC_LICENSE_KEY", "key"),
    ("NODE_NAME", "node"),
    ("OTLP_GATEWAY", "127.0.0.1:4317"),
    ("REMOTE_WRITE_URL", "http://127.0.0.1:9090/api/v1/write"),
    ("TLS_CERT", "/etc/tls/cert.pem"),
    ("TLS_KEY", "/etc/tls/key.pem"),
];

/// What `cargo xtask collector` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Build one with more components instead (ten minutes the first time), and let it check the
    /// configurations of deploy/collector
    #[arg(long)]
    check: bool,
    /// Build Prometheus 3 instead, which takes OTLP: with it the tests run what export.md recommends
    #[arg(long, conflicts_with = "check")]
    prometheus: bool,
}

/// `cargo xtask collector`.
pub(crate) fn collector(request: &Request) -> Result<()> {
    setup::ensure(&["collector"], Want::Must)?;
    if request.check {
        return check(&build(FULL)?);
    }
    if request.prometheus {
        println!("{}", dist::build_go_program(dist::PROMETHEUS)?.display());
        return Ok(());
    }
    println!("{}", build(SMALL)?.display());
    Ok(())
}

/// The Collector for a test run, or why there is none.
pub fn for_tests() -> Result<PathBuf> {
    setup::ensure(&["collector"], Want::Must)?;
    build(SMALL)
}

/// The one with every component that `deploy/collector` names.
pub(crate) fn full() -> Result<PathBuf> {
    setup::ensure(&["collector"], Want::Must)?;
    build(FULL)
}

/// What the test of a real cluster starts beside the agent: the Collectors of the cluster, and Prometheus 3.
pub fn for_cluster() -> Result<[(&'static str, PathBuf); 2]> {
    let prometheus = dist::build_go_program(dist::PROMETHEUS)?;
    Ok([("GPUWHO_TEST_COLLECTORS", full()?), (PROMETHEUS, prometheus)])
}

/// Each configuration is one that the Collector would start with.
fn check(collector: &Path) -> Result<()> {
    let folder = place::root().join("deploy/collector");
    for files in DEPLOYED {
        let mut command = shell::program(collector, ["validate"]);
        for file in *files {
            command.args(["--config", file]);
        }
        command.current_dir(&folder).envs(VARIABLES.iter().copied());
        shell::run(&mut command).with_context(|| format!("checking {}", files.join(", ")))?;
    }
    println!("{} configurations are valid; not checked: googleclientauth", DEPLOYED.len());
    Ok(())
}

fn build(folder: &str) -> Result<PathBuf> {
    let source = place::root().join(folder);
    let binary = place::cache("collector")?.join(format!("collector-{:016x}", key(&source)?));
    if binary.is_file() {
        return Ok(binary);
    }
    let go = setup::go().context("no suitable Go")?;
    eprintln!("building the OpenTelemetry Collector: some minutes the first time");
    // Built beside the final name and moved, so that an interrupted build is never used.
    let unfinished = binary.with_extension("unfinished");
    let mut command = shell::program(go, ["build", "-trimpath", "-ldflags=-s -w", "-o"]);
    command.arg(&unfinished).arg(".").current_dir(&source);
    // Static, and with exactly the Go that was chosen.
    shell::run(command.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local"))?;
    fs::rename(&unfinished, &binary).with_context(|| format!("moving to {}", binary.display()))?;
    Ok(binary)
}

fn key(source: &Path) -> Result<u64> {
    let mut hash = place::FNV_OFFSET;
    for name in SOURCES {
        let path = source.join(name);
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        hash = place::fnv1a(hash, name.as_bytes());
        hash = place::fnv1a(hash, &bytes);
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::key;
    use crate::place;

    #[test]
    fn another_component_list_is_another_collector() {
        let source = place::root().join(super::SMALL);
        let copy = tempfile::tempdir().unwrap();
        for name in super::SOURCES {
            std::fs::copy(source.join(name), copy.path().join(name)).unwrap();
        }
        assert_eq!(key(&source).unwrap(), key(copy.path()).unwrap());
        std::fs::write(copy.path().join("main.go"), "package main\n").unwrap();
        assert_ne!(key(&source).unwrap(), key(copy.path()).unwrap());
    }
}
