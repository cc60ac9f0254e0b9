//! The thread `signals`: waits for signals, and for what the agent's [`Poller`] has: the first client
//! of each control socket, events of the kernel and of the vendors' libraries.
//!
//! [`Poller`]: gpuwho_model::poller::Poller

use super::reload::Requests;
use super::{Core, RunError, spawn};
use crate::control::{self, Access};
use gpuwho_collect::schedule::{Event, Stop};
use gpuwho_model::poller::{LINGER, Poller, Task};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use std::io::IsTerminal as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// The signals that the agent handles.
pub(super) struct AgentSignals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    stop: Stop,
    batches: SyncSender<Event>,
    reloads: Requests,
}

/// A control socket.
struct Door {
    listener: UnixListener,
    access: Access,
    core: Arc<Core>,
}

impl AgentSignals {
    /// Takes the signals from now on.
    pub(super) fn take(
        stop: Stop,
        batches: SyncSender<Event>,
        reloads: Requests,
    ) -> Result<Self, RunError> {
        let (read, write) = UnixStream::pair().map_err(RunError::Signals)?;
        let all = [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2];
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, all);
        Ok(Self { delivery: delivery.map_err(RunError::Signals)?, stop, batches, reloads })
    }

    /// Starts the thread.
    pub(super) fn wait(mut self, poller: &Poller) -> Result<(), RunError> {
        // Of an agent that somebody has started by hand SIGHUP says that the terminal is gone.
        let has_terminal = std::io::stderr().is_terminal();
        let mut polling = poller.polling().map_err(RunError::Signals)?;
        spawn("signals", move || {
            loop {
                polling.wait(self.delivery.get_read().as_fd());
                for signal in self.delivery.pending() {
                    if signal == SIGHUP && !has_terminal {
                        self.reloads.request();
                        continue;
                    }
                    if [SIGUSR1, SIGUSR2].contains(&signal) {
                        tracing::warn!(signal, "ignored: SIGHUP reloads, SIGTERM stops");
                        continue;
                    }
                    tracing::info!(signal, "stopping");
                    self.stop.stop();
                    // An error means that the pipeline has already ended.
                    let _ = self.batches.send(Event::Stop);
                    return;
                }
            }
        })
    }
}

/// Serves the control sockets: the public one, and the one for root.
pub(super) fn serve(listeners: [UnixListener; 2], settings: control::Settings, core: &Arc<Core>) {
    let [public, admin] = listeners;
    let access = Access::Public { show_others: settings.show_others };
    let doors = [("control", public, access), ("control:admin", admin, Access::Admin)];
    for (name, listener, access) in doors {
        core.context.poller.add(name, Door { listener, access, core: Arc::clone(core) });
    }
}

impl Task for Door {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.listener.as_fd()]
    }

    fn run(&mut self) -> bool {
        control::serve(&self.listener, self.access, &*self.core, LINGER);
        true
    }
}
