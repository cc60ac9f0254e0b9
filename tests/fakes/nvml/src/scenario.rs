//! The scenario file: which devices there are, what they read at each moment, who is on them, and
//! what fails. The library answers from it and tests compute the truth from it.

pub mod board;
pub mod clocks;
pub mod driver;
pub mod failure;
pub mod gpm;
pub mod health;
pub mod links;

use crate::curve::{Curve, Place};
use board::{Board, Confidential, Modes};
use clocks::{Clocks, Held, PowerLimits};
use driver::{DeviceReset, DriverChange};
use failure::{Failure, Latency};
use gpm::Gpm;
use health::{Ecc, Errors, Pcie, Remapped, Retired, TemperatureLimits};
use links::{C2c, Fabric, NvLink};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// A scenario.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Driver version, `580.95.05`.
    pub driver: String,
    /// CUDA version as the library encodes it: 13000 is 13.0.
    pub cuda: i32,
    /// Functions this driver's library does not have; see [`crate::install`].
    #[serde(default)]
    pub omit: Vec<String>,
    /// Confidential computing, where the host has it.
    pub confidential: Option<Confidential>,
    /// The first number of a GPM metric that this driver does not know, where it refuses to be asked
    /// for such.
    pub gpm_metrics: Option<u32>,
    /// Kinds of devices, in index order.
    #[serde(default, rename = "device")]
    pub groups: Vec<Group>,
    /// What happens, in this order.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
    /// What happens to devices as the system has it, in this order.
    #[serde(default, rename = "system_event")]
    pub system_events: Vec<SystemEvent>,
    /// How long calls take; the rest take no time.
    #[serde(default, rename = "latency")]
    pub latencies: Vec<Latency>,
    /// What fails.
    #[serde(default, rename = "failure")]
    pub failures: Vec<Failure>,
    /// How driver and library change, in this order.
    #[serde(default, rename = "driver_change")]
    pub changes: Vec<DriverChange>,
    /// Which devices are reset, each device's in this order.
    #[serde(default, rename = "reset")]
    pub resets: Vec<DeviceReset>,
    /// Begins what is random.
    #[serde(default)]
    pub seed: u64,
}

