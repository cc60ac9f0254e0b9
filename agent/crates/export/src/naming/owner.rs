//! `owner_on_devices`: the gauges of a device that has one owner carry the owner's attributes.
//!
//! The owners of a device are those with processes on it and those it is allocated to, by the series
//! of `gpu.owner.processes` and `gpu.allocation.time` in the same batch. With none, several or an
//! unknown one its points stay as they are, and so they do until one owner had it alone from one batch
//! to the next: jobs shorter than an interval make no series. Counters, states, health and info keep
//! their identity. One entry for each series of a device and of an owner on it, so the series limit
//! bounds them.

use gpuwho_model::catalog::attributes::{self as attr, AttrKey, AttrSet};
use gpuwho_model::catalog::{self, Kind, MetricDef, device, share};
use gpuwho_model::ids::GpuId;
use gpuwho_model::point::{EnrichedBatch, Labels, Point};
use gpuwho_model::subject::SubjectKind as _;
use std::collections::HashMap;
use std::sync::Arc;

/// The one owner of each device that has one.
#[derive(Debug, Default)]
pub(crate) struct DeviceOwners {
    /// By series: an owner on a device.
    presences: HashMap<SeriesKey, Presence>,
    /// By the device's UUID.
    devices: HashMap<Arc<str>, Device>,
    /// Batches so far.
    batches: u64,
}

#[derive(Debug)]
struct Presence {
    /// Held, so that no other series has the address.
    _labels: Arc<Labels>,
    device: Arc<str>,
    owner: AttrSet,
}

#[derive(Debug, Default)]
struct Device {
    /// Who has it alone.
    owner: Option<AttrSet>,
    /// The batch with which that began.
    since: u64,
}

/// The attributes of a device, which are not its owner's.
const OF_DEVICE: [&AttrKey; 4] =
    [&attr::GPU_UUID, &attr::GPU_INDEX, &attr::GPU_MODEL, &attr::GPU_VENDOR];

impl DeviceOwners {
    /// Takes the owners of a batch.
    pub(crate) fn observe(&mut self, batch: &EnrichedBatch) {
        self.batches += 1;
        let mut has_changed = false;
        for point in batch.points.iter().filter(|point| names_an_owner(point.metric)) {
            has_changed |= self.note(point);
        }
        if has_changed {
            self.find_owners();
        }
    }

    /// Who had a device alone from the batch before to this one.
    pub(crate) fn of(&self, device: &str) -> Option<&AttrSet> {
        let device = self.devices.get(device).filter(|device| device.since < self.batches);
        device.and_then(|device| device.owner.as_ref())
    }

    /// Notes that an owner is on a device, or no longer; returns whether it is news.
    fn note(&mut self, point: &Point) -> bool {
        let key = key(point);
        if point.value.is_none() {
            return self.presences.remove(&key).is_some();
        }
        if self.presences.contains_key(&key) {
            return false;
        }
        let set = &point.labels;
        let Some(device) = uuid(set) else { return false };
        let mut owner = AttrSet::new();
        let is_dim = |key: &AttrKey| point.metric.dims.iter().any(|dim| dim.key.name == key.name);
        for (key, value) in set.iter() {
            if !is_dim(key) && !OF_DEVICE.iter().any(|of| of.name == key.name) {
                owner.set(key, value.clone());
            }
        }
        let presence = Presence { _labels: Arc::clone(&point.labels), device, owner };
        self.presences.insert(key, presence);
        true
    }

    /// Finds the one owner of each device.
    fn find_owners(&mut self) {
        let mut owners: HashMap<&Arc<str>, Option<&AttrSet>> = HashMap::new();
        for Presence { device, owner, .. } in self.presences.values() {
            let one = owners.entry(device).or_insert(Some(owner));
            // The one of another name is a second owner.
            if *one != Some(owner) {
                *one = None;
            }
        }
        self.devices.retain(|device, _| owners.contains_key(device));
        for (device, owner) in owners {
            let owner = owner.filter(|owner| is_known(owner));
            let known = self.devices.entry(Arc::clone(device)).or_default();
            if known.owner.as_ref() != owner {
                *known = Device { owner: owner.cloned(), since: self.batches };
            }
        }
    }
}

/// The gauges of devices under the attributes of their owners.
#[derive(Debug, Default)]
pub(super) struct OwnedGauges {
    owners: DeviceOwners,
    /// By series: those of a device.
    series: HashMap<SeriesKey, Series>,
}

#[derive(Debug)]
struct Series {
    device: Option<Arc<str>>,
    native: Arc<Labels>,
    owner: Option<AttrSet>,
    labels: Arc<Labels>,
    was_sent: bool,
}

