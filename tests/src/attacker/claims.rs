//! Claims about others: forged owners, names that hide a process, and the control socket.

use super::Attack;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[];
