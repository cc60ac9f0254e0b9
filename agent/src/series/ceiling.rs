//! A ceiling on the series of this host, so that a crowd of processes cannot make more than a receiver
//! takes.
//!
//! What is there goes on; what is new beyond the ceiling is left out and counted. A device's own series
//! are of a number that the catalogue bounds, so they come before those of processes, owners and ranks;
//! the agent's own, which say what was left out, are always let through.

use crate::catalog::agent::{DropReason, SourceState};
use crate::collect::status::Report;
use crate::sample::Subject;

/// Series unless set: more than a host of sixteen devices with hundreds of processes has, and no more
/// than a receiver takes from one host.
pub const USUAL: usize = 50_000;

/// How many series there may be and are.
#[derive(Debug)]
pub(super) struct Ceiling {
    limit: usize,
    alive: usize,
    /// Series of devices that are still to come in this batch, where it is the last that fits.
    owed: usize,
    /// Series left out of the batch so far.
    refused: usize,
    /// Points left out since the start.
    lost: u64,
}

impl Ceiling {
    /// A ceiling over no series yet.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, alive: 0, owed: 0, refused: 0, lost: 0 }
    }

    /// Series alive now.
    pub(super) fn alive(&self) -> usize {
        self.alive
    }

    /// Begins a batch of some samples; `of_devices` counts the new series of devices in it, which is
    /// asked for only where room may be short.
    pub(super) fn begin(&mut self, samples: usize, of_devices: impl FnOnce() -> usize) {
        let short = self.alive.saturating_add(samples) > self.limit;
        self.owed = if short { of_devices() } else { 0 };
        self.refused = 0;
    }

    /// Ends a batch; gives how many series were left out of it.
    pub(super) fn finish(&mut self) -> usize {
        self.owed = 0;
        self.refused
    }

    /// Whether there is room for a new series; takes it.
    pub(super) fn admit(&mut self, subject: Subject) -> bool {
        let room = self.limit.saturating_sub(self.alive);
        let free = match rank(subject) {
            Rank::Agent => true,
            Rank::Device => {
                self.owed = self.owed.saturating_sub(1);
                room > 0
            }
            Rank::Crowd => room > self.owed,
        };
        if free {
            self.alive += 1;
        } else {
            self.refused += 1;
            self.lost += 1;
        }
        free
    }

    /// A series ended.
    pub(super) fn release(&mut self) {
        self.alive = self.alive.saturating_sub(1);
    }

    /// How it stands when so many series were left out of the last batches of all sources; `None`
    /// while nothing ever was.
    pub(super) fn report(&self, refused: usize) -> Option<Report> {
        if self.lost == 0 {
            return None;
        }
        let mut report = Report::ready();
        if refused > 0 {
            let reason = format!(
                "{refused} series are left out: there are {} and may be {} (agent.series_limit)",
                self.alive, self.limit
            );
            let remedy = "raise agent.series_limit, or tell less: nvidia.by_link, nccl.enabled";
            report = Report::of(SourceState::Degraded, reason, remedy);
        }
        report.dropped = vec![(DropReason::SeriesLimit, self.lost)];
        Some(report)
    }
}

/// Whether a subject is a device or a part of one.
pub(super) fn is_of_device(subject: Subject) -> bool {
    rank(subject) == Rank::Device
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    Agent,
    Device,
    Crowd,
}

fn rank(subject: Subject) -> Rank {
    match subject {
        Subject::Agent | Subject::Source(_) => Rank::Agent,
        Subject::Gpu(_) | Subject::Instance(_) => Rank::Device,
        Subject::Process(_)
        | Subject::Party(_)
        | Subject::Grant(_)
        | Subject::Member(_)
        | Subject::Recent(_)
        | Subject::Xid(_) => Rank::Crowd,
    }
}
