//! A host of files and devices in memory, for the accounting tests: samples in, counters out.

use super::Accounting;
use gpuwho_model::catalog::device::{self, DeviceState, MemoryState, Task};
use gpuwho_model::catalog::process::{self, ProcessTask, ProcessType};
use gpuwho_model::catalog::share::{GrantKind, GrantSource};
use gpuwho_model::catalog::{NO_DIM, gpm, instance};
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{GpuId, GpuUuid, InstanceId, ProcKey, SlurmJobId};
use gpuwho_model::sample::{Batch, GpuProcess, Subject, Value};
use gpuwho_owners::attribute::allocations::{Allocation, AllocationDetails};
use gpuwho_owners::attribute::fake::FakeHost;
use gpuwho_owners::attribute::owner::Owner;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::{Evidence, Opened, Workload};
use gpuwho_owners::inventory::DeviceName;
use gpuwho_owners::inventory::facts::Facts;
use gpuwho_owners::inventory::{GpuInfo, InstanceExtent, InstanceInfo, Inventory};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds between readings.
pub const TICK: u64 = 10;
const SECOND_NS: u64 = 1_000_000_000;

/// Everything the accounting reads.
pub struct Rig {
    pub host: FakeHost,
    pub ownership: Ownership,
    pub inventory: Inventory,
    pub accounting: Accounting,
    /// How far the batches' clock was set away from the one that no one sets.
    pub clock_step: i64,
}

/// What a device reports.
#[derive(Clone, Debug, Default)]
pub struct Read {
    pub busy: Option<f64>,
    pub used: Option<i64>,
    pub joules: Option<f64>,
    pub watts: Option<f64>,
    /// Process, bytes, fraction of time.
    pub processes: Vec<(ProcKey, Option<i64>, Option<f64>)>,
    /// The instance of the process at the same index, and all instances.
    pub inside: Vec<InstanceId>,
    pub instances: Vec<InstanceId>,
    /// Busy fraction of the instances with performance counters.
    pub counted: Vec<(InstanceId, f64)>,
    /// Utilisation of AMD's partitions.
    pub utilized: Vec<(InstanceId, f64)>,
    /// The processes that are MPS servers.
    pub servers: Vec<ProcKey>,
    /// Unidentified processes on the driver's list.
    pub unidentified: i64,
}

/// The reported values of a metric, by owner and dimension.
pub type Reported = BTreeMap<(String, String), f64>;

