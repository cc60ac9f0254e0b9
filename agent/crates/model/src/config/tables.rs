//! The configuration as TOML tables: the file, overridden by the environment.
//!
//! Each section belongs to the component that reads it, and is checked as that component's type.
//! The error for an unknown key names its line and the nearest key. A variable
//! `GPUWHO_<SECTION>_<KEY>` sets `key` of `[section]`. Its value is parsed as TOML where it is a
//! TOML boolean, number or array, otherwise it is text. A key that a release has removed is left out
//! with a warning.

use super::{ConfigError, checks, wording};
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, Visitor};
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// A key that is closer than this (Jaro-Winkler) to a known one counts as a typing error.
const CLOSE_ENOUGH: f64 = 0.75;

const PREFIX: &str = "GPUWHO_";

/// A section of the configuration, as its component declares it.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The table's name.
    pub name: &'static str,
    /// Its lines in the sample configuration, without the header: comments, and settings that begin
    /// with `#:`.
    pub sample: &'static str,
    /// Checks its keys and their types.
    pub check: fn(&Self, ValueDeserializer<'_>) -> Result<(), toml::de::Error>,
}

impl Section {
    /// The section of this name whose keys are the fields of `T`.
    pub const fn of<T: DeserializeOwned>(name: &'static str, sample: &'static str) -> Self {
        Self { name, sample, check: |_, table| T::deserialize(table).map(drop) }
    }
}

/// A key that a release has removed. That release accepts it without effect; the next refuses it.
#[derive(Clone, Copy, Debug)]
pub struct RemovedKey {
    /// The table's name.
    pub section: &'static str,
    /// The key.
    pub key: &'static str,
    /// The release.
    pub since: &'static str,
    /// What holds instead, as half a sentence.
    pub instead: &'static str,
}

impl RemovedKey {
    fn warning(&self, place: &str) -> String {
        let Self { section, key, since, instead } = self;
        format!(
            "{place}: `{section}.{key}` has no effect from {since} on ({instead}): remove it, the \
             next release does not know it"
        )
    }
}

/// All sections, with every key and type checked.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    sections: toml::Table,
    warnings: Vec<String>,
}

impl Tables {
    /// Reads the file (if one is named), and applies the environment.
    pub fn load(
        file: Option<&Path>,
        env: &[(String, String)],
        sections: &[Section],
        removed: &[RemovedKey],
    ) -> Result<Self, ConfigError> {
        let mut tables = match file {
            Some(path) => read_file(path, sections, removed)?,
            None => Self::default(),
        };
        let Self { sections: table, warnings } = &mut tables;
        for (variable, text) in env {
            let Some((section, key)) = section_and_key(variable, sections) else { continue };
            let is_it = |one: &&RemovedKey| (one.section, one.key) == (section.name, &*key);
            if let Some(removed) = removed.iter().find(is_it) {
                warnings.push(removed.warning(&format!("environment variable {variable}")));
                continue;
            }
            let place = table.entry(section.name).or_insert_with(|| toml::Table::new().into());
            if let Some(place) = place.as_table_mut() {
                place.insert(key, value(text));
            }
            // Checked one by one, so that the error names the variable.
            let text = place.to_string();
            ValueDeserializer::parse(&text)
                .and_then(|table| (section.check)(section, table))
                .map_err(|error| in_environment(variable, &error))?;
        }
        Ok(tables)
    }

    /// What of the configuration has no effect, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The sections and keys that are set otherwise than before.
    pub fn changes(&self, before: &Self) -> Vec<(String, String)> {
        let empty = toml::Table::new();
        let section = |tables: &'_ Self, name: &str| {
            let table = tables.sections.get(name).and_then(toml::Value::as_table);
            table.unwrap_or(&empty).clone()
        };
        let names: BTreeSet<&String> = self.sections.keys().chain(before.sections.keys()).collect();
        let mut changes = Vec::new();
        for name in names {
            let (now, then) = (section(self, name), section(before, name));
            let keys: BTreeSet<&String> = now.keys().chain(then.keys()).collect();
            let changed = keys.into_iter().filter(|key| now.get(*key) != then.get(*key));
            changes.extend(changed.map(|key| (name.clone(), key.clone())));
        }
        changes
    }

    /// Reads a section; a missing one is empty.
    pub fn read<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, ConfigError> {
        self.read_by(name, PhantomData)
    }

    /// Reads a section with keys that are known only at run time.
    pub fn read_by<T: Default>(
        &self,
        name: &str,
        seed: impl for<'de> DeserializeSeed<'de, Value = T>,
    ) -> Result<T, ConfigError> {
        let Some(section) = self.sections.get(name) else { return Ok(T::default()) };
        let section = seed.deserialize(section.clone());
        section.map_err(|error| in_environment("GPUWHO_*", &error))
    }
}

