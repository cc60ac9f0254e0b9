//! Files that a process maps as a collective library.

use super::Attack;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[];
