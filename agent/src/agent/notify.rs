//! Tells systemd that the agent is ready, that it stops, and, with `WatchdogSec=`, that its pipeline
//! ticks. Without systemd nothing is sent.

use gpuwho_collect::schedule::Stop;
use gpuwho_model::heartbeat::{Heartbeat, Pulse};
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
    super::spawn(THREAD, move || watch(&heartbeat, &stop, limit))
}

/// Sends a sign of life twice in the limit.
fn watch(heartbeat: &Heartbeat, stop: &Stop, limit: Duration) {
    loop {
        if let Some(state) = sign_of_life(heartbeat.pulse()) {
            notify(state);
        }
        if stop.wait_until(Instant::now() + limit / 2) {
            return;
        }
    }
}

/// None while the pipeline is stalled, so that systemd restarts the agent.
fn sign_of_life(pulse: Pulse) -> Option<NotifyState<'static>> {
    match pulse {
        Pulse::Starting | Pulse::Ticking => Some(NotifyState::Watchdog),
        Pulse::Stalled(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_pipeline_gives_no_sign_of_life() {
        assert!(sign_of_life(Pulse::Starting).is_some() && sign_of_life(Pulse::Ticking).is_some());
        assert!(sign_of_life(Pulse::Stalled(Duration::from_mins(1))).is_none());
    }
}
