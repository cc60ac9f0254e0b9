//! Turns samples into points of series: adds the attributes of the subject and of its owner,
//! keeps each series' start time, and says when a series has ended.
//!
//! One hash lookup a sample in the steady state, and one of its names for a subject's samples that
//! follow each other; attributes are built only when a series is new or its subject's identity or
//! owner has changed.

use crate::attribute::Owner;
use crate::attribute::ownership::Ownership;
use crate::attribute::party::PartyFacts;
use crate::catalog::attributes::{self as attr, AttrSet};
use crate::catalog::{DimIndexes, Kind, MetricDef, device, nccl, process, share};
use crate::communicators::{Communicators, MemberFacts};
use crate::export::{EnrichedBatch, Labels, Point};
use crate::ids::GpuId;
use crate::inventory::{GpuInfo, InstanceInfo, Inventory};
use crate::sample::{Batch, Sample, Subject, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// How long an ended counter keeps its start time, in case it comes back: longer than any driver
/// hang that ends by itself, short enough that counters of what is gone do not pile up.
const REMEMBER_NS: u64 = 10 * 60 * 1_000_000_000;

/// The series alive now, and those that ended a short while ago.
#[derive(Debug)]
pub struct Enricher {
    inventory: Arc<Inventory>,
    ownership: Ownership,
    communicators: Arc<Communicators>,
    /// Start of the counters that begin with the agent.
    agent_start_ns: u64,
    sources: HashMap<&'static str, Source>,
}

#[derive(Debug, Default)]
struct Source {
    generation: u64,
    series: HashMap<Key, Series>,
}

/// What makes a series one series, apart from the names its subject has at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    metric: &'static MetricDef,
    subject: Subject,
    dims: DimIndexes,
}

/// What the attributes were built from; a change of any pointer makes a new series.
#[derive(Clone, Debug, Default)]
struct Identity {
    gpu: Option<Arc<GpuInfo>>,
    instance: Option<Arc<InstanceInfo>>,
    owner: Option<Arc<Owner>>,
    party: Option<Arc<PartyFacts>>,
    member: Option<Arc<MemberFacts>>,
}

impl Identity {
    fn same(&self, other: &Self) -> bool {
        fn same<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
            match (a, b) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            }
        }
        same(self.gpu.as_ref(), other.gpu.as_ref())
            && same(self.instance.as_ref(), other.instance.as_ref())
            && same(self.owner.as_ref(), other.owner.as_ref())
            && same(self.party.as_ref(), other.party.as_ref())
            && same(self.member.as_ref(), other.member.as_ref())
    }
}

#[derive(Debug)]
struct Series {
    labels: Arc<Labels>,
    identity: Identity,
    start_ns: u64,
    last_ns: u64,
    last: Cumulative,
    generation: u64,
    ended: bool,
}

/// The last value of a cumulative series, to see it start again.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Cumulative(f64);

impl Enricher {
    /// No series yet.
    pub fn new(inventory: Arc<Inventory>, ownership: Ownership) -> Self {
        let agent_start_ns = unix_ns(SystemTime::now());
        let communicators = Arc::default();
        Self { inventory, ownership, communicators, agent_start_ns, sources: HashMap::new() }
    }

    /// With the communicators that a source keeps.
    #[must_use]
    pub fn with_communicators(self, communicators: Arc<Communicators>) -> Self {
        Self { communicators, ..self }
    }

    /// Series alive now.
    pub fn alive(&self) -> usize {
        self.sources.values().flat_map(|source| source.series.values()).filter(|s| !s.ended).count()
    }

    /// Adds a source's snapshot to `out`: a point for every sample, and an end mark for every
    /// series of that source that is no longer in it.
    pub fn enrich(&mut self, batch: &Batch, out: &mut EnrichedBatch) {
        let names = Names {
            inventory: &self.inventory,
            ownership: &self.ownership,
            communicators: &self.communicators,
        };
        let source = self.sources.entry(batch.source).or_default();
        source.generation += 1;
        // A subject's samples come one after the other, so its names are looked up once.
        let mut known: Option<(Subject, Identity)> = None;
        for (time, sample) in &batch.samples {
            let time_ns = unix_ns(*time);
            let start_ns = first_start(sample, time_ns, self.agent_start_ns);
            let same = known.take().filter(|(subject, _)| *subject == sample.subject);
            let (_, identity) = known
                .insert(same.unwrap_or_else(|| (sample.subject, names.identity(sample.subject))));
            source.take(sample, (time_ns, start_ns), identity, out);
        }
        source.end_missing(unix_ns(batch.time), out);
    }

