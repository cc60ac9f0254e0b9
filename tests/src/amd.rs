//! AMD's devices without AMD: the trees that `amdgpu` and KFD make in sysfs and procfs, of a scenario
//! in the language of the fake NVIDIA library. The layout is that of eight MI300X as recorded
//! (ROCm/k8s-device-plugin `testdata/topo-mi300-cpx`) and as Linux 6.12 makes them: `mem_info_*`
//! `amdgpu_vram_mgr.c` and `amdgpu_gtt_mgr.c`; `hwmon`, `*_busy_percent`, `pp_dpm_*` and `gpu_metrics`
//! `amdgpu_pm.c` and `kgd_pp_interface.h`; `ras` `amdgpu_ras.c`; `pcie_replay_count` and the board's names
//! `amdgpu_device.c` and `amdgpu_fru_eeprom.c`; `current_*_partition` `amdgpu_gfx.c` and `amdgpu_gmc.c`; `topology`
//! `kfd_topology.c`; `proc/PID/vram_ID`, `queues` and `stats_ID` `kfd_process.c`; `fdinfo` `amdgpu_fdinfo.c`. How
//! other boards differ is in [`models`]. The values are the scenario's, and no name of a file is the reader's.
//!
//! A device's instances are its partitions (CPX), each with a render node and a KFD node of its own.
//! NVLink of the scenario is XGMI here, SRAM the block `gfx`.

mod models;
pub mod table;
mod values;

use crate::agent::Config;
use crate::fakes::{self, Fake, FakeVendor};
use crate::worker::nodes::MAX_NODES;
use nvidia_ml::scenario::{Device, List, Scenario};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// AMD's devices in a scenario.
pub const VENDOR: FakeVendor = FakeVendor {
    name: "amd",
    nodes: |scenario| {
        let renders = scenario.devices().map(|device| parts(&device)).sum::<u32>();
        let renders = (FIRST_RENDER..FIRST_RENDER + renders).map(|n| format!("dri/renderD{n}"));
        std::iter::once("kfd".to_owned()).chain(renders).collect()
    },
    install: |root, scenario| {
        let tree = Tree::new(root, &scenario, 0.0)?;
        Ok(Box::new(FakeAmd { tree, scenario, processes: Mutex::default() }))
    },
};

/// The major number of DRM nodes.
const DRM_MAJOR: u32 = 226;
/// DRM numbers render nodes from here.
pub const FIRST_RENDER: u32 = 128;
/// The number that KFD gives to the first device or partition.
pub const FIRST_ID: u32 = 50000;

/// A tree below a folder: `sys` and `proc` in it.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

/// A process on a device or on a partition of it.
#[derive(Clone, Copy, Debug)]
pub struct On {
    /// The process.
    pub pid: u32,
    /// Render node's minor of the device or partition.
    pub render: u32,
    /// Bytes of device memory.
    pub bytes: u64,
}

/// The devices of a scenario, with processes on them.
#[derive(Debug)]
struct FakeAmd {
    tree: Tree,
    scenario: Scenario,
    /// By render node.
    processes: Mutex<BTreeMap<u32, Vec<u32>>>,
}

impl FakeAmd {
    /// The render nodes, each with its device: one for each partition.
    fn renders(&self) -> impl Iterator<Item = (u32, Device<'_>)> {
        let all =
            self.scenario.devices().flat_map(|device| (0..parts(&device)).map(move |_| device));
        (FIRST_RENDER..).zip(all)
    }
}

impl Fake for FakeAmd {
    /// As many as have nodes beside `kfd`.
    fn numbers(&self) -> Vec<u32> {
        self.renders().map(|(render, _)| render).take(MAX_NODES - 1).collect()
    }

    fn configure(&self, config: &mut Config) {
        config.sys = Some(self.tree.sys());
    }

