//! The identities inside the agent. Each is parsed once, where it is read, and is never a bare
//! string or number after that.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A device as numbered by [`gpuwho_owners::inventory::Inventory`]: small, `Copy`, stable while the agent
/// runs, and meaningless outside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuId(pub u16);

/// A MIG instance as numbered by [`gpuwho_owners::inventory::Inventory`], like [`GpuId`]. One that was
/// destroyed keeps its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(pub u16);

/// A process that cannot be confused with a later one of the same number: the PID in the agent's
/// (the host's) PID namespace and the start time of its thread group leader, in clock ticks since
/// boot as `/proc/PID/stat` field 22 and the kernel's `start_boottime` both give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcKey {
    /// Thread group id.
    pub pid: u32,
    /// Start time in clock ticks (1/100 s) since boot.
    pub start_ticks: u64,
}

impl fmt::Display for ProcKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.pid, self.start_ticks)
    }
}

/// The hierarchy a cgroup id belongs to: ids are unique only within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hierarchy {
    /// The unified hierarchy (cgroup2).
    V2,
    /// cgroup v1 `devices`.
    Devices,
    /// cgroup v1 `memory`.
    Memory,
    /// cgroup v1 `freezer`.
    Freezer,
}

/// A cgroup by its kernel id: the inode number of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CgroupId {
    /// The hierarchy in which `id` is unique.
    pub hierarchy: Hierarchy,
    /// Inode number of the cgroup's directory, `kernfs_node.id` in the kernel.
    pub id: u64,
}

/// A function of a PCI device: virtual functions of one device are devices of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Segment.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function; 0 if the source does not name it, as NVIDIA's driver, whose GPUs are always
    /// function 0.
    pub function: u8,
}

impl PciAddress {
    /// Parses `0000:17:00`, `0000:17:00.0`, `00000000:17:00.0` or `PCI:0000:17:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("PCI:").unwrap_or(text);
        let mut parts = text.split(':');
        let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
        let (device, function) = device.split_once('.').unwrap_or((device, "0"));
        let number = |text: &str, longest: usize| {
            let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_number = is_hex && (1..=longest).contains(&text.len());
            is_number.then(|| u32::from_str_radix(text, 16).ok())?
        };
        let small = |text, longest| number(text, longest).and_then(|n| u8::try_from(n).ok());
        let is_end = parts.next().is_none();
        Some(Self {
            domain: number(domain, 8).filter(|_| is_end)?,
            bus: small(bus, 2)?,
            device: small(device, 2)?,
            function: small(function, 1)?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

macro_rules! text_id {
    ($(#[doc = $doc:literal])+ $name:ident) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps text that the caller has already recognised as this kind of id.
            pub fn new(text: &str) -> Self {
                Self(Arc::from(text))
            }

            /// The id as its source spells it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// The vendor's own identifier of a device, exactly as the driver spells it (`GPU-…`, `MIG-…`).
    GpuUuid
}
text_id! {
    /// A container id as the runtime writes it into the cgroup path, usually 64 hex digits.
    ContainerId
}
text_id! {
    /// A pod's UID: 8-4-4-4-12 hex digits, or 32 for a static pod.
    PodUid
}
text_id! {
    /// A Slurm job as the node's cgroup names it: a number, or a SLUID from Slurm 26.05 on.
    SlurmJobId
}
/// The place of a partition (a MIG instance, for example) on its device, as the driver's process
/// lists name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// GPU instance id of MIG; the partition's number for other vendors.
    pub gpu_instance: u32,
    /// Compute instance id of MIG.
    pub compute_instance: Option<u32>,
}

/// An owner's number; it has no meaning outside this process of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(u32);

impl OwnerId {
    /// The number of the owner of what is nobody's.
    pub const UNATTRIBUTED: Self = Self(0);
    /// The number of all owners beyond a limit.
    pub const OTHER: Self = Self(1);
    /// The largest number.
    pub const LAST: Self = Self(u32::MAX);

    /// The number in the kernel's maps.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The owner with a number from the kernel's maps.
    pub fn numbered(number: u32) -> Self {
        Self(number)
    }
}

/// A membership by number; meaningless outside this process of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u32);

/// An engine instance by number; meaningless outside this process of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineId(pub u32);

/// The number of an allocation's details; a number is not reused, and has no meaning outside this
/// process of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllocationId(pub u32);
