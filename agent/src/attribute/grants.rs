//! What was granted to whom: the devices that the kubelet or Slurm has allocated on this node, used
//! or not. Each source replaces its own list as a whole; one that is down leaves its last.

use super::party::PartyId;
use crate::catalog::share::{GrantKind, GrantSource};
use crate::ids::GpuUuid;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device as an allocator names it; it is bound to a device of the inventory where it is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceName {
    /// The vendor's UUID of a device or of a part of one (`GPU-…`, `MIG-…`).
    Uuid(GpuUuid),
    /// Minor number of its device node (Slurm's device program).
    Minor(u32),
    /// Index in the driver's order.
    Index(u32),
    /// PCI address, lower case.
    Pci(Arc<str>),
    /// Serial number.
    Serial(Arc<str>),
    /// A number that may be its index or its node's minor (a site's mapping files): it names a
    /// device only where both readings of it name no other.
    Number(u32),
    /// The MIG part of a device: the device's number as above, and the GPU instance's id.
    Part(u32, u32),
    /// The MIG instance behind a pair of capability nodes (Slurm's device program).
    Instance {
        /// Minor number of the device's node.
        minor: u32,
        /// GPU instance id.
        gpu_instance: u32,
        /// Compute instance id, where its node is there as well.
        compute_instance: Option<u32>,
    },
}

/// Its node's name before the minor number.
const NVIDIA_NODE: &str = "nvidia";
/// Its number before the minor, where the host has no such node.
const NVIDIA_MAJOR: &str = "195:";
/// Minors of the driver's own nodes: mode setting and control (`nv-linux.h`).
const NVIDIA_OWN: [u32; 2] = [254, 255];

impl DeviceName {
    /// The device behind a node's path or number (`major:minor`); `None` for a node that is of no
    /// one device.
    pub fn of_node(node: &str) -> Option<Self> {
        let number = match node.strip_prefix(NVIDIA_MAJOR) {
            Some(minor) => minor,
            None => node.rsplit('/').next()?.strip_prefix(NVIDIA_NODE)?,
        };
        let minor = number.parse().ok()?;
        (!NVIDIA_OWN.contains(&minor)).then_some(Self::Minor(minor))
    }

    /// The device after which a mapping file is named: `0`, `0.3` for a MIG instance, or a UUID.
    pub fn of_map(name: &str) -> Option<Self> {
        if name.starts_with("GPU-") || name.starts_with("MIG-") {
            return Some(Self::Uuid(GpuUuid::new(name)));
        }
        match name.split_once('.') {
            Some((device, part)) => Some(Self::Part(device.parse().ok()?, part.parse().ok()?)),
            None => name.parse().ok().map(Self::Number),
        }
    }

    /// Whether it names a MIG instance.
    pub fn is_part(&self) -> bool {
        match self {
            Self::Uuid(uuid) => uuid.as_str().starts_with("MIG-"),
            Self::Part(..) | Self::Instance { .. } => true,
            _ => false,
        }
    }
}

/// One device granted to one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What.
    pub device: DeviceName,
    /// To whom.
    pub party: PartyId,
    /// By whom.
    pub source: GrantSource,
    /// Alone or with others.
    pub kind: GrantKind,
    /// The name it was asked for by: `nvidia.com/gpu`, a claim, a gres.
    pub resource: Option<Arc<str>>,
    /// Which part, where several owners were granted the same device: the replica's number.
    pub replica: Option<Arc<str>>,
}

/// What a grant was asked for by, and which part of the device it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GrantWords {
    /// As [`Grant::resource`].
    pub resource: Option<Arc<str>>,
    /// As [`Grant::replica`].
    pub replica: Option<Arc<str>>,
}

/// A grant's words by number, which no other words get; meaningless outside this process of the
/// agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(u32);

/// Every grant, by source.
#[derive(Clone, Debug, Default)]
pub struct Grants(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    lists: BTreeMap<&'static str, Arc<[Grant]>>,
    ids: HashMap<GrantWords, GrantId>,
    words: HashMap<GrantId, Arc<GrantWords>>,
    /// Words in no list when one was last replaced; their series end meanwhile.
    idle: HashSet<GrantId>,
    next: u32,
}

impl Grant {
    /// What it was asked for by.
    pub fn words(&self) -> GrantWords {
        GrantWords { resource: self.resource.clone(), replica: self.replica.clone() }
    }
}

impl Grants {
    /// A source's whole list, in place of its last.
    pub fn replace(&self, source: &'static str, grants: Vec<Grant>) {
        let mut known = self.lock();
        if known.lists.get(source).is_some_and(|list| **list == *grants) {
            return;
        }
        known.lists.insert(source, grants.into());
        known.number();
    }

