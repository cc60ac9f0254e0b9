//! Why a known device is gone, according to the driver's list and the bus. Costs two system calls a
//! tick for each such device.

use super::Unavailable;
use gpuwho_model::catalog::device::DeviceState;
use gpuwho_model::ids::PciAddress;
use gpuwho_model::paths::Paths;
use gpuwho_owners::inventory::register::KnownDevice;
use std::fs;

/// Why a device is at no position: the library has a device without identity, another device took
/// its place, or it is gone.
pub(super) fn absence(
    known: Option<&KnownDevice>,
    drivers: &[&str],
    unnamed: Option<&Unavailable>,
    paths: &Paths,
) -> Unavailable {
    if let Some(by) = known.and_then(|known| known.replaced_by.as_ref()) {
        let why = format!("{by} is at its PCI address");
        return Unavailable { state: DeviceState::Replaced, why };
    }
    if let Some(unavailable) = unnamed {
        let why = format!("not among the identified devices: {}", unavailable.why);
        return Unavailable { state: unavailable.state, why };
    }
    let address = known.and_then(|known| known.pci_address.as_deref());
    let at = address.unwrap_or("an unknown address");
    let bound = address.and_then(PciAddress::parse).and_then(|address| driver(address, paths));
    let what = match bound {
        Some(Bound::ToNone) => "it is unbound from its driver".to_owned(),
        Some(Bound::To(driver)) if !drivers.contains(&driver.as_str()) => {
            format!("it is bound to the driver {driver}")
        }
        _ => "the driver no longer lists it".to_owned(),
    };
    let why = format!("{what} (was at {at}); `gpuwho forget` ends this");
    Unavailable { state: DeviceState::Missing, why }
}

/// The driver binding of a device on the bus.
#[derive(Debug, PartialEq, Eq)]
enum Bound {
    ToNone,
    To(String),
}

/// `None` if the bus has no such device.
fn driver(address: PciAddress, paths: &Paths) -> Option<Bound> {
    let device = paths.sys.join(format!("bus/pci/devices/{address}"));
    match fs::read_link(device.join("driver")) {
        Ok(driver) => driver.file_name().map(|name| Bound::To(name.to_string_lossy().into_owned())),
        Err(_) => device.exists().then_some(Bound::ToNone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::ids::GpuUuid;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_missing_device_reports_its_state_on_the_bus() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::under(folder.path());
        let devices = paths.sys.join("bus/pci/devices");
        for (device, driver) in [("17", None), ("18", Some("vfio-pci")), ("19", Some("vendor-drm"))]
        {
            let device = devices.join(format!("0000:{device}:00.0"));
            fs::create_dir_all(&device).unwrap();
            if let Some(driver) = driver {
                symlink(format!("../../../bus/pci/drivers/{driver}"), device.join("driver"))
                    .unwrap();
            }
        }
        let why = |bus: &str| {
            let known = KnownDevice {
                uuid: GpuUuid::new("GPU-0"),
                vendor: "vendor".to_owned(),
                index: 0,
                model: None,
                pci_address: Some(format!("00000000:{bus}:00.0")),
                serial: None,
                last_seen: 0,
                replaced_by: None,
                best_link: [None; 2],
            };
            let unavailable = absence(Some(&known), &["vendor-drm"], None, &paths);
            assert_eq!(unavailable.state, DeviceState::Missing);
            unavailable.why
        };
        let tail = |bus| format!(" (was at 00000000:{bus}:00.0); `gpuwho forget` ends this");
        let reported = ["17", "18", "19", "1a"].map(why);
        let expected = [
            "it is unbound from its driver".to_owned() + &tail("17"),
            "it is bound to the driver vfio-pci".to_owned() + &tail("18"),
            "the driver no longer lists it".to_owned() + &tail("19"),
            "the driver no longer lists it".to_owned() + &tail("1a"),
        ];
        assert_eq!(reported, expected);
    }
}
