//! A host made of files: 500 pods of one container each, 200 processes in the first hundred of
//! them, eight devices, and a batch as the device reader emits it.

use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::catalog::device::{self, Clock, DeviceState, Limit, MemoryState, Sensor, Task};
use gpuwho_model::catalog::process::{self, ProcessTask, ProcessType};
use gpuwho_model::catalog::share::{GrantKind, GrantSource};
use gpuwho_model::ids::{CgroupId, ContainerId, GpuId, GpuUuid, Hierarchy, PodUid, ProcKey};
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::{Batch, GpuProcess};
use gpuwho_owners::attribute::allocations::{Allocation, AllocationDetails};
use gpuwho_owners::attribute::names::{ContainerFacts, PodFacts, Provider};
use gpuwho_owners::attribute::owner::Owner;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::{Evidence, KernelCgroups, Opened, Workload};
use gpuwho_owners::inventory::DeviceName;
use gpuwho_owners::inventory::facts::Facts;
use gpuwho_owners::inventory::{GpuInfo, Inventory};
use std::fs;
use std::sync::Arc;
use std::time::SystemTime;
use tempfile::TempDir;

/// Containers of the host.
pub(crate) const CONTAINERS: u32 = 500;
/// Those whose processes are on devices.
pub(crate) const PARTIES: u32 = 100;
/// Processes on devices.
pub(crate) const PROCESSES: u32 = 200;
/// Devices.
pub(crate) const DEVICES: u32 = 8;
/// Seconds between ticks.
pub(crate) const TICK: u64 = 10;
pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// When everything began, since boot.
pub(crate) const BEGAN_NS: u64 = 1000 * SECOND_NS;
/// The first process's number.
const FIRST_PID: u32 = 1000;

/// Removed when dropped.
pub(crate) struct Host {
    pub(crate) paths: Paths,
    _dir: TempDir,
}

/// A container, its pod, and where its processes are.
pub(crate) struct Place {
    pub(crate) id: String,
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) cgroup: Arc<str>,
}

impl Place {
    pub(crate) fn of(number: u32) -> Self {
        let id = format!("{number:064x}");
        let uid = format!("{number:08x}-0000-4000-8000-000000000000");
        let cgroup = format!("/kubepods/burstable/pod{uid}/{id}").into();
        Self { id, uid, name: format!("trainer-{number}"), cgroup }
    }
}

impl Host {
    /// One unified hierarchy, a user, and pod logs.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::under(dir.path());
        for place in [&paths.proc.join("self"), &paths.cgroup, &paths.pod_logs] {
            fs::create_dir_all(place).unwrap();
        }
        fs::create_dir_all(dir.path().join("etc")).unwrap();
        fs::write(&paths.passwd, "ada:x:1000:1000::/:/bin/sh\n").unwrap();
        let at = paths.cgroup.display();
        let mounts = format!("31 23 0:28 / {at} rw,relatime - cgroup2 cgroup2 rw\n");
        fs::write(paths.proc.join("self/mountinfo"), mounts).unwrap();
        Self { paths, _dir: dir }
    }

    /// A process at a place opens a device.
    pub(crate) fn opens(&self, ownership: &Ownership, number: u32, place: &Place) -> ProcKey {
        let pid = FIRST_PID + number;
        let process = ProcKey { pid, start_ticks: 100 };
        let dir = self.paths.proc.join(pid.to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("stat"), stat(process)).unwrap();
        let status = format!("Name:\tpython3\nTgid:\t{pid}\nUid:\t1000\t1000\t1000\t1000\n");
        fs::write(dir.join("status"), status).unwrap();
        fs::write(dir.join("cgroup"), format!("0::{}\n", place.cgroup)).unwrap();
        let cgroup = CgroupId { hierarchy: Hierarchy::V2, id: u64::from(number) + 5 };
        ownership.observe(Evidence::Opened(Opened {
            process,
            uid: 1000,
            comm: "python3".into(),
            cgroups: KernelCgroups(vec![cgroup]),
            node: format!("/dev/nvidia{}", number % DEVICES).into(),
            at_ns: BEGAN_NS,
        }));
        process
    }
}