/// A number of devices of one kind. `{index}` in a text is the device's index, `{hex}` the same in
/// hexadecimal. A value that is not there is not supported by the device.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Whose devices: `nvidia`, or a vendor whose files are played (`gpuwho_tests::fakes`).
    #[serde(default = "nvidia")]
    pub vendor: String,
    /// How many.
    #[serde(default = "one")]
    pub count: u32,
    /// Second they are put in.
    #[serde(default)]
    pub from: f64,
    /// Second they are taken out.
    pub until: Option<f64>,
    /// When the driver was loaded, where its counters begin; the library's to set.
    #[serde(skip)]
    pub counters_from: f64,
    /// Product name.
    pub name: String,
    /// UUID.
    pub uuid: String,
    /// PCI address.
    pub pci: String,
    /// Serial number.
    pub serial: Option<String>,
    /// MIG mode, where the device has MIG.
    pub mig: Option<bool>,
    /// Device memory.
    pub memory: Memory,
    /// Clock rates in MHz.
    #[serde(default)]
    pub clocks: Clocks,
    /// Busy percentage of the device.
    pub utilization: Option<Curve>,
    /// Busy percentage of the memory controller; needs `utilization`.
    pub memory_utilization: Option<Curve>,
    /// Busy percentage of the encoder.
    pub encoder: Option<Curve>,
    /// Busy percentage of the decoder.
    pub decoder: Option<Curve>,
    /// Busy percentage of the JPEG decoder.
    pub jpeg: Option<Curve>,
    /// Busy percentage of the optical flow accelerator.
    pub optical_flow: Option<Curve>,
    /// Bytes of the aperture (BAR1): all and used.
    pub aperture: Option<[u64; 2]>,
    /// Bytes of host memory that the device can use: all and used. Not NVIDIA's.
    pub host_memory: Option<[u64; 2]>,
    /// Degrees left until the device slows down.
    pub margin: Option<Curve>,
    /// Temperatures at which something happens.
    #[serde(default)]
    pub temperature_limits: TemperatureLimits,
    /// Degrees Celsius of the die.
    pub temperature: Option<Curve>,
    /// Degrees Celsius of the memory.
    pub memory_temperature: Option<Curve>,
    /// Watts; energy is its integral.
    pub power: Option<Curve>,
    /// Watts of the module, processor and all.
    pub module_power: Option<Curve>,
    /// Watts the operator allows.
    pub power_limit: Option<f64>,
    /// The other limits in watts.
    pub power_limits: Option<PowerLimits>,
    /// What holds the clocks down.
    #[serde(default)]
    pub held: Held,
    /// Remapped rows.
    pub remapped: Option<Remapped>,
    /// Retired pages.
    pub retired: Option<Retired>,
    /// Errors that ECC sees.
    pub ecc: Option<Ecc>,
    /// The link to the host.
    pub pcie: Option<Pcie>,
    /// Performance state.
    pub power_state: Option<u32>,
    /// Percentage of each fan.
    #[serde(default)]
    pub fans: Vec<Curve>,
    /// What the board is.
    #[serde(default)]
    pub board: Board,
    /// How it is set up.
    #[serde(default)]
    pub modes: Modes,
    /// Its links to switches or other devices.
    pub nvlink: Option<NvLink>,
    /// Its links to the CPU of its module.
    pub c2c: Option<C2c>,
    /// The fabric it registers with.
    pub fabric: Option<Fabric>,
    /// Performance counters.
    pub gpm: Option<Gpm>,
    /// MIG instances of each device, those there are at any time.
    #[serde(default, rename = "instance")]
    pub instances: Vec<Instance>,
    /// Processes on each device.
    #[serde(default, rename = "process")]
    pub processes: Vec<ProcessGroup>,
}

/// What an event set tells, once.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Of which device.
    pub device: u32,
    /// Second it happens; not before the events above it.
    #[serde(default)]
    pub at: f64,
    /// One of `nvmlEventType…`; 8 is an XID.
    #[serde(default = "xid")]
    pub kind: u64,
    /// Of an XID its code.
    #[serde(default)]
    pub data: u64,
    /// The MIG GPU instance.
    pub gpu_instance: Option<u32>,
}

/// What a set of system events tells, once.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemEvent {
    /// Of which device.
    pub device: u32,
    /// Second it happens; not before the events above it. A reader that comes later is not told.
    pub at: f64,
    /// One of `nvmlSystemEventType…`; 1 is an unbinding, 2 a binding.
    pub kind: u64,
}

/// A MIG instance: a compute instance and the GPU instance around it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// Its index among the device's MIG devices; the driver leaves gaps.
    pub index: u32,
    /// GPU instance id.
    pub gpu_instance: u32,
    /// Compute instance id.
    #[serde(default)]
    pub compute_instance: u32,
    /// `3g.20gb`.
    pub profile: String,
    /// UUID.
    pub uuid: String,
    /// Slices of the GPU instance.
    pub gpu_slices: u32,
    /// Slices of the compute instance.
    pub compute_slices: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory of the GPU instance, which its compute instances share.
    pub memory: Memory,
    /// Performance counters of the GPU instance, which its compute instances share.
    pub gpm: Option<Gpm>,
    /// Second it is made.
    #[serde(default)]
    pub from: f64,
    /// Second it is destroyed.
    pub until: Option<f64>,
}

/// Memory in bytes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// All.
    pub total: u64,
    /// Kept by the driver.
    pub reserved: u64,
    /// Used.
    pub used: Curve,
}

