//! The queried counter metrics, and their conversion to the catalogue's units.

use crate::wire::WireValue;
use gpuwho_model::catalog::gpm as metric;
use gpuwho_model::catalog::gpm::{MediaEngine, Pipe};
use gpuwho_model::catalog::link::Direction::{self, Receive, Transmit};
use nvml_wrapper_sys::bindings::{
    nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL as ANY_TENSOR,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC as C2C_RX,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC as C2C_TX,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_DFMA_TENSOR_UTIL as DFMA_TENSOR,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL as DRAM,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_FP16_UTIL as FP16,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_FP32_UTIL as FP32,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_FP64_UTIL as FP64,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL as GRAPHICS,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_HMMA_TENSOR_UTIL as HMMA_TENSOR,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_IMMA_TENSOR_UTIL as IMMA_TENSOR,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_INTEGER_UTIL as INTEGER,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_NVDEC_0_UTIL as NVDEC_0,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_NVENC_0_UTIL as NVENC_0,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_NVJPG_0_UTIL as NVJPG_0,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC as NVLINK_RX,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC as NVLINK_TX,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_NVOFA_0_UTIL as NVOFA_0,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_RX_PER_SEC as PCIE_RX,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_TX_PER_SEC as PCIE_TX,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY as OCCUPANCY,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL as SM,
};

/// `NVML_GPM_METRIC_DMMA_TENSOR_UTIL` of `nvml.h` 13.4; the bindings are of 13.0.
const DMMA_TENSOR: u32 = 8;
/// Divides a percentage into a fraction.
const PERCENT: f64 = 100.0;
/// The driver does not read all counters in one instant, so a full engine can be slightly over 100;
/// anything higher is invalid.
const MAX_PERCENT: f64 = 101.0;
/// Bytes in a MiB, the unit of the driver's rates.
const MEBI: f64 = 1_048_576.0;
/// No link of a device moves 16 TiB a second.
const MAX_MEBI: f64 = 16_777_216.0;

/// One queried metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    /// The library's metric number.
    pub(super) id: u32,
    what: What,
    /// Added after the first drivers with GPM (525).
    pub(super) is_newer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    GrEngine,
    Sm,
    Occupancy,
    Pipe(Pipe),
    Dram,
    Media(MediaEngine),
    Pcie(Direction),
    Nvlink(Direction),
    C2c(Direction),
}

const fn first(id: u32, what: What) -> Counter {
    Counter { id, what, is_newer: false }
}

const fn newer(id: u32, what: What) -> Counter {
    Counter { id, what, is_newer: true }
}

/// Every queried metric; at most as many as a [`CounterSet`] has bits.
pub(super) const WANTED: &[Counter] = &[
    first(GRAPHICS, What::GrEngine),
    first(SM, What::Sm),
    first(OCCUPANCY, What::Occupancy),
    first(INTEGER, What::Pipe(Pipe::Int)),
    first(ANY_TENSOR, What::Pipe(Pipe::Tensor)),
    first(DFMA_TENSOR, What::Pipe(Pipe::TensorDfma)),
    first(HMMA_TENSOR, What::Pipe(Pipe::TensorHmma)),
    first(IMMA_TENSOR, What::Pipe(Pipe::TensorImma)),
    first(FP64, What::Pipe(Pipe::Fp64)),
    first(FP32, What::Pipe(Pipe::Fp32)),
    first(FP16, What::Pipe(Pipe::Fp16)),
    first(DRAM, What::Dram),
    first(PCIE_TX, What::Pcie(Transmit)),
    first(PCIE_RX, What::Pcie(Receive)),
    first(NVLINK_RX, What::Nvlink(Receive)),
    first(NVLINK_TX, What::Nvlink(Transmit)),
    first(NVDEC_0, What::Media(MediaEngine::Nvdec0)),
    first(NVDEC_0 + 1, What::Media(MediaEngine::Nvdec1)),
    first(NVDEC_0 + 2, What::Media(MediaEngine::Nvdec2)),
    first(NVDEC_0 + 3, What::Media(MediaEngine::Nvdec3)),
    first(NVDEC_0 + 4, What::Media(MediaEngine::Nvdec4)),
    first(NVDEC_0 + 5, What::Media(MediaEngine::Nvdec5)),
    first(NVDEC_0 + 6, What::Media(MediaEngine::Nvdec6)),
    first(NVDEC_0 + 7, What::Media(MediaEngine::Nvdec7)),
    first(NVJPG_0, What::Media(MediaEngine::Nvjpg0)),
    first(NVJPG_0 + 1, What::Media(MediaEngine::Nvjpg1)),
    first(NVJPG_0 + 2, What::Media(MediaEngine::Nvjpg2)),
    first(NVJPG_0 + 3, What::Media(MediaEngine::Nvjpg3)),
    first(NVJPG_0 + 4, What::Media(MediaEngine::Nvjpg4)),
    first(NVJPG_0 + 5, What::Media(MediaEngine::Nvjpg5)),
    first(NVJPG_0 + 6, What::Media(MediaEngine::Nvjpg6)),
    first(NVJPG_0 + 7, What::Media(MediaEngine::Nvjpg7)),
    first(NVOFA_0, What::Media(MediaEngine::Ofa0)),
    newer(NVOFA_0 + 1, What::Media(MediaEngine::Ofa1)),
    newer(NVENC_0, What::Media(MediaEngine::Nvenc0)),
    newer(NVENC_0 + 1, What::Media(MediaEngine::Nvenc1)),
    newer(NVENC_0 + 2, What::Media(MediaEngine::Nvenc2)),
    newer(NVENC_0 + 3, What::Media(MediaEngine::Nvenc3)),
    newer(DMMA_TENSOR, What::Pipe(Pipe::TensorDmma)),
    newer(C2C_TX, What::C2c(Transmit)),
    newer(C2C_RX, What::C2c(Receive)),
];

