//! How a device is connected: NVLink, the chip-to-chip link to its CPU, and the fabric it joined.
//! The slot of a curve is the number of the link.

use super::Device;
use crate::curve::{Curve, Place};
use serde::Deserialize;

/// Bytes of a KiB, in which the library counts what NVLink carries.
const KIB: f64 = 1024.0;

/// The links of a device to switches or to other devices.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// How many.
    pub links: u32,
    /// One of `nvmlNvlinkVersion_t`: 6 is 4.0, 7 is 5.0.
    pub version: u32,
    /// Megabytes a second of a link, in each direction.
    pub speed: u32,
    /// Bytes of payload a second that a link sends.
    pub transmit: Curve,
    /// Bytes of payload a second that a link receives.
    pub receive: Curve,
    /// Bytes on the wire for a byte of payload.
    #[serde(default = "no_overhead")]
    pub wire: f64,
    /// The driver counts the bytes of each link instead of the KiB of each and of all.
    #[serde(default)]
    pub byte_counters: bool,
    /// What went wrong on a link so far.
    #[serde(default)]
    pub errors: Errors,
    /// The driver has no sums of errors over links.
    #[serde(default)]
    pub no_totals: bool,
    /// Codewords of a link by the number of symbols that were corrected in them.
    #[serde(default)]
    pub fec: Vec<Curve>,
    /// Links in another state than active.
    #[serde(default)]
    pub down: Vec<Down>,
}

/// Counts of errors of a link; one without a curve is not supported.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Errors {
    /// CRC errors of flow control digits, up to Hopper.
    pub crc: Option<Curve>,
    /// CRC errors of data, up to Hopper.
    pub crc_data: Option<Curve>,
    /// ECC errors of data, Ampere.
    pub ecc_data: Option<Curve>,
    /// Packets sent again, up to Hopper.
    pub replay: Option<Curve>,
    /// Recoveries, up to Hopper.
    pub recovery: Option<Curve>,
    /// Malformed packets received, from Blackwell on, like all that follows.
    pub malformed: Option<Curve>,
    /// Packets that found no buffer.
    pub overrun: Option<Curve>,
    /// Packets received with an error.
    pub received: Option<Curve>,
    /// Packets that the other end had marked as bad.
    pub remote: Option<Curve>,
    /// Packets received with a header that does not fit.
    pub general: Option<Curve>,
    /// Times that local errors passed their threshold.
    pub integrity: Option<Curve>,
    /// Packets that were not sent.
    pub discarded: Option<Curve>,
    /// Recoveries that brought the link back.
    pub recovered: Option<Curve>,
    /// Recoveries after which the link was down.
    pub lost: Option<Curve>,
    /// Errors that correction left over.
    pub effective: Option<Curve>,
    /// Wrong symbols received.
    pub symbol: Option<Curve>,
    /// Mantissa and negated exponent of the effective bit error rate.
    pub effective_ber: Option<[u32; 2]>,
    /// Mantissa and negated exponent of the symbol bit error rate.
    pub symbol_ber: Option<[u32; 2]>,
}

/// A link that is not active for a time.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Down {
    /// Its device's index.
    pub device: u32,
    /// Its number.
    pub link: u32,
    /// `NVML_NVLINK_STATE_…`: 0 is inactive.
    #[serde(default)]
    pub state: u32,
    /// Second it begins.
    #[serde(default)]
    pub from: f64,
    /// Second it ends.
    pub until: Option<f64>,
}

/// The links between a GPU and the CPU of its module.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct C2c {
    /// How many.
    pub links: u32,
    /// Megabytes a second of a link, in each direction.
    pub speed: u32,
    /// Links that are not active.
    #[serde(default)]
    pub inactive: Vec<u32>,
    /// Links that save power.
    #[serde(default)]
    pub low_power: Vec<u32>,
    /// CRC errors of a link so far.
    pub crc: Curve,
    /// Packets of a link sent again so far.
    pub replay: Curve,
    /// Packets of a link sent again twice in a row so far.
    pub replay_back_to_back: Curve,
}

