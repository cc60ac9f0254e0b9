//! Runs work inside another process's namespaces, without moving this process into them.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::AsFd;
use std::thread;

/// Runs `work` in a new thread in the network namespace `namespace`; needs `CAP_SYS_ADMIN`. Sockets
/// made there belong to that namespace. The thread ends with the work.
pub fn in_network<T: Send>(
    namespace: impl AsFd + Sync,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("network".into());
        let enter = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        };
        let thread = builder.spawn_scoped(scope, enter)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("thread ended early")))
    })
}
