//! One section for each vendor of [`DEVICES`], under the vendor's name: the keys that every reader
//! has, `library` where the vendor has one, and the vendor's own switches.

use super::overlay::OneOf;
use super::{ConfigError, checks, duration};
use crate::collect::device::{DEVICES, Vendor, reader};
use crate::paths::Paths;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The keys of every reader.
const ENABLED: &str = "enabled";
const CONFINED: &str = "confined";
const DEADLINE: &str = "deadline";
const RETRY: &str = "retry";
/// The key of a reader with a library.
const LIBRARY: &str = "library";

/// The sections that were typed, by vendor.
pub(super) type RawReaders = BTreeMap<&'static str, RawReader>;

/// One section.
#[derive(Clone, Debug, Default)]
pub(super) struct RawReader {
    enabled: Option<bool>,
    library: Option<PathBuf>,
    confined: Option<bool>,
    deadline: Option<String>,
    retry: Option<String>,
    switches: BTreeMap<String, bool>,
}

/// Reads the section of a vendor.
pub(super) struct Section(pub(super) &'static Vendor);

impl<'de> DeserializeSeed<'de> for Section {
    type Value = RawReader;

    fn deserialize<D: Deserializer<'de>>(self, section: D) -> Result<RawReader, D::Error> {
        section.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Section {
    type Value = RawReader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a section")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut keys: A) -> Result<RawReader, A::Error> {
        let switches = self.0.switches.iter().map(|switch| switch.key);
        let library = self.0.library.is_some().then_some(LIBRARY);
        let common = [ENABLED, CONFINED, DEADLINE, RETRY].into_iter().chain(library);
        let known: Vec<_> = common.chain(switches).collect();
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

/// Every vendor's reader that is not switched off. `libraries` are typed over the sections'.
pub(super) fn settings(
    raw: &RawReaders,
    libraries: &BTreeMap<&'static str, PathBuf>,
    interval: Duration,
    paths: &Paths,
) -> Result<Vec<(&'static Vendor, reader::Settings)>, ConfigError> {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let mut readers = Vec::new();
    for vendor in DEVICES {
        let raw = raw.get(vendor.name).cloned().unwrap_or_default();
        if raw.enabled == Some(false) {
            continue;
        }
        let key = |key| format!("{}.{key}", vendor.name);
        let library = libraries.get(vendor.name).cloned().or(raw.library);
        if let (Some(path), Some(known)) = (&library, &vendor.library) {
            checks::library(&key(LIBRARY), known.name, path)?;
        }
        let default = reader::Settings::new(program.clone(), interval);
        let is_off = |key: &str, default: bool| !raw.switches.get(key).copied().unwrap_or(default);
        let off = vendor.switches.iter().filter(|switch| is_off(switch.key, switch.default));
        let settings = reader::Settings {
            library,
            paths: paths.clone(),
            off: off.map(|switch| switch.key.to_owned()).collect(),
            confined: raw.confined.unwrap_or(default.confined),
            deadline: duration(&key(DEADLINE), raw.deadline, default.deadline)?,
            retry: duration(&key(RETRY), raw.retry, default.retry)?,
            ..default
        };
        readers.push((vendor, settings));
    }
    Ok(readers)
}
