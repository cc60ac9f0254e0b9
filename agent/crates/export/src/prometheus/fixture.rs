//! Points and endpoints for the tests of this folder.

use super::access::Users;
use super::server::Bounds;
use super::store::{Options, Store};
use super::tls::Tls;
use super::{Endpoint, PrometheusSink};
use crate::Sink as _;
use crate::naming::Profile;
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use gpuwho_model::catalog::{Kind, MetricDef, device};
use gpuwho_model::heartbeat::Heartbeat;
use gpuwho_model::point::{EnrichedBatch, Labels, Point};
use gpuwho_model::sample::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const UUID: &str = "GPU-1";

/// The labels of the device, and one more.
pub(super) fn labels(more: Option<(&'static attr::AttrKey, &str)>) -> Arc<Labels> {
    let mut set = AttrSet::new();
    set.set(&attr::GPU_UUID, UUID);
    set.set(&attr::GPU_INDEX, "0");
    set.set_some(more.map_or(&attr::GPU_MODEL, |(key, _)| key), more.map(|(_, value)| value));
    Arc::new(Labels::new(set))
}

pub(super) fn point(
    metric: &'static MetricDef,
    labels: &Arc<Labels>,
    value: Option<Value>,
) -> Point {
    let start_ns = u64::from(metric.kind != Kind::Gauge);
    Point { metric, labels: Arc::clone(labels), value, start_ns, time_ns: 1 }
}

/// A batch of one reading of the power.
pub(super) fn power(watts: f64) -> EnrichedBatch {
    let point = point(device::POWER.def(), &labels(None), Some(Value::Double(watts)));
    EnrichedBatch { points: vec![point] }
}

pub(super) fn options(profiles: &[Profile]) -> Options {
    Options {
        owner_in_dcgm: true,
        profiles: profiles.to_vec(),
        scope_labels: false,
        target: "host_name=\"node\"".into(),
        host: "node".into(),
        of_host: ",host_name=\"node\"".into(),
        stale: Duration::from_mins(5),
    }
}

pub(super) fn store(profiles: &[Profile], points: Vec<Point>) -> Store {
    let mut store = Store::new(options(profiles));
    store.update(&EnrichedBatch { points }, Instant::now());
    store
}

/// A running endpoint with one reading.
pub(super) fn start(
    users: Users,
    tls: Option<Tls>,
    bounds: Bounds,
) -> (PrometheusSink, SocketAddr) {
    let heartbeat = Arc::new(Heartbeat::new(Duration::from_secs(1)));
    let endpoint = Endpoint::new(options(&[Profile::Native]), users, tls, heartbeat);
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let (mut sink, address) = PrometheusSink::start(address, endpoint, bounds).unwrap();
    sink.export(&power(250.5));
    (sink, address)
}