/// The driver's list a process is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum List {
    /// Compute contexts.
    Compute,
    /// Graphics contexts.
    Graphics,
    /// Compute contexts through an MPS server.
    Mps,
}

/// A number of processes of one kind on each device of a group.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessGroup {
    /// How many.
    #[serde(default = "one")]
    pub count: u32,
    /// Number of the first: where kinds share a file of PIDs, those of the kinds before come first.
    #[serde(default)]
    pub first_slot: u32,
    /// A number, `self`, `env:NAME`, or `file:NAME`: a file below `FAKE_NVML_PIDS` with one PID
    /// for each process, by its number, `-` for one that is not there.
    pub pid: String,
    /// The list it is on.
    #[serde(default = "compute")]
    pub list: List,
    /// Another list it is on, too, as an MPS client is on that of compute contexts.
    pub also: Option<List>,
    /// The MIG instance it is in, as `[gpu instance, compute instance]`.
    pub instance: Option<[u32; 2]>,
    /// Bytes of device memory; without it the driver does not tell.
    pub memory: Option<Curve>,
    /// Bytes of device memory it has had at most; without it what it has.
    pub peak: Option<Curve>,
    /// SM percentage.
    #[serde(default = "zero")]
    pub sm: Curve,
    /// Memory controller percentage.
    #[serde(default = "zero")]
    pub memory_controller: Curve,
    /// Encoder percentage.
    #[serde(default = "zero")]
    pub encoder: Curve,
    /// Decoder percentage.
    #[serde(default = "zero")]
    pub decoder: Curve,
    /// Second it appears.
    #[serde(default)]
    pub from: f64,
    /// Second it goes.
    pub until: Option<f64>,
}

/// One device of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    /// Its kind.
    pub group: &'a Group,
    /// Its index.
    pub index: u32,
    /// The resets of the scenario, of other devices too.
    pub resets: &'a [DeviceReset],
}

/// One process of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    /// Its kind.
    pub group: &'a ProcessGroup,
    /// Its number within its kind.
    pub slot: u32,
    /// Its device's index.
    pub device: u32,
}

/// Why there is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The variable that names it is not set.
    #[error("FAKE_NVML_SCENARIO is not set: name a scenario file in it")]
    Unnamed,
    /// The file cannot be read.
    #[error("cannot read the scenario {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is wrong.
    #[error("{path}:{line}: `{text}`: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// What stands there.
        text: String,
        /// What is wrong with it.
        message: String,
    },
}

impl Scenario {
    /// Whether the driver has the field numbers of CUDA 13.0 Update 1.
    pub fn renumbered(&self) -> bool {
        driver::renumbered(&self.driver)
    }

    /// Reads a scenario file.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.get(..offset).map_or(0, |before| before.matches('\n').count());
            ScenarioError::Parse {
                path: path.to_owned(),
                line: line + 1,
                text: text.lines().nth(line).unwrap_or_default().trim().to_owned(),
                message: error.message().trim().replace('\n', " "),
            }
        })
    }

    /// Every device in index order.
    pub fn devices(&self) -> impl Iterator<Item = Device<'_>> {
        let kinds = self.groups.iter().flat_map(|group| (0..group.count).map(move |_| group));
        let resets = &self.resets;
        (0..).zip(kinds).map(move |(index, group)| Device { group, index, resets })
    }

    /// The same with the devices of one vendor only.
    #[must_use]
    pub fn only(mut self, vendor: &str) -> Self {
        self.groups.retain(|group| group.vendor == vendor);
        self
    }

    /// The device of an index.
    pub fn device(&self, index: u32) -> Option<Device<'_>> {
        self.devices().nth(usize::try_from(index).ok()?)
    }
}

impl Group {
    /// Watts that are enforced: the lower of what the operator and what others allow.
    pub fn enforced_limit(&self) -> Option<f64> {
        let others = self.power_limits.as_ref().map_or(f64::INFINITY, |limits| limits.others);
        Some(self.power_limit?.min(others))
    }
}

