//! The threads that call vendor code.

use super::outlet::Outlet;
use super::round::Round;
use super::{Event, ServeError, number, spawn, unless_panicked};
use crate::Count;
use crate::in_flight::InFlightCall;
use crate::wire::Frame;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

/// A job for a worker.
pub(super) enum Job {
    /// Reads devices.
    Read(Arc<Round>),
    /// Counts the devices.
    Count(Count),
}

/// A worker that is not blocked.
pub(super) struct Worker {
    pub(super) jobs: Sender<Job>,
    pub(super) inside: InFlightCall,
}

pub(super) fn start_worker(events: Sender<Event>, outlet: Outlet) -> Result<Worker, ServeError> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let inside = InFlightCall::default();
    let in_thread = inside.clone();
    spawn("reader:worker", move || {
        in_thread.begin();
        for job in jobs {
            let event = match job {
                Job::Read(round) => {
                    while let Some((slot, mut device)) = round.next() {
                        let reading = Box::new(unless_panicked(|| device.read(&round.openers)));
                        let tick = round.tick;
                        // At once: a crash in the next device costs this answer nothing. The main thread notices
                        // where the agent has closed the socket.
                        let _ = outlet.send(&Frame::Device { tick, slot: number(slot), reading });
                        round.put((slot, device));
                    }
                    Event::Finished(round)
                }
                Job::Count(mut count) => {
                    let devices = unless_panicked(&mut *count);
                    Event::Counted(count, devices)
                }
            };
            if events.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(Worker { jobs: sender, inside })
}