    /// They share the memory that the scenario has in use.
    fn set_processes(&self, number: u32, pids: &[u32]) -> io::Result<()> {
        let Some((_, device)) = self.renders().find(|(render, _)| *render == number) else {
            return Ok(());
        };
        let mut known = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.insert(number, pids.to_vec()).unwrap_or_default();
        for pid in before.iter().filter(|pid| !pids.contains(pid)) {
            let is_elsewhere = known.values().any(|on| on.contains(pid));
            if is_elsewhere {
                self.tree.compute(&On { pid: *pid, render: number, bytes: 0 })?;
            } else {
                self.tree.end(*pid)?;
            }
        }
        let used = device.value(&device.group.memory.used, 0.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
        let part = used as u64 / u64::from(parts(&device));
        let share = part / u64::try_from(pids.len().max(1)).unwrap_or(1);
        let all = pids.iter().map(|pid| On { pid: *pid, render: number, bytes: share });
        all.into_iter().try_for_each(|on| self.tree.compute(&on))
    }

    fn play(&self, seconds: f64) -> io::Result<()> {
        self.tree.play(&self.scenario, seconds)
    }
}

impl Tree {
    /// The tree of a scenario at a second of it, without processes.
    pub fn new(root: &Path, scenario: &Scenario, seconds: f64) -> io::Result<Self> {
        let tree = Self { root: root.to_owned() };
        // What else the agent looks for in sysfs is the host's.
        fakes::kernel(root)?;
        tree.write("sys/module/amdgpu/version", &scenario.driver)?;
        tree.write("sys/class/kfd/kfd/topology/generation_id", "2")?;
        fs::create_dir_all(tree.path("sys/class/kfd/kfd/proc"))?;
        // KFD's first nodes are the processors.
        for node in 0..2 {
            let node = format!("sys/class/kfd/kfd/topology/nodes/{node}");
            tree.write(&format!("{node}/gpu_id"), "0")?;
            tree.write(&format!("{node}/properties"), "cpu_cores_count 96\nsimd_count 0\n")?;
        }
        let mut render = FIRST_RENDER;
        for device in scenario.devices() {
            tree.device(&device, seconds, render)?;
            render += parts(&device);
        }
        Ok(tree)
    }

