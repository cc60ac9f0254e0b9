//! The configuration as TOML tables: the file, overridden by the environment.
//!
//! Each section belongs to the component that reads it, and is checked as that component's type.
//! The error for an unknown key names its line and the nearest key. A variable
//! `GPUWHO_<SECTION>_<KEY>` sets `key` of `[section]`. Its value is parsed as TOML where it is a
//! TOML boolean, number or array, otherwise it is text.

use super::{ConfigError, checks, wording};
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, Visitor};
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use toml::de::{DeTable, ValueDeserializer};

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

/// All sections, with every key and type checked.
#[derive(Clone, Debug, Default)]
pub struct Tables(toml::Table);

impl Tables {
    /// Reads the file (if one is named), and applies the environment.
    pub fn load(
        file: Option<&Path>,
        env: &[(String, String)],
        sections: &[Section],
    ) -> Result<Self, ConfigError> {
        let mut table = match file {
            Some(path) => read_file(path, sections)?,
            None => toml::Table::new(),
        };
        for (variable, text) in env {
            let Some((section, key)) = section_and_key(variable, sections) else { continue };
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
        Ok(Self(table))
    }

    /// The sections and keys that are set otherwise than before.
    pub fn changes(&self, before: &Self) -> Vec<(String, String)> {
        let empty = toml::Table::new();
        let section = |tables: &'_ Self, name: &str| {
            let table = tables.0.get(name).and_then(toml::Value::as_table);
            table.unwrap_or(&empty).clone()
        };
        let names: BTreeSet<&String> = self.0.keys().chain(before.0.keys()).collect();
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
        let Some(section) = self.0.get(name) else { return Ok(T::default()) };
        let section = seed.deserialize(section.clone());
        section.map_err(|error| in_environment("GPUWHO_*", &error))
    }
}

