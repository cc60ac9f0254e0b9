//! A device's identity: read once per handle; missing parts are read again until they are known.

use super::caller::{Call, NvmlCaller};
use super::{MAJOR, Versions};
use gpuwho_model::ids::GpuUuid;
use gpuwho_owners::inventory::GpuInfo;
use gpuwho_sys::nvml::board::confidential;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

/// The driver's and CUDA's versions, if the library reports them.
pub(super) fn versions(nvml: &Nvml) -> Versions {
    let cuda = nvml.sys_cuda_driver_version().ok().map(|version| {
        format!("{}.{}", cuda_driver_version_major(version), cuda_driver_version_minor(version))
    });
    let confidential = confidential(nvml).ok();
    Versions { driver: nvml.sys_driver_version().ok(), cuda, confidential }
}

/// Reads what identifies a device: its UUID; `None` without. [`complete`] reads the rest.
pub(super) fn read(
    device: &Device<'_>,
    index: u32,
    caller: &mut NvmlCaller,
    versions: &Versions,
) -> Option<GpuInfo> {
    let uuid = caller.call(Call::Uuid, || device.uuid())?;
    Some(GpuInfo {
        driver_version: versions.driver.clone(),
        cuda_version: versions.cuda.clone(),
        ..GpuInfo::new(GpuUuid::new(&uuid), super::VENDOR.name, index)
    })
}

/// Reads the missing parts of a device's identity, except its MIG mode; true if any was found.
/// Events and kernel lines refer to a device by its address: one failed call must not lose it.
pub(super) fn complete(device: &Device<'_>, caller: &mut NvmlCaller, info: &mut GpuInfo) -> bool {
    let known = |info: &GpuInfo| {
        let words = [&info.model, &info.pci_address, &info.serial].map(Option::is_some);
        (info.minor.is_some(), words)
    };
    let before = known(info);
    if info.minor.is_none() {
        info.minor = caller.call(Call::Minor, || device.minor_number());
        let nodes = info.minor.map(|minor| vec![super::node(minor), format!("{MAJOR}:{minor}")]);
        info.nodes = nodes.unwrap_or_default();
    }
    if info.model.is_none() {
        info.model = caller.call(Call::Name, || device.name());
    }
    if info.pci_address.is_none() {
        let pci = caller.call(Call::Pci, || device.pci_info());
        info.pci_address = pci.map(|pci| pci.bus_id.to_ascii_lowercase());
    }
    if info.serial.is_none() {
        info.serial = caller.call(Call::Serial, || device.serial());
    }
    known(info) != before
}
