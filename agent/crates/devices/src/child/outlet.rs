//! What a child sends to the agent.

use crate::in_flight::InFlightCall;
use crate::wire::{Frame, Outbox, Stuck, WireError};
use gpuwho_owners::host::boot_time_ns;
use parking_lot::Mutex;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// The sending half of the socket, for all threads.
#[derive(Clone)]
pub(super) struct Outlet(Arc<Mutex<Inner>>);

struct Inner {
    socket: UnixStream,
    outbox: Outbox,
    function: fn(&str) -> &str,
}

impl Outlet {
    pub(super) fn new(socket: UnixStream, function: fn(&str) -> &str) -> Self {
        Self(Arc::new(Mutex::new(Inner { socket, outbox: Outbox::default(), function })))
    }

    pub(super) fn send(&self, frame: &Frame) -> Result<(), WireError> {
        let mut inner = self.0.lock();
        let Inner { socket, outbox, .. } = &mut *inner;
        outbox.send(socket, frame)
    }

    /// Reports the call that a thread is blocked in.
    pub(super) fn report_stuck(
        &self,
        slot: Option<u32>,
        inside: &InFlightCall,
    ) -> Result<(), WireError> {
        let Some(call) = inside.now() else { return Ok(()) };
        let lasts = u64::try_from(call.lasts.as_nanos()).unwrap_or(u64::MAX);
        let function = self.0.lock().function;
        let name = function(&call.name).to_owned();
        let since_ns = boot_time_ns().saturating_sub(lasts);
        self.send(&Frame::Stuck { slot, call: Stuck { name, thread: call.thread, since_ns } })
    }
}
