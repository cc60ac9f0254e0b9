//! What a broken driver does at random, and how it takes its process with it.
#![expect(unsafe_code, reason = "it crashes and sleeps as only C does")]

use std::cell::Cell;
use std::ffi::c_int;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// The state of the random bytes that this thread's call answers; 0 where it answers truly.
    static GARBAGE: Cell<u64> = const { Cell::new(0) };
}

/// Numbers drawn so far.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// Whether something comes that has a probability. The next process draws other numbers: one that
/// crashed must not crash at the same call for ever.
pub(crate) fn comes(seed: u64, probability: f64) -> bool {
    if probability >= 1.0 {
        return true;
    }
    let number = DRAWN.fetch_add(1, Ordering::Relaxed);
    let drawn = mix(seed ^ mix(number ^ u64::from(process::id()) << 32));
    // 53 bits are what a double holds.
    (drawn >> 11) as f64 / (1_u64 << 53) as f64 <= probability
}

/// From now on this thread's answers are random.
pub(crate) fn answer_garbage(seed: u64) {
    GARBAGE.set(mix(seed ^ DRAWN.fetch_add(1, Ordering::Relaxed)) | 1);
}

/// From now on this thread's answers are true.
pub(crate) fn answer_truly() {
    GARBAGE.set(0);
}

/// Overwrites an answer, where this thread's are random.
pub(crate) fn spoil(answer: &mut [u8]) {
    let mut state = GARBAGE.get();
    if state == 0 {
        return;
    }
    for byte in answer {
        state = mix(state) | 1;
        *byte = state.to_le_bytes()[7];
    }
    GARBAGE.set(state);
}

/// A step of SplitMix64.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Ends the process as a stray pointer does.
pub(crate) fn segfault() -> ! {
    // SAFETY: both take any number; the default action of this signal ends the process.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV);
    }
    process::abort()
}

/// Sleeps for ever as a thread in a broken driver does, in state D: the parent of a `vfork` waits
/// so until the child ends, which here it does when the process is ended.
pub(crate) fn sleep_uninterruptibly() -> ! {
    unsafe extern "C" {
        fn vfork() -> c_int;
    }
    // SAFETY: the child calls nothing but these two system calls and never leaves this block, so
    // the frame that it shares with the waiting parent stays whole.
    unsafe {
        if vfork() == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    }
    process::abort()
}

#[cfg(test)]
mod tests {
    use super::{answer_garbage, answer_truly, comes, spoil};

    #[test]
    fn about_as_many_come_as_are_likely() {
        let came = (0..10_000).filter(|_| comes(7, 0.1)).count();
        assert!((800..1200).contains(&came), "{came} of 10000");
    }

    #[test]
    fn only_a_call_that_answers_garbage_is_spoilt() {
        let mut answer = [3; 16];
        spoil(&mut answer);
        assert_eq!(answer, [3; 16]);
        answer_garbage(7);
        spoil(&mut answer);
        assert_ne!(answer, [3; 16]);
        answer_truly();
        let before = answer;
        spoil(&mut answer);
        assert_eq!(answer, before);
    }
}
