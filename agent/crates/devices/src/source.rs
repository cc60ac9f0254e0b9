//! A vendor's devices as a source of the agent, and the vendor's configuration section.

use super::library::Library;
use super::reader::{self, DeviceReader};
use super::{Vendor, vendor};
use gpuwho_collect::Collector;
use gpuwho_collect::source::{Alone, Context, Source, SourceDef};
use gpuwho_model::catalog::agent::Stage;
use gpuwho_model::config::{ConfigError, OneOf, Resolving, Section, checks, duration};
use gpuwho_owners::attribute::pid_cache::PidCache;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The source definition of a vendor.
pub fn def(of: &'static Vendor) -> SourceDef {
    SourceDef {
        name: of.name,
        about: "devices of one vendor",
        section: Some(Section {
            name: of.name,
            sample: of.sample,
            check: |section, table| Keys(vendor(section.name)).deserialize(table).map(drop),
        }),
        after: &[],
        alone: Alone::Devices,
        configure,
    }
}

/// The keys of every reader's section.
const ENABLED: &str = "enabled";
const CONFINED: &str = "confined";
const DEADLINE: &str = "deadline";
const RETRY: &str = "retry";
/// The key of a vendor with a library.
const LIBRARY: &str = "library";

/// One section: the common keys, `library` if the vendor has one, and the vendor's own switches.
#[derive(Clone, Debug, Default)]
struct RawReader {
    enabled: Option<bool>,
    library: Option<PathBuf>,
    confined: Option<bool>,
    deadline: Option<String>,
    retry: Option<String>,
    switches: BTreeMap<String, bool>,
}