impl<'a> Device<'a> {
    /// A text of the group with this device's index in it.
    pub fn text(&self, template: &str) -> String {
        let hex = format!("{:x}", self.index);
        template.replace("{index}", &self.index.to_string()).replace("{hex}", &hex)
    }

    /// A value of the group as this device has it.
    pub fn value(&self, curve: &Curve, seconds: f64) -> f64 {
        curve.at(seconds, self.place())
    }

    /// Whether MIG is on.
    pub fn mig(&self) -> bool {
        self.group.mig == Some(true)
    }

    /// The MIG instances there are at a time.
    pub fn instances(&self, seconds: f64) -> impl Iterator<Item = &'a Instance> + use<'a> {
        let known = if self.mig() { self.group.instances.as_slice() } else { &[] };
        known.iter().filter(move |instance| instance.lives(seconds))
    }

    /// Energy used since its counters began, in millijoules, as the driver counts it: whole ones.
    pub fn energy_mj(&self, seconds: f64) -> Option<f64> {
        Some((self.area(self.group.power.as_ref()?, seconds) * 1000.0).floor())
    }

    /// Errors of a memory, corrected and not, since the device was last reset and since the board was
    /// made.
    pub fn errors(&self, errors: &Errors, seconds: f64) -> [[u64; 2]; 2] {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counts of a scenario are small and not negative"
        )]
        let count = |curve: &Curve, at: f64| self.value(curve, at).floor() as u64;
        let kinds = [&errors.corrected, &errors.uncorrected];
        let all = kinds.map(|curve| count(curve, seconds));
        let reset = self.reset_before(seconds);
        let forgotten = kinds.map(|curve| reset.map_or(0, |reset| count(curve, reset)));
        let [corrected, uncorrected] = all;
        let volatile = [corrected - forgotten[0], uncorrected - forgotten[1]];
        [volatile, [corrected + errors.before[0], uncorrected + errors.before[1]]]
    }

    /// The area under a curve of the group since its counters began: when the driver was loaded or
    /// the device was reset.
    pub fn area(&self, curve: &Curve, seconds: f64) -> f64 {
        let loaded = self.group.counters_from;
        let begin = self.reset_before(seconds).map_or(loaded, |reset| reset.max(loaded));
        curve.integral(seconds, self.place()) - curve.integral(begin, self.place())
    }

    /// The mean of a curve of the group over the last second.
    pub fn average(&self, curve: &Curve, seconds: f64) -> f64 {
        let begin = (seconds - 1.0).max(0.0);
        if seconds <= begin {
            return self.value(curve, seconds);
        }
        let until = |seconds| curve.integral(seconds, self.place());
        (until(seconds) - until(begin)) / (seconds - begin)
    }

    /// Every process this device can have, whether or not it is there.
    pub fn processes(&self) -> impl Iterator<Item = Process<'a>> + use<'a> {
        let (kinds, device) = (&self.group.processes, self.index);
        kinds.iter().flat_map(move |group| {
            (0..group.count).map(move |number| Process {
                group,
                slot: group.first_slot + number,
                device,
            })
        })
    }

    /// Where its curves are.
    pub fn place(&self) -> Place {
        Place { device: self.index, slot: 0 }
    }
}

impl Instance {
    /// Whether the scenario has it at this time.
    pub fn lives(&self, seconds: f64) -> bool {
        seconds >= self.from && self.until.is_none_or(|until| seconds < until)
    }

    /// Its place on the device, `[gpu instance, compute instance]`.
    pub fn place(&self) -> [u32; 2] {
        [self.gpu_instance, self.compute_instance]
    }
}

impl ProcessGroup {
    /// Whether it is on a list.
    pub fn is_on(&self, list: List) -> bool {
        self.list == list || self.also == Some(list)
    }
}

