//! What the programs count of themselves, and what a probe's cookie tells them.

/// Index into the counters: returns.
pub const HIT_RETURN: u32 = 0;
/// Index into the counters: no room for a communicator.
pub const LOST_COMMUNICATOR: u32 = 1;
/// Index into the counters: no room for an operation and size.
pub const LOST_CALL: u32 = 2;
/// Index into the counters: no room for a thread.
pub const LOST_THREAD: u32 = 3;
/// Index into the counters: an argument in the caller's memory could not be read.
pub const LOST_UNREADABLE: u32 = 4;
/// Index into the counters: entries.
pub const HIT_ENTRY: u32 = 5;
/// Number of counters.
pub const COUNTERS: u32 = 6;

/// Bits of a cookie that are a position in [`super::SYMBOLS`].
pub const COOKIE_ROW: u64 = 0xffff;
/// Bit of a cookie: the kernel steps through the instruction.
pub const COOKIE_STEPPED: u64 = 1 << 16;
/// From here on a cookie is the number of the library's file.
pub const COOKIE_LIBRARY: u32 = 32;
