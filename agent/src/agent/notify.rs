//! Tells systemd that the agent is ready, that it stops, and, with `WatchdogSec=`, that its pipeline
//! ticks. Without systemd nothing is sent.

use crate::collect::schedule::Stop;
use crate::heartbeat::{Heartbeat, Pulse};
use sd_notify::NotifyState;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The thread's name.
const THREAD: &str = "watchdog";

/// Sends a state. A service manager that does not listen is no reason to stop.
pub(super) fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "systemd does not take the agent's state");
    }
}

/// Starts the watchdog's thread, where systemd asks for one.
pub(super) fn start_watchdog(heartbeat: Arc<Heartbeat>, stop: Stop) -> Result<(), super::RunError> {
    let Some(limit) = sd_notify::watchdog_enabled() else { return Ok(()) };
    super::spawn(THREAD, move || watch(&heartbeat, &stop, limit, &notify))
}

/// Sends a sign of life twice in the limit while the pipeline ticks. A pipeline that stalls gets
/// none, so that systemd restarts the agent.
fn watch(heartbeat: &Heartbeat, stop: &Stop, limit: Duration, send: &dyn Fn(NotifyState<'_>)) {
    loop {
        if !matches!(heartbeat.pulse(), Pulse::Stalled(_)) {
            send(NotifyState::Watchdog);
        }
        if stop.wait_until(Instant::now() + limit / 2) {
            return;
        }
    }
}
