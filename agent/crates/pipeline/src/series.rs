//! Turns samples into points of series: adds the attributes of the subject and its owner, stores
//! each series' start time, and marks a series that has ended.
//!
//! Cost: one hash lookup a sample in the steady state. Owners and devices are looked up again only
//! after one of them changed, once for the consecutive samples of a subject; attributes are built
//! only for a new series, or after its subject's identity or owner changed. A series takes some 150
//! bytes, because it shares its attributes with others (see [`Part`](gpuwho_model::point::Part)), and its
//! identity with its subject's others.

mod identity;
mod limit;
mod limits;
mod one;
mod parts;
mod settings;
mod source;
mod subjects;

use crate::identity::{Identity, Lookup as _, Registries};
use gpuwho_model::catalog::agent::OwnerLimit;
use gpuwho_model::catalog::selection::Selection;
use gpuwho_model::point::EnrichedBatch;
use gpuwho_model::sample::{Batch, SourcePart};
use gpuwho_model::status::Report;
use gpuwho_owners::attribute::ownership::{Ownership, Version};
use gpuwho_owners::communicators::Communicators;
use gpuwho_owners::engines::Engines;
use gpuwho_owners::inventory::Inventory;
use gpuwho_sys::clock::thread_cpu;
use identity::SubjectLookup;
use limit::weight;
use limits::SeriesLimits;
use one::{Cumulative, first_start};
use parts::PartStore;
use source::{NewPoint, Output, Source};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The default limit: more series than a host of sixteen devices with hundreds of processes has,
/// and no more than a receiver accepts from one host.
pub const DEFAULT_LIMIT: usize = 50_000;

/// How long an ended counter's start time is stored in case it returns: longer than a driver hang
/// that ends by itself, short enough that ended counters do not accumulate.
const REMEMBER_NS: u64 = 10 * 60 * 1_000_000_000;

/// The live series, and recently ended counters.
#[derive(Debug)]
pub struct SeriesRegistry {
    inventory: Arc<Inventory>,
    ownership: Ownership,
    communicators: Arc<Communicators>,
    engines: Arc<Engines>,
    /// Start time of the counters that start with the agent.
    agent_start_ns: u64,
    sources: HashMap<SourcePart, Source>,
    parts: PartStore,
    limit: SeriesLimits,
    /// Versions of the ownership table and the inventory at the last lookup.
    versions: Option<(Version, u64)>,
    /// Counts changes of `versions`.
    epoch: u64,
    /// CPU time of these lookups.
    spent: Duration,
    selection: Selection,
}

impl SeriesRegistry {
    /// Starts without series.
    pub fn new(inventory: Arc<Inventory>, ownership: Ownership) -> Self {
        let agent_start_ns = unix_ns(SystemTime::now());
        let communicators = Arc::default();
        Self {
            inventory,
            ownership,
            communicators,
            engines: Arc::default(),
            agent_start_ns,
            sources: HashMap::new(),
            parts: PartStore::default(),
            limit: SeriesLimits::new(DEFAULT_LIMIT),
            versions: None,
            epoch: 0,
            spent: Duration::ZERO,
            selection: Selection::all(),
        }
    }

    /// Uses the communicators that a source maintains.
    #[must_use]
    pub fn with_communicators(self, communicators: Arc<Communicators>) -> Self {
        Self { communicators, ..self }
    }

    /// With the inference engines that a source keeps.
    #[must_use]
    pub fn with_engines(self, engines: Arc<Engines>) -> Self {
        Self { engines, ..self }
    }