    /// How many a source has listed.
    pub fn count(&self, source: &str) -> usize {
        self.lock().lists.get(source).map_or(0, |list| list.len())
    }

    /// Every source's list.
    pub fn all(&self) -> Vec<Arc<[Grant]>> {
        self.lock().lists.values().map(Arc::clone).collect()
    }

    /// The number of a listed grant's words.
    pub fn id(&self, grant: &Grant) -> Option<GrantId> {
        self.lock().ids.get(&grant.words()).copied()
    }

    /// The words of a number; the `Arc` never changes.
    pub fn words(&self, id: GrantId) -> Option<Arc<GrantWords>> {
        self.lock().words.get(&id).map(Arc::clone)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Numbers new words, and forgets those that no list has had for two changes.
    fn number(&mut self) {
        let Self { lists, ids, words, idle, next } = self;
        let listed = lists.values().flat_map(|list| list.iter()).map(Grant::words);
        let mut used = HashSet::new();
        for grant in listed {
            let id = *ids.entry(grant).or_insert_with_key(|grant| {
                let id = GrantId(*next);
                *next = next.wrapping_add(1);
                words.insert(id, Arc::new(grant.clone()));
                id
            });
            used.insert(id);
        }
        let is_over = |id: &GrantId| !used.contains(id) && idle.contains(id);
        ids.retain(|_, id| !is_over(id));
        words.retain(|id, _| !is_over(id));
        *idle = words.keys().filter(|id| !used.contains(id)).copied().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_s_own_node_has_its_minor() {
        for (node, expected) in [
            ("/dev/nvidia0", Some(0)),
            ("/host/dev/nvidia12", Some(12)),
            ("195:3", Some(3)),
            ("195:255", None),
            ("/dev/nvidiactl", None),
            ("/dev/nvidia-uvm", None),
            ("/dev/nvidia-caps/nvidia-cap1", None),
            ("235:3", None),
            ("/dev/dri/renderD128", None),
        ] {
            assert_eq!(DeviceName::of_node(node), expected.map(DeviceName::Minor), "{node}");
        }
    }

    #[test]
    fn a_mapping_file_is_named_after_its_device() {
        let uuid = |text| DeviceName::Uuid(GpuUuid::new(text));
        for (name, expected) in [
            ("10", Some(DeviceName::Number(10))),
            ("0.3", Some(DeviceName::Part(0, 3))),
            ("GPU-4e1a", Some(uuid("GPU-4e1a"))),
            ("MIG-4e1a", Some(uuid("MIG-4e1a"))),
            ("-1", None),
            ("0.", None),
            ("0.3.1", None),
            ("README", None),
        ] {
            assert_eq!(DeviceName::of_map(name), expected, "{name}");
        }
    }

    #[test]
    fn a_source_replaces_its_own_list_only() {
        let grant = |index| Grant {
            device: DeviceName::Index(index),
            party: PartyId::UNATTRIBUTED,
            source: GrantSource::Slurm,
            kind: GrantKind::Exclusive,
            resource: None,
            replica: None,
        };
        let grants = Grants::default();
        grants.replace("kubelet", vec![grant(0)]);
        grants.replace("slurm", vec![grant(1), grant(2)]);
        grants.replace("slurm", vec![grant(3)]);
        let all: Vec<Grant> = grants.all().iter().flat_map(|list| list.to_vec()).collect();
        assert_eq!(all, [grant(0), grant(3)]);
    }

    #[test]
    fn words_keep_their_number_while_they_are_listed_and_for_one_change_more() {
        let grant = |replica: &str| Grant {
            device: DeviceName::Index(0),
            party: PartyId::UNATTRIBUTED,
            source: GrantSource::Kubelet,
            kind: GrantKind::Replica,
            resource: Some("nvidia.com/gpu.shared".into()),
            replica: Some(replica.into()),
        };
        let grants = Grants::default();
        grants.replace("kubelet", vec![grant("0"), grant("1")]);
        let [zero, one] = ["0", "1"].map(|replica| grants.id(&grant(replica)).unwrap());
        assert_ne!(zero, one);
        grants.replace("kubelet", vec![grant("1")]);
        assert_eq!(grants.id(&grant("1")), Some(one));
        assert_eq!(grants.words(zero).as_deref(), Some(&grant("0").words()));
        grants.replace("kubelet", vec![grant("1"), grant("2")]);
        assert_eq!((grants.words(zero), grants.id(&grant("0"))), (None, None));
        grants.replace("kubelet", vec![grant("0")]);
        assert!(![zero, one].contains(&grants.id(&grant("0")).unwrap()));
    }
}
