//! The simulated devices of a scenario, of every vendor in it. NVIDIA's driver is a library
//! ([`FakeNvml`]); each other vendor is a row of [`FAKES`]. A scenario names the vendor of each of its
//! groups of devices; each vendor counts its devices from 0.

use crate::agent::Config;
use crate::amd;
use crate::nvml::{FakeNvml, NvmlError, scenario_path};
use crate::vendors;
use nvidia_ml::scenario::Scenario;
use nvidia_ml::scenario::health::Pcie;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;

/// The vendor of a group that names none.
const NVIDIA: &str = "nvidia";
/// As many devices have processes in the demo of a scenario with NVIDIA's devices alone.
const MAX_NVIDIA: u32 = 8;

/// A vendor whose devices can be simulated.
#[derive(Debug)]
pub struct FakeVendor {
    /// As a scenario and the agent name it.
    pub name: &'static str,
    /// The device nodes of a scenario of its devices, below `/dev`.
    pub nodes: fn(&Scenario) -> Vec<String>,
    /// Makes what the agent reads below a folder, which all vendors share.
    pub install: fn(&Path, Scenario) -> io::Result<Box<dyn Fake>>,
}

/// Every vendor but NVIDIA.
pub static FAKES: &[FakeVendor] = &[
    amd::VENDOR,
    vendors::GAUDI,
    vendors::TENSTORRENT,
    vendors::TPU,
    vendors::INTEL,
    vendors::NEURON,
];

/// The simulated devices of one vendor.
pub trait Fake: fmt::Debug {
    /// What a worker's script calls the devices, in their order.
    fn numbers(&self) -> Vec<u32>;
    /// Points the agent at them.
    fn configure(&self, config: &mut Config);
    /// Puts these processes, and only these, on a device.
    fn set_processes(&self, number: u32, pids: &[u32]) -> io::Result<()>;
    /// Shows the scenario as it is at a second.
    fn play(&self, seconds: f64) -> io::Result<()>;
}

/// All devices of a scenario.
#[derive(Debug)]
pub struct Host {
    nvml: Option<(FakeNvml, Vec<u32>)>,
    others: Vec<Box<dyn Fake>>,
    nodes: Vec<String>,
    begun: Instant,
}

/// Generations of PCIe by what the kernel writes of their speed.
const SPEEDS: [&str; 6] = ["2.5", "5.0", "8.0", "16.0", "32.0", "64.0"];

/// Writes a file, unless it has this content already. It changes in place, as a driver's does: a reader
/// may keep it open.
pub fn put(path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::read(path) {
        Ok(known) if known == content => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path.parent().unwrap_or(path))?;
            fs::write(path, content)
        }
        _ => {
            let mut file = File::options().write(true).open(path)?;
            // No reader finds it empty.
            file.write_all(content)?;
            file.set_len(u64::try_from(content.len()).unwrap_or(u64::MAX))
        }
    }
}

