//! The file as a TOML table, with the environment laid over it.
//!
//! A variable `GPUWHO_<SECTION>_<KEY>` sets `key` of `[section]`. Its value is read as TOML where
//! it is a TOML boolean, number or array, else as text.

use super::{ConfigError, Raw, checks};
use serde::Deserialize as _;
use std::path::Path;

/// Two keys closer than this (Jaro-Winkler) are taken for a slip of the finger.
const CLOSE_ENOUGH: f64 = 0.75;

const PREFIX: &str = "GPUWHO_";

/// The sections a variable can name.
const SECTIONS: &[&str] = &[
    "agent",
    "paths",
    "devices",
    "nvidia",
    "kubernetes",
    "containers",
    "slurm",
    "nccl",
    "otlp",
    "sinks",
    "telemetry",
];

/// Reads and checks a file: syntax, types and names of its keys.
pub(super) fn read_file(path: &Path) -> Result<toml::Table, ConfigError> {
    let text =
        checks::read(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    // Read as `Raw` first: only this way do errors have a place in the text.
    toml::from_str::<Raw>(&text).map_err(|error| in_file(path, &text, &error))?;
    toml::from_str(&text).map_err(|error| in_file(path, &text, &error))
}

/// Lays the environment over the file's table.
pub(super) fn with_environment(
    mut table: toml::Table,
    env: &[(String, String)],
) -> Result<Raw, ConfigError> {
    for (variable, text) in env {
        let Some((section, key)) = section_and_key(variable) else { continue };
        let place = table.entry(section).or_insert_with(|| toml::Table::new().into());
        if let Some(place) = place.as_table_mut() {
            place.insert(key, value(text));
        }
        // Checked one by one, so that the error names the variable.
        Raw::deserialize(table.clone()).map_err(|error| in_environment(variable, &error))?;
    }
    Raw::deserialize(table).map_err(|error| in_environment("GPUWHO_*", &error))
}

fn section_and_key(variable: &str) -> Option<(String, String)> {
    let (section, key) = variable.strip_prefix(PREFIX)?.split_once('_')?;
    let section = section.to_ascii_lowercase();
    SECTIONS.contains(&section.as_str()).then(|| (section, key.to_ascii_lowercase()))
}

fn value(text: &str) -> toml::Value {
    let plain = toml::from_str::<toml::Table>(&format!("v = {text}"));
    let plain = plain.ok().and_then(|mut table| table.remove("v"));
    plain.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

fn in_file(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let offset = error.span().map_or(0, |span| span.start);
    let line = 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    match unknown_key(error.message()) {
        Some((key, nearest)) => {
            ConfigError::UnknownKey { place: format!("{}:{line}", path.display()), key, nearest }
        }
        None => ConfigError::Syntax { path: path.into(), line, problem: one_line(error.message()) },
    }
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
            problem: one_line(error.message()),
        },
    }
}

/// serde says: unknown field `a`, expected one of `b`, `c`.
fn unknown_key(message: &str) -> Option<(String, Option<String>)> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let key = quoted.next()?.to_owned();
    let nearest = quoted
        .map(|known| (strsim::jaro_winkler(&key, known), known))
        .filter(|(likeness, _)| *likeness > CLOSE_ENOUGH)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known.to_owned());
    Some((key, nearest))
}

fn one_line(message: &str) -> String {
    message.split('\n').collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::{Flags, Settings};
    use std::time::Duration;

    fn load(file: &str, env: &[(&str, &str)]) -> Result<Settings, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpuwho.toml");
        std::fs::write(&path, file).unwrap();
        let env: Vec<_> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Settings::load(Some(&path), &env, &Flags::default())
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
        assert_eq!(error, "FILE:2: invalid type: integer `3`, expected a boolean");
    }

    #[test]
    fn the_environment_goes_over_the_file() {
        let settings = load(
            "[agent]\ninterval = \"5s\"\n[devices]\nbpf = true\n",
            &[("GPUWHO_AGENT_INTERVAL", "2s"), ("GPUWHO_DEVICES_BPF", "false")],
        );
        let settings = settings.unwrap();
        assert_eq!((settings.interval, settings.kernel.bpf), (Duration::from_secs(2), false));
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
    fn links_are_told_one_by_one_unless_told_otherwise() {
        let by_link = |file: &str| load(file, &[]).unwrap().devices[0].1.by_link;
        assert_eq!([by_link(""), by_link("[nvidia]\nby_link = false\n")], [true, false]);
    }

    #[test]
    fn the_drivers_library_is_confined_unless_told_otherwise() {
        let confined = |file: &str| load(file, &[]).unwrap().devices[0].1.confined;
        assert_eq!([confined(""), confined("[nvidia]\nconfined = false\n")], [true, false]);
    }

    #[test]
    fn collectives_have_a_budget_that_is_not_zero() {
        let file = "[nccl]\nbudget = 500\nhang_after = \"90s\"\n";
        let settings = load(file, &[("GPUWHO_NCCL_ENABLED", "false")]).unwrap().nccl;
        assert_eq!(
            (settings.enabled, settings.budget, settings.hang_after),
            (false, 500, Duration::from_secs(90))
        );
        let error = load("[nccl]\nbudget = 0\n", &[]).unwrap_err();
        assert!(error.contains("nccl.budget"), "{error}");
    }

    #[test]
    fn mounts_are_trusted_by_whole_paths_below_the_root() {
        let loaded = load("[nccl]\ntrusted_mounts = [\"/cvmfs\", \"/opt/images\"]\n", &[]).unwrap();
        assert_eq!(
            loaded.nccl.trusted_mounts,
            ["/cvmfs", "/opt/images"].map(std::path::PathBuf::from)
        );
        for wrong in ["/", "cvmfs", "/opt/../tmp", ""] {
            let error =
                load(&format!("[nccl]\ntrusted_mounts = [\"{wrong}\"]\n"), &[]).unwrap_err();
            assert!(error.contains("nccl.trusted_mounts"), "{error}");
        }
    }

    #[test]
    fn nccls_own_status_is_read_seldom_or_never() {
        let usual = load("", &[]).unwrap().ras;
        assert_eq!((usual.enabled, usual.every), (true, Duration::from_mins(1)));
        let ras = load("[nccl]\nras = false\nras_interval = \"5m\"\n", &[]).unwrap().ras;
        assert_eq!((ras.enabled, ras.every), (false, Duration::from_mins(5)));
        let error = load("[nccl]\nras_interval = \"10ms\"\n", &[]).unwrap_err();
        assert!(
            error.contains("nccl.ras_interval") && error.contains("shorter than 1s"),
            "{error}"
        );
    }

    #[test]
    fn the_inspectors_directories_are_whole_paths_and_its_rate_is_not_zero() {
        let file = "[nccl]\ninspector_dirs = [\"/var/lib/inspector\"]\ninspector_rate = 1000\n";
        let settings = load(file, &[("GPUWHO_NCCL_INSPECTOR", "false")]).unwrap().inspector;
        let directories: Vec<_> =
            settings.directories.iter().filter_map(|path| path.to_str()).collect();
        assert_eq!(
            (settings.enabled, directories.as_slice(), settings.rate),
            (false, ["/var/lib/inspector"].as_slice(), 1000)
        );
        for (line, key) in [
            ("inspector_rate = 0", "nccl.inspector_rate"),
            ("inspector_dirs = [\"logs\"]", "nccl.inspector_dirs"),
        ] {
            let error = load(&format!("[nccl]\n{line}\n"), &[]).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
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
