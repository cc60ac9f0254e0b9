//! What wears out, and what protects it.

use crate::curve::Curve;
use serde::Deserialize;
use std::collections::BTreeMap;

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
    /// Banks with all, most, some, few and none of their spare rows.
    pub banks: Option<[u32; 5]>,
}

/// Pages of memory that are out of use.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retired {
    /// For corrected errors.
    pub corrected: Curve,
    /// For uncorrected errors.
    pub uncorrected: Curve,
    /// 1 while some wait for a reset.
    pub pending: Curve,
}

/// Errors that ECC sees. The counts since the driver was loaded are the curves, those since the board
/// was made are more by what was before; the sums are over all memories.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ecc {
    /// Whether it is on, and will be after the next reset.
    pub enabled: [bool; 2],
    /// Of the device memory.
    pub dram: Option<Errors>,
    /// Of the static memories.
    pub sram: Option<Errors>,
    /// Of the L1 cache.
    pub l1: Option<Errors>,
    /// Of the L2 cache.
    pub l2: Option<Errors>,
    /// Of the register file.
    pub registers: Option<Errors>,
    /// Of texture memory.
    pub texture: Option<Errors>,
    /// Of the convergence barrier unit.
    pub barrier: Option<Errors>,
    /// There is a summary of the static memories; whether their threshold is passed.
    pub exceeded: Option<bool>,
}

/// Errors of a memory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Errors {
    /// Corrected.
    pub corrected: Curve,
    /// Not corrected.
    pub uncorrected: Curve,
    /// Corrected and not corrected before the driver was loaded.
    #[serde(default)]
    pub before: [u64; 2],
}

impl Ecc {
    /// Every memory there is.
    pub fn memories(&self) -> impl Iterator<Item = &Errors> {
        let all = [
            &self.dram,
            &self.sram,
            &self.l1,
            &self.l2,
            &self.registers,
            &self.texture,
            &self.barrier,
        ];
        all.into_iter().flatten()
    }
}

/// The PCIe link.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// Generation now and at most.
    pub generation: [u32; 2],
    /// Lanes now and at most.
    pub width: [u32; 2],
    /// `NVML_BUS_TYPE_*` (`nvml.h`): 2 is PCIe.
    #[serde(default = "Pcie::on_pcie")]
    pub bus: u32,
    /// Packets sent again.
    pub replays: Option<Curve>,
    /// Errors, by the words of the catalogue.
    #[serde(default)]
    pub errors: BTreeMap<String, Curve>,
    /// Bytes a second to the host.
    pub transmit: Option<Curve>,
    /// Bytes a second from the host.
    pub receive: Option<Curve>,
    /// KB a second in 20 ms, to and from the host.
    pub sampled: Option<[u32; 2]>,
    /// The counters of bytes have 32 bits.
    #[serde(default)]
    pub narrow: bool,
}

impl Pcie {
    fn on_pcie() -> u32 {
        2
    }
}

/// Temperatures at which something happens: shutdown, slowdown, memory, operating.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemperatureLimits {
    /// As temperatures, in the order of `nvmlTemperatureThresholds_t`.
    pub degrees: Option<[u32; 4]>,
    /// As margins, in the order of the fields' numbers.
    pub margins: Option<[i32; 4]>,
}