impl OwnedGauges {
    /// Writes the batch with the owners to `out`.
    pub(super) fn add(&mut self, batch: &EnrichedBatch, out: &mut EnrichedBatch) {
        self.owners.observe(batch);
        for point in &batch.points {
            if takes_owner(point.metric) {
                self.relabel(point, out);
            } else {
                out.points.push(point.clone());
            }
        }
    }

    fn relabel(&mut self, point: &Point, out: &mut EnrichedBatch) {
        let key = key(point);
        let series = self.series.entry(key).or_insert_with(|| Series {
            device: uuid(&point.labels),
            native: Arc::clone(&point.labels),
            owner: None,
            labels: Arc::clone(&point.labels),
            was_sent: false,
        });
        let owner = series.device.as_ref().and_then(|device| self.owners.of(device));
        if series.owner.as_ref() != owner && point.value.is_some() {
            if series.was_sent {
                let labels = Arc::clone(&series.labels);
                out.points.push(Point { labels, value: None, ..point.clone() });
            }
            series.owner = owner.cloned();
            series.labels = labels(&series.native, owner);
        }
        series.was_sent = true;
        out.points.push(Point { labels: Arc::clone(&series.labels), ..point.clone() });
        if point.value.is_none() {
            self.series.remove(&key);
        }
    }
}

/// Whether a device's metric is a gauge of what its owner does. A state, a fault or a fact is the device's
/// own, and a counter goes on whoever has the device.
pub(crate) fn takes_owner(metric: &'static MetricDef) -> bool {
    let is_gauge = matches!(metric.kind, Kind::Gauge | Kind::UpDownCounter);
    let is_own = metric.is_state_set()
        || metric.unit == "{info}"
        || metric.name.starts_with("gpu.health.")
        || *metric == *device::UP.def();
    metric.subject == GpuId::WORD && is_gauge && !is_own
}

/// A series: its metric and the address of its labels, which other metrics may share.
type SeriesKey = (u16, usize);

fn key(point: &Point) -> SeriesKey {
    (catalog::index_of(point.metric), Arc::as_ptr(&point.labels).addr())
}

/// Whether a metric's series say that an owner is on a device.
fn names_an_owner(metric: &'static MetricDef) -> bool {
    *metric == *share::OWNER_PROCESSES.def() || *metric == *share::ALLOCATION_TIME.def()
}

/// Whether it is one owner; `other` and `unattributed` stand for several, or for nobody known.
fn is_known(owner: &AttrSet) -> bool {
    let kind = owner.get(&attr::OWNER_KIND).and_then(|kind| kind.as_text());
    kind.is_some_and(|kind| !["other", "unattributed"].contains(&kind))
}

fn uuid(set: &Labels) -> Option<Arc<str>> {
    set.get(&attr::GPU_UUID).and_then(|uuid| uuid.as_text()).map(Arc::from)
}

