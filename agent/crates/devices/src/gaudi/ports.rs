//! The network ports of all devices, read by a thread of its own: the firmware takes a tenth of a
//! second for each port, and a host has up to 192 (measured by users of hl 1.24).
//!
//! A round over the ports is followed by a pause. A device's sums exist once each of its ports was
//! read, and are left out when the thread has hung for some rounds.

use crate::wire::{WireValue, push};
use gpuwho_model::catalog::interconnect::{self as metric, PeerLink};
use gpuwho_model::catalog::link::{Direction, LinkState};
use gpuwho_sys::hlml::{Handle, Hlml};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Between two rounds.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a round is used.
const MAX_AGE: Duration = Duration::from_mins(2);
/// The counters of a port by direction (hl 1.24).
const OCTETS: [(&str, Direction); 2] =
    [("rx_Octets", Direction::Receive), ("tx_Octets", Direction::Transmit)];

/// What the thread read last, by the device's PCI address.
#[derive(Default)]
pub(super) struct Ports(Mutex<BTreeMap<String, Round>>);

/// One device's ports.
struct Round {
    at: Instant,
    /// Whether each port is up, by its number.
    links: BTreeMap<u32, bool>,
    /// Bytes received and sent, of each port of which both were read.
    octets: BTreeMap<u32, [u64; 2]>,
}

impl Ports {
    /// Starts the thread.
    pub(super) fn start(hlml: &'static Hlml, addresses: Vec<String>) -> Arc<Self> {
        let ports = Arc::new(Self::default());
        let shared = Arc::clone(&ports);
        let body = move || {
            loop {
                for address in &addresses {
                    shared.read(hlml, address);
                }
                thread::sleep(PAUSE);
            }
        };
        // Without it the ports are left out.
        let _ = thread::Builder::new().name("gaudi:ports".to_owned()).spawn(body);
        ports
    }

    /// Reads the ports of a device.
    pub(super) fn read(&self, hlml: &Hlml, address: &str) {
        let Some(round) = hlml.device(address).ok().and_then(|device| round(hlml, device)) else {
            self.0.lock().remove(address);
            return;
        };
        self.0.lock().insert(address.to_owned(), round);
    }

    /// Adds a device's values.
    pub(super) fn values(&self, address: &str, out: &mut Vec<WireValue>) {
        let rounds = self.0.lock();
        let Some(round) = rounds.get(address).filter(|round| round.at.elapsed() <= MAX_AGE) else {
            return;
        };
        for (state, is_up) in [(LinkState::Active, true), (LinkState::Inactive, false)] {
            let count = round.links.values().filter(|up| **up == is_up).count();
            push(out, &metric::LINKS, state, i64::try_from(count).ok());
        }
        for (link, (_, is_up)) in PeerLink::all().zip(&round.links) {
            push(out, &metric::LINK_ACTIVE, link, Some(i64::from(*is_up)));
        }
        if round.octets.len() != round.links.len() {
            // A sum without one of them is another sum.
            return;
        }
        for (at, (_, direction)) in OCTETS.iter().enumerate() {
            let all = round.octets.values().filter_map(|octets| octets.get(at));
            let sum = all.fold(0_u64, |sum, octets| sum.saturating_add(*octets));
            push(out, &metric::IO, *direction, i64::try_from(sum).ok());
        }
    }
}

fn round(hlml: &Hlml, device: Handle) -> Option<Round> {
    let ports = hlml.ports(device).ok().filter(|ports| !ports.is_empty())?;
    let mut round = Round { at: Instant::now(), links: BTreeMap::new(), octets: BTreeMap::new() };
    for port in ports.into_iter().take(usize::from(PeerLink::COUNT)) {
        if let Ok(is_up) = hlml.port_is_up(device, port) {
            round.links.insert(port, is_up);
        }
        let counters = hlml.port_counters(device, port).unwrap_or_default();
        let octets = OCTETS.map(|(name, _)| {
            let counter = counters.iter().find(|(known, _)| known == name);
            counter.map(|(_, octets)| *octets).filter(|octets| *octets != u64::MAX)
        });
        if let [Some(received), Some(sent)] = octets {
            round.octets.insert(port, [received, sent]);
        }
    }
    Some(round)
}