/// Deserializes a key that must be one of these.
pub struct OneOf<'a>(pub &'a [&'static str]);

impl<'de> DeserializeSeed<'de> for OneOf<'_> {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<&'static str, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for OneOf<'_> {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    /// The error for an unknown key has serde's own form, which [`unknown_key`] parses.
    fn visit_str<E: de::Error>(self, key: &str) -> Result<&'static str, E> {
        let found = self.0.iter().find(|known| **known == key).copied();
        found.ok_or_else(|| {
            let known: Vec<_> = self.0.iter().map(|known| format!("`{known}`")).collect();
            E::custom(format!("unknown field `{key}`, expected one of {}", known.join(", ")))
        })
    }
}

/// Reads and checks a file: syntax, types and names of its keys.
fn read_file(
    path: &Path,
    sections: &[Section],
    removed: &[RemovedKey],
) -> Result<Tables, ConfigError> {
    let text =
        checks::read(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    let wrong = |error: &toml::de::Error| in_file(path, &text, error);
    // Parsed as a `DeTable`, because only there keys and values have a position in the text.
    let all = DeTable::parse(&text).map_err(|error| wrong(&error))?.into_inner();
    let sections_as_set = toml::from_str(&text).map_err(|error| wrong(&error))?;
    let mut tables = Tables { sections: sections_as_set, warnings: Vec::new() };
    for (name, mut value) in all {
        let Some(section) = sections.iter().find(|section| section.name == name.get_ref()) else {
            let known = sections.iter().map(|section| section.name);
            let nearest = nearest(name.get_ref(), known).map(str::to_owned);
            let place = place(path, &text, name.span().start);
            return Err(ConfigError::UnknownKey { place, key: name.into_inner().into(), nearest });
        };
        for removed in removed.iter().filter(|removed| removed.section == section.name) {
            let DeValue::Table(keys) = value.get_mut() else { continue };
            let Some((key, _)) = keys.remove_entry(removed.key) else { continue };
            let place = place(path, &text, key.span().start);
            tables.warnings.push(removed.warning(&place));
            let kept = tables.sections.get_mut(section.name).and_then(toml::Value::as_table_mut);
            kept.and_then(|kept| kept.remove(removed.key));
        }
        (section.check)(section, value.into()).map_err(|error| wrong(&error))?;
    }
    Ok(tables)
}

fn section_and_key<'a>(variable: &str, sections: &'a [Section]) -> Option<(&'a Section, String)> {
    let (section, key) = variable.strip_prefix(PREFIX)?.split_once('_')?;
    let section = sections.iter().find(|known| known.name.eq_ignore_ascii_case(section))?;
    Some((section, key.to_ascii_lowercase()))
}

fn value(text: &str) -> toml::Value {
    let plain = toml::from_str::<toml::Table>(&format!("v = {text}"));
    let plain = plain.ok().and_then(|mut table| table.remove("v"));
    plain.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

fn in_file(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let place = place(path, text, error.span().map_or(0, |span| span.start));
    match unknown_key(error.message()) {
        Some((key, nearest)) => ConfigError::UnknownKey { place, key, nearest },
        None => ConfigError::Syntax { place, problem: problem(text, error) },
    }
}

/// What is wrong, with the key where it is known.
fn problem(text: &str, error: &toml::de::Error) -> String {
    let span = error.span().unwrap_or_default();
    let key = || wording::key_at(text, span.start);
    if let (Some(problem), Some(key)) = (wording::wrong_type(error.message()), key()) {
        return format!("`{key}` {problem}");
    }
    match (error.message(), text.get(span)) {
        ("duplicate key", Some(key)) => format!("`{key}` is set twice; leave one of them out"),
        (message, _) => one_line(message),
    }
}

/// File and line.
fn place(path: &Path, text: &str, offset: usize) -> String {
    let line = 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    format!("{}:{line}", path.display())
}

fn in_environment(variable: &str, error: &toml::de::Error) -> ConfigError {
    match unknown_key(error.message()) {
        Some((key, nearest)) => ConfigError::UnknownKey {
            place: format!("environment variable {variable}"),
            key,
            nearest,
        },
        None => ConfigError::Environment {
            variable: variable.to_owned(),
            problem: wording::wrong_type(error.message())
                .unwrap_or_else(|| one_line(error.message())),
        },
    }
}

/// Parses serde's message: unknown field `a`, expected one of `b`, `c`.
fn unknown_key(message: &str) -> Option<(String, Option<String>)> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let key = quoted.next()?.to_owned();
    let nearest = nearest(&key, quoted).map(str::to_owned);
    Some((key, nearest))
}

/// The known key that is most like this one, if any is close enough.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|known| (strsim::jaro_winkler(key, known), known))
        .filter(|(likeness, _)| *likeness > CLOSE_ENOUGH)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

fn one_line(message: &str) -> String {
    message.split('\n').collect::<Vec<_>>().join(" ")
}
