//! A node for the tests of the suppliers: a table of owners, the suppliers' thread, and what the
//! board says of it.

use super::{Containers, Kubernetes, MetadataProviders, Settings};
use crate::attribute::fake::{FakeHost, opened};
use crate::attribute::ownership::Ownership;
use crate::attribute::{Evidence, ProcessAttribution};
use crate::collect::status::{Report, StatusRegistry};
use crate::ids::ProcKey;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For what takes milliseconds, on a machine under load; less than the minute after which a runtime
/// is asked for everything in any case.
const WITHIN: Duration = Duration::from_secs(45);

pub(super) struct Node {
    pub(super) host: FakeHost,
    pub(super) ownership: Ownership,
    pub(super) providers: MetadataProviders,
    board: StatusRegistry,
    _dir: tempfile::TempDir,
    pub(super) sockets: Vec<PathBuf>,
}

impl Node {
    /// Suppliers that are told of sockets of these names, and have not been started.
    pub(super) fn new(cri: &[&str], docker: Option<&str>) -> Self {
        let (host, dir) = (FakeHost::new(), tempfile::tempdir().unwrap());
        let at = |name: &&str| dir.path().join(name);
        let sockets: Vec<_> = cri.iter().chain(docker.iter()).map(at).collect();
        let settings = Settings {
            paths: host.paths.clone(),
            kubernetes: Kubernetes { cri: cri.iter().map(at).collect(), ..Kubernetes::default() },
            containers: Containers { docker: docker.as_ref().map(at), podman: None },
        };
        let ownership = Ownership::with_clock(&host.paths, || 10_000_000_000);
        let board = StatusRegistry::default();
        let suppliers = MetadataProviders::start_for(settings, &ownership, &board);
        Self { host, ownership, providers: suppliers, board, _dir: dir, sockets }
    }

    /// A process at a place opens a device.
    pub(super) fn holder(&self, pid: u32, path: &str) -> ProcKey {
        let process = ProcKey { pid, start_ticks: 100 };
        self.host.start(process, "python3", &format!("0::{path}\n"));
        self.ownership.observe(Evidence::Opened(opened(process, 5, 9_000_000_000)));
        process
    }

    pub(super) fn report(&self, source: &str) -> Option<Report> {
        self.board.all().remove(source).map(|state| state.report)
    }

    /// Waits until the source's report is as wanted.
    pub(super) fn wait_for_report(&self, source: &str, test: impl Fn(&Report) -> bool) -> Report {
        wait_for(|| self.report(source).filter(&test).ok_or_else(|| self.report(source)))
    }

    /// Waits until the holder's owner is as wanted.
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

/// Looks until there is what is looked for; else says what was there at the end.
pub(super) fn wait_for<T, E: std::fmt::Debug>(mut look: impl FnMut() -> Result<T, E>) -> T {
    let end = Instant::now() + WITHIN;
    loop {
        match look() {
            Ok(found) => return found,
            Err(instead) => assert!(Instant::now() < end, "instead: {instead:?}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
