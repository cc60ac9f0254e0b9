//! The last point of every live series, in families, and the pages rendered from them.
//!
//! Cost: one look-up in a tree a point on the tick's thread, no allocation for a series that
//! continues. A page is rendered at most once a tick and format, whatever clients do; the tick waits
//! at most for that.

use super::names::{FAMILIES, OWN};
use super::text::{self, Format, Page};
use crate::naming::Profile;
use crate::naming::owner::DeviceOwners;
use bytes::Bytes;
use flate2::write::GzEncoder;
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::catalog::{self, MetricDef};
use gpuwho_model::point::{EnrichedBatch, Labels, Point, Reading};
use gpuwho_model::sample::Value;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Largest page before compression. The default limit of 50,000 series makes some 20 MB; what does
/// not fit is left out and counted, least important series first.
const MAX_PAGE: usize = 24 << 20;

/// Largest sum of all pages in memory: those of this tick, and those that slow clients still read.
/// The unit allows the agent 256 MiB.
const MAX_HELD: usize = 48 << 20;

/// What to render.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// The naming profiles, in order.
    pub(super) profiles: Vec<Profile>,
    /// Whether every series carries the scope.
    pub(super) scope_labels: bool,
    /// Whether dcgm-exporter's names have the owner of a device.
    pub(super) owner_in_dcgm: bool,
    /// The resource's attributes as labels, for `target_info`.
    pub(super) target: Box<str>,
    /// The host's name, for profiles that put it on every series themselves.
    pub(super) host: Box<str>,
    /// Labels of the host on every other series ([`text::of_host`]).
    pub(super) of_host: Box<str>,
    /// A series without a new point for this long is left out: its source hangs. Pushed points
    /// disappear from Prometheus after the same time.
    pub(super) stale: Duration,
}

/// The live series.
#[derive(Debug)]
pub(super) struct Store {
    options: Options,
    /// By [`catalog::index_of`], then by the address of the labels, which one series has alone.
    families: Vec<BTreeMap<usize, Live>>,
    owners: DeviceOwners,
    pages: Vec<Rendered>,
    /// Bytes of all pages in memory.
    held: Arc<AtomicUsize>,
    pub(super) not_finite: u64,
    /// Series that had no place on a page, of all pages.
    pub(super) left_out: u64,
}

/// A series' last point.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) labels: Arc<Labels>,
    pub(super) value: Value,
    pub(super) at: Instant,
}

impl Live {
    /// Its labels as Prometheus has them.
    fn text(&self) -> &str {
        self.labels.prometheus.get_or_init(|| text::labels(&mut self.labels.iter()))
    }
}

/// A page as sent.
#[derive(Clone, Debug)]
pub(super) struct Rendered {
    pub(super) format: Format,
    pub(super) is_gzip: bool,
    pub(super) body: Bytes,
    /// Samples' series in it.
    pub(super) points: u64,
}

/// The page cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum PageError {
    /// Slow clients have not taken former pages yet.
    #[error("clients that read slowly hold {MAX_HELD} bytes of former pages")]
    Held,
    /// The compressor failed.
    #[error("cannot compress the page: {0}")]
    Gzip(#[from] io::Error),
}

impl Store {
    pub(super) fn new(options: Options) -> Self {
        let families = catalog::with_profiles().map(|_| BTreeMap::new()).collect();
        let (pages, held) = <(Vec<_>, Arc<_>)>::default();
        let owners = DeviceOwners::default();
        Self { options, families, owners, pages, held, not_finite: 0, left_out: 0 }
    }

    /// Takes the points of a tick.
    pub(super) fn update(&mut self, batch: &EnrichedBatch, now: Instant) {
        self.pages.clear();
        let index = |point: &Point| usize::from(catalog::index_of(point.metric));
        // Points under another profile's names come as a batch of their own.
        if self.options.owner_in_dcgm
            && batch.points.first().is_some_and(|point| index(point) < *OWN)
        {
            self.owners.observe(batch);
        }
        for point in &batch.points {
            let Some(family) = self.families.get_mut(index(point)) else { continue };
            let key = Arc::as_ptr(&point.labels).addr();
            match (point.reading(), &point.value) {
                (Some(Reading::Ended), _) => drop(family.remove(&key)),
                (Some(_), Some(value)) => put(family, key, point, value, now),
                _ => self.not_finite += 1,
            }
        }
    }

    /// The owner that has a device alone.
    pub(super) fn owner(&self, uuid: &str) -> Option<&AttrSet> {
        self.owners.of(uuid)
    }

    /// The page in a format; rendered at first use after a tick.
    pub(super) fn page(
        &mut self,
        format: Format,
        is_gzip: bool,
        now: Instant,
    ) -> Result<Rendered, PageError> {
        let known = |page: &&Rendered| page.format == format && page.is_gzip == is_gzip;
        if let Some(page) = self.pages.iter().find(known) {
            return Ok(page.clone());
        }
        if self.held.load(Ordering::Relaxed) >= MAX_HELD {
            return Err(PageError::Held);
        }
        let plain = match self.pages.iter().find(|page| page.format == format && !page.is_gzip) {
            Some(page) => page.clone(),
            None => self.render(format, now),
        };
        let page = if is_gzip {
            Rendered { is_gzip, body: self.hold(gzip(&plain.body)?), ..plain }
        } else {
            plain
        };
        self.pages.push(page.clone());
        Ok(page)
    }

