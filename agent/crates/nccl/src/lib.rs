//! The three sources of collective communication, and their section `[nccl]`: what the probe
//! counts, what NCCL says of itself (RAS), and what its Inspector writes.
//!
//! Owns the probes of the collective library, their budget, and what is read of a job's memory and files.
//! May use `bpf`, `collect` and what is below. Knows no vendor, no engine and no sink.
//!
//! Rooms, from below: `probe`, `known`, `inspector`, `ras`.

#![forbid(unsafe_code)]

pub mod inspector;
mod known;
pub mod probe;
pub mod ras;

use gpuwho_bpf::probe::{ProbeDef, SelfTest};
use gpuwho_collect::Collector;
use gpuwho_collect::source::{Alone, Context, Diagnosing, ProcessChange, Source, SourceDef};
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::config::{ConfigError, Section, duration};
use gpuwho_model::finding::Finding;
use gpuwho_model::paths::Paths;
use gpuwho_model::status::StatusRegistry;
use inspector::Inspector;
use known::Known;
use ras::Ras;
use serde::Deserialize;
use std::cell::RefCell;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The probe's row.
pub const PROBE: ProbeDef = ProbeDef {
    source: SourceDef {
        name: probe::NAME,
        about: "calls of NCCL and RCCL, counted by probes",
        section: Some(SECTION),
        after: &[],
        alone: Alone::Named,
        configure: |_, with| Ok(Box::new(probe_settings(with.tables.read(NCCL)?)?)),
    },
    self_tests: &[SelfTest { name: "nccl", hook: None }],
    self_test: |_| Ok(probe::self_test(&Paths::default())?),
    vm_tests: &[
        "rank_size_hash_sequence_calls_and_bytes_are_exact",
        "split_shrink_and_destroy_are_followed",
        "a_rank_that_hangs_in_a_call_is_reported",
        "probes_go_into_the_file_that_was_read",
        "a_name_is_read_wherever_a_configuration_is",
        "a_hostile_configuration_gives_no_name",
    ],
};

/// The Inspector's row.
pub const INSPECTOR: SourceDef = SourceDef {
    name: inspector::NAME,
    about: "the files of NCCL's Inspector",
    section: Some(SECTION),
    after: &[probe::NAME],
    alone: Alone::Named,
    configure: |_, with| Ok(Box::new(inspector_settings(&with.tables.read(NCCL)?)?)),
};

/// The row of NCCL's own status. It asks the processes in which the probe's source has found NCCL.
pub const RAS: SourceDef = SourceDef {
    name: ras::NAME,
    about: "NCCL's own status (RAS)",
    section: Some(SECTION),
    after: &[probe::NAME],
    alone: Alone::Named,
    configure: |_, with| {
        let raw: RawNccl = with.tables.read(NCCL)?;
        Ok(Box::new(Status { settings: ras_settings(&raw)?, is_nccl_watched: raw.is_enabled() }))
    },
};

const NCCL: &str = "nccl";
const SECTION: Section = Section::of::<RawNccl>(
    NCCL,
    r#"# Count what processes that hold a device ask of NCCL or RCCL. Without it nothing else below is read either, but for
# the Inspector where `inspector = true` is set.
#: enabled = true
# Hits of probes a second of a process, over all libraries that it has loaded, above which less is
# watched: calls are not timed, then not counted for five minutes. One that the kernel has to step
# through counts as eight. A hit costs 0.6 to 2 µs on the
# machines that were measured: the default is two per cent of a core at the most.
#: budget = 10000
# Calls a second of a thread up to which each one is timed. Of a thread that calls faster, one in
# sixteen is, by chance, on kernels from 6.13 on: to see a call return is a third of what it pays.
# 0: every call is timed, and seen to be open while it hangs.
#: timed_rate = 500
# A rank that stays in one call, or makes none while its peers go on, for so long is hung.
#: hang_after = "1m"
# FUSE mounts that may be probed, by the directories of the host at or below which root mounts them (images
# of CVMFS, squashfuse, fuse-overlayfs), also as layers of overlays. The kernel reads a probed page from
# them while no process of the host can fork: a server that does not answer then stops the host, so name
# only what you would trust with that. NCCL on other FUSE mounts is not counted.
#: trusted_mounts = []
# Read the files of NCCL's Inspector plugin where a job has it on: time and bandwidth of completed
# collectives. They are found among the open files of processes that hold a device, and in these
# directories (whole paths).
#: inspector = true
#: inspector_dirs = []
# Bytes a second that are read of all of them together; a record is about 600.
#: inspector_rate = 524288
# Ask NCCL itself (its RAS subsystem, 2.28.7 and later) which rank each process is, what it has
# launched and who is dead. A question goes to all processes of the job: less often on large jobs.
# NCCL has crashed on the question (below 2.27.3 while communicators are made, below 2.29.2 with ranks
# missing, and 2.29.7), and with it the job. "auto": only versions with a known fix, while their
# communicators are quiet; at present no version has one, and nothing is asked. "all": every version,
# at the jobs' risk. "off": none.
#: ras = "auto"
#: ras_interval = "1m"
"#,
);

