//! NVIDIA's DCGM exporter, where a site runs one: the profiling fields of its page as samples about
//! our own devices, found by UUID and, of a MIG instance, by its GPU instance.
//!
//! A device whose performance counters the agent reads itself is left out: the same metric is not
//! there twice; and of several exporters one feeds a device. Whatever the page says of a device counts
//! for whoever works on it, so only an operator's exporter is believed: one of the configuration, or one
//! that is root of the host with `CAP_SYS_ADMIN`, which DCGM needs for these fields, and whose program is
//! root's: a set-user-ID program is root too, while its arguments and open sockets are a tenant's.
//!
//! The exporter's pod labels are not read: the ownership table knows the owners. All other fields are read from NVML by the agent itself.

use super::exposition::{self, Line, SampleLine};
use super::find::Server;
use super::table::{Engine, Signs};
use gpuwho_model::catalog::gpm::{self as metric, Pipe};
use gpuwho_model::catalog::link::Direction;
use gpuwho_model::ids::{GpuId, GpuUuid, InstanceId};
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::{Batch, Sample};
use gpuwho_owners::inventory::Inventory;
use gpuwho_owners::process::Living;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

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

/// Bytes a second that no link has: five times NVLink's of 2026.
const MAX_RATE: f64 = 1e13;
/// The group's and others' write permission.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// `CAP_SYS_ADMIN`.
const SYS_ADMIN: u32 = 21;

/// Which part feeds each device.
#[derive(Clone, Debug, Default)]
pub(super) struct DcgmFeeds(Arc<Mutex<HashMap<GpuId, u32>>>);

impl DcgmFeeds {
    /// Pushes what a page says of the devices that no other part feeds.
    pub(super) fn feed(
        &self,
        part: u32,
        (page, inventory, is_read): (&[u8], &Inventory, &dyn Fn(GpuId) -> bool),
        out: &mut Batch,
    ) {
        let mut fed = self.0.lock();
        fed.retain(|_, by| *by != part);
        let mut mine = HashSet::new();
        read(page, inventory, &|gpu| is_read(gpu) || fed.contains_key(&gpu), &mut mine, out);
        fed.extend(mine.into_iter().map(|gpu| (gpu, part)));
    }

    /// A part feeds nothing any more.
    pub(super) fn release(&self, part: u32) {
        self.0.lock().retain(|_, by| *by != part);
    }
}

/// Whether a server that was found is the exporter of whoever runs the host.
pub(super) fn is_trusted(paths: &Paths, server: &Server) -> bool {
    let is_exporter = server.engine.is_some_and(|engine| engine.name == DCGM.name);
    let users =
        |process: &str| Some(fs::metadata(paths.proc.join(process).join("ns/user")).ok()?.ino());
    let is_root = || {
        let pid = server.process.pid.to_string();
        let living = Living::same(paths, server.process)?;
        let status = living.status()?;
        let is_host = users(&pid)? == users("self")?;
        let is_root = status.uids()?.iter().all(|uid| *uid == 0) && status.has(SYS_ADMIN);
        Some(is_host && is_root && runs_exporter(&paths.proc.join(pid), &living.program()?))
    };
    is_exporter && is_root().unwrap_or(false)
}

/// Whether the program of a process is the exporter's and root's, in a folder of root's: others can give
/// root's programs another name by a hard link.
fn runs_exporter(process: &Path, program: &Path) -> bool {
    let is_roots = |path: &Path| {
        let found = fs::metadata(path).ok();
        found.is_some_and(|found| found.uid() == 0 && found.mode() & WRITABLE_BY_OTHERS == 0)
    };
    // Below the root of the process, as `program` is.
    let folder = program.strip_prefix("/").ok().and_then(Path::parent);
    program.file_name().is_some_and(|name| name == DCGM.name)
        && is_roots(&process.join("exe"))
        && folder.is_some_and(|folder| is_roots(&process.join("root").join(folder)))
}

/// Where a sample of the page belongs.
#[derive(Clone, Copy)]
enum On {
    Gpu(GpuId),
    Instance(InstanceId),
}

/// Pushes the profiling fields of the devices for which `is_read` is false, each series once; adds
/// the devices to `fed`.
fn read(
    page: &[u8],
    inventory: &Inventory,
    is_read: &dyn Fn(GpuId) -> bool,
    fed: &mut HashSet<GpuId>,
    out: &mut Batch,
) {
    let mut series = HashSet::new();
    for line in page.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"DCGM_FI_PROF_"))
    {
        let Ok(Line::Sample(sample)) = exposition::line(line) else { continue };
        let Some((gpu, on)) = place(&sample, inventory, is_read) else { continue };
        let Some(sample) = value(&sample, on).filter(|_| series.len() < MAX_SAMPLES) else {
            continue;
        };
        // Where pods share a device, the exporter has a line for each.
        if series.insert((sample.metric.name, sample.subject, sample.dims)) {
            fed.insert(gpu);
            out.push(sample);
        }
    }
}

