//! A vendor's devices as a source of the agent, and the vendor's section of the configuration.

use super::reader::{self, DeviceReader};
use super::{Vendor, vendor};
use crate::attribute::identities::Identities;
use crate::catalog::agent::Stage;
use crate::collect::Collector;
use crate::collect::source::{Alone, Context, Source, SourceDef};
use crate::config::{ConfigError, Resolving, Section, checks, duration};
use serde::Deserialize;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The row of a vendor.
pub fn def(of: &'static Vendor) -> SourceDef {
    SourceDef {
        name: of.name,
        about: "devices, through the vendor's library",
        section: Some(Section::of::<RawReader>(of.name, SAMPLE)),
        after: &[],
        switches: &["nvidia.by_link"],
        alone: Alone::Devices,
        configure,
    }
}

const SAMPLE: &str = r#"#: enabled = true
# A path, or a name to be looked for where distributions, the vendor's operator and managed clusters put
# the library.
#: library = "libnvidia-ml.so.1"
# Read the performance counters of Hopper and later (GPM): multiprocessors, tensor cores, memory and
# link traffic, of each device and MIG instance. They do not get in the way of profilers; false leaves
# them alone all the same.
#: gpm = true
# Tell what each NVLink carries and what goes wrong on it: up to 20 series a link. false leaves the sums
# over all links of a device, errors included.
#: by_link = true
# The process that loads the driver's library gives up every capability, and the system calls that
# reach into other processes, load kernel code, change mounts or start programs. Its calls should need
# none of them, which was not tried on every driver: set false where a value is missing that nvidia-smi
# shows to root.
#: confined = true
# A device that has not answered by then is reported as hung. Half the interval, where that is shorter.
#: deadline = "5s"
# How often a missing driver or device is looked for, and whether the driver still lists as many
# devices.
#: retry = "30s"
"#;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawReader {
    enabled: Option<bool>,
    library: Option<PathBuf>,
    gpm: Option<bool>,
    by_link: Option<bool>,
    confined: Option<bool>,
    deadline: Option<String>,
    retry: Option<String>,
}

/// A vendor's reader as configured.
#[derive(Debug)]
struct Reader {
    vendor: &'static Vendor,
    is_enabled: bool,
    settings: reader::Settings,
}

fn configure(name: &'static str, with: &Resolving<'_>) -> Result<Box<dyn Source>, ConfigError> {
    let Some(vendor) = vendor(name) else { return Err(ConfigError::no_such("vendor", name)) };
    let raw: RawReader = with.tables.read(name)?;
    let is_enabled = raw.enabled != Some(false);
    let settings = settings(raw, name, with)?;
    Ok(Box::new(Reader { vendor, is_enabled, settings }))
}

fn settings(
    raw: RawReader,
    name: &str,
    with: &Resolving<'_>,
) -> Result<reader::Settings, ConfigError> {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let library = with.flags.nvidia_library.clone().or(raw.library);
    if let (Some(library), true) = (&library, raw.enabled != Some(false)) {
        checks::library(library)?;
    }
    let usual = reader::Settings::new(program, with.settings.interval);
    let key = |key| format!("{name}.{key}");
    Ok(reader::Settings {
        library,
        paths: with.settings.paths.clone(),
        gpm: raw.gpm.unwrap_or(usual.gpm),
        by_link: raw.by_link.unwrap_or(usual.by_link),
        confined: raw.confined.unwrap_or(usual.confined),
        deadline: duration(&key("deadline"), raw.deadline, usual.deadline)?,
        retry: duration(&key("retry"), raw.retry, usual.retry)?,
        ..usual
    })
}

impl Source for Reader {
    fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        let gauges = Arc::clone(&context.gauges);
        let identities = Identities::new(&context.ownership);
        let identify = Box::new(move |pids: &[u32], seen_at| {
            gauges.stages.time(Stage::Identify, || identities.of(pids, seen_at))
        });
        let ownership = context.ownership.clone();
        let nodes = Box::new(move |process| {
            ownership.owner(process).map_or_else(Vec::new, |owner| owner.nodes.clone())
        });
        let inventory = Arc::clone(&context.inventory);
        let reader = DeviceReader::new(self.vendor, self.settings.clone(), inventory, identify)
            .knowing_nodes(nodes);
        context.readers.push(reader.control());
        if context.is_agent {
            reader.ears.open(Arc::clone(&context.desk), context.board.clone());
        }
        Ok(vec![Box::new(reader)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, Settings, Tables};

    fn reader(text: &str) -> reader::Settings {
        let (tables, flags, env) = (&Tables::default(), &Flags::default(), &|_: &str| None);
        let shared = &Settings::resolve(tables, flags, env).unwrap();
        let with = Resolving { tables, settings: shared, flags, env };
        settings(toml::from_str(text).unwrap(), "nvidia", &with).unwrap()
    }

    #[test]
    fn links_are_told_one_by_one_unless_told_otherwise() {
        assert_eq!([reader("").by_link, reader("by_link = false").by_link], [true, false]);
    }

    #[test]
    fn the_drivers_library_is_confined_unless_told_otherwise() {
        assert_eq!([reader("").confined, reader("confined = false").confined], [true, false]);
    }
}