    /// Ends every series, as the agent stops.
    pub fn end_all(&mut self, out: &mut EnrichedBatch) {
        let now = unix_ns(SystemTime::now());
        for source in self.sources.values_mut() {
            source.generation += 1;
            source.end_missing(now, out);
        }
    }
}

impl Source {
    fn take(
        &mut self,
        sample: &Sample,
        (time_ns, start_ns): (u64, u64),
        identity: &Identity,
        out: &mut EnrichedBatch,
    ) {
        let key = Key { metric: sample.metric, subject: sample.subject, dims: sample.dims };
        let value = Cumulative(magnitude(&sample.value));
        let series = self.series.entry(key).or_insert_with(|| Series {
            labels: Names::labels(key, identity),
            identity: identity.clone(),
            start_ns,
            last_ns: time_ns,
            last: value,
            generation: 0,
            ended: false,
        });
        if !series.identity.same(identity) {
            let labels = Names::labels(key, identity);
            series.identity = identity.clone();
            if labels.set != series.labels.set {
                if !series.ended {
                    out.points.push(series.end(key.metric, time_ns));
                }
                series.labels = labels;
                // What was counted so far was counted under the other name.
                series.start_ns = time_ns;
            }
        }
        let restarted = key.metric.kind != Kind::UpDownCounter && value < series.last;
        if restarted {
            series.start_ns = series.last_ns;
        }
        if time_ns < series.last_ns {
            // The clock was set back: a series must not start after its own point.
            series.start_ns = time_ns;
        }
        series.last = value;
        series.last_ns = time_ns;
        series.generation = self.generation;
        series.ended = false;
        out.points.push(Point {
            metric: key.metric,
            labels: Arc::clone(&series.labels),
            value: Some(sample.value.clone()),
            start_ns: if key.metric.kind == Kind::Gauge { 0 } else { series.start_ns },
            time_ns,
        });
    }

    fn end_missing(&mut self, now_ns: u64, out: &mut EnrichedBatch) {
        let generation = self.generation;
        self.series.retain(|key, series| {
            if series.generation == generation {
                return true;
            }
            if !series.ended {
                series.ended = true;
                out.points.push(series.end(key.metric, now_ns.max(series.last_ns)));
            }
            // Only what counts up has a start worth keeping.
            let counts = matches!(key.metric.kind, Kind::Counter | Kind::Histogram);
            counts && now_ns.saturating_sub(series.last_ns) < REMEMBER_NS
        });
    }
}

impl Series {
    fn end(&self, metric: &'static MetricDef, time_ns: u64) -> Point {
        Point {
            metric,
            labels: Arc::clone(&self.labels),
            value: None,
            start_ns: if metric.kind == Kind::Gauge { 0 } else { self.start_ns },
            time_ns,
        }
    }
}

/// Where names come from.
struct Names<'a> {
    inventory: &'a Inventory,
    ownership: &'a Ownership,
    communicators: &'a Communicators,
}

