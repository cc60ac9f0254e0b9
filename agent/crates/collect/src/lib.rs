//! Sources of data: each runs on its own named thread, reads one thing, and pushes samples.
//!
//! Owns what every source is made of ([`Collector`], [`source::SourceDef`], [`source::Context`], the
//! schedule, the limit of CPU time, the last readings of devices) and the small sources: the kernel log, the
//! host, cgroups, events. May use `pipeline`, `owners`, `model` and `sys`. Knows no vendor, no engine and
//! no sink.
//!
//! Rooms, from below: `stages`, `self_stats`, `cpu_limit`, `snapshot`, `source`, `cgroups`,
//! `events`, `host`, `kmsg`, `schedule`, `tls`.

#![forbid(unsafe_code)]

mod cgroups;
pub mod cpu_limit;
pub mod events;
pub mod host;
pub mod kmsg;
pub mod schedule;
pub mod self_stats;
pub mod snapshot;
pub mod source;
pub mod stages;
pub mod tls;

use cpu_limit::Importance;
use gpuwho_model::sample::Batch;
use gpuwho_model::status::Report;
use std::time::Duration;

/// One source of data. Synchronous on purpose: a read that hangs hangs this source's thread alone.
pub trait Collector: Send {
    /// The source's name: its thread is `collect:<name>`, if it has its own.
    fn name(&self) -> &'static str;

    /// Whether a reading waits for nothing, neither a process nor a device nor a disk: it then needs
    /// no thread of its own.
    fn never_waits(&self) -> bool {
        false
    }

    /// Which part of the source this collector reads, where it has several: a replica of an engine,
    /// say. Each part's series begin and end by themselves.
    fn part(&self) -> u32 {
        0
    }

    /// Time between two readings; `None`: the agent's interval.
    fn every(&self) -> Option<Duration> {
        None
    }

    /// How much less often it may be read where the agent uses more CPU than it may.
    fn importance(&self) -> Importance {
        Importance::Device
    }

    /// Reads everything once into `out`, a complete snapshot. What could not be read is left out
    /// and shows in [`Collector::report`].
    fn collect(&mut self, out: &mut Batch);

    /// How the source is doing after the last reading.
    fn report(&self) -> Report;

    /// Whether a tick waits for this collector's next batch. One that reads what somebody else may
    /// hold up says no after a slow reading; its batch then goes out by itself.
    fn is_awaited(&self) -> bool {
        true
    }

    /// Whether there is nothing left to read, ever: its thread and its series then end.
    fn has_ended(&self) -> bool {
        false
    }
}
