//! The process that asks `libamd_smi.so` who the devices are, and ends: in the table of readers it would be a
//! vendor without samples. It has no capability, unlike the process that reads the files, so that it loads
//! the library in its place.
//!
//! Nearly all that the library answers it reads from the same files itself. What it has besides is the
//! product's name by libdrm's table, for boards that do not have their name in a file (all Radeons), and the
//! part number of the VBIOS by an ioctl. Its opening takes a tenth of a second and more.

use super::super::{OpenError, OpenLibrary, OpenOptions, Vendor, sysfs};
use super::DRIVER;
use crate::DeviceRead;
use crate::files::Files;
use crate::in_flight;
use crate::library::{Library, Substitute};
use crate::wire::{OpenErrorKind, Outcome, Reading};
use gpuwho_owners::inventory::GpuInfo;
use gpuwho_owners::inventory::facts::Fact;
use gpuwho_owners::nodes::VendorNodes;
use gpuwho_sys::amdsmi::{AmdSmi, AmdSmiError, Board, Handle, LoadError};
use std::path::PathBuf;
use std::time::Instant;

pub(crate) const LIBRARY: Library = Library {
    name: "libamd_smi.so",
    places: &["/opt/rocm/lib", "/opt/rocm/lib64"],
    node: "kfd",
    // Without it the files are read.
    substitute: Substitute::Program(&[]),
};

/// The reader of this process.
pub(crate) static SMI: Vendor = Vendor {
    name: "amd-smi",
    library: Some(LIBRARY),
    remedy: "install the driver, or name the library in the configuration",
    nodes: VendorNodes { drivers: &[DRIVER], ..VendorNodes::NONE },
    listed: |paths| sysfs::bound(paths, &[DRIVER]),
    source: |_| Err("it has words only"),
    open,
    ..Vendor::DEFAULT
};

fn open(opening: &OpenOptions<'_>) -> Result<OpenLibrary, OpenError> {
    let loaded = AmdSmi::load(opening.library).map_err(|error| {
        let refusal = match &error {
            LoadError::Link(_) => OpenErrorKind::Unloadable,
            LoadError::Version(_) => OpenErrorKind::Mismatch,
            LoadError::Call(..) => OpenErrorKind::Failed,
        };
        OpenError { refusal, text: error.to_string() }
    })?;
    // Never freed: a thread may hang in it for ever. The process exits next.
    let smi: &'static AmdSmi = Box::leak(Box::new(loaded));
    let devices = sysfs::bound_devices(opening.paths, &[DRIVER]).map(|(index, address, folder)| {
        let files = Files::default();
        Box::new(Device { smi, address, folder, index, files }) as Box<dyn DeviceRead>
    });
    sysfs::library(devices.collect(), opening.paths, SMI.listed, &sysfs::unbound(&[DRIVER]))
}

/// One device.
struct Device {
    smi: &'static AmdSmi,
    address: String,
    folder: PathBuf,
    index: u32,
    files: Files,
}

/// A function that fills a part of what is known of a board.
type Fill = fn(&AmdSmi, Handle, &mut Board) -> Result<(), AmdSmiError>;

impl Device {
    fn call<T>(
        &mut self,
        name: &'static str,
        body: impl FnOnce() -> Result<T, AmdSmiError>,
    ) -> Result<T, String> {
        let begun = Instant::now();
        let answer = in_flight::call(format_args!("{name}"), body);
        let has_failed = matches!(answer, Err(AmdSmiError::Failed(_)));
        self.files.count_call(begun.elapsed(), has_failed);
        answer.map_err(|error| format!("{name}: {error}"))
    }

    fn board(&mut self) -> Result<Board, String> {
        let (smi, address) = (self.smi, self.address.clone());
        let name = "amdsmi_get_processor_handle_from_bdf";
        let handle = self.call(name, || smi.device(&address))?;
        let mut board = Board::default();
        let calls: [(&'static str, Fill); 3] = [
            ("amdsmi_get_gpu_asic_info", AmdSmi::asic),
            ("amdsmi_get_gpu_board_info", AmdSmi::board),
            ("amdsmi_get_gpu_vbios_info", AmdSmi::vbios),
        ];
        let mut failures = Vec::new();
        for (name, fill) in calls {
            failures.extend(self.call(name, || fill(smi, handle, &mut board)).err());
        }
        // One that fails takes nothing from the others.
        if failures.len() == calls.len() { Err(failures.swap_remove(0)) } else { Ok(board) }
    }
}

impl DeviceRead for Device {
    fn read(&mut self, _: &[u32]) -> Reading {
        let mut reading = sysfs::begin(&mut self.files);
        match self.board() {
            Ok(board) => {
                let uuid = super::uuid(&self.folder, &self.address);
                let mut info = GpuInfo {
                    model: board.market_name,
                    serial: board.serial,
                    ..GpuInfo::new(uuid, super::VENDOR.name, self.index)
                };
                info.facts.set(Fact::Part, board.model_number);
                info.facts.set(Fact::Vbios, board.vbios_part);
                info.facts.set(Fact::Module, board.oam.map(|oam| oam.to_string()));
                reading.identity = Some(info);
            }
            Err(why) => reading.outcome = Outcome::Failing(why),
        }
        sysfs::end(&self.files, reading)
    }
}
