//! The host's processes, as membership in communicators asks for them.

use super::roll::Processes;
use crate::collect::proc_scan::{is_alive, living};
use crate::ids::ProcKey;
use crate::paths::Paths;
use gpuwho_common::device_users::TICK_NS;
use std::collections::HashMap;
use std::sync::Arc;

/// This host's processes.
pub(super) struct Host<'a> {
    pub(super) paths: &'a Paths,
    pub(super) libraries: HashMap<ProcKey, (Arc<str>, Arc<str>)>,
}

impl Processes for Host<'_> {
    fn find(&self, pid: u32, start_ns: u64) -> Option<ProcKey> {
        if start_ns != 0 {
            return Some(ProcKey { pid, start_ticks: start_ns / TICK_NS });
        }
        living(self.paths, pid)
    }

    fn is_alive(&self, process: ProcKey) -> bool {
        is_alive(self.paths, process)
    }

    fn library(&self, process: ProcKey) -> Option<(Arc<str>, Arc<str>)> {
        self.libraries.get(&process).cloned()
    }
}