    fn render(&mut self, format: Format, now: Instant) -> Rendered {
        let scope = if self.options.scope_labels {
            format!(
                ",otel_scope_name=\"{}\",otel_scope_version=\"{}\"",
                gpuwho_model::NAME,
                env!("CARGO_PKG_VERSION")
            )
        } else {
            String::new()
        };
        let mut page = Page { format, text: String::new(), more_labels: String::new() };
        let (mut points, mut left_out) = (0, 0);
        for profile in &self.options.profiles {
            let has_host = matches!(profile, Profile::L9gpu | Profile::Dcgm(_));
            let of_host = if has_host { "" } else { &self.options.of_host };
            page.more_labels = format!("{of_host}{scope}");
            match profile {
                Profile::Native | Profile::Semconv | Profile::L9gpu => {
                    let is_native = *profile == Profile::Native;
                    let (written, rest) = self.families(&mut page, now, is_native);
                    points += written;
                    left_out += rest;
                }
                Profile::Dcgm(of) => points += super::dcgm::render(self, *of, &mut page, now),
            }
        }
        if left_out > 0 {
            let remedy = "lower agent.series_limit, or select fewer metrics in [metrics]";
            tracing::warn!(left_out, remedy, "the page for Prometheus is full");
        }
        self.left_out += left_out;
        page.text.push_str(&target(format, &self.options.target));
        if format == Format::OpenMetrics {
            page.text.push_str("# EOF\n");
        }
        Rendered { format, is_gzip: false, body: self.hold(page.text.into()), points }
    }

    /// A page's bytes, counted until the last client has them.
    fn hold(&self, page: Vec<u8>) -> Bytes {
        self.held.fetch_add(page.len(), Ordering::Relaxed);
        Bytes::from_owner(Held { page, sum: Arc::clone(&self.held) })
    }

    /// Writes the series of the catalogue's metrics, or those of the other naming profiles, as far as
    /// there is place; returns how many, and how many are left out.
    fn families(&self, page: &mut Page, now: Instant, is_native: bool) -> (u64, u64) {
        let (mut points, mut left_out) = (0, 0);
        let mut written: HashSet<&str> = HashSet::new();
        for at in ORDER.iter().copied().filter(|at| (at < &*OWN) == is_native) {
            let (Some(family), Some(series)) = (FAMILIES.get(at), self.families.get(at)) else {
                continue;
            };
            let live = series.values().filter(|live| self.is_fresh(live, now));
            let mut live: Vec<&Live> = live.collect();
            // Two of a profile's names that become one are the same series.
            if !live.is_empty() && !written.insert(&family.name) {
                continue;
            }
            if !live.is_empty() && page.text.len() < MAX_PAGE {
                page.head(family);
            }
            // In one order, so that two pages can be compared.
            live.sort_unstable_by(|one, other| one.text().cmp(other.text()));
            for one in live {
                if page.text.len() >= MAX_PAGE {
                    left_out += 1;
                    continue;
                }
                page.series(&family.name, one.text(), &one.value);
                points += 1;
            }
        }
        (points, left_out)
    }

    /// The live series of a metric.
    pub(super) fn of(
        &self,
        metric: &'static MetricDef,
        now: Instant,
    ) -> impl Iterator<Item = &Live> {
        let series = self.families.get(usize::from(catalog::index_of(metric)));
        let live = series.into_iter().flat_map(BTreeMap::values);
        live.filter(move |live| self.is_fresh(live, now))
    }

    /// The host's name.
    pub(super) fn host(&self) -> &str {
        &self.options.host
    }

    fn is_fresh(&self, live: &Live, now: Instant) -> bool {
        now.saturating_duration_since(live.at) < self.options.stale
    }
}

/// The families' places in the catalogue, the most important first.
static ORDER: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let mut order: Vec<_> = catalog::with_profiles().map(importance).enumerate().collect();
    order.sort_by_key(|(_, importance)| *importance);
    order.into_iter().map(|(at, _)| at).collect()
});

/// Ascends from what no tenant can make more of to what tenants' programs report of themselves.
fn importance(metric: &MetricDef) -> u8 {
    match metric.subject {
        "agent" | "source" | "refused" | "host" | "gpu" | "instance" | "xid" => 0,
        "profile" if metric.name.starts_with("gpu.") || metric.name.starts_with("hw.") => 0,
        "profile" | "engine" | "engine_gpu" | "communicator" | "recent" => 2,
        _ => 1,
    }
}

/// A page in memory.
struct Held {
    page: Vec<u8>,
    sum: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.page
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.page.len(), Ordering::Relaxed);
    }
}

fn put(family: &mut BTreeMap<usize, Live>, key: usize, point: &Point, value: &Value, now: Instant) {
    let Some(live) = family.get_mut(&key) else {
        let labels = Arc::clone(&point.labels);
        family.insert(key, Live { labels, value: value.clone(), at: now });
        return;
    };
    live.at = now;
    match (&mut live.value, value) {
        // The bounds of a series never change; its counts keep their allocation.
        (Value::Histogram(old), Value::Histogram(new)) if old.bounds == new.bounds => {
            old.counts.clone_from(&new.counts);
            old.sum = new.sum;
        }
        (old, new) => *old = new.clone(),
    }
}

/// The family `target_info`, which carries the resource's attributes.
fn target(format: Format, labels: &str) -> String {
    let head = match format {
        Format::Text => "# TYPE target_info gauge\n# HELP target_info",
        Format::OpenMetrics => "# TYPE target info\n# HELP target",
    };
    format!("{head} Attributes of the agent and its host.\ntarget_info{{{labels}}} 1\n")
}

fn gzip(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(text)?;
    out.finish()
}

#[cfg(test)]
mod tests;