impl Names<'_> {
    fn identity(&self, subject: Subject) -> Identity {
        match subject {
            Subject::Agent | Subject::Source(_) => Identity::default(),
            Subject::Gpu(gpu) => Identity { gpu: self.inventory.get(gpu), ..Identity::default() },
            Subject::Instance(instance) => {
                let instance = self.inventory.instance(instance);
                let gpu = instance.as_ref().and_then(|instance| self.inventory.get(instance.gpu));
                Identity { gpu, instance, ..Identity::default() }
            }
            Subject::Process(on) => Identity {
                gpu: self.inventory.get(on.gpu),
                instance: on.instance.and_then(|instance| self.inventory.instance(instance)),
                owner: self.ownership.owner(on.process),
                ..Identity::default()
            },
            Subject::Member(id) => {
                let member = self.communicators.facts(id);
                let process = member.as_ref().map(|member| member.process);
                let owner = process.and_then(|process| self.ownership.owner(process));
                Identity { owner, member, ..Identity::default() }
            }
            Subject::Xid(xid) => {
                Identity { gpu: self.inventory.get(xid.gpu), ..Identity::default() }
            }
            Subject::Party(on) => Identity {
                gpu: self.inventory.get(on.gpu),
                party: self.ownership.party(on.party),
                ..Identity::default()
            },
        }
    }

    /// The membership and its process's owner.
    fn member(set: &mut AttrSet, key: Key, identity: &Identity) {
        let Some(member) = &identity.member else { return };
        if let Some(owner) = &identity.owner {
            set.extend(&owner.attributes());
        } else {
            set.set(&attr::PROCESS_PID, i64::from(member.process.pid));
            set.set(&attr::OWNER_METHOD, "none");
        }
        let is_info = *key.metric == *nccl::INFO.def();
        set.extend(&if is_info { member.details() } else { member.attributes() });
    }

    fn labels(key: Key, identity: &Identity) -> Arc<Labels> {
        let mut set = match &identity.gpu {
            Some(info) if *key.metric == *device::INFO.def() => info.attributes(),
            Some(info) => info.identity(),
            None => AttrSet::new(),
        };
        if let Some(instance) = &identity.instance {
            set.extend(&instance.identity());
        }
        match (key.subject, &identity.owner) {
            (Subject::Process(_), Some(owner)) if *key.metric == *process::INFO.def() => {
                set.extend(&owner.details());
            }
            (Subject::Process(_), Some(owner)) => set.extend(&owner.attributes()),
            (Subject::Process(on), None) => {
                set.set(&attr::PROCESS_PID, i64::from(on.process.pid));
                set.set(&attr::OWNER_METHOD, "none");
            }
            (Subject::Member(_), _) => Self::member(&mut set, key, identity),
            (Subject::Source(name), _) => set.set(&attr::SOURCE, name),
            (Subject::Xid(xid), _) => set.set(&attr::GPU_XID_CODE, i64::from(xid.code)),
            (Subject::Agent | Subject::Gpu(_) | Subject::Instance(_) | Subject::Party(_), _) => {}
        }
        match &identity.party {
            Some(party) if *key.metric == *share::ALLOCATION_INFO.def() => {
                set.extend(&party.details);
            }
            Some(party) => set.extend(&party.attributes),
            None => {}
        }
        for (dim, index) in key.metric.dims.iter().zip(key.dims) {
            set.set_some(dim.key, dim.values.get(usize::from(index)).copied());
        }
        Arc::new(Labels::new(set))
    }
}

/// The start time of a series seen for the first time. The agent's own counters began at zero with
/// the agent; what was there before us starts, for the receiver, with its first point, so that the
/// past is not taken for an increase.
fn first_start(sample: &Sample, time_ns: u64, agent_start_ns: u64) -> u64 {
    match sample.subject {
        Subject::Agent
        | Subject::Source(_)
        | Subject::Party(_)
        | Subject::Member(_)
        | Subject::Xid(_) => {
            // A counter's 0 may be told for a moment before the pipeline began.
            agent_start_ns.min(time_ns)
        }
        Subject::Gpu(GpuId(_)) | Subject::Instance(_) | Subject::Process(_) => time_ns,
    }
}

