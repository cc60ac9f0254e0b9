//! What user space and the programs tell each other beside the records.

/// Bit of a control word: nothing is counted of the process, because it is over the probe budget or
/// its probes come or go.
pub const CONTROL_PAUSED: u32 = 2;
/// Bit of a control word: calls are timed until they return, so the return probes are there.
pub const CONTROL_TIMED: u32 = 1;
/// A control word's lowest bit above the others: there is counted how often it was changed.
/// The return of a call that began before a change may never be seen.
pub const CONTROL_ERA: u32 = 4;

/// For so long the calls of a thread are counted to tell how fast it calls: short beside a phase of
/// a job, long beside a call.
pub const STRETCH_NS: u64 = 100_000_000;
/// Of the calls of a thread that calls fast so many are one that is timed, by chance; a power of two.
pub const TIMED_ONE_IN: u32 = 16;
const _: () = assert!(TIMED_ONE_IN.is_power_of_two());

/// Index into the changes of handles: by the programs.
pub const CHANGES_IN_KERNEL: u32 = 0;
/// Index into the changes of handles: by user space.
pub const CHANGES_OUTSIDE: u32 = 1;
