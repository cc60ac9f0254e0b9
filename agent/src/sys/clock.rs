//! The CPU clock of a thread, to be read by itself or by another one.

use std::mem::MaybeUninit;
use std::time::Duration;

/// What a thread has used. A look is one system call, and wakes nobody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// That of whichever thread reads it.
    pub(crate) const OWN: Self = Self(libc::CLOCK_THREAD_CPUTIME_ID);

    /// The calling thread's.
    pub(crate) fn here() -> Option<Self> {
        let mut clock = MaybeUninit::uninit();
        // SAFETY: the calling thread exists, and `clock` has room for the answer.
        let status =
            unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), clock.as_mut_ptr()) };
        // SAFETY: the function writes the answer where it returns 0.
        (status == 0).then(|| Self(unsafe { clock.assume_init() }))
    }

    /// None once the thread has ended.
    pub(crate) fn spent(self) -> Option<Duration> {
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: any number may be asked for; `time` has room for the answer.
        let status = unsafe { libc::clock_gettime(self.0, time.as_mut_ptr()) };
        // SAFETY: the call writes the answer where it returns 0.
        let time = (status == 0).then(|| unsafe { time.assume_init() })?;
        // A clock that counts from 0 fits both.
        let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
        Some(Duration::new(time.tv_sec.unsigned_abs(), nanos))
    }
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
            // Ends with the sender.
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
