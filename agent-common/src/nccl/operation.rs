//! Operations, in the order of [`super::CallKey::operation`].

/// Every rank's part reduced, to all.
pub const ALL_REDUCE: u32 = 0;
/// Every rank's part, to all.
pub const ALL_GATHER: u32 = 1;
/// Reduced, a part to each.
pub const REDUCE_SCATTER: u32 = 2;
/// One rank's, to all.
pub const BROADCAST: u32 = 3;
/// Reduced, to one.
pub const REDUCE: u32 = 4;
/// Every rank's part, to one.
pub const GATHER: u32 = 5;
/// A part of one rank's to each.
pub const SCATTER: u32 = 6;
/// A part from each to each.
pub const ALL_TO_ALL: u32 = 7;
/// To one rank. From here on not every rank takes part.
pub const SEND: u32 = 8;
/// From one rank.
pub const RECV: u32 = 9;
/// One-sided write, with a signal.
pub const PUT_SIGNAL: u32 = 10;
/// A signal alone.
pub const SIGNAL: u32 = 11;
/// Waiting for signals.
pub const WAIT_SIGNAL: u32 = 12;
/// How many there are.
pub const COUNT: u32 = 13;
/// [`super::Open::operation`]: a communicator is being made.
pub const INIT: u32 = 13;
/// [`super::Open::operation`]: a communicator is being ended.
pub const END: u32 = 14;