pub fn time(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

pub fn gpu(index: u32) -> GpuInfo {
    GpuInfo {
        uuid: GpuUuid::new(&format!("GPU-{index}")),
        placed: None,
        vendor: "nvidia".into(),
        index,
        // Differs from the index: this host numbers them in reverse.
        minor: Some(7 - index),
        nodes: vec![format!("nvidia{}", 7 - index), format!("195:{}", 7 - index)],
        model: Some("H100".into()),
        pci_address: Some(format!("00000000:1{index}:00.0")),
        serial: None,
        driver_version: None,
        cuda_version: None,
        mig: None,
        facts: Facts::default(),
    }
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl Rig {
    /// Two devices without processes.
    pub fn new() -> Self {
        let host = FakeHost::new();
        let ownership = Ownership::with_clock(&host.paths, || 10 * SECOND_NS);
        let inventory = Inventory::default();
        inventory.put(gpu(0));
        inventory.put(gpu(1));
        let accounting = Accounting::new(Duration::from_secs(TICK));
        Self { host, ownership, inventory, accounting, clock_step: 0 }
    }

    pub fn gpu(&self, index: u16) -> GpuId {
        self.inventory.all()[usize::from(index)].0
    }

    /// Starts a process of a job that the driver lists.
    pub fn process(&self, pid: u32, job: u32) -> ProcKey {
        self.process_at(pid, &format!("/system.slice/slurmstepd.scope/job_{job}/step_0/task_0"))
    }

    pub fn process_at(&self, pid: u32, path: &str) -> ProcKey {
        let key = ProcKey { pid, start_ticks: 100 };
        self.host.start(key, "python3", &format!("0::{path}\n"));
        self.ownership.process(pid, 10 * SECOND_NS).unwrap()
    }

    /// Lets a process of a job open a device node.
    pub fn opens(&self, process: ProcKey, node: &str) {
        self.ownership.observe(Evidence::Opened(Opened {
            node: node.into(),
            ..gpuwho_owners::attribute::fake::opened(process, 5, 9 * SECOND_NS)
        }));
    }

    pub fn job(&self, job: u32) -> OwnerId {
        let owner_id = Owner::Job(SlurmJobId::new(&job.to_string()));
        self.ownership.allocation_owner(owner_id, &Workload::default())
    }

    pub fn allocation(&self, allocations: &[(DeviceName, u32)]) {
        let allocation = |(device, job): &(DeviceName, u32)| allocated(device, self.job(*job));
        self.ownership.allocations().replace("slurm", allocations.iter().map(allocation).collect());
    }

    pub fn instance(&self, uuid: &str, on: GpuId, slices: u32) -> InstanceId {
        self.inventory.put_instance(InstanceInfo {
            uuid: GpuUuid::new(uuid),
            gpu: on,
            gpu_instance: slices,
            compute_instance: Some(0),
            profile: Some("1g.10gb+me".into()),
            extent: InstanceExtent {
                device_slices: Some(7),
                gpu_slices: Some(slices),
                ..InstanceExtent::default()
            },
        })
    }

    /// Reads the first device alone at a given time.
    pub fn read(&mut self, seconds: u64, read: &Read) -> Batch {
        let mut batch = Batch::new("nvidia", time(seconds));
        push(&mut batch, self.gpu(0), time(seconds), read);
        self.account(batch)
    }

    /// Sends a batch in which the first device does not answer.
    pub fn miss(&mut self, seconds: u64) -> Batch {
        let mut batch = Batch::new("nvidia", time(seconds));
        batch.push(device::STATE.sample(self.gpu(0), DeviceState::Hung, 1));
        self.account(batch)
    }

    pub fn account(&mut self, mut batch: Batch) -> Batch {
        let steady = batch.time.duration_since(UNIX_EPOCH).unwrap();
        let steady =
            Duration::from_secs(steady.as_secs().checked_add_signed(-self.clock_step).unwrap());
        self.accounting.account_at(steady, &mut batch, &self.ownership, &self.inventory);
        batch
    }

    /// The values that a batch reports for a metric.
    pub fn reported(&self, batch: &Batch, metric: &str) -> Reported {
        let of = batch.samples.iter().filter(|(_, sample)| sample.metric.name == metric);
        let rows = of.map(|(_, sample)| {
            let owner = match sample.subject {
                Subject::GpuOwner(on) => self.owner_name(on.owner),
                Subject::Allocation(of) => self.owner_name(of.owner),
                _ => String::new(),
            };
            let dims = sample.metric.dims.iter().zip(sample.dims);
            let dims = dims.filter(|(_, index)| *index != NO_DIM);
            let values: Vec<_> = dims.map(|(dim, index)| dim.values[usize::from(index)]).collect();
            let number = match &sample.value {
                Value::Int(number) => *number as f64,
                Value::Double(number) => *number,
                Value::Histogram(_) => f64::NAN,
            };
            ((owner, values.join(" ")), number)
        });
        let rows: Vec<_> = rows.collect();
        let reported: Reported = rows.iter().cloned().collect();
        assert_eq!(reported.len(), rows.len(), "a batch has one series twice: {rows:?}");
        reported
    }

    fn owner_name(&self, owner_id: OwnerId) -> String {
        match &self.ownership.owner(owner_id).unwrap().owner {
            Owner::Job(job) => format!("job {job}"),
            Owner::Pod { uid, container, .. } => {
                format!("{uid}/{}", container.as_deref().unwrap_or("-"))
            }
            other => other.kind().to_owned(),
        }
    }
}

/// A whole device allocated to an owner.
pub fn allocated(device: &DeviceName, owner: OwnerId) -> Allocation {
    Allocation {
        device: device.clone(),
        owner,
        holder: owner,
        source: GrantSource::Slurm,
        kind: GrantKind::Exclusive,
        claim: None,
        details: AllocationDetails::default(),
    }
}

/// A device's reading as its reader sends it.
pub fn push(batch: &mut Batch, gpu: GpuId, at: SystemTime, read: &Read) {
    batch.push(device::STATE.sample(gpu, DeviceState::Ok, 1));
    batch.at(at, device::INFO.sample(gpu, (), 1));
    let busy = read.busy.map(|busy| device::UTILIZATION.sample(gpu, Task::General, busy));
    let used = read.used.map(|used| device::MEMORY_USAGE.sample(gpu, MemoryState::Used, used));
    let joules = read.joules.map(|joules| device::ENERGY.sample(gpu, (), joules));
    let listed = read.processes.iter().filter(|(_, memory, _)| memory.is_some()).count();
    let listed = i64::try_from(listed).unwrap() + read.unidentified;
    let count = Some(device::PROCESS_COUNT.sample(gpu, (), listed));
    let watts = read.watts.map(|watts| device::POWER.sample(gpu, (), watts));
    for sample in [busy, used, joules, watts, count].into_iter().flatten() {
        batch.at(at, sample);
    }
    for instance in &read.instances {
        batch.at(at, instance::INFO.sample(*instance, (), 1));
        let counted = read.counted.iter().filter(|(counted, _)| counted == instance);
        for (_, busy) in counted {
            batch.at(at, gpm::INSTANCE_GR_ENGINE_ACTIVE.sample(*instance, (), *busy));
        }
        for (_, busy) in read.utilized.iter().filter(|(utilized, _)| utilized == instance) {
            batch.at(at, instance::UTILIZATION.sample(*instance, (), *busy));
        }
    }
    for (place, (process, memory, sampled)) in read.processes.iter().enumerate() {
        let on = GpuProcess { gpu, process: *process, instance: read.inside.get(place).copied() };
        let serves = read.servers.contains(process);
        let kind = if serves { ProcessType::MpsServer } else { ProcessType::Compute };
        let memory = memory.map(|bytes| process::MEMORY_USAGE.sample(on, kind, bytes));
        let sampled = sampled.map(|busy| process::UTILIZATION.sample(on, ProcessTask::Sm, busy));
        for sample in memory.into_iter().chain(sampled) {
            batch.at(at, sample);
        }
        batch.at(at, process::INFO.sample(on, (), 1));
    }
}

/// Builds the expected values.
pub fn rows<const N: usize>(rows: [(&str, &str, f64); N]) -> Reported {
    rows.into_iter()
        .map(|(owner, dim, value)| ((owner.to_owned(), dim.to_owned()), value))
        .collect()
}