/// Every question to NCCL goes to every process of a job.
const SHORTEST_ROUND: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawNccl {
    enabled: Option<bool>,
    budget: Option<u64>,
    timed_rate: Option<u32>,
    hang_after: Option<String>,
    trusted_mounts: Option<Vec<PathBuf>>,
    inspector: Option<bool>,
    inspector_dirs: Option<Vec<PathBuf>>,
    inspector_rate: Option<u64>,
    ras: Option<toml::Value>,
    ras_interval: Option<String>,
}

impl RawNccl {
    fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(probe::Settings::default().enabled)
    }
}

/// What is counted by probes.
fn probe_settings(raw: RawNccl) -> Result<probe::Settings, ConfigError> {
    let default = probe::Settings::default();
    if raw.budget == Some(0) {
        return Err(ConfigError::Value {
            key: "nccl.budget".into(),
            problem: "no hits at all would be allowed".into(),
            remedy: "set nccl.enabled = false instead; 10000 is the default".into(),
        });
    }
    let enabled = raw.is_enabled();
    let trusted_mounts = raw.trusted_mounts.unwrap_or(default.trusted_mounts);
    trusted_mounts.iter().try_for_each(|path| trusted_mount(path))?;
    Ok(probe::Settings {
        trusted_mounts,
        enabled,
        budget: raw.budget.unwrap_or(default.budget),
        recovery: default.recovery,
        timed_rate: raw.timed_rate.unwrap_or(default.timed_rate),
        hang_after: duration("nccl.hang_after", raw.hang_after, default.hang_after)?,
    })
}

/// A directory whose mounts may keep the kernel waiting: none by accident.
fn trusted_mount(path: &Path) -> Result<(), ConfigError> {
    let is_plain = path.components().all(|part| !matches!(part, Component::ParentDir));
    if path.is_absolute() && is_plain && path.parent().is_some() {
        return Ok(());
    }
    Err(ConfigError::Value {
        key: "nccl.trusted_mounts".into(),
        problem: format!("`{}` is not the whole path of a directory below /", path.display()),
        remedy:
            "name where root mounts images, like /cvmfs; a hung server there stops the host's forks"
                .into(),
    })
}

/// What is read of the Inspector's files.
fn inspector_settings(raw: &RawNccl) -> Result<inspector::Settings, ConfigError> {
    let default = inspector::Settings::default();
    if raw.inspector_rate == Some(0) {
        return Err(ConfigError::Value {
            key: "nccl.inspector_rate".into(),
            problem: "nothing at all would be read".into(),
            remedy: "set nccl.inspector = false instead; 524288 is the default".into(),
        });
    }
    let directories = raw.inspector_dirs.clone().unwrap_or(default.directories);
    if let Some(relative) = directories.iter().find(|path| !path.is_absolute()) {
        return Err(ConfigError::Value {
            key: "nccl.inspector_dirs".into(),
            problem: format!("`{}` is not absolute", relative.display()),
            remedy: "write the whole path, like /var/lib/nccl-inspector".into(),
        });
    }
    Ok(inspector::Settings {
        enabled: raw.inspector.unwrap_or(default.enabled && raw.is_enabled()),
        directories,
        rate: raw.inspector_rate.unwrap_or(default.rate),
    })
}

