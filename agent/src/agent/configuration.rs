//! The whole configuration: the shared settings, and the section of each source and sink.

use super::sinks::SINKS;
use super::sources;
use crate::settings::{self, Settings};
use gpuwho_collect::source::{Source, SourceDef};
use gpuwho_export::def::{OpenError, Receiver};
use gpuwho_model::config::{ConfigError, Flags, Section, Tables};
use std::path::Path;

const TITLE: &str = "\
# gpuwho's configuration. As shipped it changes nothing: every key is commented out and shows its
# default (or, where there is none, an example). Lines that begin with `#:` are settings.
#
# A variable GPUWHO_<SECTION>_<KEY> overrides a key here, a flag overrides both. Check a changed
# file with `gpuwho config check FILE`.
";

/// The resolved configuration.
#[derive(Debug)]
pub struct Configuration {
    /// Settings that all parts share.
    pub settings: Settings,
    /// Every source, enabled or not.
    pub sources: Vec<(SourceDef, Box<dyn Source>)>,
    /// Every sink by name, requested or not.
    pub sinks: Vec<(&'static str, Box<dyn Receiver>)>,
    /// What was set, to compare with a later configuration.
    pub(super) tables: Tables,
}

impl Configuration {
    /// Reads the file (if one is named), the environment and the flags.
    pub fn load(
        file: Option<&Path>,
        env: &[(String, String)],
        flags: &Flags,
    ) -> Result<Self, ConfigError> {
        let tables = Tables::load(file, env, &sections(), settings::REMOVED)?;
        let env = &|name: &str| {
            env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        let settings = Settings::resolve(&tables, flags, env)?;
        let with = settings.resolving(&tables, flags, env);
        let mut sources = Vec::new();
        for source in sources::all() {
            sources.push((source, (source.configure)(source.name, &with)?));
        }
        let mut sinks = Vec::new();
        for sink in SINKS {
            sinks.push((sink.name, (sink.configure)(&with)?));
        }
        Ok(Self { settings, sources, sinks, tables })
    }

    /// Checks a file without environment and flags, as `gpuwho config check` does.
    pub fn check(file: &Path) -> Result<Self, ConfigError> {
        Self::load(Some(file), &[], &Flags::default())
    }

    /// What of it has no effect, a line each.
    pub fn warnings(&self) -> &[String] {
        self.tables.warnings()
    }

    /// Checks what a start would find: the files and folders that the sinks name.
    pub fn check_start(&self) -> Result<(), OpenError> {
        self.sinks.iter().try_for_each(|(_, sink)| sink.check())
    }

    /// The enabled sources in the order in which they start.
    pub(super) fn to_start(&self) -> impl Iterator<Item = (SourceDef, &dyn Source)> {
        let defs: Vec<SourceDef> = self.sources.iter().map(|(def, _)| *def).collect();
        let order = sources::start_order(&defs).into_iter();
        let all = order.filter_map(|at| self.sources.get(at));
        all.map(|(def, source)| (*def, source.as_ref())).filter(|(_, source)| source.is_enabled())
    }
}

/// Every section once, in the order of the sample.
fn sections() -> Vec<Section> {
    let sources = sources::all().into_iter().filter_map(|source| source.section);
    let sinks = SINKS.iter().filter_map(|sink| sink.section);
    let all = settings::FIRST.iter().copied().chain(sources);
    let all = all.chain(settings::LAST.iter().copied()).chain(sinks);
    let mut sections: Vec<Section> = Vec::new();
    for section in all {
        if !sections.iter().any(|known| known.name == section.name) {
            sections.push(section);
        }
    }
    sections
}

/// The sample configuration: every key, its default and its meaning.
pub fn sample() -> String {
    let mut sample = TITLE.to_owned();
    for section in sections() {
        sample.extend(["\n[", section.name, "]\n", section.sample]);
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_devices::DEVICES;
    use gpuwho_model::finding::Finding;
    use gpuwho_owners::nodes;

    fn load(text: &str) -> Configuration {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpuwho.toml");
        std::fs::write(&file, text).unwrap();
        Configuration::check(&file).unwrap()
    }

    #[test]
    fn the_sample_is_valid_and_changes_nothing_as_shipped() {
        let sample = sample();
        load(&sample);
        let set: Vec<_> =
            sample.lines().filter(|l| !l.starts_with(['#', '[']) && !l.is_empty()).collect();
        assert_eq!(set, Vec::<&str>::new(), "every key of the sample is commented out");
    }

    #[test]
    fn every_key_the_sample_shows_exists() {
        let shown: String = sample()
            .lines()
            .map(|line| line.strip_prefix("#: ").map_or(line, |setting| setting))
            .filter(|line| !line.starts_with('#'))
            .fold(String::new(), |all, line| all + line + "\n");
        let nodes = load(&shown).settings.nodes;
        let all = nodes::Settings::of(nodes.vendors);
        assert_eq!(
            (nodes.nodes, nodes.drivers),
            (all.nodes, all.drivers),
            "defaults as documented"
        );
    }

    /// A wrong key's error lists the right ones.
    fn keys_of(section: &Section) -> Vec<String> {
        let text = "{ no_such_key_of_ours = 1 }";
        let table = toml::de::ValueDeserializer::parse(text).unwrap();
        let error = (section.check)(section, table).unwrap_err().message().to_owned();
        let (_, known) = error.split_once(", expected ").unwrap();
        known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_sample_has_every_key() {
        for section in sections() {
            let keys = keys_of(&section);
            assert!(!keys.is_empty(), "[{}]", section.name);
            for key in keys {
                let setting = format!("#: {key} = ");
                assert!(section.sample.contains(&setting), "[{}] has no {key}", section.name);
            }
        }
    }

    #[test]
    fn what_a_start_would_not_find_is_found_by_a_check() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(folder.path().join("file"), "no certificate").unwrap();
        let error = |text: &str| load(text).check_start().map_err(|error| error.to_string());
        for (text, expected) in [
            (format!("[otlp]\ncertificate = \"{}\"", at("nope.pem")), "nope.pem"),
            (format!("[otlp]\ncertificate = \"{}\"", at("file")), "holds no certificate"),
            (format!("[sinks]\nfile = \"{}\"", at("file/points.jsonl")), "there is no folder"),
        ] {
            let found = error(&text).unwrap_err();
            assert!(found.contains(expected), "{text}: {found}");
        }
        assert_eq!(error(&format!("[sinks]\nfile = \"{}\"", at("points.jsonl"))), Ok(()));
    }

    #[test]
    fn a_disabled_source_does_not_start() {
        let started = |text: &str| {
            let all = load(text);
            all.to_start().map(|(def, _)| def.name).collect::<Vec<_>>()
        };
        let default = started("");
        assert_eq!(default.len(), sources::all().len());
        let place = |name| default.iter().position(|started| *started == name);
        assert!(place("nccl") < place("device_users") && place("nccl") < place("nccl-ras"));
        let vendors = DEVICES.iter().map(|vendor| format!("[{}]\nenabled = false\n", vendor.name));
        let vendors: String = vendors.collect();
        let host = "[host]\nenabled = false\ncgroups = false";
        let nccl = "[nccl]\nenabled = false\ninspector = false";
        let off = started(&format!("{nccl}\n{host}\n{vendors}"));
        let wanted = ["device_users", "engines", "kmsg", "events", "agent"];
        assert_eq!(off, wanted, "RAS asks what NCCL's finds");
    }

    #[test]
    fn a_source_that_is_switched_off_is_no_fault() {
        let off = |name| {
            let more = match name {
                "nccl" => "inspector = false\nras = false\n",
                "host" => "cgroups = false\n",
                _ => "",
            };
            format!("[{name}]\nenabled = false\n{more}")
        };
        let names = ["nccl", "host", "engines"].into_iter().chain(DEVICES.iter().map(|v| v.name));
        let all = load(&names.map(off).collect::<String>());
        let off = all.sources.iter().filter(|(_, source)| !source.is_enabled());
        let found: Vec<_> =
            off.flat_map(|(_, source)| source.diagnose(&all.settings.diagnosing())).collect();
        assert!(found.len() >= 6, "{found:?}");
        assert!(!found.iter().any(Finding::is_fault), "{found:?}");
    }
}
