//! Compares devices of one model. One whose clock is far below the others' where the same owners work
//! is slow for a reason of its own; one whose PCIe link has fewer lanes than most is not well in its slot.
//! With fewer than three peers nobody can say which one is wrong.

use super::device::BUSY;
use super::inputs::DeviceReadings;
use super::rules::{LinkPart, RULES, Signal};
use gpuwho_owners::inventory::Inventory;
use std::ops::Range;

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

/// Sets what each device's PCIe link is compared with: the most that it was in this slot, and what most cards
/// of its model on this host have now, as busy or as idle as it is. What device and slot say that they
/// support is no measure: a guest sees the card's own limit alone, whatever lanes are wired to it. An idle
/// device saves power: its generation is not judged, its lanes only where its idle peers keep theirs.
pub(super) fn links(
    devices: &mut [DeviceReadings],
    places: &[Range<usize>],
    inventory: &Inventory,
) {
    let infos: Vec<_> = devices.iter().map(|device| inventory.get(device.gpu)).collect();
    let model = |at: usize| infos.get(at)?.as_ref()?.model.as_deref();
    let is_busy: Vec<_> =
        devices.iter().map(|of| of.vital.busy.is_some_and(|busy| busy >= BUSY)).collect();
    for part in [LinkPart::Lanes, LinkPart::Generation] {
        let is_it = |signal| matches!(signal, Signal::Link(_, of) if of == part);
        let rule = RULES.iter().position(|rule| is_it(rule.signal));
        let Some(place) = rule.and_then(|rule| places.get(rule)) else { continue };
        let now: Vec<_> =
            devices.iter().map(|of| of.values.get(place.start).copied().flatten()).collect();
        for (at, (device, busy)) in devices.iter_mut().zip(&is_busy).enumerate() {
            let peers = is_busy.iter().zip(&now).enumerate().filter(|(peer, (of, _))| {
                *of == busy && model(*peer).is_some() && model(*peer) == model(at)
            });
            let mut peers: Vec<f64> = peers.filter_map(|(_, (_, value))| *value).collect();
            peers.sort_unstable_by(|a, b| b.total_cmp(a));
            // More than half of them have this or more.
            let most = peers.get(peers.len() / 2).filter(|_| peers.len() >= MIN_PEERS).copied();
            let info = infos.get(at).and_then(Option::as_ref).filter(|_| *busy);
            let best = info.and_then(|info| {
                inventory.register().best_link(&info.uuid).get(part as usize).copied()?
            });
            let expected = best.map(|best| best as f64).into_iter().chain(most).reduce(f64::max);
            let is_judged = part == LinkPart::Lanes || *busy;
            if let Some(of) = device.vital.link.get_mut(part as usize) {
                *of = expected.filter(|most| is_judged && *most > 0.0);
            }
        }
    }
}
