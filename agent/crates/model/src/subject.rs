//! The kinds of subjects: what a sample can be about, with one row for each kind. To add a kind,
//! write its type and its entry in [`crate::sample::Subject`], its row here, and how its identity is
//! looked up (`identity`).

use crate::catalog::MetricDef;
use crate::ids::EngineId;
use crate::ids::MemberId;
use crate::ids::OwnerId;
use crate::ids::{GpuId, InstanceId};
use crate::sample::{
    Agent, EngineGpu, GpuAllocation, GpuOwner, GpuProcess, GpuXid, Host, OwnerCgroup, Recent,
    Source,
};

/// A kind of subject.
pub trait SubjectKind: Copy + Into<crate::sample::Subject> {
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
    GpuOwner: "owner", "an owner's part of a device", |_| SeriesClass::Basic, BEGINS_WITH_AGENT;
    GpuAllocation: "grant", "a device, or a part of one, allocated to an owner", |_| SeriesClass::Basic,
        BEGINS_WITH_AGENT;
    OwnerId: "refused", "an owner that was refused something", |_| SeriesClass::Agent, BEGINS_WITH_AGENT;
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

/// Generates [`crate::sample::Subject`] from its entries: the enum, its conversions, and one method
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
            pub const KINDS: &'static [$crate::subject::KindDef] =
                &[$($crate::subject::KindDef::of::<$of>()),+];

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

pub(crate) use subjects;
