//! Clocks, and what holds them and the power down.

use crate::curve::Curve;
use serde::Deserialize;

/// Clock rates in MHz.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// Graphics.
    pub graphics: Option<Curve>,
    /// Streaming multiprocessors.
    pub sm: Option<Curve>,
    /// Memory.
    pub memory: Option<Curve>,
    /// Video.
    pub video: Option<Curve>,
    /// The highest of each, in this order.
    pub highest: Option<[f64; 4]>,
}

/// What holds the clocks down: each a curve of 1 while it does and 0 while it does not. Its state is
/// the curve, its counter of nanoseconds the curve's integral.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// The power limit.
    pub power_cap: Option<Curve>,
    /// Another device of the group.
    pub sync_boost: Option<Curve>,
    /// The board's limit.
    pub board_limit: Option<Curve>,
    /// Want of load; no state, only a counter.
    pub low_utilization: Option<Curve>,
    /// Voltage or reliability.
    pub reliability: Option<Curve>,
    /// Software, for the temperature.
    pub software_thermal: Option<Curve>,
    /// Hardware, for the temperature.
    pub hardware_thermal: Option<Curve>,
    /// The external power brake.
    pub power_brake: Option<Curve>,
}

/// Power limits in watts beside the operator's.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerLimits {
    /// At the start.
    pub default: f64,
    /// The lowest the operator can set.
    pub minimum: f64,
    /// The highest the operator can set.
    pub maximum: f64,
    /// What others (a baseboard controller, say) allow.
    pub others: f64,
}