/// 52 fields, as Linux 6.18 writes them.
fn stat(process: ProcKey) -> String {
    let ProcKey { pid, start_ticks } = process;
    format!(
        "{pid} (python3) S 1 {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start_ticks} \
         1000 100 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    )
}

/// Tells of every container as its runtime does, and grants each device to its parties.
pub(crate) fn observe_all(ownership: &Ownership) {
    for place in (0..CONTAINERS).map(Place::of) {
        ownership.put_pod(
            Provider::Cri,
            PodFacts {
                uid: PodUid::new(&place.uid),
                namespace: "research".into(),
                name: place.name.as_str().into(),
                node: Some("node-1".into()),
                workload: AttrSet::new(),
                details: AttrSet::new(),
            },
        );
        ownership.put_container(
            Provider::Cri,
            ContainerFacts {
                id: ContainerId::new(&place.id),
                name: Some("train".into()),
                image: Some("registry.example/train:1".into()),
                runtime: "containerd",
                pod: Some(PodUid::new(&place.uid)),
                cgroup: None,
                details: AttrSet::new(),
            },
        );
    }
    let grants = (0..PARTIES).map(|number| {
        let uid = PodUid::new(&Place::of(number).uid);
        let owner_id = Owner::Pod { uid, container: Some("train".into()), within: None };
        let owner = ownership.allocation_owner(owner_id, &Workload::default());
        Allocation {
            device: DeviceName::Uuid(GpuUuid::new(&format!("GPU-{}", number % DEVICES))),
            owner,
            holder: owner,
            source: GrantSource::Kubelet,
            kind: GrantKind::Replica,
            claim: None,
            details: AllocationDetails {
                resource: Some("nvidia.com/gpu".into()),
                replicas: Some(1),
                ..AllocationDetails::default()
            },
        }
    });
    ownership.allocations().replace("kubelet", grants.collect());
}

/// The devices.
pub(crate) fn inventory() -> (Arc<Inventory>, Vec<GpuId>) {
    let inventory = Arc::new(Inventory::default());
    let put = |index: u32| {
        inventory.put(GpuInfo {
            uuid: GpuUuid::new(&format!("GPU-{index}")),
            placed: None,
            vendor: "nvidia".into(),
            index,
            minor: Some(index),
            nodes: vec![format!("nvidia{index}")],
            model: Some("NVIDIA H100 80GB HBM3".into()),
            pci_address: Some(format!("00000000:1{index}:00.0")),
            serial: None,
            driver_version: Some("580.65.06".into()),
            cuda_version: Some("13.0".into()),
            mig: Some(false),
            facts: Facts::default(),
        })
    };
    let gpus = (0..DEVICES).map(put).collect();
    (inventory, gpus)
}

/// What the reader says at a moment: of each device about thirty readings and six of each process.
pub(crate) fn batch(gpus: &[GpuId], processes: &[ProcKey], at: SystemTime, tick: u32) -> Batch {
    let mut batch = Batch::new("nvidia", at);
    for (gpu, index) in gpus.iter().zip(0..) {
        device(&mut batch, *gpu, tick);
        let here = processes.iter().zip(0..).filter(|(_, number)| number % DEVICES == index);
        for (process, _) in here {
            let on = GpuProcess { gpu: *gpu, process: *process, instance: None };
            batch.push(process::INFO.sample(on, (), 1));
            batch.push(process::MEMORY_USAGE.sample(on, ProcessType::Compute, 2 << 30));
            for &task in ProcessTask::ALL {
                batch.push(process::UTILIZATION.sample(on, task, 0.03));
            }
        }
    }
    batch
}

fn device(batch: &mut Batch, gpu: GpuId, tick: u32) {
    batch.push(device::INFO.sample(gpu, (), 1));
    for &state in DeviceState::ALL {
        batch.push(device::STATE.sample(gpu, state, i64::from(state == DeviceState::Ok)));
    }
    batch.push(device::READ_AGE.sample(gpu, (), 0.01));
    for &task in Task::ALL {
        batch.push(device::UTILIZATION.sample(gpu, task, 0.8));
    }
    batch.push(device::MEMORY_BANDWIDTH_UTILIZATION.sample(gpu, (), 0.4));
    for &state in MemoryState::ALL {
        batch.push(device::MEMORY_USAGE.sample(gpu, state, 60 << 30));
    }
    batch.push(device::MEMORY_LIMIT.sample(gpu, (), 80 << 30));
    for &sensor in Sensor::ALL {
        batch.push(device::TEMPERATURE.sample(gpu, sensor, 60.0));
    }
    batch.push(device::POWER.sample(gpu, (), 500.0));
    for &limit in Limit::ALL {
        batch.push(device::POWER_LIMIT.sample(gpu, limit, 700.0));
    }
    batch.push(device::ENERGY.sample(gpu, (), 1e6 + 5000.0 * f64::from(tick)));
    for &clock in Clock::ALL {
        batch.push(device::CLOCK_SPEED.sample(gpu, clock, 1.7e9));
    }
    batch.push(device::POWER_STATE.sample(gpu, (), 0));
    batch.push(device::PROCESS_COUNT.sample(gpu, (), i64::from(PROCESSES / DEVICES)));
}
