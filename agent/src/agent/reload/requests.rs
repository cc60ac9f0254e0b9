//! The threads that serve requests to read the configuration again, one after the other.

use super::{Load, begin, one};
use crate::agent::core::Core;
use crate::agent::notify::notify;
use gpuwho_collect::schedule::Event;
use gpuwho_collect::source::Context;
use gpuwho_model::catalog::agent::{ReloadOutcome, SourceState};
use gpuwho_model::config::Tables;
use gpuwho_model::status::Report;
use parking_lot::Mutex;
use sd_notify::NotifyState;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::thread;

/// The thread's name.
const THREAD: &str = "reload";

/// The name under which the status registry has the last reload.
const STATUS: &str = "configuration";

/// Requests to read the configuration again: each has a thread, and one waits for the other.
#[derive(Clone, Default)]
pub(in super::super) struct Requests(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    /// Whether a request has not begun: those until then are the same one.
    is_due: bool,
    /// Once the agent runs.
    reloader: Option<Arc<Mutex<Reloader>>>,
}

impl Requests {
    /// Has the configuration read again.
    pub(in super::super) fn request(&self) {
        let mut waiting = self.0.lock();
        if !std::mem::replace(&mut waiting.is_due, true) {
            self.start(&mut waiting);
        }
    }

    /// Serves requests from now on, and those before.
    pub(in super::super) fn serve(&self, reloader: Reloader) {
        let mut waiting = self.0.lock();
        waiting.reloader = Some(Arc::new(Mutex::new(reloader)));
        if waiting.is_due {
            self.start(&mut waiting);
        }
    }

    fn start(&self, waiting: &mut Waiting) {
        let Some(reloader) = waiting.reloader.clone() else { return };
        let requests = self.clone();
        let work = move || {
            let mut reloader = reloader.lock();
            requests.0.lock().is_due = false;
            reloader.reload();
        };
        if let Err(error) = thread::Builder::new().name(THREAD.into()).spawn(work) {
            waiting.is_due = false;
            tracing::error!(%error, "no thread to read the configuration again");
        }
    }
}

/// What reads the configuration and applies it.
pub(in super::super) struct Reloader {
    pub(in super::super) core: Arc<Core>,
    pub(in super::super) load: Load,
    /// Those that run.
    pub(in super::super) tables: Tables,
    pub(in super::super) pipeline: SyncSender<Event>,
}

impl Reloader {
    fn reload(&mut self) {
        let Context { board: statuses, gauges: self_stats, .. } = &self.core.context;
        begin();
        let applied = one(&self.core, &self.load, &self.tables, &self.pipeline);
        let (outcome, report) = match &applied {
            Ok((changed, _)) => {
                let keys = changed.join(", ");
                tracing::info!(keys, "the configuration was read again");
                (ReloadOutcome::Applied, Report::ready())
            }
            Err(error) => {
                let remedy = "correct it and reload, or restart; what runs stays in force";
                let reason = format!("the changed configuration is not applied: {error}");
                let report = Report::of(SourceState::Degraded, reason, remedy);
                (ReloadOutcome::Refused, report)
            }
        };
        statuses.put(STATUS, &report);
        if let Some(count) = self_stats.reloads.get(outcome as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let Ok((_, now)) = applied {
            self.tables = now;
        }
        notify(NotifyState::Ready);
    }
}
