//! Names of a sink: which naming profiles it has, and whether a device's own points carry its owner.
//!
//! Reads the enriched batch and hands the sink one with other names and attributes. A sink with the
//! native names alone gets the batch as it is, at no cost. Otherwise one hash look-up a point and
//! profile, and no allocation for a series that continues.

pub(crate) mod owner;
mod slot;
mod translator;
mod window;

use super::resource::{Resource, attributes};
use super::{Report, Sink};
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::catalog::dcgm::Vocabulary;
use gpuwho_model::catalog::{profile, share};
use gpuwho_model::config::{ConfigError, Resolving, checks};
use gpuwho_model::point::EnrichedBatch;
use gpuwho_pipeline::event::record::Record;
use owner::OwnedGauges;
use std::time::Instant;
use translator::Translator;

/// A naming profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The catalogue's names.
    Native,
    /// The names of OpenTelemetry's semantic conventions.
    Semconv,
    /// The names and attributes of l9gpu, for its dashboards and rules.
    L9gpu,
    /// The names and labels of NVIDIA's dcgm-exporter, for its dashboards and rules; only on the
    /// Prometheus endpoint.
    Dcgm(Vocabulary),
}

impl Profile {
    /// Every profile, in the order of the documents.
    const ALL: [Self; 5] = [
        Self::Native,
        Self::Semconv,
        Self::L9gpu,
        Self::Dcgm(Vocabulary::Old),
        Self::Dcgm(Vocabulary::New),
    ];

    /// The word in the configuration.
    fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Semconv => "semconv",
            Self::L9gpu => "l9gpu",
            Self::Dcgm(Vocabulary::Old) => "dcgm",
            Self::Dcgm(Vocabulary::New) => "dcgm-4.9",
        }
    }

    fn table(self) -> Option<&'static profile::Table> {
        match self {
            Self::Semconv => Some(&profile::SEMCONV),
            Self::L9gpu => Some(&profile::L9GPU),
            Self::Native | Self::Dcgm(_) => None,
        }
    }
}

/// A sink's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naming {
    profiles: Vec<Profile>,
    /// Whether the gauges of devices carry their owner under the native and l9gpu's names.
    owner_on_devices: bool,
    /// The same under dcgm-exporter's names.
    owner_in_dcgm: bool,
    /// The operator's attributes of the host, from the environment.
    resource: Vec<(String, String)>,
}

impl Default for Naming {
    fn default() -> Self {
        Self {
            profiles: vec![Profile::Native],
            owner_on_devices: false,
            owner_in_dcgm: false,
            resource: Vec::new(),
        }
    }
}

/// The keys of a sink's section.
#[derive(Clone, Debug, Default)]
pub struct RawNaming {
    /// `names`.
    pub names: Option<Vec<String>>,
    /// `owner_on_devices`.
    pub owner_on_devices: Option<bool>,
}

impl Naming {
    /// Checks the keys of a section.
    pub fn resolve(
        section: &str,
        raw: RawNaming,
        with: &Resolving<'_>,
    ) -> Result<Self, ConfigError> {
        let needed = [share::OWNER_PROCESSES.def(), share::ALLOCATION_TIME.def()];
        let missing = needed.into_iter().find(|metric| !with.metrics.wants(metric));
        if let Some(missing) = missing.filter(|_| raw.owner_on_devices == Some(true)) {
            let problem =
                format!("the owner is known from `{}`, which is not exported", missing.name);
            let remedy = format!("add \"{}\" to metrics.include", missing.name);
            return Err(checks::wrong(&format!("{section}.owner_on_devices"), problem, &remedy));
        }
        let profiles = match raw.names {
            None => vec![Profile::Native],
            Some(words) => profiles(&format!("{section}.names"), &words, section == PROMETHEUS)?,
        };
        let resource = attributes(with.env)?;
        // The exporters of these names have the owner on the device's series too.
        let is_wanted = |usually| raw.owner_on_devices.unwrap_or(usually && missing.is_none());
        let owner_on_devices = is_wanted(profiles.contains(&Profile::L9gpu));
        let owner_in_dcgm =
            is_wanted(profiles.iter().any(|profile| matches!(profile, Profile::Dcgm(_))));
        Ok(Self { profiles, owner_on_devices, owner_in_dcgm, resource })
    }

