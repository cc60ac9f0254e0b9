//! What the programs count of themselves, and what a probe's cookie tells them.

use super::SYMBOLS;

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
/// Index into the counters: entries of the first function of [`SYMBOLS`]; those of the others
/// follow, since a hit does not cost the same at each.
pub const HIT_ENTRIES: u32 = 5;
/// Index into the counters: entries of the first function at an instruction that the kernel steps
/// through, as far as the cookie says it; those of the others follow. They are in no other counter.
pub const HIT_STEPPED: u32 = HIT_ENTRIES + FUNCTIONS;
/// Number of counters.
pub const COUNTERS: u32 = HIT_STEPPED + FUNCTIONS;
#[expect(clippy::cast_possible_truncation, reason = "some tens")]
const FUNCTIONS: u32 = SYMBOLS.len() as u32;

/// Bits of a cookie that are a position in [`SYMBOLS`].
pub const COOKIE_ROW: u64 = 0xffff;
/// Bit of a cookie: the kernel steps through the instruction.
pub const COOKIE_STEPPED: u64 = 1 << 16;
/// From here on a cookie is the number of the library's file.
pub const COOKIE_LIBRARY: u32 = 32;
/// Cookie of a function that is none of the library's: nothing is done at its entry.
pub const TRIED: u64 = COOKIE_ROW;
/// The same, and its return is wanted.
pub const TRIED_RETURN: u64 = COOKIE_ROW - 1;
