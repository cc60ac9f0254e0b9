//! Facts about a board as text: versions, serial numbers, its place in the rack. Each vendor's
//! reader sets those it can read.

use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::attributes::{AttrKey, AttrSet};
use serde::{Deserialize, Serialize};

/// Declares the facts.
macro_rules! facts {
    ($($(#[doc = $doc:literal])+ $fact:ident = $key:ident;)+) => {
        /// A fact about a board.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Fact { $($(#[doc = $doc])+ $fact,)+ }

        impl Fact {
            /// The attribute of `gpu.info` that carries it.
            pub fn key(self) -> &'static AttrKey {
                match self { $(Self::$fact => &attr::$key),+ }
            }
        }
    };
}

facts! {
    /// VBIOS version.
    Vbios = GPU_VBIOS_VERSION;
    /// Part number.
    Part = GPU_BOARD_PART;
    /// Firmware version of the GPU System Processor (GSP).
    GspFirmware = GPU_GSP_VERSION;
    /// Version of the InfoROM's image.
    InforomImage = GPU_INFOROM_IMAGE;
    /// Version of the InfoROM's OEM object.
    InforomOem = GPU_INFOROM_OEM;
    /// Version of the InfoROM's ECC object.
    InforomEcc = GPU_INFOROM_ECC;
    /// Version of the InfoROM's power object.
    InforomPower = GPU_INFOROM_POWER;
    /// Checksum of the InfoROM's configuration.
    InforomChecksum = GPU_INFOROM_CHECKSUM;
    /// The module's number on the baseboard.
    Module = GPU_MODULE_ID;
    /// How device and host address each other's memory.
    Addressing = GPU_ADDRESSING_MODE;
    /// Serial number of the chassis.
    Chassis = GPU_CHASSIS_SERIAL;
    /// Slot in the chassis.
    Slot = GPU_PLATFORM_SLOT;
    /// Compute tray in the chassis.
    Tray = GPU_PLATFORM_TRAY;
    /// Node in the slot.
    Host = GPU_PLATFORM_HOST;
    /// The peer of its NVLinks: other devices directly, or a switch.
    Peer = GPU_PLATFORM_PEER;
    /// NVLink generation.
    NvLink = GPU_NVLINK_VERSION;
    /// Cluster of the NVLink fabric.
    FabricCluster = GPU_FABRIC_CLUSTER;
    /// Clique in that cluster.
    FabricClique = GPU_FABRIC_CLIQUE;
    /// Confidential computing.
    Confidential = GPU_CONFIDENTIAL_MODE;
    /// Environment of confidential computing.
    ConfidentialEnvironment = GPU_CONFIDENTIAL_ENVIRONMENT;
    /// How its compute units are partitioned.
    ComputePartition = GPU_PARTITION_COMPUTE;
    /// How its memory is partitioned.
    MemoryPartition = GPU_PARTITION_MEMORY;
}

/// The facts about one board, at most one of each kind, in the order of [`Fact`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts(Vec<(Fact, String)>);

impl Facts {
    /// Sets or removes a fact; returns whether that changed anything.
    pub fn set(&mut self, fact: Fact, text: Option<String>) -> bool {
        let place = self.0.binary_search_by_key(&fact, |(known, _)| *known);
        match (place, text) {
            (Ok(place), Some(text)) => match self.0.get_mut(place) {
                Some((_, known)) if *known != text => {
                    *known = text;
                    true
                }
                _ => false,
            },
            (Ok(place), None) => {
                self.0.remove(place);
                true
            }
            (Err(place), Some(text)) => {
                self.0.insert(place, (fact, text));
                true
            }
            (Err(_), None) => false,
        }
    }

    /// The text of a fact.
    pub fn get(&self, fact: Fact) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == fact).map(|(_, text)| text.as_str())
    }

    /// Adds all facts to a set of attributes.
    pub(super) fn add_to(&self, set: &mut AttrSet) {
        for (fact, text) in &self.0 {
            set.set(fact.key(), text.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Fact, Facts};

    #[test]
    fn only_a_new_different_or_removed_fact_is_a_change() {
        let mut facts = Facts::default();
        let mut set = |text: Option<&str>| facts.set(Fact::FabricClique, text.map(str::to_owned));
        let changes = [None, Some("7"), Some("7"), Some("8"), None, None].map(&mut set);
        assert_eq!(changes, [false, true, false, true, true, false]);
    }

    #[test]
    fn facts_have_one_order_whatever_order_they_are_set_in() {
        let reported = |order: [Fact; 3]| {
            let mut facts = Facts::default();
            for fact in order {
                facts.set(fact, Some(format!("{fact:?}")));
            }
            facts
        };
        let facts = reported([Fact::Module, Fact::Vbios, Fact::Chassis]);
        assert_eq!(facts, reported([Fact::Chassis, Fact::Module, Fact::Vbios]));
        assert_eq!(facts.get(Fact::Vbios), Some("Vbios"));
    }
}