/// The device or instance of a sample; nothing where the agent does not know it or reads it itself.
fn place(
    sample: &SampleLine<'_>,
    inventory: &Inventory,
    is_read: &dyn Fn(GpuId) -> bool,
) -> Option<(GpuId, On)> {
    let uuid = GpuUuid::new(sample.label("UUID")?);
    let gpu = inventory.find(&uuid).filter(|gpu| !is_read(*gpu))?;
    let Some(number) = sample.label("GPU_I_ID").filter(|number| !number.is_empty()) else {
        return Some((gpu, On::Gpu(gpu)));
    };
    let number: u32 = number.parse().ok()?;
    // Counters belong to the GPU instance: they are on its first compute instance.
    let all = inventory.instances().into_iter();
    let mine = all.filter(|(_, info)| info.gpu == gpu && info.gpu_instance == number);
    let first = mine.min_by_key(|(_, info)| info.compute_instance)?;
    Some((gpu, On::Instance(first.0)))
}

/// A field's name without what DCGM 4.7 changed of it: `PIPE_TENSOR_HMMA_ACTIVE` is `HMMA_UTIL_RATIO` there,
/// the same field of the same unit (NVIDIA/go-dcgm `pkg/dcgm/const_fields.go`).
fn plain(field: &str) -> &str {
    let field = field.strip_prefix("PIPE_").unwrap_or(field);
    let ends = ["_ACTIVE", "_UTIL_RATIO", "_RATIO"];
    ends.iter().find_map(|end| field.strip_suffix(end)).unwrap_or(field)
}

/// A field as a sample. DCGM's fractions are from 0 to 1; its bytes are those of a second.
fn value(sample: &SampleLine<'_>, on: On) -> Option<Sample> {
    use Direction::{Receive, Transmit};
    let value = sample.value;
    if !value.is_finite() || value < 0.0 {
        return None;
    }
    let field = sample.name.strip_prefix("DCGM_FI_PROF_")?;
    let field = plain(field);
    let is_rate = field.ends_with("_BYTES");
    if value > if is_rate { MAX_RATE } else { 1.0 } {
        return None;
    }
    let pipe = match field {
        "TENSOR" => Some(Pipe::Tensor),
        "HMMA" | "TENSOR_HMMA" => Some(Pipe::TensorHmma),
        "IMMA" | "TENSOR_IMMA" => Some(Pipe::TensorImma),
        "DFMA" | "TENSOR_DFMA" => Some(Pipe::TensorDfma),
        "FP64" => Some(Pipe::Fp64),
        "FP32" => Some(Pipe::Fp32),
        "FP16" => Some(Pipe::Fp16),
        "INT" => Some(Pipe::Int),
        _ => None,
    };
    Some(match (on, field, pipe) {
        (On::Gpu(gpu), _, Some(pipe)) => metric::PIPE_ACTIVE.sample(gpu, pipe, value),
        (On::Instance(one), _, Some(pipe)) => metric::INSTANCE_PIPE_ACTIVE.sample(one, pipe, value),
        (On::Gpu(gpu), "GR_ENGINE", _) => metric::GR_ENGINE_ACTIVE.sample(gpu, (), value),
        (On::Gpu(gpu), "SM", _) => metric::SM_ACTIVE.sample(gpu, (), value),
        (On::Gpu(gpu), "SM_OCCUPANCY", _) => metric::SM_OCCUPANCY.sample(gpu, (), value),
        (On::Gpu(gpu), "DRAM", _) => metric::DRAM_ACTIVE.sample(gpu, (), value),
        (On::Gpu(gpu), "PCIE_TX_BYTES", _) => metric::PCIE_THROUGHPUT.sample(gpu, Transmit, value),
        (On::Gpu(gpu), "PCIE_RX_BYTES", _) => metric::PCIE_THROUGHPUT.sample(gpu, Receive, value),
        (On::Gpu(gpu), "NVLINK_TX_BYTES", _) => {
            metric::NVLINK_THROUGHPUT.sample(gpu, Transmit, value)
        }
        (On::Gpu(gpu), "NVLINK_RX_BYTES", _) => {
            metric::NVLINK_THROUGHPUT.sample(gpu, Receive, value)
        }
        (On::Instance(one), "GR_ENGINE", _) => {
            metric::INSTANCE_GR_ENGINE_ACTIVE.sample(one, (), value)
        }
        (On::Instance(one), "SM", _) => metric::INSTANCE_SM_ACTIVE.sample(one, (), value),
        (On::Instance(one), "SM_OCCUPANCY", _) => {
            metric::INSTANCE_SM_OCCUPANCY.sample(one, (), value)
        }
        (On::Instance(one), "DRAM", _) => metric::INSTANCE_DRAM_ACTIVE.sample(one, (), value),
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