    /// One that was made below a folder.
    pub fn made(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Below which the agent finds sysfs.
    pub fn sys(&self) -> PathBuf {
        self.root.join("sys")
    }

    /// A file or folder of the tree.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The folder of a device.
    pub fn folder(&self, address: &str) -> PathBuf {
        self.path(&format!("sys/devices/pci0000:00/{address}"))
    }

    /// Writes a file with the line end that sysfs gives.
    pub fn write(&self, path: &str, text: &str) -> io::Result<()> {
        fakes::put(&self.path(path), format!("{text}\n").as_bytes())
    }

    /// Puts a process into KFD's list, which has a file for each device, used or not.
    pub fn compute(&self, on: &On) -> io::Result<()> {
        let folder = format!("sys/class/kfd/kfd/proc/{}", on.pid);
        for node in fs::read_dir(self.path("sys/class/kfd/kfd/topology/nodes"))? {
            let id = fs::read_to_string(node?.path().join("gpu_id"))?;
            let file = format!("{folder}/vram_{}", id.trim());
            if id.trim() != "0" && !self.path(&file).exists() {
                self.write(&file, "0")?;
            }
        }
        let id = FIRST_ID + on.render - FIRST_RENDER;
        self.write(&format!("{folder}/vram_{id}"), &on.bytes.to_string())
    }

    /// A graphics process: two open files of one client.
    pub fn graphics(&self, on: &On, address: &str) -> io::Result<()> {
        let (pid, kib) = (on.pid, on.bytes >> 10);
        let text = format!(
            "pos:\t0\nflags:\t02100002\nmnt_id:\t27\nino:\t1009\ndrm-driver:\tamdgpu\n\
             drm-client-id:\t{pid}\ndrm-pdev:\t{address}\npasid:\t32771\n\
             drm-memory-vram:\t{kib} KiB\ndrm-memory-gtt: \t2048 KiB\ndrm-engine-gfx:\t7 ns"
        );
        for fd in [5, 6] {
            self.write(&format!("proc/{pid}/fdinfo/{fd}"), &text)?;
            let node = self.path(&format!("proc/{pid}/fd/{fd}"));
            fs::create_dir_all(node.parent().unwrap_or(&node))?;
            let number = makedev(DRM_MAJOR, on.render);
            if !node.exists() {
                mknodat(CWD, &node, FileType::CharacterDevice, Mode::empty(), number)?;
            }
        }
        Ok(())
    }

    /// What KFD counts of a process on a device or partition: compute units now, and milliseconds
    /// without them.
    pub fn statistics(&self, on: &On, units: u32, evicted_ms: u64) -> io::Result<()> {
        let id = FIRST_ID + on.render - FIRST_RENDER;
        let folder = format!("sys/class/kfd/kfd/proc/{}/stats_{id}", on.pid);
        self.write(&format!("{folder}/cu_occupancy"), &units.to_string())?;
        self.write(&format!("{folder}/evicted_ms"), &evicted_ms.to_string())
    }

    /// A process has ended. The kernel gives nothing more of a file that is still open; here it is empty.
    pub fn end(&self, pid: u32) -> io::Result<()> {
        let folder = self.path(&format!("sys/class/kfd/kfd/proc/{pid}"));
        for file in fs::read_dir(&folder)?.flatten().filter(|entry| entry.path().is_file()) {
            fs::write(file.path(), "")?;
        }
        fs::remove_dir_all(folder)
    }

    fn device(&self, device: &Device<'_>, seconds: f64, render: u32) -> io::Result<()> {
        let address = address(device);
        let folder = format!("sys/devices/pci0000:00/{address}");
        let put = |file: &str, text: &str| self.write(&format!("{folder}/{file}"), text);
        put("vendor", "0x1002")?;
        let model = models::of(device);
        put("device", &format!("{:#06x}", model.device))?;
        put("unique_id", &format!("{:016x}", unique(device)))?;
        put("product_name", &device.text(&device.group.name))?;
        put("vbios_version", model.vbios)?;
        if let Some(serial) = &device.group.serial {
            put("serial_number", &device.text(serial))?;
        }
        put("power/runtime_status", "active")?;
        let is_divided = parts(device) > 1;
        if !model.is_before_mi300 {
            put("current_compute_partition", if is_divided { "CPX" } else { "SPX" })?;
            put("current_memory_partition", "NPS1")?;
        }
        let labels = [(1, "edge"), (2, "junction"), (3, "mem")].into_iter();
        for (n, label) in labels.filter(|(n, _)| *n > 1 || model.is_before_mi300) {
            put(&format!("hwmon/hwmon{}/temp{n}_label", device.index), label)?;
        }
        self.values(device, seconds)?;
        self.bind(&address)?;
        (0..parts(device)).try_for_each(|part| self.part(device, render + part, part))
    }

    /// The links by which the bus, the driver and DRM name a device.
    fn bind(&self, address: &str) -> io::Result<()> {
        for folder in ["sys/bus/pci/devices", "sys/bus/pci/drivers/amdgpu"] {
            fs::create_dir_all(self.path(folder))?;
            symlink(self.folder(address), self.path(folder).join(address))?;
        }
        symlink(self.path("sys/bus/pci/drivers/amdgpu"), self.folder(address).join("driver"))
    }

    /// A device's, or a partition's, render node and KFD node.
    fn part(&self, device: &Device<'_>, render: u32, part: u32) -> io::Result<()> {
        let index = render - FIRST_RENDER;
        // The first part's render node is the PCI device's; the kernel registers a platform device for
        // each other one (`amdgpu_xcp_drv.c`), which no driver on the bus has.
        let owner = match part {
            0 => self.folder(&address(device)),
            _ => {
                self.path(&format!("sys/devices/platform/amdgpu_xcp_{}", index - device.index - 1))
            }
        };
        let drm = owner.join(format!("drm/renderD{render}"));
        fs::create_dir_all(&drm)?;
        symlink(&owner, drm.join("device"))?;
        fs::write(drm.join("dev"), format!("{DRM_MAJOR}:{render}\n"))?;
        let class = self.path("sys/class/drm");
        fs::create_dir_all(&class)?;
        symlink(drm, class.join(format!("renderD{render}")))?;
        let node = format!("sys/class/kfd/kfd/topology/nodes/{}", index + 2);
        self.write(&format!("{node}/gpu_id"), &(FIRST_ID + index).to_string())?;
        // The partition's number is in the place of the function, as recorded.
        let location = (u32::from(bus(device)) << 8) + part;
        let model = models::of(device);
        let units = model.units / parts(device);
        let mut text = String::new();
        let _ = write!(
            text,
            "cpu_cores_count 0\nsimd_count {}\nmem_banks_count 1\nsimd_per_cu {}\n\
             gfx_target_version {}\nvendor_id 4098\ndevice_id {}\nlocation_id {location}\n\
             domain 0\ndrm_render_minor {render}\nhive_id 15188982192727901047\nunique_id {}\n\
             num_xcc {}",
            units * model.simd_per_unit,
            model.simd_per_unit,
            model.target,
            model.device,
            unique(device),
            (model.dies / parts(device)).max(1),
        );
        self.write(&format!("{node}/properties"), &text)?;
        let size = device.group.memory.total / u64::from(parts(device));
        let bank = format!("heap_type 1\nsize_in_bytes {size}\nflags 0\nwidth 8192");
        self.write(&format!("{node}/mem_banks/0/properties"), &bank)
    }
}

/// The PCI address of a device of a scenario, as the bus names it.
pub fn address(device: &Device<'_>) -> String {
    device.text(&device.group.pci)
}

/// How many parts a device has.
pub fn parts(device: &Device<'_>) -> u32 {
    u32::try_from(device.group.instances.len()).unwrap_or(u32::MAX).max(1)
}

/// Whether a scenario's process is on KFD's list.
pub fn is_compute(list: List) -> bool {
    list == List::Compute
}

fn bus(device: &Device<'_>) -> u8 {
    let address = address(device);
    let bus = address.split(':').nth(1).unwrap_or_default().to_owned();
    u8::from_str_radix(&bus, 16).unwrap_or_default()
}

/// The number in the scenario's UUID, `GPU-` and sixteen digits.
fn unique(device: &Device<'_>) -> u64 {
    let uuid = device.text(&device.group.uuid);
    u64::from_str_radix(uuid.trim_start_matches("GPU-"), 16).unwrap_or_default()
}