/// Makes `sys/kernel` below a folder, unless it is there: the host's, without its groups of devices.
pub fn kernel(root: &Path) -> io::Result<()> {
    let kernel = root.join("sys/kernel");
    if kernel.exists() {
        return Ok(());
    }
    fs::create_dir_all(&kernel)?;
    for entry in fs::read_dir("/sys/kernel")? {
        let entry = entry?;
        if entry.file_name() != "iommu_groups" {
            symlink(entry.path(), kernel.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// The files of a PCIe link, now and at most.
pub fn link_files(pcie: &Pcie) -> impl Iterator<Item = (String, String)> + '_ {
    ["current", "max"].into_iter().enumerate().flat_map(|(n, when)| {
        let generation = usize::try_from(pcie.generation[n]).unwrap_or_default();
        let speed = SPEEDS.get(generation.wrapping_sub(1)).copied().unwrap_or("Unknown");
        [
            (format!("{when}_link_speed"), format!("{speed} GT/s PCIe")),
            (format!("{when}_link_width"), pcie.width[n].to_string()),
        ]
    })
}

/// Reads a scenario of the repository.
pub fn load(name: &str) -> Result<Scenario, NvmlError> {
    Ok(Scenario::load(&scenario_path(name)?)?)
}

/// The vendors of a scenario beside NVIDIA, each with its part.
fn others(scenario: &Scenario) -> impl Iterator<Item = (&'static FakeVendor, Scenario)> {
    let parts = FAKES.iter().map(|vendor| (vendor, scenario.clone().only(vendor.name)));
    parts.filter(|(_, part)| !part.groups.is_empty())
}

/// The device nodes of a scenario; empty for one of NVIDIA alone, which has the default ones.
pub fn nodes(scenario: &Scenario) -> Vec<String> {
    let others: Vec<_> =
        others(scenario).flat_map(|(vendor, part)| (vendor.nodes)(&part)).collect();
    if others.is_empty() {
        return others;
    }
    let count = u32::try_from(scenario.clone().only(NVIDIA).devices().count()).unwrap_or(0);
    let own = if count > 0 { ["nvidiactl", "nvidia-uvm"].as_slice() } else { &[] };
    let devices = (0..count).map(|number| format!("nvidia{number}"));
    devices.chain(own.iter().map(|name| (*name).to_owned())).chain(others).collect()
}

impl Host {
    /// Sets a scenario up in a folder that outlives the agent.
    pub fn install(folder: &Path, name: &str) -> Result<Self, NvmlError> {
        let scenario = load(name)?;
        let root = folder.join("host");
        let make = |(vendor, part): (&FakeVendor, Scenario)| {
            let made = (vendor.install)(&root, part);
            made.map_err(|source| NvmlError::File { path: root.clone(), source })
        };
        let others = others(&scenario).map(make).collect::<Result<Vec<_>, _>>()?;
        let count = scenario.clone().only(NVIDIA).devices().count();
        let count = if others.is_empty() { MAX_NVIDIA } else { u32::try_from(count).unwrap_or(0) };
        let nvml = match count {
            0 => None,
            count => Some((FakeNvml::install(folder, name)?, (0..count).collect())),
        };
        Ok(Self { nvml, others, nodes: nodes(&scenario), begun: Instant::now() })
    }

    /// NVIDIA's driver, where the scenario has its devices.
    pub fn nvml(&self) -> Option<&FakeNvml> {
        self.nvml.as_ref().map(|(nvml, _)| nvml)
    }

    /// What a worker's script calls the devices.
    pub fn numbers(&self) -> Vec<u32> {
        let own = self.nvml.iter().flat_map(|(_, numbers)| numbers.iter().copied());
        own.chain(self.others.iter().flat_map(|fake| fake.numbers())).collect()
    }

    /// Points the agent at them; the nodes are in a folder.
    pub fn configure(&self, folder: &Path, config: &mut Config) {
        if !self.nodes.is_empty() {
            let path = |name: &String| folder.join("dev").join(name).display().to_string();
            config.nodes = Some(self.nodes.iter().map(path).collect());
        }
        if self.nvml.is_none() {
            config.more.push_str("[nvidia]\nenabled = false\n");
        }
        self.others.iter().for_each(|fake| fake.configure(config));
    }

    /// Puts these processes, and only these, on a device.
    pub fn set_processes(&self, number: u32, pids: &[u32]) -> Result<(), NvmlError> {
        if let Some((nvml, _)) = self.nvml.as_ref().filter(|(_, known)| known.contains(&number)) {
            return nvml.set_processes(number, &pids.iter().copied().map(Some).collect::<Vec<_>>());
        }
        let mut fakes = self.others.iter().filter(|fake| fake.numbers().contains(&number));
        let set = fakes.try_for_each(|fake| fake.set_processes(number, pids));
        set.map_err(|source| NvmlError::File { path: "processes".into(), source })
    }

    /// Lets time pass; NVIDIA's library does by itself.
    pub fn play(&self) -> io::Result<()> {
        self.play_at(self.begun.elapsed().as_secs_f64())
    }

    /// Shows the devices of the other vendors as they are at a second.
    pub fn play_at(&self, seconds: f64) -> io::Result<()> {
        self.others.iter().try_for_each(|fake| fake.play(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::scenarios;

    #[test]
    fn every_vendor_of_a_scenario_can_be_simulated() {
        for name in scenarios() {
            for group in load(&name).unwrap().groups {
                let is_known = FAKES.iter().any(|vendor| vendor.name == group.vendor);
                assert!(is_known || group.vendor == NVIDIA, "{name}: {}", group.vendor);
            }
        }
    }

    #[test]
    fn a_mixed_host_has_both_vendors_devices_and_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let names = nodes(&load("mixed").unwrap());
        let all = ["nvidia0", "nvidia3", "nvidiactl", "kfd", "dri/renderD128", "dri/renderD130"];
        assert!(all.iter().all(|name| names.iter().any(|known| known == name)), "{names:?}");
        assert_eq!(nodes(&load("h100x8").unwrap()), [""; 0], "the default ones");
        let tree = amd::Tree::new(folder.path(), &load("mixed").unwrap().only("amd"), 0.0).unwrap();
        assert!(tree.path("sys/class/drm/renderD130").exists());
        assert!(!tree.path("sys/class/drm/renderD131").exists());
    }
}