/// A set of rows of [`WANTED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CounterSet(u64);

impl CounterSet {
    /// Adds a row.
    pub(super) fn put(&mut self, row: usize) {
        self.0 |= 1_u64.checked_shl(u32::try_from(row).unwrap_or(u32::MAX)).unwrap_or(0);
    }

    /// Whether a row is in it.
    pub(super) fn has(self, row: usize) -> bool {
        let mut only = Self::default();
        only.put(row);
        self.0 & only.0 != 0
    }
}

impl Counter {
    /// Whether a MIG instance can have it: links belong to the device.
    pub(super) fn is_of_instances(self) -> bool {
        !matches!(self.what, What::Nvlink(_) | What::C2c(_))
    }

    /// Converts a value of a device or a MIG instance; `None` if it is not a number or out of
    /// range.
    pub(super) fn reading(self, of_instance: bool, given: f64) -> Option<WireValue> {
        let value = match self.what {
            What::Pcie(_) | What::Nvlink(_) | What::C2c(_) => rate(given),
            _ => fraction(given),
        }?;
        match (self.what, of_instance) {
            (What::GrEngine, false) => WireValue::new(&metric::GR_ENGINE_ACTIVE, (), value),
            (What::Sm, false) => WireValue::new(&metric::SM_ACTIVE, (), value),
            (What::Occupancy, false) => WireValue::new(&metric::SM_OCCUPANCY, (), value),
            (What::Pipe(pipe), false) => WireValue::new(&metric::PIPE_ACTIVE, pipe, value),
            (What::Dram, false) => WireValue::new(&metric::DRAM_ACTIVE, (), value),
            (What::Media(engine), false) => WireValue::new(&metric::MEDIA_ACTIVE, engine, value),
            (What::Pcie(way), false) => WireValue::new(&metric::PCIE_THROUGHPUT, way, value),
            (What::Nvlink(way), false) => WireValue::new(&metric::NVLINK_THROUGHPUT, way, value),
            (What::C2c(way), false) => WireValue::new(&metric::C2C_THROUGHPUT, way, value),
            (What::GrEngine, true) => WireValue::new(&metric::INSTANCE_GR_ENGINE_ACTIVE, (), value),
            (What::Sm, true) => WireValue::new(&metric::INSTANCE_SM_ACTIVE, (), value),
            (What::Occupancy, true) => WireValue::new(&metric::INSTANCE_SM_OCCUPANCY, (), value),
            (What::Pipe(pipe), true) => WireValue::new(&metric::INSTANCE_PIPE_ACTIVE, pipe, value),
            (What::Dram, true) => WireValue::new(&metric::INSTANCE_DRAM_ACTIVE, (), value),
            (What::Media(engine), true) => {
                WireValue::new(&metric::INSTANCE_MEDIA_ACTIVE, engine, value)
            }
            (What::Pcie(way), true) => {
                WireValue::new(&metric::INSTANCE_PCIE_THROUGHPUT, way, value)
            }
            (What::Nvlink(_) | What::C2c(_), true) => None,
        }
    }
}

/// A percentage as a fraction of at most 1.
fn fraction(percent: f64) -> Option<f64> {
    (0.0..=MAX_PERCENT).contains(&percent).then(|| (percent / PERCENT).min(1.0))
}

/// MiB a second as bytes a second.
fn rate(mebibytes: f64) -> Option<f64> {
    (0.0..=MAX_MEBI).contains(&mebibytes).then_some(mebibytes * MEBI)
}

#[cfg(test)]
mod tests {
    use super::{CounterSet, WANTED, fraction, rate};
    use std::collections::BTreeSet;

    #[test]
    fn every_metric_is_queried_once_and_has_its_own_row() {
        let ids: BTreeSet<u32> = WANTED.iter().map(|wanted| wanted.id).collect();
        assert_eq!(ids.len(), WANTED.len());
        let mut all = CounterSet::default();
        (0..WANTED.len()).for_each(|row| all.put(row));
        assert_eq!(all.0.count_ones() as usize, WANTED.len());
        assert!(!all.has(WANTED.len()) && !all.has(usize::MAX));
    }

    #[test]
    fn percent_is_a_fraction_and_mebibytes_are_bytes() {
        assert_eq!([0.0, 12.5, 100.0, 100.4].map(fraction), [0.0, 0.125, 1.0, 1.0].map(Some));
        assert_eq!([0.0, 1.5].map(rate), [0.0, 1_572_864.0].map(Some));
    }

    #[test]
    fn an_invalid_number_is_no_reading() {
        let nonsense = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 1e9, f64::MAX];
        assert_eq!(nonsense.map(fraction), [None; 6]);
        assert_eq!(nonsense.map(rate), [None; 6]);
        assert_eq!(fraction(102.0), None);
    }
}
