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
    /// What a user set for graphics and memory.
    pub application: Option<[f64; 2]>,
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
    /// The temperature, whoever acts; only a counter.
    pub thermal: Option<Curve>,
    /// Nothing to do; only a state, like those below.
    pub idle: Option<Curve>,
    /// Clocks that a user set.
    pub application_clocks: Option<Curve>,
    /// Hardware, for whatever reason.
    pub hardware_slowdown: Option<Curve>,
    /// The clocks of a display.
    pub display_clocks: Option<Curve>,
}

impl Held {
    /// The reasons that are states, by their bits in `nvml.h`, with the catalogue's words.
    pub fn states(&self) -> [(u64, &'static str, Option<&Curve>); 11] {
        [
            (0x1, "idle", self.idle.as_ref()),
            (0x2, "application_clocks", self.application_clocks.as_ref()),
            (0x4, "power_cap", self.power_cap.as_ref()),
            (0x8, "hardware_slowdown", self.hardware_slowdown.as_ref()),
            (0x10, "sync_boost", self.sync_boost.as_ref()),
            (0x20, "software_thermal", self.software_thermal.as_ref()),
            (0x40, "hardware_thermal", self.hardware_thermal.as_ref()),
            (0x80, "power_brake", self.power_brake.as_ref()),
            (0x100, "display_clocks", self.display_clocks.as_ref()),
            (0x200, "board_limit", self.board_limit.as_ref()),
            (0x400, "reliability", self.reliability.as_ref()),
        ]
    }

    /// The reasons that are counters, by the catalogue's words.
    pub fn counters(&self) -> [(&'static str, Option<&Curve>); 9] {
        [
            ("power_cap", self.power_cap.as_ref()),
            ("thermal", self.thermal.as_ref()),
            ("sync_boost", self.sync_boost.as_ref()),
            ("board_limit", self.board_limit.as_ref()),
            ("low_utilization", self.low_utilization.as_ref()),
            ("reliability", self.reliability.as_ref()),
            ("software_thermal", self.software_thermal.as_ref()),
            ("hardware_thermal", self.hardware_thermal.as_ref()),
            ("power_brake", self.power_brake.as_ref()),
        ]
    }
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
