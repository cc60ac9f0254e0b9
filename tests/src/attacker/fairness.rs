//! One tenant that takes series, files, log lines or events from the others.

use super::Attack;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[];
