//! What a device is: asked once a handle.

use super::Versions;
use super::ask::{Ask, Call};
use crate::ids::GpuUuid;
use crate::inventory::GpuInfo;
use crate::inventory::facts::Facts;
use crate::sys::nvml::board::confidential;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

/// The driver's and CUDA's versions, as far as the library tells.
pub(super) fn versions(nvml: &Nvml) -> Versions {
    let cuda = nvml.sys_cuda_driver_version().ok().map(|version| {
        format!("{}.{}", cuda_driver_version_major(version), cuda_driver_version_minor(version))
    });
    let confidential = confidential(nvml).ok();
    Versions { driver: nvml.sys_driver_version().ok(), cuda, confidential }
}

/// Reads a device's identity, but for its MIG mode; `None` without a UUID, which is what identifies
/// it.
pub(super) fn read(
    device: &Device<'_>,
    index: u32,
    ask: &mut Ask,
    versions: &Versions,
) -> Option<GpuInfo> {
    let uuid = ask.ask(Call::Uuid, || device.uuid())?;
    let pci = ask.ask(Call::Pci, || device.pci_info());
    Some(GpuInfo {
        uuid: GpuUuid::new(&uuid),
        vendor: super::VENDOR.name.to_owned(),
        index,
        minor: ask.ask(Call::Minor, || device.minor_number()),
        model: ask.ask(Call::Name, || device.name()),
        pci_address: pci.map(|pci| pci.bus_id.to_ascii_lowercase()),
        serial: ask.ask(Call::Serial, || device.serial()),
        driver_version: versions.driver.clone(),
        cuda_version: versions.cuda.clone(),
        mig: None,
        facts: Facts::default(),
    })
}
