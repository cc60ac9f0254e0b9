//! The last reading of a reader, for `gpuwho`'s table, and the handle by which other threads
//! release a reader's devices.

use gpuwho_model::catalog::device::DeviceState;
use gpuwho_model::catalog::process::ProcessType;
use gpuwho_model::ids::Place;
use gpuwho_model::ids::{GpuId, InstanceId, ProcKey};
use gpuwho_owners::inventory::Inventory;
use gpuwho_owners::partitions::PartitionNodes;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long closing every handle may take.
pub const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// One device as last read. `None` is a value that was not read.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSnapshot {
    /// The device; its identity is in the inventory.
    pub gpu: GpuId,
    /// The state of the device.
    pub state: DeviceState,
    /// The reason, in the driver's words; empty if the device is ok.
    pub reason: String,
    /// Time since the last good reading.
    pub age: Option<Duration>,
    /// Busy fraction.
    pub utilization: Option<f64>,
    /// Bytes of memory used.
    pub memory_used: Option<i64>,
    /// Bytes of memory in total.
    pub memory_limit: Option<i64>,
    /// Watts.
    pub power: Option<f64>,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Whether its performance counters are read, or are about to be.
    pub has_counters: bool,
    /// Its partitions.
    pub instances: Vec<InstanceSnapshot>,
    /// The processes on it.
    pub processes: Vec<ProcessSnapshot>,
}

/// One partition as last read.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceSnapshot {
    /// The instance; its identity is in the inventory.
    pub instance: InstanceId,
    /// Its place on the device.
    pub place: Place,
    /// Bytes of memory used.
    pub memory_used: Option<i64>,
    /// Bytes of memory in total.
    pub memory_limit: Option<i64>,
}

/// One process on a device as last read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessSnapshot {
    /// The PID that the driver lists.
    pub pid: u32,
    /// The process; `None` if the PID could not be resolved.
    pub process: Option<ProcKey>,
    /// The partition it is in.
    pub instance: Option<InstanceId>,
    /// How it uses the device.
    pub kind: Option<ProcessType>,
    /// Bytes of device memory.
    pub memory: Option<i64>,
    /// Busy fraction of the multiprocessors.
    pub utilization: Option<f64>,
}

/// The state of a whole reader.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReaderSnapshot {
    /// Every device seen since the agent started.
    pub devices: Vec<DeviceSnapshot>,
    /// The partitions that device nodes open.
    pub partitions: Arc<PartitionNodes>,
    /// PID of the child.
    pub child: Option<u32>,
    /// Calls into the library since the start.
    pub calls: u64,
    /// Time inside the library since the start.
    pub library_time: Duration,
}

/// A handle to a reader for other threads.
#[derive(Clone, Default)]
pub struct Control(Arc<Mutex<Shared>>);

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Control").field(&self.0.lock().snapshot).finish()
    }
}

/// Closes a reader's process within a time, from any thread; true if it has exited and so closed every
/// handle.
pub type HangUp = Box<dyn FnOnce(Duration) -> bool + Send>;

#[derive(Default)]
struct Shared {
    snapshot: ReaderSnapshot,
    release: Release,
    hangup: Option<HangUp>,
}

/// Whether the reader may hold devices.
#[derive(Clone, Copy, Debug, Default)]
enum Release {
    #[default]
    Held,
    /// Until an instant, or until [`Control::resume`].
    Released(Option<Instant>),
}

impl ReaderSnapshot {
    /// The partitions that a process may use according to its open nodes, also before the driver
    /// lists the process: at most one per device, and none on a device of which it has several
    /// partitions open.
    pub fn granted(&self, nodes: &[Arc<str>], inventory: &Inventory) -> Vec<InstanceId> {
        let opened = |device: &DeviceSnapshot| {
            let info = inventory.get(device.gpu)?;
            let place = self.partitions.only_one_of(nodes, &info)?;
            device.instance_at(place)
        };
        self.devices.iter().filter_map(opened).collect()
    }
}

impl DeviceSnapshot {
    /// The partition at a place; a place without compute instance matches only if the GPU instance
    /// has exactly one.
    pub fn instance_at(&self, place: Place) -> Option<InstanceId> {
        let here = |read: &&InstanceSnapshot| match place.compute_instance {
            Some(_) => read.place == place,
            None => read.place.gpu_instance == place.gpu_instance,
        };
        let mut there = self.instances.iter().filter(here);
        match (there.next(), there.next()) {
            (Some(only), None) => Some(only.instance),
            _ => None,
        }
    }
}

impl Control {
    /// The last reading.
    pub fn snapshot(&self) -> ReaderSnapshot {
        self.0.lock().snapshot.clone()
    }

    /// PID of the child.
    pub fn child(&self) -> Option<u32> {
        self.0.lock().snapshot.child
    }

    /// Closes every device handle at once, from any thread, for a time or until
    /// [`Control::resume`]. True if they are closed within [`RELEASE_LIMIT`]; false if a call into
    /// the driver hangs: then they close when it returns.
    pub fn release(&self, length: Option<Duration>) -> bool {
        let hangup = {
            let mut shared = self.0.lock();
            shared.release = Release::Released(length.map(|length| Instant::now() + length));
            shared.hangup.take()
        };
        hangup.is_none_or(|hangup| hangup(RELEASE_LIMIT))
    }

    /// [`Control::release`] for a time, unless the devices are already released: a longer release
    /// by the operator stays in force.
    pub fn make_way(&self, length: Duration) {
        if !self.released() {
            self.release(Some(length));
        }
    }

    /// Lets the reader open its devices again at its next reading.
    pub fn resume(&self) {
        self.0.lock().release = Release::Held;
    }

    /// Whether the devices are released now; an expired release ends here.
    pub fn released(&self) -> bool {
        let mut shared = self.0.lock();
        if let Release::Released(Some(until)) = shared.release
            && Instant::now() >= until
        {
            shared.release = Release::Held;
        }
        matches!(shared.release, Release::Released(_))
    }

    /// Stores a reading.
    pub fn publish(&self, snapshot: ReaderSnapshot) {
        self.0.lock().snapshot = snapshot;
    }

    /// Stores the close handle of a new child.
    pub fn hold(&self, hangup: HangUp) {
        self.0.lock().hangup = Some(hangup);
    }

    /// Drops the close handle of a child; false if a release has used it.
    pub fn forget_child(&self) -> bool {
        self.0.lock().hangup.take().is_some()
    }
}
