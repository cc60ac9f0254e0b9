//! One thread that waits for many descriptors. What a descriptor announces is done by a task on a
//! thread of its own, which ends when nothing more has come for a while: what is idle has no thread,
//! and no task delays another.

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// How long a task waits for more before its thread ends: as long as lines of one fault take to come,
/// and a thread costs less than the wake-ups of a longer wait.
pub const LINGER: Duration = Duration::from_secs(2);
/// Pause after a thread could not be started.
const RETRY: Duration = Duration::from_millis(100);

/// What is done once a descriptor is readable.
pub trait Task: Send {
    /// What to wait for; a task without a descriptor runs at once.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Does what there is to do, until nothing has come for [`LINGER`]. False if the task is over.
    fn run(&mut self) -> bool;
}

/// Where tasks are added, from any thread.
#[derive(Clone, Default)]
pub struct Poller(Arc<Shared>);

#[derive(Default)]
struct Shared {
    added: Mutex<Vec<Entry>>,
    /// Wakes the thread that polls, once there is one.
    wake: OnceLock<UnixStream>,
}

/// The state of the thread that polls.
#[derive(Debug)]
pub struct Polling {
    poller: Poller,
    woken: UnixStream,
    entries: Vec<Entry>,
}

/// A task and what it does now.
struct Entry {
    name: String,
    /// `None` once it is over.
    task: Arc<Mutex<Option<Box<dyn Task>>>>,
    /// Closed at its other end when the thread that runs the task has ended.
    running: Option<UnixStream>,
}

impl Poller {
    /// Adds a task; `name` is that of its thread.
    pub fn add(&self, name: impl Into<String>, task: impl Task + 'static) {
        let task: Box<dyn Task> = Box::new(task);
        let entry =
            Entry { name: name.into(), task: Arc::new(Mutex::new(Some(task))), running: None };
        self.0.added.lock().push(entry);
        if let Some(mut wake) = self.0.wake.get() {
            // Fails if it is full, and then the thread wakes anyway.
            let _ = wake.write(&[0]);
        }
    }

    /// Prepares the one thread that polls.
    pub fn polling(&self) -> io::Result<Polling> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        // Called once.
        let _ = self.0.wake.set(wake);
        Ok(Polling { poller: self.clone(), woken, entries: Vec::new() })
    }
}

impl Polling {
    /// Waits until `own` is readable or a task has something to do, and starts those tasks.
    pub fn wait(&mut self, own: BorrowedFd<'_>) {
        self.entries.append(&mut self.poller.0.added.lock());
        self.entries.retain(|entry| entry.running.is_some() || entry.task.lock().is_some());
        let ready = self.ready(own);
        // Drained before the next look at what was added.
        while matches!(self.woken.read(&mut [0; 64]), Ok(1..)) {}
        for (place, entry) in self.entries.iter_mut().enumerate() {
            if ready.contains(&place) {
                entry.turn();
            }
        }
    }

    /// Waits; the entries for which something has come.
    fn ready(&self, own: BorrowedFd<'_>) -> BTreeSet<usize> {
        let idle = |entry: &Entry| entry.running.is_none();
        let tasks: Vec<_> =
            self.entries.iter().map(|entry| idle(entry).then(|| entry.task.lock())).collect();
        let mut fds = vec![(None, own), (None, self.woken.as_fd())];
        let mut ready = BTreeSet::new();
        for (place, (entry, task)) in self.entries.iter().zip(&tasks).enumerate() {
            let task = task.as_ref().and_then(|task| task.as_ref());
            let theirs = task.map(|task| task.fds());
            if theirs.as_ref().is_some_and(Vec::is_empty) {
                ready.insert(place);
            }
            let running = entry.running.as_ref().map(|running| running.as_fd());
            let all = theirs.into_iter().flatten().chain(running);
            fds.extend(all.map(|fd| (Some(place), fd)));
        }
        let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|(_, fd)| of(*fd)).collect();
        let at_once = (!ready.is_empty()).then(Timespec::default);
        // An error (a signal) only ends the wait early.
        let _ = poll(&mut polled, at_once.as_ref());
        let come = fds.iter().zip(&polled).filter(|(_, fd)| !fd.revents().is_empty());
        ready.extend(come.filter_map(|((place, _), _)| *place));
        ready
    }
}

impl Entry {
    /// Starts the thread of a task for which something has come, or waits for more once it has ended.
    fn turn(&mut self) {
        if self.running.take().is_some() {
            return;
        }
        let started = UnixStream::pair().and_then(|(ours, theirs)| {
            let task = Arc::clone(&self.task);
            thread::Builder::new().name(self.name.clone()).spawn(move || {
                // Closed however the task ends; one that has panicked is run again.
                let _theirs = theirs;
                let mut task = task.lock();
                if !task.as_mut().is_some_and(|task| task.run()) {
                    *task = None;
                }
            })?;
            Ok(ours)
        });
        match started {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                tracing::warn!(task = self.name, %error, "cannot start a thread for this task; retrying");
                thread::sleep(RETRY);
            }
        }
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("added", &*self.0.added.lock()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, running, .. } = self;
        f.debug_struct("Entry")
            .field("name", name)
            .field("running", running)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Tells what it reads and on which thread; `e` ends it, `p` makes it panic.
    struct Echo(UnixStream, Sender<(u8, String)>);

    impl Task for Echo {
        fn fds(&self) -> Vec<BorrowedFd<'_>> {
            vec![self.0.as_fd()]
        }

        fn run(&mut self) -> bool {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            let thread = thread::current().name().unwrap_or_default().to_owned();
            self.1.send((byte[0], thread)).unwrap();
            assert!(byte != *b"p", "as the test asks");
            byte != *b"e"
        }
    }

    fn heard(from: &Receiver<(u8, String)>) -> (u8, String) {
        from.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    #[test]
    fn a_task_has_a_thread_while_it_has_something_to_do_and_may_panic_or_end() {
        let poller = Poller::default();
        let mut polling = poller.polling().unwrap();
        let (mut stop, own) = UnixStream::pair().unwrap();
        let thread = thread::spawn(move || {
            let mut byte = [0];
            own.set_nonblocking(true).unwrap();
            while !matches!((&own).read(&mut byte), Ok(1)) {
                polling.wait(own.as_fd());
            }
        });
        let (sender, hears) = channel();
        let mut ends = Vec::new();
        for name in ["one", "two"] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            poller.add(name, Echo(theirs, sender.clone()));
            ends.push(ours);
        }
        for (place, bytes) in [(0, &b"apb"[..]), (1, b"ab"), (0, b"e")] {
            for &byte in bytes {
                ends[place].write_all(&[byte]).unwrap();
                assert_eq!(heard(&hears), (byte, ["one", "two"][place].to_owned()));
            }
        }
        assert_eq!(ends[0].read(&mut [0]).unwrap(), 0, "a task that is over is dropped");
        ends[1].write_all(b"c").unwrap();
        assert_eq!(heard(&hears), (b'c', "two".to_owned()));
        stop.write_all(&[0]).unwrap();
        thread.join().unwrap();
    }
}
