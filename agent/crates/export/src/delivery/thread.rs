//! The threads on which requests are sent. The senders of all receivers share one, [`SHARED`]; one with a spool waits for the
//! disk, and has a thread of its own.

use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The name of the shared thread.
const SHARED: &str = "export";
/// Threads that resolve host names, beside it: one that hangs delays no other receiver. They end after ten
/// idle seconds.
const RESOLVERS: usize = 8;

/// A thread that runs senders. It ends when the last one has ended and no queue holds this.
#[derive(Debug)]
pub(super) struct SendThread {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl SendThread {
    /// The thread for a sender.
    pub(super) fn of(name: &str, has_spool: bool) -> io::Result<Arc<Self>> {
        static RUNNING: Mutex<Weak<SendThread>> = Mutex::new(Weak::new());
        if has_spool {
            return Self::start(name).map(Arc::new);
        }
        let mut running = RUNNING.lock();
        if let Some(running) = running.upgrade() {
            return Ok(running);
        }
        let started = Arc::new(Self::start(SHARED)?);
        *running = Arc::downgrade(&started);
        Ok(started)
    }

    fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(RESOLVERS)
            .thread_name(format!("{name}-dns"))
            .build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Nothing is sent on it: it is dropped.
            let _ = runtime.block_on(ended);
            // A look-up that hangs must not delay the agent's end.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _end: end })
    }

    /// Runs a sender to its end; the thread stays for it.
    pub(super) fn run(self: Arc<Self>, sender: impl Future<Output = ()> + Send + 'static) {
        let handle = self.handle.clone();
        handle.spawn(async move {
            sender.await;
            drop(self);
        });
    }
}
