//! Waits for sockets that do not exist yet, without looking for them again and again.
//!
//! One inotify instance has a watch on each socket's nearest existing folder: the folder itself once
//! it is there. After something has changed in one of them every absent socket is looked for, at
//! most once in [`AT_MOST_EVERY`], however much happens there. What inotify does not show (a mount
//! over the folder, the target of a link) is found within [`RETRY`]. Without inotify the sockets are
//! looked for at the interval that their provider names.

use super::next_of;
use inotify::{Inotify, WatchDescriptor, WatchMask, Watches};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Notify;

/// A host that starts containers makes folders in `/run` all the time.
const AT_MOST_EVERY: Duration = Duration::from_millis(500);
/// How often a watched socket is looked for all the same.
const RETRY: Duration = Duration::from_mins(1);
/// Folders that may appear, one in the other, while the nearest one is found.
const MAX_STEPS: usize = 8;
/// Buffer for the events of one read; what they say does not matter.
const EVENT_BYTES: usize = 4_096;

/// The sockets that providers wait for.
#[derive(Clone, Debug, Default)]
pub(crate) struct AbsentSockets(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    watched: Mutex<Watched>,
    changed: Notify,
}

#[derive(Default)]
struct Watched {
    /// `None` without inotify.
    watches: Option<Watches>,
    /// The watch of each socket's nearest folder, and how many wait for the socket.
    sockets: HashMap<PathBuf, (Option<WatchDescriptor>, usize)>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(&self.sockets).finish()
    }
}

/// Keeps the watch of a socket as long as somebody waits for it.
struct Waiting<'a>(&'a Shared, &'a Path);

impl AbsentSockets {
    /// Follows the folders for as long as the agent runs; returns where that is not possible.
    pub(super) async fn follow(self) {
        if let Err(error) = self.0.follow().await {
            tracing::debug!(%error, "sockets are looked for by time: no inotify");
        }
        self.0.watched.lock().watches = None;
    }

    /// Waits until the socket's file exists. Without a watch it is looked for at every multiple of
    /// `every`, at the same moments as the others of the thread.
    pub(super) async fn appears(&self, socket: &Path, every: Duration) {
        let waiting = Waiting::begin(&self.0, socket);
        loop {
            // Made before the look: what changes after it is not missed.
            let mut changed = pin!(self.0.changed.notified());
            changed.as_mut().enable();
            let is_watched = waiting.watch();
            if !matches!(socket.try_exists(), Ok(false)) {
                return;
            }
            let next = next_of(if is_watched { RETRY } else { every });
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }
}

impl Shared {
    async fn follow(&self) -> io::Result<()> {
        let mut inotify = Inotify::init()?;
        self.watched.lock().watches = Some(inotify.watches());
        // Those that wait already set their watches.
        self.changed.notify_waiters();
        let mut names = [0; EVENT_BYTES];
        loop {
            // A copy for each wait: the thread is not woken by what happens in the pause. To wait, a
            // pipe's end is as good as any descriptor that can be read without blocking.
            let copy = inotify.as_fd().try_clone_to_owned()?;
            Receiver::from_owned_fd_unchecked(copy)?.readable().await?;
            while inotify.read_events(&mut names).is_ok_and(|mut events| events.next().is_some()) {}
            self.changed.notify_waiters();
            tokio::time::sleep(AT_MOST_EVERY).await;
        }
    }
}

impl<'a> Waiting<'a> {
    fn begin(shared: &'a Shared, socket: &'a Path) -> Self {
        shared.watched.lock().sockets.entry(socket.to_owned()).or_default().1 += 1;
        Self(shared, socket)
    }

