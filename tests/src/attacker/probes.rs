//! One tenant that fills the probe maps or drives the probe budget of others.

use super::Attack;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[];