    /// Uses another limit of the number of series.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit.set(limit);
        self
    }

    /// Exports these metrics only.
    #[must_use]
    pub fn with_selection(mut self, selection: Selection) -> Self {
        self.set_selection(selection);
        self
    }

    /// The number of live series.
    pub fn alive(&self) -> usize {
        self.limit.alive()
    }

    /// The limit's status; `None` if the limit was never reached. Adds what was dropped since the
    /// last call to the owners' counts.
    pub fn report(&mut self) -> Option<Report> {
        let refused = self.limit.take_refused();
        for (owner, count) in &refused {
            self.ownership.refuse(*owner, OwnerLimit::Series, *count);
        }
        let worst = refused.into_iter().max_by_key(|(_, count)| *count);
        let worst = worst.and_then(|(owner, count)| {
            let facts = self.ownership.owner(owner.owner())?;
            let names: Vec<String> =
                facts.attributes.iter().map(|(_, value)| value.to_string()).collect();
            Some((names.join(" "), count))
        });
        self.limit.report(worst)
    }

    /// Adds a snapshot of a part of a source to `out`: a point for every sample, and an end mark
    /// for every live series of that part without a sample in it.
    pub fn enrich(&mut self, batch: &Batch, out: &mut EnrichedBatch) {
        // Read before any lookup: a change meanwhile causes new lookups with the next batch.
        let now = (self.ownership.version(), self.inventory.version());
        if self.versions != Some(now) {
            self.versions = Some(now);
            self.epoch += 1;
        }
        let registries = Registries {
            inventory: &self.inventory,
            ownership: &self.ownership,
            communicators: &self.communicators,
            engines: &self.engines,
        };
        let source = self.sources.entry(batch.of).or_default();
        source.generation = source.generation.wrapping_add(1);
        // A subject's samples are consecutive.
        let subjects = || batch.samples.chunk_by(|(_, a), (_, b)| a.subject == b.subject);
        // Only after a change, and in order.
        let mut looked_up: Vec<Identity> = Vec::new();
        if source.epoch != self.epoch {
            let began = thread_cpu();
            let first = subjects().filter_map(|same| same.first());
            looked_up.extend(first.map(|(_, sample)| sample.subject.identity(&registries)));
            self.spent += thread_cpu().saturating_sub(began);
        }
        source.epoch = self.epoch;
        let selection = &self.selection;
        self.limit.begin(batch.samples.len(), |of| source.new_of_devices(batch, selection, of));
        let mut looked_up = looked_up.into_iter();
        let mut to = Output { limit: &mut self.limit, parts: &mut self.parts, batch: &mut *out };
        for same in subjects() {
            let mut lookup = SubjectLookup::new(&registries, looked_up.next());
            let first = same.first().map(|(_, sample)| sample.subject);
            let epoch = source.epoch;
            let mut known =
                first.and_then(|subject| source.subjects.look_up(subject, epoch, &mut lookup));
            for (time, sample) in same {
                let time_ns = unix_ns(*time);
                let start_ns = first_start(sample, time_ns, self.agent_start_ns);
                let value = Cumulative::of(&sample.value);
                let counts = (weight(&sample.value), self.selection.family(sample.metric));
                let point = NewPoint { value, time_ns, start_ns, counts };
                source.add((sample, &mut known), point, &mut lookup, &mut to);
            }
        }
        self.limit.finish(batch.of);
        source.end_missing(unix_ns(batch.time), &mut self.limit, out);
    }

    /// Returns the CPU time of looking up owners and devices since the last call.
    pub fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }

    /// Ends every series of a part of a source that will not be read again.
    pub fn end(&mut self, part: SourcePart, out: &mut EnrichedBatch) {
        let Some(mut source) = self.sources.remove(&part) else { return };
        self.limit.end(part);
        source.generation = source.generation.wrapping_add(1);
        // Series that have ended already are only removed.
        let remembered = source.series.extract_if(|_, series| series.ended).count();
        (0..remembered).for_each(|_| self.limit.forget());
        source.end_missing(unix_ns(SystemTime::now()), &mut self.limit, out);
        source.series.iter().for_each(|_| self.limit.forget());
    }

    /// Ends every series, as the agent stops.
    pub fn end_all(&mut self, out: &mut EnrichedBatch) {
        let now = unix_ns(SystemTime::now());
        for source in self.sources.values_mut() {
            source.generation = source.generation.wrapping_add(1);
            source.end_missing(now, &mut self.limit, out);
        }
    }
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::agent::{DropReason, HOLDERS, SourceState};
    use gpuwho_model::catalog::attributes as attr;
    use gpuwho_model::catalog::device::{ENERGY, INFO, POWER};
    use gpuwho_model::catalog::selection::Family;
    use gpuwho_model::catalog::{instance, process};
    use gpuwho_model::ids::{GpuId, GpuUuid, ProcKey};
    use gpuwho_model::labels::{LabelSet, LabelSets};
    use gpuwho_model::paths::Paths;
    use gpuwho_model::point::Point;
    use gpuwho_model::sample::{Agent, GpuProcess, Sample, Value};
    use gpuwho_owners::inventory::facts::Facts;
    use gpuwho_owners::inventory::{GpuInfo, InstanceInfo};
    use std::path::Path;
    use std::time::Duration;

    fn registry() -> (SeriesRegistry, GpuId) {
        let inventory = Arc::new(Inventory::default());
        let gpu = inventory.put(gpu("580.65"));
        let nowhere = Paths::under(Path::new("/nonexistent"));
        (SeriesRegistry::new(inventory, Ownership::new(&nowhere)), gpu)
    }

    fn gpu(driver: &str) -> GpuInfo {
        GpuInfo {
            uuid: GpuUuid::new("GPU-0"),
            placed: None,
            vendor: "nvidia".into(),
            index: 0,
            minor: Some(0),
            nodes: vec!["nvidia0".to_owned()],
            model: Some("H100".into()),
            pci_address: None,
            serial: None,
            driver_version: Some(driver.into()),
            cuda_version: None,
            mig: None,
            facts: Facts::default(),
        }
    }

    const TEST: SourcePart = SourcePart { source: "test", part: 0 };

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn tick(registry: &mut SeriesRegistry, seconds: u64, samples: Vec<Sample>) -> Vec<Point> {
        let mut batch = Batch::new("test", at(seconds));
        for sample in samples {
            batch.push(sample);
        }
        let mut out = EnrichedBatch::default();
        registry.enrich(&batch, &mut out);
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
    fn a_counter_older_than_the_agent_starts_with_its_first_point() {
        let (mut registry, gpu) = registry();
        let first = tick(&mut registry, 10, vec![ENERGY.sample(gpu, (), 500.0)]);
        let second = tick(&mut registry, 20, vec![ENERGY.sample(gpu, (), 510.0)]);
        assert_eq!(shape(&first), [("gpu.energy", Some(Value::Double(500.0)), 10, 10)]);
        assert_eq!(shape(&second), [("gpu.energy", Some(Value::Double(510.0)), 10, 20)]);
    }

    #[test]
    fn a_counter_that_fell_restarts_at_its_last_point() {
        let (mut registry, gpu) = registry();
        tick(&mut registry, 10, vec![ENERGY.sample(gpu, (), 500.0)]);
        let reloaded = tick(&mut registry, 20, vec![ENERGY.sample(gpu, (), 3.0)]);
        assert_eq!(shape(&reloaded), [("gpu.energy", Some(Value::Double(3.0)), 10, 20)]);
        let later = tick(&mut registry, 30, vec![ENERGY.sample(gpu, (), 4.0)]);
        assert_eq!(shape(&later), [("gpu.energy", Some(Value::Double(4.0)), 10, 30)]);
    }

    #[test]
    fn metrics_with_the_same_attributes_share_them_also_after_they_have_changed() {
        let (mut registry, gpu) = registry();
        let mut at = |seconds| {
            let samples =
                [POWER.sample(gpu, (), 1.0), ENERGY.sample(gpu, (), 1.0), INFO.sample(gpu, (), 1)];
            let points = tick(&mut registry, seconds, samples.into());
            points
                .into_iter()
                .filter(|point| point.value.is_some())
                .map(|p| p.labels)
                .collect::<Vec<_>>()
        };
        let (first, again) = (at(10), at(20));
        assert!(Arc::ptr_eq(&first[0], &first[1]) && Arc::ptr_eq(&first[0], &again[1]));
        assert_ne!(first[0], first[2], "this one has more");
        registry.inventory.put(GpuInfo { index: 5, ..self::gpu("580.65") });
        let samples = vec![POWER.sample(gpu, (), 1.0), ENERGY.sample(gpu, (), 1.0)];
        let moved = tick(&mut registry, 30, samples);
        let now: Vec<_> = moved.iter().filter(|point| point.value.is_some()).collect();
        assert!(Arc::ptr_eq(&now[0].labels, &now[1].labels));
        assert_ne!(now[0].labels, first[0]);
    }

    #[test]
    fn a_series_that_is_no_longer_read_ends_once() {
        let (mut registry, gpu) = registry();
        tick(&mut registry, 10, vec![POWER.sample(gpu, (), 300.0)]);
        assert_eq!(shape(&tick(&mut registry, 20, vec![])), [("gpu.power", None, 0, 20)]);
        assert_eq!(shape(&tick(&mut registry, 30, vec![])), []);
        assert_eq!(registry.alive(), 0);
    }

    #[test]
    fn ended_gauges_are_removed_at_once_and_ended_counters_later() {
        let (mut registry, gpu) = registry();
        tick(&mut registry, 10, vec![POWER.sample(gpu, (), 1.0), ENERGY.sample(gpu, (), 1.0)]);
        tick(&mut registry, 20, vec![]);
        assert_eq!(registry.sources[&TEST].series.len(), 1);
        tick(&mut registry, 20 + REMEMBER_NS / 1_000_000_000, vec![]);
        assert_eq!(registry.sources[&TEST].series.len(), 0);
    }

    #[test]
    fn a_counter_that_returns_keeps_its_start() {
        let (mut registry, gpu) = registry();
        tick(&mut registry, 10, vec![ENERGY.sample(gpu, (), 500.0)]);
        tick(&mut registry, 20, vec![]);
        let back = tick(&mut registry, 30, vec![ENERGY.sample(gpu, (), 520.0)]);
        assert_eq!(shape(&back), [("gpu.energy", Some(Value::Double(520.0)), 10, 30)]);
    }

    #[test]
    fn above_the_limit_new_series_are_dropped_and_counted_and_devices_come_first() {
        let (registry, gpu) = registry();
        let mut registry = registry.with_limit(3);
        let on = |pid| {
            let process = ProcKey { pid, start_ticks: 7 };
            process::INFO.sample(GpuProcess { gpu, process, instance: None }, (), 1)
        };
        let tick = |registry: &mut SeriesRegistry, seconds, samples| {
            let points = tick(registry, seconds, samples);
            let alive = points.iter().filter(|point| point.value.is_some());
            alive.map(|point| point.metric.name).collect::<Vec<_>>()
        };
        let (power, energy) = (POWER.sample(gpu, (), 1.0), ENERGY.sample(gpu, (), 1.0));
        let all = || vec![on(1), on(2), power.clone(), on(3), energy.clone()];
        let reported = ["gpu.process.info", "gpu.power", "gpu.energy"];
        assert_eq!(tick(&mut registry, 10, all()), reported, "the devices' and the first process");
        assert_eq!(tick(&mut registry, 20, all()), reported, "the same ones continue");
        let report = registry.report().unwrap();
        assert_eq!(report.state, SourceState::Degraded);
        let reason = "2 series are dropped: 3 exist and the limit is 3 (agent.series_limit); most \
                      of them (4) are of unattributed";
        assert_eq!(report.reason, reason);
        assert_eq!(report.dropped, [(DropReason::SeriesLimit, 4)]);
        tick(&mut registry, 30, vec![power.clone(), energy.clone()]);
        let report = registry.report().unwrap();
        assert_eq!((report.state, report.dropped[0].1), (SourceState::Ready, 4));
        let next = tick(&mut registry, 40, vec![on(2), power, energy]);
        assert_eq!(next, reported, "the room of one that ended is another's");
        assert_eq!(registry.alive(), 3);
    }

    #[test]
    fn a_reload_limits_a_family_of_metrics_whose_series_stay() {
        let (mut registry, gpu) = registry();
        let on = |pid| {
            let process = ProcKey { pid, start_ticks: 7 };
            process::INFO.sample(GpuProcess { gpu, process, instance: None }, (), 1)
        };
        let with = |first, count| {
            let processes = (first..first + count).map(on);
            processes.chain([POWER.sample(gpu, (), 1.0)]).collect::<Vec<_>>()
        };
        assert_eq!(tick(&mut registry, 10, with(0, 30)).len(), 31);
        let family = Family { pattern: "gpu.process.*".into(), limit: 20 };
        registry.set_selection(Selection::all().with_families(vec![family]).unwrap());
        assert_eq!(tick(&mut registry, 20, with(0, 40)).len(), 31, "they stay, and no more come");
        assert_eq!(registry.report().unwrap().dropped, [(DropReason::MetricLimit, 10)]);
        tick(&mut registry, 30, with(0, 0));
        let points = tick(&mut registry, 40, with(50, 40));
        assert_eq!((points.len(), registry.alive()), (20, 20), "but for the last twentieth");
    }

    #[test]
    fn a_tick_in_which_nothing_changes_allocates_nothing() {
        let (mut registry, gpu) = registry();
        let on = |pid| {
            let process = ProcKey { pid, start_ticks: 7 };
            process::INFO.sample(GpuProcess { gpu, process, instance: None }, (), 1)
        };
        let mut batch = Batch::new("test", at(10));
        for pid in 0..100 {
            batch.push(on(pid));
        }
        batch.push(POWER.sample(gpu, (), 1.0));
        let mut out = EnrichedBatch::default();
        for _ in 0..2 {
            out.points.clear();
            registry.enrich(&batch, &mut out);
        }
        out.points.clear();
        let measured = allocation_counter::measure(|| registry.enrich(&batch, &mut out));
        assert_eq!((out.points.len(), measured.count_total), (101, 0));
        assert!(registry.report().is_none());
    }

    #[test]
    fn the_agent_s_own_series_are_never_dropped() {
        let (registry, gpu) = registry();
        let mut registry = registry.with_limit(0);
        let own = HOLDERS.sample(Agent, (), 1);
        let points = tick(&mut registry, 10, vec![POWER.sample(gpu, (), 1.0), own]);
        assert_eq!(points.iter().map(|p| p.metric.name).collect::<Vec<_>>(), ["gpuwho.openers"]);
    }

    #[test]
    fn a_new_driver_ends_only_the_series_that_names_it() {
        let (mut registry, id) = registry();
        let read = |id| vec![INFO.sample(id, (), 1), POWER.sample(id, (), 300.0)];
        tick(&mut registry, 10, read(id));
        registry.inventory.put(gpu("590.10"));
        let points = tick(&mut registry, 20, read(id));
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
            extent: gpuwho_owners::inventory::InstanceExtent::default(),
        }
    }

    fn texts(point: &Point) -> Vec<String> {
        point.labels.iter().map(|(key, value)| format!("{}={value}", key.name)).collect()
    }

    #[test]
    fn an_instance_has_its_own_identity_after_its_device_s() {
        let (mut registry, gpu) = registry();
        let id = registry.inventory.put_instance(instance(gpu, "MIG-1"));
        let process = ProcKey { pid: 7, start_ticks: 1 };
        let on = GpuProcess { gpu, process, instance: Some(id) };
        let of_process = process::MEMORY_USAGE.sample(on, process::ProcessType::Compute, 5);
        let points =
            tick(&mut registry, 10, vec![instance::MEMORY_LIMIT.sample(id, (), 9), of_process]);
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
        let (mut registry, gpu) = registry();
        let first = registry.inventory.put_instance(instance(gpu, "MIG-1"));
        let second = registry.inventory.put_instance(instance(gpu, "MIG-2"));
        tick(&mut registry, 10, vec![instance::INFO.sample(first, (), 1)]);
        let points = tick(&mut registry, 20, vec![instance::INFO.sample(second, (), 1)]);
        let seen: Vec<_> = points
            .iter()
            .map(|p| (p.labels.get(&attr::GPU_MIG_UUID).cloned(), p.value.clone()))
            .collect();
        let uuid = |text: &str| Some(text.into());
        assert_eq!(seen, [(uuid("MIG-2"), Some(Value::Int(1))), (uuid("MIG-1"), None)]);
    }

    #[test]
    fn a_clock_set_back_never_puts_a_start_after_its_point() {
        let (mut registry, gpu) = registry();
        tick(&mut registry, 100, vec![ENERGY.sample(gpu, (), 1.0)]);
        let points = tick(&mut registry, 50, vec![ENERGY.sample(gpu, (), 2.0)]);
        assert_eq!(shape(&points), [("gpu.energy", Some(Value::Double(2.0)), 50, 50)]);
    }

    #[test]
    fn a_subject_is_known_as_long_as_one_of_its_series_and_its_number_is_another_s_later() {
        let (mut registry, gpu) = registry();
        let of = |gpu: GpuId, joules: f64| {
            vec![POWER.sample(gpu, (), 1.0), ENERGY.sample(gpu, (), joules)]
        };
        tick(&mut registry, 10, of(gpu, 1.0));
        let subjects = |registry: &SeriesRegistry| -> usize {
            registry.sources.values().map(|source| source.subjects.len()).sum()
        };
        // The counter's start is remembered for a while, and with it the device.
        tick(&mut registry, 20, vec![]);
        assert_eq!(subjects(&registry), 1);
        let points = tick(&mut registry, 30, of(gpu, 2.0));
        assert_eq!(shape(&points)[1], ("gpu.energy", Some(Value::Double(2.0)), 10, 30));
        tick(&mut registry, 40, vec![]);
        tick(&mut registry, 40 + REMEMBER_NS / 1_000_000_000, vec![]);
        assert_eq!(subjects(&registry), 0);
        // Another subject with the same number is not taken for the first.
        let agent = tick(&mut registry, 2_000, vec![HOLDERS.sample(Agent, (), 1)]);
        assert_eq!(agent[0].labels.get(&attr::GPU_UUID), None);
        let points = tick(&mut registry, 2_010, of(gpu, 3.0));
        let uuids = points.iter().filter_map(|point| point.labels.get(&attr::GPU_UUID)).count();
        assert_eq!((uuids, subjects(&registry)), (2, 1));
    }

    #[test]
    fn stopping_ends_every_series() {
        let (mut registry, gpu) = registry();
        tick(&mut registry, 10, vec![POWER.sample(gpu, (), 1.0), ENERGY.sample(gpu, (), 1.0)]);
        let mut out = EnrichedBatch::default();
        registry.end_all(&mut out);
        assert_eq!(out.points.iter().filter(|p| p.value.is_none()).count(), 2);
    }

    #[test]
    fn a_late_part_of_a_source_neither_ends_nor_restarts_the_others_series() {
        let (mut registry, gpu) = registry();
        let replica = |part| SourcePart { source: "engine", part };
        let mut tick = |part, seconds, subject: GpuId, joules| {
            let mut batch = Batch::of(replica(part), at(seconds));
            batch.push(ENERGY.sample(subject, (), joules));
            let mut out = EnrichedBatch::default();
            registry.enrich(&batch, &mut out);
            shape(&out.points)
        };
        let other = GpuId(gpu.0 + 1);
        let energy =
            |joules, start, time| vec![("gpu.energy", Some(Value::Double(joules)), start, time)];
        assert_eq!(tick(1, 10, gpu, 1.0), energy(1.0, 10, 10));
        assert_eq!(tick(2, 10, other, 5.0), energy(5.0, 10, 10));
        // The second is late: only the first arrives.
        assert_eq!(tick(1, 20, gpu, 2.0), energy(2.0, 10, 20));
        assert_eq!(tick(2, 30, other, 6.0), energy(6.0, 10, 30));
        let mut out = EnrichedBatch::default();
        registry.end(replica(1), &mut out);
        assert_eq!(out.points.len(), 1, "{:?}", out.points);
        assert_eq!((out.points[0].value.clone(), registry.alive()), (None, 1));
        registry.end(replica(2), &mut out);
        assert_eq!((registry.alive(), registry.sources.len()), (0, 0));
    }

    #[test]
    fn open_labels_make_series_of_their_own_and_are_on_their_points() {
        let (mut registry, gpu) = registry();
        let mut sets = LabelSets::new(8);
        let [a, b] = ["a", "b"].map(|model| sets.intern(&[(&attr::GPU_MODEL, model)]));
        let energy =
            |joules, labels: &LabelSet| ENERGY.sample(gpu, (), joules).labelled(labels.clone());
        let points = tick(&mut registry, 10, vec![energy(1.0, &a), energy(9.0, &b)]);
        let model = |point: &Point| point.labels.get(&attr::GPU_MODEL).cloned();
        let both: Vec<_> = points.iter().map(model).collect();
        assert_eq!(both, [Some("a".into()), Some("b".into())]);
        let points = tick(&mut registry, 20, vec![energy(2.0, &a)]);
        let ended: Vec<_> = points.iter().map(|point| (model(point), &point.value)).collect();
        let goes_on = (Some("a".into()), &Some(Value::Double(2.0)));
        assert_eq!(ended, [goes_on, (Some("b".into()), &None)]);
    }
}
