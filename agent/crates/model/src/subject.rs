//! The kinds of subjects: what a sample can be about, with one row for each kind. To add a kind,
//! write its type and its entry in [`Subject`], its row here, and how its identity is
//! looked up (`identity`).

use crate::ids::{AllocationId, EngineId, GpuId, InstanceId, MemberId, OwnerId, ProcKey};
use crate::metric::MetricDef;

/// A rank's messages of one size, algorithm and protocol, of which a source computes a mean. The
/// source bounds their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Recent {
    /// The rank.
    pub member: MemberId,
    /// NCCL's algorithm and protocol; `None` for messages that have none.
    pub method: Option<Method>,
    /// The least size in bytes.
    pub size: u64,
}

/// One XID code of a device: an open set, but a small one (the driver has some 170 codes; a healthy
/// device reports none).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuXid {
    /// The device.
    pub gpu: GpuId,
    /// The code.
    pub code: u16,
}

/// A process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuProcess {
    /// The device.
    pub gpu: GpuId,
    /// The process.
    pub process: ProcKey,
    /// The MIG instance it is in.
    pub instance: Option<InstanceId>,
}

/// An owner's part of a device: what it holds or uses, or what is allocated to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuOwner {
    /// The device.
    pub gpu: GpuId,
    /// The owner.
    pub owner: OwnerId,
}

/// A device, or a part of one, allocated to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuAllocation {
    /// The device.
    pub gpu: GpuId,
    /// The allocated MIG instance, if the allocation is of one.
    pub instance: Option<InstanceId>,
    /// The owner.
    pub owner: OwnerId,
    /// The resource, the replica and other details of the allocation.
    pub details: Option<AllocationId>,
}

/// An inference engine on one of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineGpu {
    /// The engine.
    pub engine: EngineId,
    /// The device.
    pub gpu: GpuId,
    /// The MIG instance that the engine's process is in.
    pub instance: Option<InstanceId>,
}

/// The agent itself, as a subject type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Agent;

impl Agent {
    /// The name of the source of its own figures.
    pub const SOURCE: &'static str = "agent";
}

/// One of the agent's sources, as a subject type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source(pub &'static str);

/// The host, as a subject type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host;

/// The cgroup of an owner that holds a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerCgroup(pub OwnerId);

/// A kind of subject.
pub trait SubjectKind: Copy + Into<Subject> {
    /// The kind in the catalogue: `gpu`, `instance`, `process`.
    const WORD: &'static str;

    /// The kind in documents: `a device`.
    const ABOUT: &'static str;

    /// Whether its counters start at zero with the agent. Others exist before the agent.
    const BEGINS_WITH_AGENT: bool = false;

    /// Whether its identity can change without a change of an owner or a device.
    const CHANGES_BY_ITSELF: bool = false;

    /// Which series are dropped first at the series limit.
    fn class(self, metric: &MetricDef) -> SeriesClass;
}

/// Implements [`SubjectKind`]: the type, the word, the words of documents, what is dropped when, and
/// what is true of it.
macro_rules! kinds {
    ($($of:ty: $word:literal, $about:literal, $class:expr $(, $is:ident)*;)+) => {
        $(impl SubjectKind for $of {
            const WORD: &'static str = $word;
            const ABOUT: &'static str = $about;
            $(const $is: bool = true;)*

            fn class(self, metric: &MetricDef) -> SeriesClass {
                let class: fn(&MetricDef) -> SeriesClass = $class;
                class(metric)
            }
        })+
    };
}

kinds! {
    Agent: "agent", "the agent", |_| SeriesClass::Agent, BEGINS_WITH_AGENT;
    Source: "source", "a source of data", |_| SeriesClass::Agent, BEGINS_WITH_AGENT;
    GpuId: "gpu", "a device", |_| SeriesClass::Device;
    InstanceId: "instance", "a partition of a device (a MIG instance)", |_| SeriesClass::Device;
    GpuXid: "xid", "an XID code of a device", |_| SeriesClass::Basic, BEGINS_WITH_AGENT;
    GpuProcess: "process", "a process on a device", |_| SeriesClass::Basic;
    GpuOwner: "owner", "an owner on a device", |_| SeriesClass::Basic, BEGINS_WITH_AGENT;
    GpuAllocation: "allocation", "a device, or a part of one, allocated to an owner", |_| SeriesClass::Basic,
        BEGINS_WITH_AGENT;
    OwnerId: "refused", "an owner over one of the agent's limits", |_| SeriesClass::Agent, BEGINS_WITH_AGENT;
    MemberId: "communicator", "a process's membership in a communicator", of_collectives,
        BEGINS_WITH_AGENT, CHANGES_BY_ITSELF;
    Recent: "recent", "a process's messages of one size, algorithm and protocol", |_| SeriesClass::Inspector,
        BEGINS_WITH_AGENT;
    Host: "host", "the host", |_| SeriesClass::Device;
    OwnerCgroup: "cgroup", "the cgroup of an owner that holds a device", |_| SeriesClass::Basic;
    EngineId: "engine", "an inference engine", |_| SeriesClass::Collective, CHANGES_BY_ITSELF;
    EngineGpu: "engine_gpu", "an inference engine on a device", |_| SeriesClass::Collective,
        CHANGES_BY_ITSELF;
}

