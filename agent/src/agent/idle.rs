//! The thread `signals`: waits for signals, and for the first client of each control socket. While a
//! socket has clients it is served on a thread of its own, so that none delays a signal.

use super::reload::Requests;
use super::{Core, RunError, spawn};
use crate::collect::schedule::{Event, Stop};
use crate::control::{self, Access};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use std::io::IsTerminal as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

/// How long the thread of a socket waits for another client.
const LINGER: Duration = Duration::from_secs(10);
/// Pause after a thread could not be started.
const RETRY: Duration = Duration::from_millis(100);

/// The signals that the agent handles.
pub(super) struct AgentSignals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    stop: Stop,
    batches: SyncSender<Event>,
    reloads: Requests,
}

/// A control socket.
pub(super) struct Door {
    name: &'static str,
    listener: Arc<UnixListener>,
    access: Access,
    /// Closed at its other end when the thread that serves it has ended.
    served: Option<UnixStream>,
}

impl AgentSignals {
    /// Takes the signals from now on.
    pub(super) fn take(
        stop: Stop,
        batches: SyncSender<Event>,
        reloads: Requests,
    ) -> Result<Self, RunError> {
        let (read, write) = UnixStream::pair().map_err(RunError::Signals)?;
        let all = [SIGHUP, SIGINT, SIGTERM];
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, all);
        Ok(Self { delivery: delivery.map_err(RunError::Signals)?, stop, batches, reloads })
    }

    /// Starts the thread.
    pub(super) fn wait(mut self, mut doors: [Door; 2], core: Arc<Core>) -> Result<(), RunError> {
        // Of an agent that somebody has started by hand SIGHUP says that the terminal is gone.
        let has_terminal = std::io::stderr().is_terminal();
        spawn("signals", move || {
            loop {
                let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
                let [first, second] = &doors;
                let mut fds = [self.delivery.get_read().as_fd(), first.fd(), second.fd()].map(of);
                // An error (a signal) only ends the wait early.
                let _ = poll(&mut fds, None);
                let [_, called @ ..] = fds.map(|fd| !fd.revents().is_empty());
                for signal in self.delivery.pending() {
                    if signal == SIGHUP && !has_terminal {
                        self.reloads.request();
                        continue;
                    }
                    tracing::info!(signal, "stopping");
                    self.stop.stop();
                    // An error means that the pipeline has already ended.
                    let _ = self.batches.send(Event::Stop);
                    return;
                }
                for (door, _) in doors.iter_mut().zip(called).filter(|(_, called)| *called) {
                    door.turn(&core);
                }
            }
        })
    }
}

impl Door {
    /// The public one, and the one for root.
    pub(super) fn both(listeners: [UnixListener; 2], settings: control::Settings) -> [Self; 2] {
        let [public, admin] = listeners.map(Arc::new);
        let access = Access::Public { show_others: settings.show_others };
        [
            Self { name: "control", listener: public, access, served: None },
            Self { name: "control:admin", listener: admin, access: Access::Admin, served: None },
        ]
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.served.as_ref().map_or_else(|| self.listener.as_fd(), |served| served.as_fd())
    }

    /// Serves the client that has come, or waits for the next one.
    fn turn(&mut self, core: &Arc<Core>) {
        if self.served.take().is_some() {
            return;
        }
        let started = UnixStream::pair().map_err(RunError::Signals).and_then(|(ours, theirs)| {
            let (listener, access, core) =
                (Arc::clone(&self.listener), self.access, Arc::clone(core));
            spawn(self.name, move || {
                control::serve(&listener, access, &*core, LINGER);
                drop(theirs);
            })?;
            Ok(ours)
        });
        match started {
            Ok(served) => self.served = Some(served),
            Err(error) => {
                tracing::warn!(%error, "a client of the control socket waits");
                thread::sleep(RETRY);
            }
        }
    }
}
