//! Memory that the allocator holds without using it.

/// Gives unused heap back to the kernel; for use after a step that needed much more than will be
/// needed again. glibc keeps such memory at the top of its heap only, but a small block that
/// outlives the step keeps all of it.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes any padding, locks the arenas itself and moves no block.
    unsafe {
        libc::malloc_trim(0);
    }
}