/// What NCCL is asked itself.
fn ras_settings(raw: &RawNccl) -> Result<ras::Settings, ConfigError> {
    let default = ras::Settings::default();
    let every = duration("nccl.ras_interval", raw.ras_interval.clone(), default.every)?;
    if every < SHORTEST_ROUND {
        return Err(ConfigError::Value {
            key: "nccl.ras_interval".into(),
            problem: format!("{every:?} is shorter than {SHORTEST_ROUND:?}"),
            remedy: "an answer comes from all processes of a job; 1m is the default".into(),
        });
    }
    let mode = raw.ras.as_ref().map_or(Ok(default.mode), ras_mode)?;
    Ok(ras::Settings { mode, every })
}

/// Whom NCCL is asked of. Before there were modes, `true` asked everybody.
fn ras_mode(set: &toml::Value) -> Result<ras::Mode, ConfigError> {
    match (set.as_bool(), set.as_str()) {
        (_, Some("auto")) => Ok(ras::Mode::Auto),
        (Some(true), _) | (_, Some("all")) => Ok(ras::Mode::All),
        (Some(false), _) | (_, Some("off")) => Ok(ras::Mode::Off),
        _ => Err(ConfigError::Value {
            key: "nccl.ras".into(),
            problem: format!("{set} is no mode"),
            remedy: "write \"auto\", \"off\" or \"all\"".into(),
        }),
    }
}

impl Source for probe::Settings {
    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        let with = probe::Dependencies {
            files: &context.files,
            ownership: &context.ownership,
            communicators: &context.communicators,
            board: &context.board,
            aggregator: Some(&context.aggregator),
        };
        let (mut source, waker) = probe::start(self.clone(), with)?;
        if context.is_agent {
            source.share_thread_while_idle();
        }
        let known = context.of_kind.get::<Known>();
        known.processes.push(source.loaded());
        known.states.push(source.states());
        known.in_use.push(source.in_use());
        context.processes.push(Box::new(move |change| match change {
            ProcessChange::Active(process) => waker.request(process),
            ProcessChange::Ended => waker.wake(),
        }));
        Ok(vec![Box::new(source)])
    }

    fn diagnose(&self, settings: &Diagnosing<'_>) -> Vec<Finding> {
        vec![finding("collectives", probe::diagnose(self, settings.paths))]
    }
}

impl Source for inspector::Settings {
    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        let (ownership, communicators) = (&context.ownership, &context.communicators);
        let known = context.of_kind.get::<Known>();
        let mut inspector = Inspector::new(
            self.clone(),
            &context.files,
            ownership,
            communicators,
            &known.processes,
        );
        if context.is_agent {
            inspector.share_thread_until(&known.in_use);
        }
        Ok(vec![Box::new(inspector)])
    }

    fn diagnose(&self, _: &Diagnosing<'_>) -> Vec<Finding> {
        vec![finding("NCCL inspector", inspector::diagnose(self))]
    }
}

#[derive(Debug)]
struct Status {
    settings: ras::Settings,
    is_nccl_watched: bool,
}

impl Source for Status {
    fn is_enabled(&self) -> bool {
        self.settings.mode != ras::Mode::Off && self.is_nccl_watched
    }

    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        let known = context.of_kind.get::<Known>();
        let lists = known.processes.all();
        let loaded = move || lists.iter().flat_map(|list| list()).collect();
        let candidates = in_turns(context.board.clone(), self.settings.every, Box::new(loaded));
        let states = known.states.all();
        let states = Box::new(move || states.iter().flat_map(|of| of()).collect());
        let communicators = &context.communicators;
        let aggregator = Arc::clone(&context.aggregator);
        let (files, asked) = (&context.files, (candidates, states as ras::States));
        let mut source = Ras::new(self.settings.clone(), files, communicators, asked, aggregator);
        if context.is_agent {
            source.start_when(&known.in_use);
        } else {
            source.start()?;
        }
        Ok(vec![Box::new(source)])
    }

    fn diagnose(&self, _: &Diagnosing<'_>) -> Vec<Finding> {
        let (state, facts, remedy) = if self.is_nccl_watched {
            ras::diagnose(&self.settings)
        } else {
            (SourceState::Absent, "switched off (nccl.enabled)".into(), String::new())
        };
        vec![Finding { remedy, ..finding("NCCL status", (state, facts)) }]
    }
}