impl Process<'_> {
    /// A value of the group as this process has it.
    pub fn value(&self, curve: &Curve, seconds: f64) -> f64 {
        curve.at(seconds, Place { device: self.device, slot: self.slot })
    }

    /// Whether the scenario has it at this time.
    pub fn lives(&self, seconds: f64) -> bool {
        seconds >= self.group.from && self.group.until.is_none_or(|until| seconds < until)
    }
}

fn nvidia() -> String {
    "nvidia".to_owned()
}

const fn xid() -> u64 {
    8
}

fn one() -> u32 {
    1
}

const fn compute() -> List {
    List::Compute
}

const fn zero() -> Curve {
    Curve::Constant(0.0)
}

#[cfg(test)]
mod tests {
    use super::{Scenario, ScenarioError};
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    fn shipped() -> Vec<std::path::PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn refusal(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let error = Scenario::load(file.path()).unwrap_err();
        assert!(matches!(error, ScenarioError::Parse { .. }), "{error}");
        error.to_string().replace(&file.path().display().to_string(), "FILE")
    }

    #[test]
    fn every_shipped_scenario_is_valid_and_its_memory_adds_up() {
        let files = shipped();
        assert!(files.len() >= 6, "{files:?}");
        for file in files {
            let scenario = Scenario::load(&file).unwrap_or_else(|error| panic!("{error}"));
            for device in scenario.devices() {
                let memory = &device.group.memory;
                let used = device.value(&memory.used, 0.0);
                let room = (memory.total - memory.reserved) as f64;
                assert!(used <= room, "{}: {used} of {room}", file.display());
            }
        }
    }

    #[test]
    fn instances_of_every_shipped_scenario_fit_into_their_device() {
        for file in shipped() {
            let scenario = Scenario::load(&file).unwrap();
            let moments = |device: super::Device<'_>| {
                let instances = &device.group.instances;
                let mut all: Vec<f64> = instances.iter().map(|instance| instance.from).collect();
                all.extend(device.group.processes.iter().map(|process| process.from));
                all
            };
            for device in scenario.devices() {
                for seconds in moments(device) {
                    instances_fit(device, seconds, &file);
                }
            }
        }
    }

    /// Instances at a time have places, indexes and memory of their own, and so have the processes
    /// in them.
    fn instances_fit(device: super::Device<'_>, seconds: f64, file: &Path) {
        let living: Vec<_> = device.instances(seconds).collect();
        let places: BTreeSet<_> = living.iter().map(|instance| instance.place()).collect();
        let indexes: BTreeSet<_> = living.iter().map(|instance| instance.index).collect();
        assert_eq!((places.len(), indexes.len()), (living.len(), living.len()));
        // Compute instances of one GPU instance share its memory.
        let by_gpu_instance: BTreeMap<_, _> =
            living.iter().map(|instance| (instance.gpu_instance, &instance.memory)).collect();
        let used = |memory: &super::Memory| device.value(&memory.used, seconds);
        let sums = by_gpu_instance
            .values()
            .fold((0, 0.0), |(total, all), memory| (total + memory.total, all + used(memory)));
        let whole = &device.group.memory;
        assert!(sums.0 <= whole.total, "{}", file.display());
        assert!(sums.1 <= used(whole), "{}: {} s", file.display(), seconds);
        for process in device.processes().filter(|process| process.lives(seconds)) {
            let at = process.group.instance;
            assert!(at.is_none_or(|at| places.contains(&at)), "{}: {at:?}", file.display());
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let text = refusal("driver = \"1\"\ncuda = 1\n\nfan_club = 3\n");
        assert!(text.starts_with("FILE:4: `fan_club = 3`: unknown field `fan_club`"), "{text}");
    }

    #[test]
    fn a_wrong_value_is_shown_with_its_line() {
        let text = refusal("driver = \"1\"\ncuda = \"thirteen\"\n");
        assert!(text.starts_with("FILE:2: `cuda = \"thirteen\"`: invalid type"), "{text}");
    }
}
