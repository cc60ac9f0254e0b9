//! What is known of a board in words: versions, serial numbers, its place in the rack. A vendor
//! tells those that it knows.

use crate::catalog::attributes::{self as attr, AttrKey, AttrSet};
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
    /// Version of the firmware of the board's own processor.
    GspFirmware = GPU_GSP_VERSION;
    /// Version of the InfoROM's image.
    InforomImage = GPU_INFOROM_IMAGE;
    /// Version of its OEM object.
    InforomOem = GPU_INFOROM_OEM;
    /// Version of its ECC object.
    InforomEcc = GPU_INFOROM_ECC;
    /// Version of its power object.
    InforomPower = GPU_INFOROM_POWER;
    /// Checksum of its configuration.
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
    /// What NVLink leads to.
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
}

/// The facts about one board, each once, in the order of [`Fact`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts(Vec<(Fact, String)>);

impl Facts {
    /// Sets a fact, or takes it away; true when that changed something.
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

    /// A fact.
    pub fn get(&self, fact: Fact) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == fact).map(|(_, text)| text.as_str())
    }

    /// Adds all of them to a set of attributes.
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
    fn a_fact_that_changes_or_goes_is_a_change_and_one_told_again_is_none() {
        let mut facts = Facts::default();
        let mut set = |text: Option<&str>| facts.set(Fact::FabricClique, text.map(str::to_owned));
        let changes = [None, Some("7"), Some("7"), Some("8"), None, None].map(&mut set);
        assert_eq!(changes, [false, true, false, true, true, false]);
    }

    #[test]
    fn facts_have_one_order_whatever_order_they_are_told_in() {
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
