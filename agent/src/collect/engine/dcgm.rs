//! NVIDIA's DCGM exporter, where a site runs one: the profiling fields of its page as samples about
//! our own devices, found by UUID and, of a MIG instance, by its GPU instance.
//!
//! A device whose performance counters the agent reads itself is left out: the same metric is not
//! there twice. The exporter's pod labels are not read: the ownership table knows the owners. All other fields are read from NVML by the agent itself.

use super::exposition::{self, Line, SampleLine};
use super::table::{Engine, Signs};
use crate::catalog::gpm::{self as metric, Pipe};
use crate::catalog::link::Direction;
use crate::ids::{GpuId, GpuUuid, InstanceId};
use crate::inventory::Inventory;
use crate::sample::{Batch, Sample};

/// The exporter. Of its page the engine's tables read nothing.
pub(super) static DCGM: Engine = Engine {
    name: "dcgm-exporter",
    prefixes: &[PREFIX],
    marks: &[],
    signs: Signs {
        programs: &["dcgm-exporter"],
        titles: &[],
        arguments: &[],
        ports: &[9400],
        // `--address :9400` or `-a :9400`, by which the operators' charts set it.
        port_options: &["--address", "-a"],
        version: None,
        paths: &["/metrics"],
    },
    labels: &[],
    families: &[],
    unread: &["DCGM_*"],
};

const PREFIX: &str = "DCGM_FI_";
/// Samples that are read of a page: 20 fields of 16 devices with 7 instances each.
const MAX_SAMPLES: usize = 4096;

/// Where a sample of the page belongs.
#[derive(Clone, Copy)]
enum On {
    Gpu(GpuId),
    Instance(InstanceId),
}

/// Pushes the profiling fields of the devices for which `is_read` is false; gives their number.
pub(super) fn read(
    page: &[u8],
    inventory: &Inventory,
    is_read: &dyn Fn(GpuId) -> bool,
    out: &mut Batch,
) -> usize {
    let mut count = 0;
    for line in page.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"DCGM_FI_PROF_"))
    {
        let Ok(Line::Sample(sample)) = exposition::line(line) else { continue };
        let Some(on) = place(&sample, inventory, is_read) else { continue };
        if let Some(sample) = value(&sample, on).filter(|_| count < MAX_SAMPLES) {
            out.push(sample);
            count += 1;
        }
    }
    count
}

/// The device or instance of a sample; nothing where the agent does not know it or reads it itself.
fn place(
    sample: &SampleLine<'_>,
    inventory: &Inventory,
    is_read: &dyn Fn(GpuId) -> bool,
) -> Option<On> {
    let uuid = GpuUuid::new(sample.label("UUID")?);
    let gpu = inventory.find(&uuid).filter(|gpu| !is_read(*gpu))?;
    let Some(number) = sample.label("GPU_I_ID").filter(|number| !number.is_empty()) else {
        return Some(On::Gpu(gpu));
    };
    let number: u32 = number.parse().ok()?;
    // Counters belong to the GPU instance: they are on its first compute instance.
    let all = inventory.instances().into_iter();
    let mine = all.filter(|(_, info)| info.gpu == gpu && info.gpu_instance == number);
    let first = mine.min_by_key(|(_, info)| info.compute_instance)?;
    Some(On::Instance(first.0))
}

/// A field as a sample. DCGM's fractions are from 0 to 1; its bytes are those of a second.
fn value(sample: &SampleLine<'_>, on: On) -> Option<Sample> {
    use Direction::{Receive, Transmit};
    let value = sample.value;
    if !value.is_finite() || value < 0.0 {
        return None;
    }
    let field = sample.name.strip_prefix("DCGM_FI_PROF_")?;
    let is_fraction = field.ends_with("_ACTIVE") || field == "SM_OCCUPANCY";
    if is_fraction && value > 1.0 {
        return None;
    }
    let pipe = match field {
        "PIPE_TENSOR_ACTIVE" => Some(Pipe::Tensor),
        "PIPE_TENSOR_HMMA_ACTIVE" => Some(Pipe::TensorHmma),
        "PIPE_TENSOR_IMMA_ACTIVE" => Some(Pipe::TensorImma),
        "PIPE_TENSOR_DFMA_ACTIVE" => Some(Pipe::TensorDfma),
        "PIPE_FP64_ACTIVE" => Some(Pipe::Fp64),
        "PIPE_FP32_ACTIVE" => Some(Pipe::Fp32),
        "PIPE_FP16_ACTIVE" => Some(Pipe::Fp16),
        "PIPE_INT_ACTIVE" => Some(Pipe::Int),
        _ => None,
    };
    Some(match (on, field, pipe) {
        (On::Gpu(gpu), _, Some(pipe)) => metric::PIPE_ACTIVE.sample(gpu, pipe, value),
        (On::Instance(one), _, Some(pipe)) => metric::INSTANCE_PIPE_ACTIVE.sample(one, pipe, value),
        (On::Gpu(gpu), "GR_ENGINE_ACTIVE", _) => metric::GR_ENGINE_ACTIVE.sample(gpu, (), value),
        (On::Gpu(gpu), "SM_ACTIVE", _) => metric::SM_ACTIVE.sample(gpu, (), value),
        (On::Gpu(gpu), "SM_OCCUPANCY", _) => metric::SM_OCCUPANCY.sample(gpu, (), value),
        (On::Gpu(gpu), "DRAM_ACTIVE", _) => metric::DRAM_ACTIVE.sample(gpu, (), value),
        (On::Gpu(gpu), "PCIE_TX_BYTES", _) => metric::PCIE_THROUGHPUT.sample(gpu, Transmit, value),
        (On::Gpu(gpu), "PCIE_RX_BYTES", _) => metric::PCIE_THROUGHPUT.sample(gpu, Receive, value),
        (On::Gpu(gpu), "NVLINK_TX_BYTES", _) => {
            metric::NVLINK_THROUGHPUT.sample(gpu, Transmit, value)
        }
        (On::Gpu(gpu), "NVLINK_RX_BYTES", _) => {
            metric::NVLINK_THROUGHPUT.sample(gpu, Receive, value)
        }
        (On::Instance(one), "GR_ENGINE_ACTIVE", _) => {
            metric::INSTANCE_GR_ENGINE_ACTIVE.sample(one, (), value)
        }
        (On::Instance(one), "SM_ACTIVE", _) => metric::INSTANCE_SM_ACTIVE.sample(one, (), value),
        (On::Instance(one), "SM_OCCUPANCY", _) => {
            metric::INSTANCE_SM_OCCUPANCY.sample(one, (), value)
        }
        (On::Instance(one), "DRAM_ACTIVE", _) => {
            metric::INSTANCE_DRAM_ACTIVE.sample(one, (), value)
        }
        (On::Instance(one), "PCIE_TX_BYTES", _) => {
            metric::INSTANCE_PCIE_THROUGHPUT.sample(one, Transmit, value)
        }
        (On::Instance(one), "PCIE_RX_BYTES", _) => {
            metric::INSTANCE_PCIE_THROUGHPUT.sample(one, Receive, value)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
