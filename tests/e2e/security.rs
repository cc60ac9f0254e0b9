//! Attacks by a tenant without privileges: each test plays one attacker as a real process of user
//! 65534 and looks at what somebody else sees. `agent/docs/threat-model.md` lists every input with
//! its bound and the test here that tries it.

mod claims;
mod descriptors;
mod endpoint;
mod engines;
mod events;
mod fairness;
mod hang;
mod libraries;
mod memory;
mod packaging;
mod places;
mod probes;
mod ras;
mod receipts;
mod ring;
mod squat;
mod teams;
mod tpu;
mod usage;
