//! Metrics of links between devices other than NVLink: XGMI, and what other vendors have. Metrics of
//! one link have names of their own, so that no sum over links counts a device's total again.

use super::attributes as attr;
use super::link::{Direction, LinkState};
use super::{index_dims, metrics};
use crate::ids::GpuId;

index_dims! {
    /// A link of a device to another, by the driver's number.
    PeerLink: attr::GPU_LINK_INDEX [24];
}

metrics! {
    /// Links of a device to other devices, by state.
    LINKS: UpDownCounter<i64> of GpuId, by LinkState = "gpu.interconnect.links" ["{link}"]
        from "the table of vendors";
    /// Data carried by all links of a device to other devices.
    IO: Counter<i64> of GpuId, by Direction = "gpu.interconnect.io" ["By"]
        from "the table of vendors";
    /// Whether a link is active: 1 or 0.
    LINK_ACTIVE: Gauge<i64> of GpuId, by PeerLink = "gpu.interconnect.link.active" ["{flag}"]
        from "the table of vendors";
    /// Speed of an active link in each direction.
    LINK_SPEED: Gauge<f64> of GpuId, by PeerLink = "gpu.interconnect.link.speed" ["By/s"]
        from "the table of vendors";
    /// Data carried by a link; part of the device's `gpu.interconnect.io`.
    LINK_IO: Counter<i64> of GpuId, by (PeerLink, Direction) = "gpu.interconnect.link.io" ["By"]
        from "the table of vendors";
}