    /// Watches the nearest existing folder; false if the socket's appearance may not show there.
    fn watch(&self) -> bool {
        let Self(shared, socket) = self;
        let mut watched = shared.watched.lock();
        let Some(mut watches) = watched.watches.clone() else { return false };
        let found = nearest(&mut watches, socket);
        let is_watched = found.is_some() && socket.symlink_metadata().is_err();
        let known = watched.sockets.get_mut(*socket);
        let before = known.and_then(|known| std::mem::replace(&mut known.0, found));
        watched.forget(before);
        is_watched
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut watched = self.0.watched.lock();
        let Some(known) = watched.sockets.get_mut(self.1) else { return };
        known.1 -= 1;
        if known.1 == 0 {
            let gone = watched.sockets.remove(self.1);
            watched.forget(gone.and_then(|(watch, _)| watch));
        }
    }
}

impl Watched {
    /// Ends a watch that no socket has any more.
    fn forget(&mut self, watch: Option<WatchDescriptor>) {
        let Some(watch) = watch else { return };
        let is_needed = self.sockets.values().any(|(other, _)| other.as_ref() == Some(&watch));
        if let Some(watches) = self.watches.as_mut().filter(|_| !is_needed) {
            // The kernel has ended that of a removed folder.
            let _ = watches.remove(watch);
        }
    }
}

/// Watches the nearest existing folder above a socket.
fn nearest(watches: &mut Watches, socket: &Path) -> Option<WatchDescriptor> {
    let mask = WatchMask::CREATE
        | WatchMask::MOVED_TO
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    for _ in 0..MAX_STEPS {
        let mut below = socket;
        for folder in socket.ancestors().skip(1) {
            match watches.add(folder, mask) {
                // One that has appeared before the watch is not told of.
                Ok(_) if below != socket && below.exists() => break,
                Ok(watch) => return Some(watch),
                Err(error) if is_missing(&error) => below = folder,
                Err(_) => return None,
            }
        }
    }
    None
}

fn is_missing(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::NOTDIR].map(Errno::raw_os_error).map(Some).contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tokio::time::timeout;

    /// Longer than any test takes.
    const NEVER: Duration = Duration::from_hours(1);

    async fn found(sockets: &AbsentSockets, socket: &Path) -> bool {
        timeout(Duration::from_secs(20), sockets.appears(socket, NEVER)).await.is_ok()
    }

    #[tokio::test]
    async fn a_socket_is_found_when_it_appears_in_a_folder_that_did_not_exist() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("run/containerd/containerd.sock");
        let sockets = AbsentSockets::default();
        let (following, waiting) = (sockets.clone().follow(), found(&sockets, &socket));
        let appears = async {
            for part in ["run", "run/containerd"] {
                tokio::task::yield_now().await;
                fs::create_dir(folder.path().join(part)).unwrap();
            }
            // Its folder is the one that is watched now.
            tokio::time::sleep(AT_MOST_EVERY * 3).await;
            fs::write(&socket, "").unwrap();
        };
        tokio::select! {
            () = following => panic!("no inotify"),
            (is_found, ()) = async { tokio::join!(waiting, appears) } => assert!(is_found),
        }
        assert!(sockets.0.watched.lock().sockets.is_empty());
    }

    #[tokio::test]
    async fn a_folder_that_is_replaced_is_followed_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (old, run) = (folder.path().join("old"), folder.path().join("run"));
        fs::create_dir(&run).unwrap();
        let socket = run.join("docker.sock");
        let sockets = AbsentSockets::default();
        let (following, waiting) = (sockets.clone().follow(), found(&sockets, &socket));
        let appears = async {
            tokio::time::sleep(AT_MOST_EVERY).await;
            fs::rename(&run, &old).unwrap();
            fs::create_dir(&run).unwrap();
            tokio::time::sleep(AT_MOST_EVERY * 3).await;
            fs::write(&socket, "").unwrap();
        };
        tokio::select! {
            () = following => panic!("no inotify"),
            (is_found, ()) = async { tokio::join!(waiting, appears) } => assert!(is_found),
        }
    }

    #[tokio::test]
    async fn two_sockets_of_one_folder_share_its_watch_and_the_last_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        let shared = Shared::default();
        let inotify = Inotify::init().unwrap();
        shared.watched.lock().watches = Some(inotify.watches());
        let waiting = [&one, &other].map(|socket| Waiting::begin(&shared, socket));
        assert!(waiting.iter().all(Waiting::watch));
        let watches: Vec<_> =
            shared.watched.lock().sockets.values().filter_map(|(watch, _)| watch.clone()).collect();
        assert!(watches.len() == 2 && watches[0] == watches[1], "{watches:?}");
        let [first, second] = waiting;
        drop(first);
        assert!(second.watch(), "the other is watched");
        drop(second);
        // A watch that has ended cannot be ended again.
        assert!(inotify.watches().remove(watches[0].clone()).is_err());
    }
}
