//! Records which library call a thread is in, and since when. The child reports it for a blocked
//! thread, because the call's name is the first thing that an operator needs.
//!
//! Costs an uncontended lock and a few formatted bytes around each call.

use parking_lot::Mutex;
use std::cell::OnceCell;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

thread_local! {
    static HERE: OnceCell<InFlightCall> = const { OnceCell::new() };
}

/// The current call of one thread, readable by other threads.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlightCall(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The kernel's thread id; 0 before the thread has started.
    thread: AtomicU32,
    doing: Mutex<Doing>,
}

#[derive(Debug, Default)]
struct Doing {
    /// Kept between calls, so that it is allocated once.
    call: String,
    since: Option<Instant>,
}

/// A call that has not returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) thread: u32,
    pub(super) lasts: Duration,
}

/// Makes a call that other threads can see.
pub(super) fn call<T>(name: impl fmt::Debug, body: impl FnOnce() -> T) -> T {
    HERE.with(|here| here.get().inspect(|inside| inside.enter(name)).is_some());
    let answer = body();
    HERE.with(|here| here.get().inspect(|inside| inside.0.doing.lock().since = None).is_some());
    answer
}

impl InFlightCall {
    /// Registers this thread: its calls are recorded here from now on.
    pub(super) fn begin(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        self.0.thread.store(thread, Ordering::Relaxed);
        // Set once, when the thread starts.
        let _ = HERE.with(|here| here.set(self.clone()));
    }

    /// The call that the thread is in.
    pub(super) fn now(&self) -> Option<Call> {
        let doing = self.0.doing.lock();
        let lasts = doing.since?.elapsed();
        let thread = self.0.thread.load(Ordering::Relaxed);
        Some(Call { name: doing.call.clone(), thread, lasts })
    }

    fn enter(&self, name: impl fmt::Debug) {
        let mut doing = self.0.doing.lock();
        doing.call.clear();
        // Writing to a string cannot fail.
        let _ = write!(doing.call, "{name:?}");
        doing.since = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::{InFlightCall, call};
    use std::sync::mpsc::channel;
    use std::thread;

    #[derive(Debug)]
    struct Power;

    #[test]
    fn a_call_is_visible_to_other_threads_until_it_returns() {
        let inside = InFlightCall::default();
        let shown = inside.clone();
        let (sender, receiver) = channel();
        let (go, gone) = channel::<()>();
        let worker = thread::spawn(move || {
            shown.begin();
            call(Power, || {
                sender.send(()).unwrap();
                gone.recv().unwrap();
            });
        });
        receiver.recv().unwrap();
        let seen = inside.now().unwrap();
        assert_eq!(seen.name, "Power");
        assert_ne!(seen.thread, 0);
        go.send(()).unwrap();
        worker.join().unwrap();
        assert_eq!(inside.now(), None);
    }
}