fn labels(native: &Arc<Labels>, owner: Option<&AttrSet>) -> Arc<Labels> {
    let Some(owner) = owner else { return Arc::clone(native) };
    let mut set = native.to_set();
    set.extend(owner);
    Arc::new(Labels::new(set))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::health;
    use gpuwho_model::sample::Value;

    fn labels(more: &[(&'static AttrKey, &str)]) -> Arc<Labels> {
        let mut set = AttrSet::new();
        set.set(&attr::GPU_UUID, "GPU-1");
        for (key, value) in more {
            set.set(key, *value);
        }
        Arc::new(Labels::new(set))
    }

    fn owner(pod: &str) -> Arc<Labels> {
        labels(&[
            (&attr::OWNER_KIND, "pod"),
            (&attr::K8S_POD_NAME, pod),
            (&attr::PRESENCE, "listed"),
        ])
    }

    fn point(metric: &'static MetricDef, labels: &Arc<Labels>, value: Option<f64>) -> Point {
        let value = value.map(Value::Double);
        Point { metric, labels: Arc::clone(labels), value, start_ns: 5, time_ns: 100 }
    }

    /// The points of a metric as sent: the pod, and whether the series ended.
    fn sent_of(
        metric: &'static MetricDef,
        owners: &mut OwnedGauges,
        points: Vec<Point>,
    ) -> Vec<(Option<String>, bool)> {
        let mut out = EnrichedBatch::default();
        owners.add(&EnrichedBatch { points }, &mut out);
        let same = out.points.iter().filter(|point| *point.metric == *metric);
        let sent = same.map(|point| {
            let pod = point.labels.get(&attr::K8S_POD_NAME).map(ToString::to_string);
            (pod, point.value.is_none())
        });
        sent.collect()
    }

    fn sent(owners: &mut OwnedGauges, points: Vec<Point>) -> Vec<(Option<String>, bool)> {
        sent_of(device::POWER.def(), owners, points)
    }

    #[test]
    fn one_owner_is_on_a_device_s_gauges_once_it_had_the_device_for_an_interval() {
        let (mut owners, gpu, pod) = (OwnedGauges::default(), labels(&[]), owner("a"));
        let processes = share::OWNER_PROCESSES.def();
        let power = || point(device::POWER.def(), &gpu, Some(1.0));
        let both = vec![power(), point(processes, &pod, Some(1.0))];
        assert_eq!(sent(&mut owners, both), [(None, false)], "it came just now");
        // The next batch without news of owners.
        assert_eq!(sent(&mut owners, vec![power()]), [(None, true), (Some("a".into()), false)]);
        let gone = vec![power(), point(processes, &pod, None)];
        assert_eq!(
            sent(&mut owners, gone),
            [(Some("a".into()), true), (None, false)],
            "the series ends and begins"
        );
        assert!(owners.owners.presences.is_empty() && owners.owners.devices.is_empty());
    }

    #[test]
    fn counters_states_health_and_info_keep_their_identity() {
        let (gpu, pod) = (labels(&[]), owner("a"));
        for metric in [
            device::ENERGY.def(),
            device::STATE.def(),
            device::INFO.def(),
            device::UP.def(),
            health::CONDITION.def(),
        ] {
            let mut owners = OwnedGauges::default();
            for _ in 0..3 {
                let points = vec![
                    point(metric, &gpu, Some(1.0)),
                    point(share::OWNER_PROCESSES.def(), &pod, Some(1.0)),
                ];
                assert_eq!(
                    sent_of(metric, &mut owners, points),
                    [(None, false)],
                    "{}",
                    metric.name
                );
            }
        }
    }

    #[test]
    fn a_thousand_short_jobs_add_no_series_of_a_device() {
        let (mut owners, gpu) = (OwnedGauges::default(), labels(&[]));
        let processes = share::OWNER_PROCESSES.def();
        let mut before: Option<Arc<Labels>> = None;
        for job in 0..1000 {
            let pod = owner(&format!("job-{job}"));
            let mut points = vec![point(device::POWER.def(), &gpu, Some(1.0))];
            points.extend(before.as_ref().map(|pod| point(processes, pod, None)));
            points.push(point(processes, &pod, Some(1.0)));
            assert_eq!(sent(&mut owners, points), [(None, false)], "{job}");
            before = Some(pod);
        }
        assert_eq!((owners.series.len(), owners.owners.presences.len()), (1, 1));
    }

    #[test]
    fn a_second_owner_an_allocation_to_another_and_nobody_known_name_none() {
        let gpu = labels(&[]);
        let power = || point(device::POWER.def(), &gpu, Some(1.0));
        let (a, b) = (owner("a"), owner("b"));
        let unknown = labels(&[(&attr::OWNER_KIND, "unattributed")]);
        let (processes, allocated) = (share::OWNER_PROCESSES.def(), share::ALLOCATION_TIME.def());
        let settled = |second: Point| {
            let mut owners = OwnedGauges::default();
            sent(&mut owners, vec![point(processes, &a, Some(1.0)), second]);
            sent(&mut owners, vec![power()])
        };
        for (metric, second) in [(processes, &b), (allocated, &b), (processes, &unknown)] {
            assert_eq!(settled(point(metric, second, Some(1.0))), [(None, false)]);
        }
        let same = labels(&[
            (&attr::OWNER_KIND, "pod"),
            (&attr::K8S_POD_NAME, "a"),
            (&attr::ALLOCATION_STATE, "active"),
        ]);
        assert_eq!(settled(point(allocated, &same, Some(1.0))), [(Some("a".into()), false)]);
    }

    #[test]
    fn a_series_that_ends_does_so_under_its_own_labels_and_is_forgotten() {
        let (mut owners, gpu, pod) = (OwnedGauges::default(), labels(&[]), owner("a"));
        let power = |value| point(device::POWER.def(), &gpu, value);
        sent(&mut owners, vec![point(share::OWNER_PROCESSES.def(), &pod, Some(1.0))]);
        sent(&mut owners, vec![power(Some(1.0))]);
        assert_eq!(sent(&mut owners, vec![power(None)]), [(Some("a".into()), true)]);
        assert!(owners.series.is_empty());
    }
}