fn of_collectives(metric: &MetricDef) -> SeriesClass {
    if metric.name.starts_with("nccl.inspector.") {
        SeriesClass::Inspector
    } else {
        SeriesClass::Collective
    }
}

/// The importance of a series, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeriesClass {
    /// A process's collectives as the Inspector writes them.
    Inspector,
    /// A process's collectives as the probes and NCCL report them, and an inference engine's values.
    Collective,
    /// A process on a device, or an owner.
    Basic,
    /// A device.
    Device,
    /// The agent.
    Agent,
}

/// A kind of subject in documents.
#[derive(Clone, Copy, Debug)]
pub struct KindDef {
    /// See [`SubjectKind::WORD`].
    pub word: &'static str,
    /// See [`SubjectKind::ABOUT`].
    pub about: &'static str,
}

impl KindDef {
    /// The descriptor of a kind.
    pub(crate) const fn of<K: SubjectKind>() -> Self {
        Self { word: K::WORD, about: K::ABOUT }
    }
}

/// NCCL's names (`ncclAlgoToString`, `ncclProtoToString`) in lower case.
const ALGORITHMS: [&str; 7] =
    ["collnet_chain", "collnet_direct", "nvls", "nvls_tree", "pat", "ring", "tree"];
const PROTOCOLS: [&str; 3] = ["ll", "ll128", "simple"];
const UNKNOWN: &str = "unknown";

/// An algorithm and a protocol, by their places in the tables: it is in the subject of a sample, which two
/// names would make half as large again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Method {
    algorithm: u8,
    protocol: u8,
}

impl Method {
    /// Parses `RING_SIMPLE`, in either case.
    pub fn parse(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        let (algorithm, protocol) = text.rsplit_once('_').unwrap_or((&text, ""));
        Self { algorithm: place(&ALGORITHMS, algorithm), protocol: place(&PROTOCOLS, protocol) }
    }

    /// The algorithm's name.
    pub fn algorithm(self) -> &'static str {
        name(&ALGORITHMS, self.algorithm)
    }

    /// The protocol's name.
    pub fn protocol(self) -> &'static str {
        name(&PROTOCOLS, self.protocol)
    }
}

fn place(table: &[&str], name: &str) -> u8 {
    let place = table.iter().position(|known| *known == name);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
}

fn name(table: &[&'static str], place: u8) -> &'static str {
    table.get(usize::from(place)).copied().unwrap_or(UNKNOWN)
}

/// Generates [`Subject`] from its entries: the enum, its conversions, and one method
/// for each member of [`SubjectKind`].
macro_rules! subjects {
    ($($(#[doc = $doc:literal])+ $kind:ident($of:ty),)+) => {
        /// What a sample is about: one variant for each kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Subject { $($(#[doc = $doc])+ $kind($of),)+ }

        $(impl From<$of> for Subject {
            fn from(subject: $of) -> Self {
                Self::$kind(subject)
            }
        })+

        impl Subject {
            /// Every kind.
            pub const KINDS: &'static [KindDef] =
                &[$(KindDef::of::<$of>()),+];

            /// See [`SubjectKind::BEGINS_WITH_AGENT`].
            pub fn begins_with_agent(self) -> bool {
                match self { $(Self::$kind(_) => <$of as SubjectKind>::BEGINS_WITH_AGENT,)+ }
            }

            /// See [`SubjectKind::CHANGES_BY_ITSELF`].
            pub fn changes_by_itself(self) -> bool {
                match self { $(Self::$kind(_) => <$of as SubjectKind>::CHANGES_BY_ITSELF,)+ }
            }

            /// See [`SubjectKind::class`].
            pub fn class(self, metric: &MetricDef) -> SeriesClass {
                match self { $(Self::$kind(subject) => subject.class(metric),)+ }
            }
        }
    };
}

subjects! {
    /// The agent itself.
    Agent(Agent),
    /// One of the agent's own sources of data, by its name in the table of collectors.
    Source(Source),
    /// A device.
    Gpu(GpuId),
    /// A MIG instance of a device.
    Instance(InstanceId),
    /// A process on a device.
    Process(GpuProcess),
    /// An owner's part of a device.
    GpuOwner(GpuOwner),
    /// A device, or a part of one, allocated to an owner.
    Allocation(GpuAllocation),
    /// A process's membership in a communicator.
    Member(MemberId),
    /// One XID code of a device.
    Xid(GpuXid),
    /// A rank's messages of one size, algorithm and protocol.
    Recent(Recent),
    /// An owner, on the whole host.
    Owner(OwnerId),
    /// The host itself.
    Host(Host),
    /// The cgroup of an owner that holds a device.
    Cgroup(OwnerCgroup),
    /// An inference engine: one server with all its worker processes.
    Engine(EngineId),
    /// An inference engine on one of its devices.
    EngineGpu(EngineGpu),
}
