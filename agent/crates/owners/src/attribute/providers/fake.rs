//! A node for the provider tests: an ownership table, the providers' thread, and their status.

use super::{Containers, Kubernetes, MetadataProviders, Settings};
use crate::attribute::fake::{FakeHost, opened};
use crate::attribute::ownership::Ownership;
use crate::attribute::{Evidence, ProcessAttribution};
use gpuwho_model::ids::ProcKey;
use gpuwho_model::status::{Report, StatusRegistry};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Deadline for work of milliseconds on a machine under load; less than the minute after which a
/// runtime is listed in any case.
const WITHIN: Duration = Duration::from_secs(45);

pub(super) struct Node {
    pub(super) host: FakeHost,
    pub(super) ownership: Ownership,
    pub(super) providers: MetadataProviders,
    status: StatusRegistry,
    _dir: tempfile::TempDir,
    pub(super) sockets: Vec<PathBuf>,
}

impl Node {
    /// Creates providers with sockets of these names, without starting them.
    pub(super) fn new(cri: &[&str], docker: Option<&str>) -> Self {
        let (host, dir) = (FakeHost::new(), tempfile::tempdir().unwrap());
        let at = |name: &&str| dir.path().join(name);
        let sockets: Vec<_> = cri.iter().chain(docker.iter()).map(at).collect();
        let settings = Settings {
            paths: host.paths.clone(),
            kubernetes: Kubernetes { cri: cri.iter().map(at).collect(), ..Kubernetes::default() },
            containers: Containers { docker: docker.as_ref().map(at), podman: None },
            vendors: &[],
        };
        let ownership = Ownership::with_clock(&host.paths, || 10_000_000_000);
        let status = StatusRegistry::default();
        let providers = MetadataProviders::start_for(settings, &ownership, &status);
        Self { host, ownership, providers, status, _dir: dir, sockets }
    }

    /// Starts a process at a cgroup path that opens a device.
    pub(super) fn holder(&self, pid: u32, path: &str) -> ProcKey {
        let process = ProcKey { pid, start_ticks: 100 };
        self.host.start(process, "python3", &format!("0::{path}\n"));
        self.ownership.observe(Evidence::Opened(opened(process, 5, 9_000_000_000)));
        process
    }

    pub(super) fn report(&self, source: &str) -> Option<Report> {
        self.status.all().remove(source).map(|state| state.report)
    }

    /// Waits until the source's report passes a test.
    pub(super) fn wait_for_report(&self, source: &str, test: impl Fn(&Report) -> bool) -> Report {
        wait_for(|| self.report(source).filter(&test).ok_or_else(|| self.report(source)))
    }

    /// Waits until the process's attribution passes a test.
    pub(super) fn wait_for_owner(
        &self,
        process: ProcKey,
        test: impl Fn(&ProcessAttribution) -> bool,
    ) -> Arc<ProcessAttribution> {
        wait_for(|| {
            let owner = self.ownership.attribution(process);
            owner.clone().filter(|owner| test(owner)).ok_or(owner)
        })
    }
}

/// Repeats `check` until it succeeds; fails with the last error after [`WITHIN`].
pub(super) fn wait_for<T, E: std::fmt::Debug>(mut check: impl FnMut() -> Result<T, E>) -> T {
    let end = Instant::now() + WITHIN;
    loop {
        match check() {
            Ok(found) => return found,
            Err(instead) => assert!(Instant::now() < end, "instead: {instead:?}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