    /// Whether a profile is chosen.
    pub fn has(&self, profile: Profile) -> bool {
        self.profiles.contains(&profile)
    }

    /// The profiles, in order.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// Whether dcgm-exporter's names have the owner of a device.
    pub(crate) fn owner_in_dcgm(&self) -> bool {
        self.owner_in_dcgm
    }

    /// Whether anything but the native names and attributes is wanted.
    fn is_native(&self) -> bool {
        !self.owner_on_devices && self.profiles == [Profile::Native]
    }

    /// A sink that gets its points under these names; `host` has the attributes detected on the host.
    pub fn wrap(&self, sink: Box<dyn Sink>, host: &AttrSet) -> Box<dyn Sink> {
        if self.is_native() {
            return sink;
        }
        let is_kept = |profile: &Profile| matches!(profile, Profile::Native | Profile::Dcgm(_));
        let keeps_native = self.profiles.iter().any(is_kept);
        let tables = self.profiles.iter().filter_map(|profile| profile.table());
        let has_native = self.has(Profile::Native);
        let host = Resource::new(host, &self.resource);
        Box::new(Named {
            sink,
            owners: self.owner_on_devices.then(OwnedGauges::default),
            keeps_native,
            translators: tables.map(|table| Translator::new(table, has_native, &host)).collect(),
            owned: EnrichedBatch::default(),
            translated: EnrichedBatch::default(),
        })
    }
}

const PROMETHEUS: &str = "prometheus";

fn profiles(key: &str, words: &[String], is_endpoint: bool) -> Result<Vec<Profile>, ConfigError> {
    let known = || {
        let is_there = |one: &Profile| is_endpoint || !matches!(one, Profile::Dcgm(_));
        let all = Profile::ALL.into_iter().filter(is_there);
        let all: Vec<_> = all.map(Profile::as_str).collect();
        format!("use {}", all.join(", "))
    };
    let one = |word: &String| {
        let profile = Profile::ALL.into_iter().find(|profile| profile.as_str() == word);
        match profile {
            Some(Profile::Dcgm(_)) if !is_endpoint => {
                let problem = "dcgm-exporter's names are Prometheus' own".to_owned();
                Err(checks::wrong(key, problem, "choose them in [prometheus] names"))
            }
            Some(profile) => Ok(profile),
            None => Err(checks::wrong(key, format!("`{word}` is no naming profile"), &known())),
        }
    };
    let chosen = words.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    if chosen.is_empty() {
        let problem = "without a naming profile there are no metrics".to_owned();
        return Err(checks::wrong(key, problem, &known()));
    }
    let has = |profile| chosen.contains(&profile);
    if has(Profile::L9gpu) && (has(Profile::Native) || has(Profile::Semconv)) {
        let problem = "l9gpu has names that are here of another kind (`gpu.xid.errors`, \
                       `gen_ai.server.request.duration`)"
            .to_owned();
        let remedy = "choose \"l9gpu\" alone (on the endpoint also with \"dcgm\"), and the other \
                      names for another sink";
        return Err(checks::wrong(key, problem, remedy));
    }
    // In the order of the table, each once.
    Ok(Profile::ALL.into_iter().filter(|profile| chosen.contains(profile)).collect())
}

/// A sink behind other names.
struct Named {
    sink: Box<dyn Sink>,
    owners: Option<OwnedGauges>,
    keeps_native: bool,
    translators: Vec<Translator>,
    /// Buffers that are reused.
    owned: EnrichedBatch,
    translated: EnrichedBatch,
}