/// Deserializes a key that must be one of these.
pub(crate) struct OneOf<'a>(pub(crate) &'a [&'static str]);

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
fn read_file(path: &Path, sections: &[Section]) -> Result<toml::Table, ConfigError> {
    let text =
        checks::read(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    let wrong = |error: &toml::de::Error| in_file(path, &text, error);
    // Parsed as a `DeTable`, because only there keys and values have a position in the text.
    for (key, value) in DeTable::parse(&text).map_err(|error| wrong(&error))?.into_inner() {
        let Some(section) = sections.iter().find(|section| section.name == key.get_ref()) else {
            let known = sections.iter().map(|section| section.name);
            let nearest = nearest(key.get_ref(), known).map(str::to_owned);
            let place = place(path, &text, key.span().start);
            return Err(ConfigError::UnknownKey { place, key: key.into_inner().into(), nearest });
        };
        (section.check)(section, value.into()).map_err(|error| wrong(&error))?;
    }
    toml::from_str(&text).map_err(|error| wrong(&error))
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

#[cfg(test)]
mod tests {
    use crate::agent::configuration::Configuration;
    use crate::config::Flags;
    use crate::config::Settings;
    use std::time::Duration;

    fn load(file: &str, env: &[(&str, &str)]) -> Result<Settings, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpuwho.toml");
        std::fs::write(&path, file).unwrap();
        let env: Vec<_> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Configuration::load(Some(&path), &env, &Flags::default())
            .map(|loaded| loaded.settings)
            .map_err(|error| error.to_string().replace(path.to_str().unwrap(), "FILE"))
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_one() {
        assert_eq!(
            load("[agent]\n\nintervall = \"5s\"\n", &[]).unwrap_err(),
            "FILE:3: unknown key `intervall`; did you mean `interval`?"
        );
    }

    #[test]
    fn an_unknown_section_is_named() {
        let error = load("[nvidai]\n", &[]).unwrap_err();
        assert_eq!(error, "FILE:1: unknown key `nvidai`; did you mean `nvidia`?");
    }

    #[test]
    fn a_wrong_type_is_named_with_its_line() {
        let error = load("[devices]\nbpf = 3\n", &[]).unwrap_err();
        assert_eq!(
            error,
            "FILE:2: `devices.bpf` is the number 3; write true or false, without quotes"
        );
    }

    #[test]
    fn errors_of_types_name_the_key_and_speak_no_rust() {
        for (text, expected) in [
            (
                "[agent]\ninterval = 10\n",
                "FILE:2: `agent.interval` is the number 10; write a text in quotes",
            ),
            (
                "[devices]\nnodes = \"/dev/x\"\n",
                "FILE:2: `devices.nodes` is the text \"/dev/x\"; write a list, like [\"one\", \"two\"]",
            ),
            (
                "[agent]\nseries_limit = -1\n",
                "FILE:2: `agent.series_limit` is the number -1; write a whole number that is not negative",
            ),
            (
                "[agent]\nlog = \"info\"\nlog = \"warn\"\n",
                "FILE:3: `log` is set twice; leave one of them out",
            ),
            (
                "agent = 3\n",
                "FILE:1: `agent` is the number 3; write a section: [name], and its keys below",
            ),
        ] {
            assert_eq!(load(text, &[]).unwrap_err(), expected);
        }
        let error = load("", &[("GPUWHO_DEVICES_BPF", "perhaps")]).unwrap_err();
        let expected = "environment variable GPUWHO_DEVICES_BPF: is the text \"perhaps\"; \
                        write true or false, without quotes";
        assert_eq!(error, expected);
    }

    #[test]
    fn the_interval_of_opentelemetry_is_obeyed_below_our_own() {
        let theirs = ("OTEL_METRIC_EXPORT_INTERVAL", "2500");
        let interval =
            |env: &[(&str, &str)]| load("[agent]\ninterval = \"5s\"\n", env).unwrap().interval;
        assert_eq!(interval(&[theirs]), Duration::from_millis(2500));
        assert_eq!(interval(&[theirs, ("GPUWHO_AGENT_INTERVAL", "7s")]), Duration::from_secs(7));
        let error = load("", &[(theirs.0, "10s")]).unwrap_err();
        assert!(
            error.starts_with("`OTEL_METRIC_EXPORT_INTERVAL`: `10s` is not a number"),
            "{error}"
        );
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let settings = load(
            "[agent]\ninterval = \"5s\"\n[devices]\nbpf = true\n",
            &[("GPUWHO_AGENT_INTERVAL", "2s"), ("GPUWHO_DEVICES_BPF", "false")],
        );
        let settings = settings.unwrap();
        assert_eq!((settings.interval, settings.nodes.bpf), (Duration::from_secs(2), false));
    }

    #[test]
    fn an_unknown_variable_of_a_known_section_is_named() {
        assert_eq!(
            load("", &[("GPUWHO_AGENT_INTERVALL", "2s")]).unwrap_err(),
            "environment variable GPUWHO_AGENT_INTERVALL: unknown key `intervall`; \
             did you mean `interval`?"
        );
    }

    #[test]
    fn a_duration_without_a_unit_is_refused_with_an_example() {
        let error = load("[agent]\ninterval = \"10\"\n", &[]).unwrap_err();
        assert!(error.starts_with("`agent.interval`: `10` is not a duration"), "{error}");
        assert!(error.ends_with("like 500ms, 10s or 2m"), "{error}");
    }

    #[test]
    fn too_few_series_for_one_device_are_refused() {
        assert_eq!(load("", &[]).unwrap().series_limit, 50_000);
        assert_eq!(load("[agent]\nseries_limit = 2000\n", &[]).unwrap().series_limit, 2000);
        let error = load("[agent]\nseries_limit = 10\n", &[]).unwrap_err();
        assert!(error.starts_with("`agent.series_limit`: fewer than 500 series"), "{error}");
    }

    #[test]
    fn limits_of_cpu_and_of_families_are_checked() {
        assert_eq!(load("", &[]).unwrap().cpu_limit, None);
        assert_eq!(load("[agent]\ncpu_limit = 2.5\n", &[]).unwrap().cpu_limit, Some(0.025));
        for wrong in ["0.1", "1001.0", "nan", "-1.0"] {
            let error = load(&format!("[agent]\ncpu_limit = {wrong}\n"), &[]).unwrap_err();
            assert!(error.contains("is not between 0.5 and 1000"), "{error}");
        }
        let error = load("[metrics]\nlimits = { \"gpu.pwer\" = 5 }\n", &[]).unwrap_err();
        assert!(error.starts_with("`metrics.limits`: no metric is called `gpu.pwer`"), "{error}");
    }

    #[test]
    fn too_short_an_interval_is_refused() {
        let error = load("[agent]\ninterval = \"1ms\"\n", &[]).unwrap_err();
        assert_eq!(
            error,
            "`agent.interval`: 1ms is shorter than 100ms; use 1s or longer; 10s is the default"
        );
    }
}
