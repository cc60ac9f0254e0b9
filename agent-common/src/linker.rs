//! Processes whose dynamic linker has changed the list of what they have loaded: maps of the probe
//! `linker`. A record is one word, the number of the process.

/// Processes that are watched at once: eight times as many as a node has devices. Each costs those
/// that map the same file a moment when the probe comes and when it goes.
pub const MAX_WATCHED: u32 = 64;
/// Room for a record of each, four times over: a process is told again only after it was looked at.
pub const RING_BYTES: u32 = 4_096;

/// A watched process: nothing has changed since it was looked at.
pub const QUIET: u32 = 0;
/// A watched process: that something has changed is in the ring.
pub const TOLD: u32 = 1;

/// Index into the counters: hits by watched processes.
pub const HITS: u32 = 0;
/// Index into the counters: hits by anybody else.
pub const STRANGERS: u32 = 1;
/// Number of counters.
pub const COUNTERS: u32 = 2;
