//! The CPU clock of a thread, readable by the thread itself and by others.

use std::mem::MaybeUninit;
use std::time::Duration;

/// The CPU clock of a thread. Reading it is one system call and wakes no thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The clock of the reading thread.
    pub const OWN: Self = Self(libc::CLOCK_THREAD_CPUTIME_ID);

    /// The clock of the calling thread, for other threads.
    pub fn here() -> Option<Self> {
        let mut clock = MaybeUninit::uninit();
        // SAFETY: the calling thread exists, and `clock` has room for the answer.
        let status =
            unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), clock.as_mut_ptr()) };
        // SAFETY: the function writes the answer where it returns 0.
        (status == 0).then(|| Self(unsafe { clock.assume_init() }))
    }

    /// The CPU time used so far; `None` once the thread has ended.
    pub fn spent(self) -> Option<Duration> {
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: any number may be asked for; `time` has room for the answer.
        let status = unsafe { libc::clock_gettime(self.0, time.as_mut_ptr()) };
        // SAFETY: the call writes the answer where it returns 0.
        let time = (status == 0).then(|| unsafe { time.assume_init() })?;
        // CPU time is never negative, so both parts fit.
        let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
        Some(Duration::new(time.tv_sec.unsigned_abs(), nanos))
    }
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Duration {
    ThreadClock::OWN.spent().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn a_clock_is_read_from_outside_until_its_thread_ends() {
        let (clocks, made) = channel();
        let (end, ended) = channel::<()>();
        let busy = thread::spawn(move || {
            let clock = ThreadClock::here().unwrap();
            while clock.spent().unwrap() < Duration::from_millis(5) {}
            clocks.send(clock).unwrap();
            // Ends when the sender is dropped.
            let _ = ended.recv();
        });
        let clock = made.recv().unwrap();
        let spent = clock.spent().unwrap();
        assert!(spent >= Duration::from_millis(5), "{spent:?}");
        drop(end);
        busy.join().unwrap();
        assert_eq!(clock.spent(), None);
    }
}