/// What must not decrease in a cumulative series.
fn magnitude(value: &Value) -> f64 {
    match value {
        Value::Int(number) => *number as f64,
        Value::Double(number) => *number,
        Value::Histogram(histogram) => histogram.count() as f64,
    }
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::device::{ENERGY, INFO, POWER};
    use crate::catalog::{instance, process};
    use crate::ids::{GpuUuid, ProcKey};
    use crate::paths::Paths;
    use crate::sample::GpuProcess;
    use std::path::Path;
    use std::time::Duration;

    fn enricher() -> (Enricher, GpuId) {
        let inventory = Arc::new(Inventory::default());
        let gpu = inventory.put(gpu("580.65"));
        let nowhere = Paths::under(Path::new("/nonexistent"));
        (Enricher::new(inventory, Ownership::new(&nowhere)), gpu)
    }

    fn gpu(driver: &str) -> GpuInfo {
        GpuInfo {
            uuid: GpuUuid::new("GPU-0"),
            vendor: "nvidia".into(),
            index: 0,
            minor: Some(0),
            model: Some("H100".into()),
            pci_address: None,
            serial: None,
            driver_version: Some(driver.into()),
            cuda_version: None,
            mig: None,
            facts: crate::inventory::facts::Facts::default(),
        }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn tick(enricher: &mut Enricher, seconds: u64, samples: Vec<Sample>) -> Vec<Point> {
        let mut batch = Batch::new("test", at(seconds));
        for sample in samples {
            batch.push(sample);
        }
        let mut out = EnrichedBatch::default();
        enricher.enrich(&batch, &mut out);
        out.points
    }

    fn shape(points: &[Point]) -> Vec<(&'static str, Option<Value>, u64, u64)> {
        let second = 1_000_000_000;
        points
            .iter()
            .map(|p| (p.metric.name, p.value.clone(), p.start_ns / second, p.time_ns / second))
            .collect()
    }

    #[test]
    fn a_counter_that_was_there_before_us_starts_with_its_first_point() {
        let (mut enricher, gpu) = enricher();
        let first = tick(&mut enricher, 10, vec![ENERGY.sample(gpu, (), 500.0)]);
        let second = tick(&mut enricher, 20, vec![ENERGY.sample(gpu, (), 510.0)]);
        assert_eq!(shape(&first), [("gpu.energy", Some(Value::Double(500.0)), 10, 10)]);
        assert_eq!(shape(&second), [("gpu.energy", Some(Value::Double(510.0)), 10, 20)]);
    }

    #[test]
    fn a_counter_that_fell_starts_anew_at_its_last_point() {
        let (mut enricher, gpu) = enricher();
        tick(&mut enricher, 10, vec![ENERGY.sample(gpu, (), 500.0)]);
        let reloaded = tick(&mut enricher, 20, vec![ENERGY.sample(gpu, (), 3.0)]);
        assert_eq!(shape(&reloaded), [("gpu.energy", Some(Value::Double(3.0)), 10, 20)]);
        let later = tick(&mut enricher, 30, vec![ENERGY.sample(gpu, (), 4.0)]);
        assert_eq!(shape(&later), [("gpu.energy", Some(Value::Double(4.0)), 10, 30)]);
    }

    #[test]
    fn a_series_that_is_not_read_any_more_ends_once() {
        let (mut enricher, gpu) = enricher();
        tick(&mut enricher, 10, vec![POWER.sample(gpu, (), 300.0)]);
        assert_eq!(shape(&tick(&mut enricher, 20, vec![])), [("gpu.power", None, 0, 20)]);
        assert_eq!(shape(&tick(&mut enricher, 30, vec![])), []);
        assert_eq!(enricher.alive(), 0);
    }

    #[test]
    fn ended_levels_are_forgotten_and_ended_counters_after_a_while() {
        let (mut enricher, gpu) = enricher();
        tick(&mut enricher, 10, vec![POWER.sample(gpu, (), 1.0), ENERGY.sample(gpu, (), 1.0)]);
        tick(&mut enricher, 20, vec![]);
        assert_eq!(enricher.sources["test"].series.len(), 1);
        tick(&mut enricher, 20 + REMEMBER_NS / 1_000_000_000, vec![]);
        assert_eq!(enricher.sources["test"].series.len(), 0);
    }

    #[test]
    fn a_counter_that_comes_back_keeps_its_start() {
        let (mut enricher, gpu) = enricher();
        tick(&mut enricher, 10, vec![ENERGY.sample(gpu, (), 500.0)]);
        tick(&mut enricher, 20, vec![]);
        let back = tick(&mut enricher, 30, vec![ENERGY.sample(gpu, (), 520.0)]);
        assert_eq!(shape(&back), [("gpu.energy", Some(Value::Double(520.0)), 10, 30)]);
    }

    #[test]
    fn a_new_driver_ends_only_the_series_that_names_it() {
        let (mut enricher, id) = enricher();
        let read = |id| vec![INFO.sample(id, (), 1), POWER.sample(id, (), 300.0)];
        tick(&mut enricher, 10, read(id));
        enricher.inventory.put(gpu("590.10"));
        let points = tick(&mut enricher, 20, read(id));
        let power = Some(Value::Double(300.0));
        assert_eq!(
            shape(&points),
            [
                ("gpu.info", None, 0, 20),
                ("gpu.info", Some(Value::Int(1)), 0, 20),
                ("gpu.power", power, 0, 20)
            ]
        );
    }

    fn instance(gpu: GpuId, uuid: &str) -> InstanceInfo {
        InstanceInfo {
            uuid: GpuUuid::new(uuid),
            gpu,
            gpu_instance: 2,
            compute_instance: Some(0),
            profile: Some("3g.20gb".into()),
            extent: crate::inventory::InstanceExtent::default(),
        }
    }

    fn texts(point: &Point) -> Vec<String> {
        point.labels.set.iter().map(|(key, value)| format!("{}={value}", key.name)).collect()
    }

    #[test]
    fn an_instance_has_its_own_identity_after_its_device_s() {
        let (mut enricher, gpu) = enricher();
        let id = enricher.inventory.put_instance(instance(gpu, "MIG-1"));
        let process = ProcKey { pid: 7, start_ticks: 1 };
        let on = GpuProcess { gpu, process, instance: Some(id) };
        let of_process = process::MEMORY_USAGE.sample(on, process::ProcessType::Compute, 5);
        let points =
            tick(&mut enricher, 10, vec![instance::MEMORY_LIMIT.sample(id, (), 9), of_process]);
        let own = [
            "gpu.uuid=GPU-0",
            "gpu.index=0",
            "gpu.model=H100",
            "gpu.vendor=nvidia",
            "gpu.mig.uuid=MIG-1",
            "gpu.mig.gpu_instance.id=2",
            "gpu.mig.compute_instance.id=0",
            "gpu.mig.profile=3g.20gb",
        ];
        assert_eq!(texts(&points[0]), own);
        let of_process = ["process.pid=7", "gpuwho.owner.method=none", "gpu.process.type=compute"];
        assert_eq!(texts(&points[1]), [&own[..], &of_process].concat());
    }

    #[test]
    fn another_instance_at_the_same_place_is_another_series() {
        let (mut enricher, gpu) = enricher();
        let first = enricher.inventory.put_instance(instance(gpu, "MIG-1"));
        let second = enricher.inventory.put_instance(instance(gpu, "MIG-2"));
        tick(&mut enricher, 10, vec![instance::INFO.sample(first, (), 1)]);
        let points = tick(&mut enricher, 20, vec![instance::INFO.sample(second, (), 1)]);
        let seen: Vec<_> = points
            .iter()
            .map(|p| (p.labels.set.get(&attr::GPU_MIG_UUID).cloned(), p.value.clone()))
            .collect();
        let uuid = |text: &str| Some(text.into());
        assert_eq!(seen, [(uuid("MIG-2"), Some(Value::Int(1))), (uuid("MIG-1"), None)]);
    }

    #[test]
    fn a_clock_set_back_never_puts_a_start_after_its_point() {
        let (mut enricher, gpu) = enricher();
        tick(&mut enricher, 100, vec![ENERGY.sample(gpu, (), 1.0)]);
        let points = tick(&mut enricher, 50, vec![ENERGY.sample(gpu, (), 2.0)]);
        assert_eq!(shape(&points), [("gpu.energy", Some(Value::Double(2.0)), 50, 50)]);
    }

    #[test]
    fn stopping_ends_every_series() {
        let (mut enricher, gpu) = enricher();
        tick(&mut enricher, 10, vec![POWER.sample(gpu, (), 1.0), ENERGY.sample(gpu, (), 1.0)]);
        let mut out = EnrichedBatch::default();
        enricher.end_all(&mut out);
        assert_eq!(out.points.iter().filter(|p| p.value.is_none()).count(), 2);
    }
}