/// Deserializes the section of a vendor; `None` allows no switches.
struct Keys(Option<&'static Vendor>);

impl<'de> DeserializeSeed<'de> for Keys {
    type Value = RawReader;

    fn deserialize<D: Deserializer<'de>>(self, section: D) -> Result<RawReader, D::Error> {
        section.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Keys {
    type Value = RawReader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a section")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut keys: A) -> Result<RawReader, A::Error> {
        let switches = self.0.map_or(&[][..], |vendor| vendor.switches);
        let library = self.0.and_then(library).map(|_| LIBRARY);
        let common = [ENABLED, CONFINED, DEADLINE, RETRY].into_iter().chain(library);
        let known: Vec<_> = common.chain(switches.iter().map(|switch| switch.key)).collect();
        let mut raw = RawReader::default();
        while let Some(key) = keys.next_key_seed(OneOf(&known))? {
            match key {
                ENABLED => raw.enabled = Some(keys.next_value()?),
                CONFINED => raw.confined = Some(keys.next_value()?),
                DEADLINE => raw.deadline = Some(keys.next_value()?),
                RETRY => raw.retry = Some(keys.next_value()?),
                LIBRARY => raw.library = Some(keys.next_value()?),
                switch => {
                    raw.switches.insert(switch.to_owned(), keys.next_value()?);
                }
            }
        }
        Ok(raw)
    }
}

/// A vendor's configured reader.
#[derive(Debug)]
struct Reader {
    vendor: &'static Vendor,
    is_enabled: bool,
    settings: reader::Settings,
}

fn configure(name: &'static str, with: &Resolving<'_>) -> Result<Box<dyn Source>, ConfigError> {
    let Some(vendor) = vendor(name) else { return Err(ConfigError::no_such("vendor", name)) };
    let raw = with.tables.read_by(name, Keys(Some(vendor)))?;
    let is_enabled = raw.enabled != Some(false);
    let settings = settings(vendor, raw, with)?;
    Ok(Box::new(Reader { vendor, is_enabled, settings }))
}

/// The library that the section can name.
fn library(vendor: &'static Vendor) -> Option<&'static Library> {
    vendor.library.as_ref().or(vendor.supplement.as_ref().map(|beside| &beside.library))
}

fn settings(
    vendor: &'static Vendor,
    raw: RawReader,
    with: &Resolving<'_>,
) -> Result<reader::Settings, ConfigError> {
    let key = |key| format!("{}.{key}", vendor.name);
    let library = with.flags.libraries.get(vendor.name).cloned().or(raw.library);
    if let (Some(path), Some(known), true) =
        (&library, self::library(vendor), raw.enabled != Some(false))
        && !known.is_program(path)
    {
        checks::library(&key(LIBRARY), known.name, path)?;
    }
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let default = reader::Settings::new(program, with.interval);
    let is_off = |key: &str, default: bool| !raw.switches.get(key).copied().unwrap_or(default);
    let off = vendor.switches.iter().filter(|switch| is_off(switch.key, switch.default));
    Ok(reader::Settings {
        library,
        paths: with.paths.clone(),
        off: off.map(|switch| switch.key.to_owned()).collect(),
        confined: raw.confined.unwrap_or(default.confined),
        deadline: duration(&key(DEADLINE), raw.deadline, default.deadline)?,
        retry: duration(&key(RETRY), raw.retry, default.retry)?,
        ..default
    })
}

impl Source for Reader {
    fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        let self_stats = Arc::clone(&context.gauges);
        let identities = PidCache::new(&context.ownership);
        let identify = Box::new(move |pids: &[u32], seen_at| {
            self_stats.stages.time(Stage::Identify, || identities.of(pids, seen_at))
        });
        let ownership = context.ownership.clone();
        let nodes = Box::new(move |process| {
            ownership.attribution(process).map_or_else(Vec::new, |owner| owner.nodes.clone())
        });
        let inventory = Arc::clone(&context.inventory);
        let mut reader = DeviceReader::new(self.vendor, self.settings.clone(), inventory, identify)
            .with_open_nodes(nodes);
        let has_list = self.vendor.lists_processes && self.vendor.library.is_some();
        if !has_list {
            // No list of the driver names every process.
            let openers = reader::openers(self.vendor, context.ownership.clone());
            reader = reader.with_node_openers(openers);
        }
        if self.vendor.library.is_some() {
            context.holding.push(reader.control());
        }
        if let Some(served) = self.vendor.served {
            reader = reader.with_served_values(served(context));
        }
        if let Some(beside) = &self.vendor.supplement {
            reader = reader.with_supplement((beside.start)(context, &self.settings));
        }
        context.readers.push(reader.control());
        if context.is_agent {
            let (aggregator, statuses) = (Arc::clone(&context.aggregator), context.board.clone());
            reader.listener.open(aggregator, statuses, context.poller.clone());
        }
        Ok(vec![Box::new(reader)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DEVICES;
    use gpuwho_model::catalog::selection::Selection;
    use gpuwho_model::config::{Flags, Tables};
    use gpuwho_model::paths::Paths;
    use std::time::Duration;

    fn reader(text: &str) -> reader::Settings {
        let nvidia = &DEVICES[0];
        let raw = Keys(Some(nvidia)).deserialize(toml::Deserializer::parse(text).unwrap()).unwrap();
        let (tables, flags, paths) = (Tables::default(), Flags::default(), Paths::default());
        let with = Resolving {
            tables: &tables,
            interval: Duration::from_secs(10),
            paths: &paths,
            metrics: &Selection::all(),
            flags: &flags,
            env: &|_| None,
        };
        settings(nvidia, raw, &with).unwrap()
    }

    #[test]
    fn links_are_reported_one_by_one_by_default() {
        assert_eq!(reader("").off, ["pcie_sampling"]);
        assert_eq!(reader("by_link = false").off, ["by_link", "pcie_sampling"]);
        assert_eq!(reader("pcie_sampling = true").off, [""; 0]);
    }

    #[test]
    fn the_drivers_library_is_confined_by_default() {
        assert_eq!([reader("").confined, reader("confined = false").confined], [true, false]);
    }
}
