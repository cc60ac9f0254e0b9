//! What the performance counters (GPM) of a device or a MIG instance count: for each metric the rate
//! at each moment, in the library's own unit. A metric that is not there the device does not have.

use crate::curve::{Curve, Place};
use serde::Deserialize;

/// The counters of a device or an instance. A device that has none has no GPM at all.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gpm {
    /// Percentage of time with any work.
    pub graphics: Option<Curve>,
    /// Percentage of busy multiprocessors.
    pub sm: Option<Curve>,
    /// Percentage of resident warps.
    pub occupancy: Option<Curve>,
    /// Percentage of DRAM bandwidth.
    pub dram: Option<Curve>,
    /// Percentages of the pipes.
    pub pipes: Pipes,
    /// MiB a second on links.
    pub links: Links,
    /// Percentage of each video decoder.
    pub nvdec: Vec<Curve>,
    /// Percentage of each JPEG decoder.
    pub nvjpg: Vec<Curve>,
    /// Percentage of each optical flow accelerator.
    pub ofa: Vec<Curve>,
    /// Percentage of each video encoder.
    pub nvenc: Vec<Curve>,
    /// Whether somebody has the counters streamed: 0 or 1. Switching it clears them.
    pub streaming: Option<Curve>,
}

/// Percentages of time in which pipes work.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pipes {
    /// Integer.
    pub int: Option<Curve>,
    /// Any tensor operation.
    pub tensor: Option<Curve>,
    /// DFMA tensor operations.
    pub dfma: Option<Curve>,
    /// HMMA tensor operations.
    pub hmma: Option<Curve>,
    /// DMMA tensor operations.
    pub dmma: Option<Curve>,
    /// IMMA tensor operations.
    pub imma: Option<Curve>,
    /// FP64.
    pub fp64: Option<Curve>,
    /// FP32.
    pub fp32: Option<Curve>,
    /// FP16.
    pub fp16: Option<Curve>,
}

/// MiB a second.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Links {
    /// PCIe, out of the device.
    pub pcie_tx: Option<Curve>,
    /// PCIe, into the device.
    pub pcie_rx: Option<Curve>,
    /// All NVLinks, into the device.
    pub nvlink_rx: Option<Curve>,
    /// All NVLinks, out of the device.
    pub nvlink_tx: Option<Curve>,
    /// The link to the CPU, out of the device.
    pub c2c_tx: Option<Curve>,
    /// The link to the CPU, into the device.
    pub c2c_rx: Option<Curve>,
}

impl Gpm {
    /// The curve of a metric by the library's number, as in `nvml.h` of CUDA 13.4.
    pub fn curve(&self, metric: u32) -> Option<&Curve> {
        let (pipes, links) = (&self.pipes, &self.links);
        match metric {
            1 => self.graphics.as_ref(),
            2 => self.sm.as_ref(),
            3 => self.occupancy.as_ref(),
            4 => pipes.int.as_ref(),
            5 => pipes.tensor.as_ref(),
            6 => pipes.dfma.as_ref(),
            7 => pipes.hmma.as_ref(),
            8 => pipes.dmma.as_ref(),
            9 => pipes.imma.as_ref(),
            10 => self.dram.as_ref(),
            11 => pipes.fp64.as_ref(),
            12 => pipes.fp32.as_ref(),
            13 => pipes.fp16.as_ref(),
            20 => links.pcie_tx.as_ref(),
            21 => links.pcie_rx.as_ref(),
            30..=37 => self.nvdec.get(metric as usize - 30),
            40..=47 => self.nvjpg.get(metric as usize - 40),
            50..=51 => self.ofa.get(metric as usize - 50),
            60 => links.nvlink_rx.as_ref(),
            61 => links.nvlink_tx.as_ref(),
            100 => links.c2c_tx.as_ref(),
            101 => links.c2c_rx.as_ref(),
            166..=169 => self.nvenc.get(metric as usize - 166),
            _ => None,
        }
    }

    /// Whether the counters are streamed at a time.
    pub fn streams(&self, seconds: f64, place: Place) -> bool {
        self.streaming.as_ref().is_some_and(|curve| curve.at(seconds, place) > 0.5)
    }
}
