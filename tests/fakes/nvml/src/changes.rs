//! Sleeping until the scenario's file changes: what a test writes into it may be an event that a
//! sleeper waits for.

use crate::runtime::scenario_path;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Where there is nothing to be told of changes by, a sleeper looks this often.
const LOOK: Duration = Duration::from_millis(100);

/// Changes in the scenario's folder: a file may be replaced, and its successor is another file.
pub(crate) struct Changes(Option<OwnedFd>);

impl Changes {
    /// From now on.
    pub(crate) fn watch() -> Self {
        Self(Self::open())
    }

    fn open() -> Option<OwnedFd> {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        let path = scenario_path().ok()?;
        let changes = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO;
        inotify::add_watch(&watch, path.parent()?, changes).ok()?;
        Some(watch)
    }

    /// Sleeps until something has changed, for at most this long.
    pub(crate) fn sleep(&self, limit: Duration) {
        let Some(watch) = &self.0 else {
            std::thread::sleep(limit.min(LOOK));
            return;
        };
        let limit = Timespec::try_from(limit).ok();
        match poll(&mut [PollFd::new(watch, PollFlags::IN)], limit.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            // Which changes these are does not matter: whoever slept looks at the scenario next.
            _ => while rustix::io::read(watch, &mut [0; 4096]).is_ok() {},
        }
    }
}
