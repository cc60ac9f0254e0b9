//! What wears out.

use crate::curve::Curve;
use serde::Deserialize;

/// Rows of memory that spare rows stand in for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remapped {
    /// For corrected errors.
    pub corrected: Curve,
    /// For uncorrected errors.
    pub uncorrected: Curve,
    /// 1 while some wait for a reset.
    pub pending: Curve,
    /// 1 when some cannot be.
    pub failure: Curve,
}
