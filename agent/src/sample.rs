//! What a collector pushes: a metric of the catalogue, a value and a subject. No label is ever
//! written here; the enrich stage turns the subject into attributes.

use crate::attribute::grants::GrantId;
use crate::attribute::party::PartyId;
use crate::catalog::{DimIndexes, MetricDef};
use crate::communicators::MemberId;
use crate::ids::{GpuId, InstanceId, ProcKey};
use std::time::SystemTime;

/// What a sample is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// The agent itself.
    Agent,
    /// One of the agent's own sources of data, by its name in the table of collectors.
    Source(&'static str),
    /// A device.
    Gpu(GpuId),
    /// A MIG instance of a device.
    Instance(InstanceId),
    /// A process on a device.
    Process(GpuProcess),
    /// An owner's part of a device.
    Party(GpuParty),
    /// A device, or a part of one, granted to an owner.
    Grant(GpuGrant),
    /// A process's membership in a communicator.
    Member(MemberId),
    /// One XID code of a device.
    Xid(GpuXid),
    /// A rank's messages of one size, algorithm and protocol.
    Recent(Recent),
    /// An owner, on the whole host.
    Owner(PartyId),
}

/// A rank's messages of one size, algorithm and protocol, of which a source keeps a mean. The
/// source bounds how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Recent {
    /// The rank.
    pub member: MemberId,
    /// NCCL's algorithm; `None` for messages that have none.
    pub algorithm: Option<&'static str>,
    /// NCCL's protocol.
    pub protocol: Option<&'static str>,
    /// The least size in bytes.
    pub size: u64,
}

/// One XID code of a device: an open set, but a small one (the driver has some 170 codes, and a
/// healthy device none).
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

/// An owner's part of a device: what it holds, uses or was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuParty {
    /// The device.
    pub gpu: GpuId,
    /// The owner.
    pub party: PartyId,
}

/// A device, or a part of one, granted to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuGrant {
    /// The device.
    pub gpu: GpuId,
    /// The MIG instance of it, where that was granted.
    pub instance: Option<InstanceId>,
    /// The owner.
    pub party: PartyId,
    /// What it was asked for by.
    pub words: Option<GrantId>,
}

/// The agent itself, as a subject type.
#[derive(Clone, Copy, Debug)]
pub struct Agent;

/// One of the agent's sources, as a subject type.
#[derive(Clone, Copy, Debug)]
pub struct Source(pub &'static str);

/// A subject type's word in the catalogue.
pub trait SubjectKind: Into<Subject> {
    /// `gpu`, `instance`, `process`, `agent`, `source`.
    const WORD: &'static str;
}

impl SubjectKind for Agent {
    const WORD: &'static str = "agent";
}
impl SubjectKind for Source {
    const WORD: &'static str = "source";
}
impl SubjectKind for GpuId {
    const WORD: &'static str = "gpu";
}
impl SubjectKind for InstanceId {
    const WORD: &'static str = "instance";
}
impl SubjectKind for GpuProcess {
    const WORD: &'static str = "process";
}

impl SubjectKind for GpuParty {
    const WORD: &'static str = "owner";
}

impl SubjectKind for Recent {
    const WORD: &'static str = "recent";
}

impl From<Recent> for Subject {
    fn from(recent: Recent) -> Self {
        Self::Recent(recent)
    }
}

impl SubjectKind for PartyId {
    const WORD: &'static str = "refused";
}

impl From<PartyId> for Subject {
    fn from(party: PartyId) -> Self {
        Self::Owner(party)
    }
}

impl SubjectKind for GpuGrant {
    const WORD: &'static str = "grant";
}

impl From<GpuGrant> for Subject {
    fn from(grant: GpuGrant) -> Self {
        Self::Grant(grant)
    }
}

impl SubjectKind for MemberId {
    const WORD: &'static str = "communicator";
}

impl From<MemberId> for Subject {
    fn from(member: MemberId) -> Self {
        Self::Member(member)
    }
}
impl SubjectKind for GpuXid {
    const WORD: &'static str = "xid";
}

impl From<Agent> for Subject {
    fn from(_: Agent) -> Self {
        Self::Agent
    }
}
impl From<Source> for Subject {
    fn from(source: Source) -> Self {
        Self::Source(source.0)
    }
}
impl From<GpuId> for Subject {
    fn from(gpu: GpuId) -> Self {
        Self::Gpu(gpu)
    }
}
impl From<InstanceId> for Subject {
    fn from(instance: InstanceId) -> Self {
        Self::Instance(instance)
    }
}
impl From<GpuProcess> for Subject {
    fn from(process: GpuProcess) -> Self {
        Self::Process(process)
    }
}
impl From<GpuXid> for Subject {
    fn from(xid: GpuXid) -> Self {
        Self::Xid(xid)
    }
}
impl From<GpuParty> for Subject {
    fn from(party: GpuParty) -> Self {
        Self::Party(party)
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Whole numbers: bytes, counts.
    Int(i64),
    /// Everything else.
    Double(f64),
    /// A distribution.
    Histogram(Box<Histogram>),
}

/// A cumulative distribution over explicit bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds, ascending, without the last (infinite) one.
    pub bounds: &'static [f64],
    /// One count a bucket; one longer than `bounds`.
    pub counts: Vec<u64>,
    /// Sum of all observations.
    pub sum: f64,
}

impl Histogram {
    /// An empty distribution.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Adds one observation.
    pub fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += value;
    }

    /// Observations so far.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// One reading.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What was read.
    pub metric: &'static MetricDef,
    /// What it is about.
    pub subject: Subject,
    /// Values of the metric's closed dimensions.
    pub dims: DimIndexes,
    /// The value, in the catalogue's unit.
    pub value: Value,
}

/// A part of a source: what one snapshot of it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourcePart {
    /// The source's name in its table.
    pub source: &'static str,
    /// Which part; 0 for a source that has only one.
    pub part: u32,
}

/// The complete snapshot of a part of a source: a series of this part that is not in it has ended.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Whose snapshot it is.
    pub of: SourcePart,
    /// When the readings were taken; one moment for the batch (a late device's own readings come
    /// in their own batch section, see [`Batch::at`]).
    pub time: SystemTime,
    /// The readings, each with the moment it was taken where that differs from `time`.
    pub samples: Vec<(SystemTime, Sample)>,
}

impl Batch {
    /// An empty batch of a source that has only one part.
    pub fn new(source: &'static str, time: SystemTime) -> Self {
        Self::of(SourcePart { source, part: 0 }, time)
    }

    /// An empty batch of a part of a source.
    pub fn of(of: SourcePart, time: SystemTime) -> Self {
        Self { of, time, samples: Vec::new() }
    }

    /// Adds a reading taken at the batch's own time.
    pub fn push(&mut self, sample: Sample) {
        self.samples.push((self.time, sample));
    }

    /// Adds a reading taken at another moment.
    pub fn at(&mut self, time: SystemTime, sample: Sample) {
        self.samples.push((time, sample));
    }
}
