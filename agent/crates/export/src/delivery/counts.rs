//! Counters of the points' outcomes. The tick's thread and the sender's thread write and read them.

use crate::Report;
use crate::spool::Figures;
use parking_lot::Mutex;

/// The counters behind a [`Report`].
#[derive(Debug, Default)]
pub(crate) struct SinkCounters(Mutex<Report>);

impl SinkCounters {
    /// Changes some.
    pub(super) fn add(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.0.lock());
    }

    /// Takes over the spool's figures.
    pub(super) fn spool(&self, figures: &Figures) {
        let Figures { restored, points, bytes, lost, trouble } = *figures;
        self.add(|report| {
            report.has_spool = true;
            report.restored = restored;
            report.spooled = points;
            report.spool_bytes = bytes;
            report.spool_full = lost.full;
            report.expired = lost.expired;
            report.damaged = lost.damaged;
            report.trouble = trouble;
        });
    }

    /// The figures of now; `queued` points wait in memory.
    pub(super) fn report(&self, not_finite: u64, queued: u64) -> Report {
        let report = *self.0.lock();
        let taken = report.taken + report.restored + not_finite;
        Report { not_finite, taken, queued: queued + report.in_flight, ..report }
    }
}
