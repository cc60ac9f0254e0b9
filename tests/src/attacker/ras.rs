//! Answers of a false NCCL status service (RAS).

use super::Attack;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[];
