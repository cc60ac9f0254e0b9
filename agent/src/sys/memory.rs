//! Returns memory that the allocator holds without use.

/// Returns unused heap to the kernel, after a step that needed much more memory than later ones.
/// glibc returns only memory at the top of its heap, so a small block that outlives the step keeps
/// all of it.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes any padding, locks the arenas itself and moves no block.
    unsafe {
        libc::malloc_trim(0);
    }
}
