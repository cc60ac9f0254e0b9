//! What the loop of the source `device_users` sleeps on, and for how long.

use super::load::Loaded;
use super::losses::Losses;
use super::records::Fact;
use gpuwho_model::paths::Paths;
use gpuwho_owners::nodes::{Settings, folders};
use inotify::{Inotify, WatchMask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

/// Buffer for a burst of names in one read of the node watch.
const NODE_EVENT_BYTES: usize = 4_096;

/// What woke the loop.
pub(super) struct Woken {
    pub stop: bool,
    pub nodes: bool,
}

/// Sleeps until something is readable or the timeout expires.
pub(super) fn wait(
    stopped: BorrowedFd<'_>,
    bpf: Option<&Loaded>,
    nodes: Option<BorrowedFd<'_>>,
    timeout: Duration,
) -> Woken {
    let mut fds = vec![PollFd::from_borrowed_fd(stopped, PollFlags::empty())];
    let position = nodes.map(|nodes| {
        fds.push(PollFd::from_borrowed_fd(nodes, PollFlags::IN));
        fds.len() - 1
    });
    let rings = bpf.map(|bpf| [bpf.openings.as_fd(), bpf.ring.as_fd()]);
    let rings = rings.into_iter().flatten();
    fds.extend(rings.map(|ring| PollFd::from_borrowed_fd(ring, PollFlags::IN)));
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // After a signal nothing is ready, and the caller waits again.
    let _ = poll(&mut fds, Some(&timeout));
    let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
    Woken { stop: ready(0), nodes: position.is_some_and(ready) }
}

/// Without it (no inotify instance left) new nodes are found at the next rescan.
pub(super) fn watch_folders(settings: &Settings, paths: &Paths) -> Option<Inotify> {
    let inotify = Inotify::init().ok()?;
    for folder in folders(settings, paths) {
        // A directory that does not exist yet will appear in a watched one.
        let _ = inotify.watches().add(folder, WatchMask::CREATE | WatchMask::MOVED_TO);
    }
    Some(inotify)
}

pub(super) fn drain(inotify: Option<&mut Inotify>) {
    let mut names = [0; NODE_EVENT_BYTES];
    if let Some(inotify) = inotify {
        // Only the fact that something appeared matters.
        let _ = inotify.read_events(&mut names);
    }
}

/// How far the rings are read.
pub(super) struct Rings {
    pub losses: Losses,
    /// There were records.
    pub are_active: bool,
    /// More openings may wait.
    pub is_full: bool,
    /// When the last opening was that was read.
    pub opened_ns: u64,
    /// Read from the ring, and to be taken after openings that are older.
    pub next: Option<Fact>,
}

impl Rings {
    pub(super) fn new(losses: Losses) -> Self {
        Self { losses, are_active: false, is_full: false, opened_ns: 0, next: None }
    }

    /// How long there is nothing to do until the first of these moments.
    pub(super) fn timeout(&self, moments: [Option<Instant>; 2]) -> Duration {
        if self.next.is_some() || self.is_full {
            return Duration::ZERO;
        }
        let all = moments.into_iter().chain([self.losses.next()]).flatten();
        all.min().map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }
}