/// The thread that asks calls this once in each round: its turn is what lies between.
fn in_turns(statuses: StatusRegistry, every: Duration, loaded: ras::Candidates) -> ras::Candidates {
    const THREAD: &str = "nccl:ras";
    let turn = RefCell::new(None);
    Box::new(move || {
        if turn.take().is_none() {
            statuses.clock(THREAD);
        }
        turn.replace(Some(statuses.turn(THREAD, every)));
        loaded()
    })
}

fn finding(subject: &str, found: (SourceState, String)) -> Finding {
    let (state, facts) = found;
    let state = if state == SourceState::Ready { "ok" } else { state.as_str() };
    Finding::new(subject, state, facts, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawNccl {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn collectives_have_a_budget_that_is_not_zero() {
        let file = "enabled = false\nbudget = 500\nhang_after = \"90s\"\n";
        let settings = probe_settings(raw(file)).unwrap();
        assert_eq!(
            (settings.enabled, settings.budget, settings.hang_after),
            (false, 500, Duration::from_secs(90))
        );
        let error = probe_settings(raw("budget = 0\n")).unwrap_err().to_string();
        assert!(error.contains("nccl.budget"), "{error}");
    }

    #[test]
    fn mounts_are_trusted_by_whole_paths_below_the_root() {
        let of = |list: &str| probe_settings(raw(&format!("trusted_mounts = {list}\n")));
        assert_eq!(
            of("[\"/cvmfs\", \"/opt/images\"]").unwrap().trusted_mounts,
            ["/cvmfs", "/opt/images"].map(PathBuf::from)
        );
        for wrong in ["/", "cvmfs", "/opt/../tmp", ""] {
            let error = of(&format!("[\"{wrong}\"]")).unwrap_err().to_string();
            assert!(error.contains("nccl.trusted_mounts"), "{error}");
        }
    }

    #[test]
    fn nccls_own_status_is_read_seldom_or_never() {
        let default = ras_settings(&raw("")).unwrap();
        assert_eq!((default.mode, default.every), (ras::Mode::Auto, Duration::from_mins(1)));
        let set = ras_settings(&raw("ras = false\nras_interval = \"5m\"\n")).unwrap();
        assert_eq!((set.mode, set.every), (ras::Mode::Off, Duration::from_mins(5)));
        let mode = |set: &str| ras_settings(&raw(&format!("ras = {set}\n"))).map(|set| set.mode);
        for (set, wanted) in [
            ("true", ras::Mode::All),
            ("\"all\"", ras::Mode::All),
            ("\"off\"", ras::Mode::Off),
            ("\"auto\"", ras::Mode::Auto),
        ] {
            assert_eq!(mode(set).unwrap(), wanted, "{set}");
        }
        for wrong in ["\"on\"", "1", "\"\""] {
            let error = mode(wrong).unwrap_err().to_string();
            assert!(error.contains("nccl.ras") && error.contains("\"auto\""), "{error}");
        }
        let error = ras_settings(&raw("ras_interval = \"10ms\"\n")).unwrap_err().to_string();
        assert!(
            error.contains("nccl.ras_interval") && error.contains("shorter than 1s"),
            "{error}"
        );
    }

    #[test]
    fn the_inspector_is_off_with_nccl_its_directories_are_whole_paths_and_its_rate_is_not_zero() {
        let is_on = |text: &str| inspector_settings(&raw(text)).unwrap().enabled;
        // Alone, it searches every process itself.
        let switches = ["", "enabled = false", "enabled = false\ninspector = true"].map(is_on);
        assert_eq!(switches, [true, false, true]);
        let file = "inspector = false\ninspector_dirs = [\"/var/lib/inspector\"]\n\
                    inspector_rate = 1000\n";
        let settings = inspector_settings(&raw(file)).unwrap();
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
            let error = inspector_settings(&raw(line)).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