impl Sink for Named {
    fn export(&mut self, batch: &EnrichedBatch) {
        let Self { sink, owners, translators, owned, translated, .. } = self;
        let batch = match owners {
            Some(owners) => {
                owned.points.clear();
                owners.add(batch, owned);
                &*owned
            }
            None => batch,
        };
        if self.keeps_native {
            sink.export(batch);
        }
        for translator in translators {
            translated.points.clear();
            translator.translate(batch, translated);
            if !translated.points.is_empty() {
                sink.export(translated);
            }
        }
    }

    fn export_events(&mut self, records: &[Record]) {
        self.sink.export_events(records);
    }

    fn start_flush(&mut self, deadline: Instant) {
        self.sink.start_flush(deadline);
    }

    fn flush(&mut self, deadline: Instant) {
        self.sink.flush(deadline);
    }

    fn report(&self) -> Report {
        self.sink.report()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::level::Level;
    use gpuwho_model::catalog::selection::Selection;
    use gpuwho_model::config::{Flags, Tables};
    use gpuwho_model::paths::Paths;

    fn resolve_with(section: &str, raw: RawNaming, metrics: &Selection) -> Result<Naming, String> {
        let (tables, flags, paths) = (Tables::default(), Flags::default(), Paths::default());
        let with = Resolving {
            tables: &tables,
            interval: std::time::Duration::from_secs(10),
            paths: &paths,
            metrics,
            flags: &flags,
            env: &|_| None,
        };
        Naming::resolve(section, raw, &with).map_err(|error| error.to_string())
    }

    fn selection(level: Level, include: &[&str]) -> Selection {
        let include: Vec<_> = include.iter().map(|name| (*name).to_owned()).collect();
        Selection::new(level, &include, &[]).unwrap()
    }

    fn resolve(section: &str, names: &[&str]) -> Result<Naming, String> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        resolve_with(
            section,
            RawNaming { names: Some(names), ..RawNaming::default() },
            &Selection::all(),
        )
    }

    #[test]
    fn profiles_come_once_and_in_order() {
        let of = |names: &[&str]| resolve("prometheus", names).unwrap().profiles;
        assert_eq!(
            of(&["dcgm", "native", "dcgm"]),
            [Profile::Native, Profile::Dcgm(Vocabulary::Old)]
        );
        assert_eq!(of(&["semconv", "native"]), [Profile::Native, Profile::Semconv]);
        assert_eq!(of(&["dcgm", "l9gpu"]), [Profile::L9gpu, Profile::Dcgm(Vocabulary::Old)]);
        let none = resolve_with("otlp", RawNaming::default(), &Selection::all()).unwrap();
        assert_eq!(none, Naming::default());
    }

    #[test]
    fn names_that_cannot_be_together_are_refused_with_a_remedy() {
        for (section, names, part) in [
            ("otlp", &["dcgm"][..], "[prometheus] names"),
            ("otlp", &["native", "l9gpu"], "another sink"),
            ("prometheus", &["semconv", "l9gpu"], "another sink"),
            ("prometheus", &["datadog"], "use native, semconv, l9gpu, dcgm, dcgm-4.9"),
            ("otlp", &["datadog"], "use native, semconv, l9gpu"),
            ("otlp", &[], "without a naming profile"),
        ] {
            let error = resolve(section, names).unwrap_err();
            assert!(error.contains(part) && error.contains(section), "{names:?}: {error}");
        }
    }

    #[test]
    fn an_owner_that_no_metric_names_is_refused() {
        let of = |metrics: Selection| {
            let raw = RawNaming { owner_on_devices: Some(true), ..RawNaming::default() };
            resolve_with("otlp", raw, &metrics)
        };
        let error = of(selection(Level::Basic, &[])).unwrap_err();
        let parts = ["otlp.owner_on_devices", "add \"gpu.owner.processes\" to metrics.include"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert!(of(selection(Level::Default, &[])).is_ok());
        let include = ["gpu.owner.processes", "gpu.allocation.time"];
        assert!(of(selection(Level::Basic, &include)).is_ok());
    }
}
