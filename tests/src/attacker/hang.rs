//! Files and memory that never answer a read.

use super::Attack;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[];
