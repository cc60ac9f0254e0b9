//! Compares devices of one model on which the same owners work: a device whose clock is far below
//! the others' at the same work is slow for a reason of its own. With fewer than three peers nobody
//! can say which one is wrong.

use super::device::BUSY;
use super::inputs::DeviceReadings;
use gpuwho_owners::inventory::Inventory;

/// Devices that make a comparison.
const MIN_PEERS: usize = 3;

/// Sets the part of its peers' median clock that each busy device has.
pub(super) fn compare(devices: &mut [DeviceReadings], inventory: &Inventory) {
    let is_working = |device: &DeviceReadings| {
        let is_busy = device.vital.busy.is_some_and(|busy| busy >= BUSY);
        is_busy && device.clock.is_some_and(|clock| clock > 0.0) && !device.owners.is_empty()
    };
    let working = devices.iter().filter(|device| is_working(device)).count();
    if working < MIN_PEERS {
        return;
    }
    let infos: Vec<_> = devices.iter().map(|device| inventory.get(device.gpu)).collect();
    let models: Vec<_> = infos
        .iter()
        .map(|info| info.as_ref().filter(|info| info.mig != Some(true)))
        .map(|info| info.and_then(|info| info.model.as_deref()))
        .collect();
    let mut parts = vec![None; devices.len()];
    for ((device, model), part) in devices.iter().zip(&models).zip(&mut parts) {
        if !is_working(device) || model.is_none() {
            continue;
        }
        let peers = devices.iter().zip(&models).filter(|(other, of)| {
            is_working(other) && *of == model && other.owners == device.owners
        });
        let mut clocks: Vec<f64> = peers.filter_map(|(other, _)| other.clock).collect();
        clocks.sort_unstable_by(f64::total_cmp);
        let median = clocks.get(clocks.len() / 2).filter(|_| clocks.len() >= MIN_PEERS);
        *part = device.clock.zip(median).map(|(clock, median)| clock / median);
    }
    for (device, part) in devices.iter_mut().zip(parts) {
        device.vital.behind = part;
    }
}
