//! The sources of collective communication: what the kernel sees, and what NCCL says.

use super::{Core, RunError};
use crate::collect::Collector;
use crate::collect::inspector::Inspector;
use crate::collect::kernel::nccl::{self, Waker};
use crate::collect::ras;
use crate::config::Settings;
use crate::event::desk::Desk;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// The source of collective calls, what wakes it, and the processes it looks at.
pub(super) type Calls = (Box<dyn Collector>, Waker, ras::Candidates);

impl Core {
    /// Makes the source of collective calls, unless it is switched off.
    pub(super) fn calls(
        &self,
        settings: &Settings,
        desk: &Arc<Desk>,
    ) -> Result<Option<Calls>, RunError> {
        if !settings.nccl.enabled {
            return Ok(None);
        }
        let (asked, files) = (settings.nccl.clone(), (&self.files, &settings.paths));
        let others = (&self.communicators, &self.answers);
        let told = (self.board.clone(), Some(Arc::clone(desk)));
        let (source, waker) = nccl::start(asked, files, &self.ownership, others, told)
            .map_err(|source| RunError::Thread { name: nccl::NAME.into(), source })?;
        let loaded = source.loaded();
        Ok(Some((Box::new(source), waker, loaded)))
    }

    /// Makes the source of what NCCL itself says, unless it is switched off.
    pub(super) fn status(
        &self,
        settings: &Settings,
        loaded: ras::Candidates,
        desk: &Arc<Desk>,
    ) -> Result<Option<Box<dyn Collector>>, RunError> {
        if !settings.ras.enabled {
            return Ok(None);
        }
        let loaded = self.in_turns("nccl:ras", settings.ras.every, loaded);
        let shared = (&self.answers, &self.communicators);
        let desk = Arc::clone(desk);
        let source = ras::start(settings.ras.clone(), &self.files, shared, loaded, desk)
            .map_err(|source| RunError::Thread { name: ras::NAME.into(), source })?;
        Ok(Some(Box::new(source)))
    }

    /// The same for a thread that asks for them once in each round: its turn is what lies between.
    fn in_turns(
        &self,
        thread: &'static str,
        every: Duration,
        loaded: ras::Candidates,
    ) -> ras::Candidates {
        let (board, turn) = (self.board.clone(), RefCell::new(None));
        Box::new(move || {
            if turn.take().is_none() {
                board.clock(thread);
            }
            turn.replace(Some(board.turn(thread, every)));
            loaded()
        })
    }

    /// Makes the source of completed collectives, unless it is switched off.
    pub(super) fn inspector(&self, settings: &Settings) -> Option<Box<dyn Collector>> {
        let asked = settings.inspector.clone();
        let (ownership, communicators) = (&self.ownership, &self.communicators);
        let inspector = Inspector::new(asked, &self.files, ownership, communicators);
        settings.inspector.enabled.then(|| Box::new(inspector) as Box<dyn Collector>)
    }
}
