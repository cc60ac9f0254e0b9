//! `owner_on_devices`: the points of a device that has one owner carry the owner's attributes.
//!
//! The owners of a device are those with processes on it and those it is allocated to, by the series
//! of `gpu.owner.processes` and `gpu.allocation.time` in the same batch. With none, several or an
//! unknown one its points stay as they are. When the owner changes, the device's series end and begin
//! under the new attributes. One entry for each series of a device and of an owner on it, so the
//! series limit bounds them.

use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::attributes::{AttrKey, AttrSet};
use gpuwho_model::catalog::{self, Kind, MetricDef, share};
use gpuwho_model::ids::GpuId;
use gpuwho_model::point::{EnrichedBatch, Labels, Point};
use gpuwho_model::subject::SubjectKind as _;
use std::collections::HashMap;
use std::sync::Arc;

/// Owners of devices, and the devices' series with them.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// By series: an owner on a device.
    presences: HashMap<SeriesKey, Presence>,
    /// By the device's UUID.
    devices: HashMap<Arc<str>, Device>,
    /// By series: those of a device.
    series: HashMap<SeriesKey, Series>,
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
    /// Its one owner.
    owner: Option<AttrSet>,
    /// Counts changes of it.
    version: u64,
}

#[derive(Debug)]
struct Series {
    device: Option<Arc<str>>,
    native: Arc<Labels>,
    labels: Arc<Labels>,
    version: u64,
    /// Where the series began under these labels.
    start_ns: u64,
    was_sent: bool,
}

/// The attributes of a device, which are not its owner's.
const OF_DEVICE: [&AttrKey; 4] =
    [&attr::GPU_UUID, &attr::GPU_INDEX, &attr::GPU_MODEL, &attr::GPU_VENDOR];

impl Owners {
    /// Writes the batch with the owners to `out`.
    pub(super) fn add(&mut self, batch: &EnrichedBatch, out: &mut EnrichedBatch) {
        let mut has_changed = false;
        for point in batch.points.iter().filter(|point| names_an_owner(point.metric)) {
            has_changed |= self.note(point);
        }
        if has_changed {
            self.find_owners();
        }
        for point in &batch.points {
            if point.metric.subject == GpuId::WORD {
                self.relabel(point, out);
            } else {
                out.points.push(point.clone());
            }
        }
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
        for (device, known) in &mut self.devices {
            let owner = owners.get(device).copied().flatten().filter(|owner| is_known(owner));
            if known.owner.as_ref() != owner {
                known.owner = owner.cloned();
                known.version += 1;
            }
        }
        for (device, owner) in owners {
            if !self.devices.contains_key(device) {
                let owner = owner.filter(|owner| is_known(owner)).cloned();
                self.devices.insert(Arc::clone(device), Device { owner, version: 1 });
            }
        }
    }

    fn relabel(&mut self, point: &Point, out: &mut EnrichedBatch) {
        let key = key(point);
        let series = self.series.entry(key).or_insert_with(|| Series {
            device: uuid(&point.labels),
            native: Arc::clone(&point.labels),
            labels: Arc::clone(&point.labels),
            version: 0,
            start_ns: 0,
            was_sent: false,
        });
        let device = series.device.as_ref().and_then(|device| self.devices.get(device));
        let version = device.map_or(0, |device| device.version);
        if series.version != version && point.value.is_some() {
            let labels = labels(&series.native, device.and_then(|device| device.owner.as_ref()));
            if labels != series.labels {
                if series.was_sent {
                    let labels = Arc::clone(&series.labels);
                    out.points.push(Point { labels, value: None, ..point.clone() });
                    // The value so far was counted under the former labels.
                    series.start_ns = point.time_ns;
                }
                series.labels = labels;
            }
            series.version = version;
        }
        let start_ns = match point.metric.kind {
            Kind::Gauge => 0,
            _ => point.start_ns.max(series.start_ns),
        };
        series.was_sent = true;
        out.points.push(Point { labels: Arc::clone(&series.labels), start_ns, ..point.clone() });
        if point.value.is_none() {
            self.series.remove(&key);
        }
    }
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
    use gpuwho_model::catalog::device;
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

    /// The device's energy as sent: its pod, whether it ended, and the start.
    fn sent(owners: &mut Owners, points: Vec<Point>) -> Vec<(Option<String>, bool, u64)> {
        let mut out = EnrichedBatch::default();
        owners.add(&EnrichedBatch { points }, &mut out);
        let energy = out.points.iter().filter(|point| *point.metric == *device::ENERGY.def());
        let sent = energy.map(|point| {
            let pod = point.labels.get(&attr::K8S_POD_NAME).map(ToString::to_string);
            (pod, point.value.is_none(), point.start_ns)
        });
        sent.collect()
    }

    #[test]
    fn one_owner_is_on_a_devices_points_from_the_first_batch_on() {
        let (mut owners, gpu, pod) = (Owners::default(), labels(&[]), owner("a"));
        let processes = share::OWNER_PROCESSES.def();
        let energy = || point(device::ENERGY.def(), &gpu, Some(1.0));
        let both = vec![energy(), point(processes, &pod, Some(1.0))];
        assert_eq!(sent(&mut owners, both), [(Some("a".into()), false, 5)]);
        // The next batch without news of owners.
        assert_eq!(sent(&mut owners, vec![energy()]), [(Some("a".into()), false, 5)]);
        let gone = vec![energy(), point(processes, &pod, None)];
        assert_eq!(
            sent(&mut owners, gone),
            [(Some("a".into()), true, 5), (None, false, 100)],
            "the series ends and begins"
        );
        assert!(owners.presences.is_empty());
    }

    #[test]
    fn a_second_owner_an_allocation_to_another_and_nobody_known_name_none() {
        let gpu = labels(&[]);
        let energy = || point(device::ENERGY.def(), &gpu, Some(1.0));
        let (a, b) = (owner("a"), owner("b"));
        let unknown = labels(&[(&attr::OWNER_KIND, "unattributed")]);
        let (processes, allocated) = (share::OWNER_PROCESSES.def(), share::ALLOCATION_TIME.def());
        for (metric, second) in [(processes, &b), (allocated, &b), (processes, &unknown)] {
            let points =
                vec![point(processes, &a, Some(1.0)), point(metric, second, Some(1.0)), energy()];
            assert_eq!(sent(&mut Owners::default(), points), [(None, false, 5)]);
        }
        let same = labels(&[
            (&attr::OWNER_KIND, "pod"),
            (&attr::K8S_POD_NAME, "a"),
            (&attr::ALLOCATION_STATE, "active"),
        ]);
        let points =
            vec![point(processes, &a, Some(1.0)), point(allocated, &same, Some(1.0)), energy()];
        assert_eq!(sent(&mut Owners::default(), points), [(Some("a".into()), false, 5)]);
    }

    #[test]
    fn a_series_that_ends_does_so_under_its_own_labels_and_is_forgotten() {
        let (mut owners, gpu, pod) = (Owners::default(), labels(&[]), owner("a"));
        let energy = |value| point(device::ENERGY.def(), &gpu, value);
        let begin = vec![energy(Some(1.0)), point(share::OWNER_PROCESSES.def(), &pod, Some(1.0))];
        sent(&mut owners, begin);
        assert_eq!(sent(&mut owners, vec![energy(None)]), [(Some("a".into()), true, 5)]);
        assert!(owners.series.is_empty());
    }
}
