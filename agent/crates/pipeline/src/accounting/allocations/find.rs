//! Which device or instance of the inventory an allocator's name is.

use gpuwho_model::ids::{GpuId, InstanceId};
use gpuwho_owners::inventory::{DeviceName, GpuInfo, InstanceInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The one device that a name matches, and the MIG instance if the name is an instance's. `None` if
/// none or several match.
pub(super) fn find(
    name: &DeviceName,
    devices: &[(GpuId, Arc<GpuInfo>)],
    instances: &[(InstanceId, Arc<InstanceInfo>)],
) -> Option<(GpuId, Option<InstanceId>)> {
    let is_numbered =
        |info: &GpuInfo, number: &u32| info.index == *number || info.minor == Some(*number);
    let is_it = |info: &InstanceInfo| match name {
        DeviceName::Uuid(uuid) => info.uuid == *uuid,
        DeviceName::Part(number, part) => {
            let mut on = devices.iter().filter(|(_, device)| is_numbered(device, number));
            let is_on = on.next().is_some_and(|(gpu, _)| info.gpu == *gpu);
            info.gpu_instance == *part && is_on && on.next().is_none()
        }
        DeviceName::Instance { device, gpu_instance, compute_instance } => {
            let on = devices.iter().find(|(gpu, _)| info.gpu == *gpu);
            on.is_some_and(|(_, whole)| whole.has_node(device))
                && info.gpu_instance == *gpu_instance
                && (compute_instance.is_none() || info.compute_instance == *compute_instance)
        }
        DeviceName::Placed { minor, profile, .. } => {
            let on = devices.iter().find(|(gpu, _)| info.gpu == *gpu);
            on.is_some_and(|(_, whole)| whole.minor == Some(*minor))
                && info.profile.as_deref().is_some_and(|known| *dns_name(known) == **profile)
        }
        _ => false,
    };
    let mut parts = instances.iter().filter(|(_, info)| is_it(info));
    if let Some((instance, info)) = parts.next() {
        return parts.next().is_none().then_some((info.gpu, Some(*instance)));
    }
    let mut named = devices.iter().filter(|(_, info)| match name {
        DeviceName::Uuid(uuid) => info.uuid == *uuid,
        DeviceName::Minor(minor) => info.minor == Some(*minor),
        DeviceName::Node(node) => info.has_node(node),
        DeviceName::Index(index) => info.index == *index,
        DeviceName::IndexOf(vendor, index) => info.vendor == *vendor && info.index == *index,
        DeviceName::Number(number) => is_numbered(info, number),
        DeviceName::Part(..) | DeviceName::Instance { .. } | DeviceName::Placed { .. } => false,
        DeviceName::Serial(serial) => info.serial.as_deref() == Some(&**serial),
        DeviceName::Pci(address) => {
            info.pci_address.as_deref().is_some_and(|known| bare(known) == bare(address))
        }
    });
    let (gpu, _) = named.next()?;
    named.next().is_none().then_some((*gpu, None))
}

/// Where the instances of each device and profile start that names have by their places.
pub(super) type Starts<'a> = BTreeMap<(u32, &'a str), BTreeSet<u32>>;

/// The starts in all of these names.
pub(super) fn starts<'a>(names: impl Iterator<Item = &'a DeviceName>) -> Starts<'a> {
    let mut all = Starts::new();
    for name in names {
        if let DeviceName::Placed { minor, profile, start } = name {
            all.entry((*minor, &**profile)).or_default().insert(*start);
        }
    }
    all
}

/// Whether no other name is that of another instance of the profile, which only their places tell apart.
pub(super) fn is_told_apart(name: &DeviceName, starts: &Starts<'_>) -> bool {
    let DeviceName::Placed { minor, profile, .. } = name else { return true };
    starts.get(&(*minor, &**profile)).is_none_or(|starts| starts.len() == 1)
}

/// A profile as NVIDIA's driver of claims names it (`mig.go` toRFC1123Compliant).
fn dns_name(profile: &str) -> String {
    let letters = profile.chars().filter(|letter| *letter != '.');
    let letters = letters.map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' });
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// A PCI address without leading zeros: drivers write the domain with four or eight digits.
fn bare(address: &str) -> &str {
    address.trim_start_matches('0')
}