/// Conditions of a fabric; one that is not there is not told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Less bandwidth than there should be.
    pub degraded_bandwidth: Option<bool>,
    /// A route is being recovered.
    pub route_recovery: Option<bool>,
    /// A route does not work.
    pub route_unhealthy: Option<bool>,
    /// An access that timed out is being recovered.
    pub access_timeout: Option<bool>,
    /// `NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_…`: 1 none, 5 too few links.
    pub configuration: u32,
    /// It is in a partition.
    pub partitioned: Option<bool>,
    /// The fabric manager is connected.
    pub connected: Option<bool>,
}

/// The fabric of switches that a device registers with.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Newest version of the structure that the driver knows.
    #[serde(default = "newest")]
    pub version: u32,
    /// `NVML_GPU_FABRIC_STATE_…`: 1 not started, 2 in progress, 3 completed.
    pub state: Curve,
    /// What the registration came to: 0, or a return code.
    #[serde(default)]
    pub status: u32,
    /// The cluster, as 32 hex digits.
    pub cluster: String,
    /// The clique in the cluster.
    pub clique: u32,
    /// What of it is not well.
    #[serde(default)]
    pub health: Health,
    /// 1 healthy, 2 unhealthy, 3 limited capacity.
    #[serde(default)]
    pub summary: u8,
}

const fn newest() -> u32 {
    3
}

const fn no_overhead() -> f64 {
    1.0
}

impl NvLink {
    /// The state of a link: 1 is active.
    pub fn state(&self, device: Device<'_>, link: u32, seconds: f64) -> u32 {
        let here = |down: &&Down| {
            (down.device, down.link) == (device.index, link)
                && seconds >= down.from
                && down.until.is_none_or(|until| seconds < until)
        };
        self.down.iter().find(here).map_or(1, |down| down.state)
    }

    /// KiB of payload that a curve's rate has carried over a link, or over all.
    pub fn carried_kib(
        &self,
        device: Device<'_>,
        rate: &Curve,
        link: Option<u32>,
        seconds: f64,
    ) -> f64 {
        let links = link.map_or(0..self.links, |link| link..link + 1);
        let bytes = links.map(|slot| rate.integral(seconds, at(device, slot)));
        (bytes.sum::<f64>() / KIB).floor()
    }

    /// A count of a link.
    pub fn count(&self, device: Device<'_>, curve: &Curve, link: u32, seconds: f64) -> f64 {
        curve.at(seconds, at(device, link)).floor()
    }

    /// A count over all links.
    pub fn total(&self, device: Device<'_>, curve: &Curve, seconds: f64) -> f64 {
        (0..self.links).map(|link| self.count(device, curve, link, seconds)).sum()
    }
}

impl C2c {
    /// A count of a link.
    pub fn count(&self, device: Device<'_>, curve: &Curve, link: u32, seconds: f64) -> f64 {
        curve.at(seconds, at(device, link)).floor()
    }
}

impl Health {
    /// Two bits for each condition (1 yes, 2 no) and four for the configuration.
    pub fn mask(self) -> u32 {
        let bits = |reported: Option<bool>, shift: u32| {
            reported.map_or(0, |yes| if yes { 1_u32 } else { 2 }) << shift
        };
        bits(self.degraded_bandwidth, 0)
            | bits(self.route_recovery, 2)
            | bits(self.route_unhealthy, 4)
            | bits(self.access_timeout, 6)
            | self.configuration << 8
            | bits(self.partitioned, 12)
            | bits(self.connected, 14)
    }
}

impl Fabric {
    /// How far the registration is.
    pub fn state_at(&self, device: Device<'_>, seconds: f64) -> u8 {
        let states = [0_u8, 1, 2, 3];
        let reported = device.value(&self.state, seconds);
        states.into_iter().rfind(|state| f64::from(*state) <= reported).unwrap_or_default()
    }

    /// The cluster's bytes.
    pub fn cluster_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (place, byte) in bytes.iter_mut().enumerate() {
            let digits = self.cluster.get(2 * place..2 * place + 2);
            *byte = digits.and_then(|text| u8::from_str_radix(text, 16).ok()).unwrap_or_default();
        }
        bytes
    }
}

fn at(device: Device<'_>, slot: u32) -> Place {
    Place { device: device.index, slot }
}
