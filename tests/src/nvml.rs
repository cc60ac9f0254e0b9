//! The fake driver library on this machine: a folder with `libnvidia-ml.so.1`, a scenario, and
//! the files that bind the scenario's processes to real PIDs.

use crate::program;
use nvidia_ml::install::{InstallError, install};
use nvidia_ml::scenario::{Scenario, ScenarioError};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The scenarios of the repository.
const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fakes/nvml/scenarios");

/// How long calls take on a real driver.
const LATENCIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fakes/nvml/latencies.toml");

/// Why there is no fake driver.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// No library.
    #[error(transparent)]
    NotBuilt(#[from] program::NotBuilt),
    /// No such scenario.
    #[error("no scenario {name}; there are: {known}")]
    NoScenario {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The library cannot be put in place.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// A scenario that cannot be played.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A file operation.
    #[error("{path}: {source}")]
    File {
        /// On what.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

/// A fake driver.
#[derive(Clone, Debug)]
pub struct FakeNvml {
    folder: PathBuf,
    /// Time 0 of the scenario in seconds since the Unix epoch; each reader's own start without.
    epoch: Option<f64>,
    /// Whether the library counts its calls.
    counts: bool,
}

impl FakeNvml {
    /// Sets it up in a folder that outlives the agent, `Stage::folder` say.
    pub fn install(folder: &Path, scenario: &str) -> Result<Self, NvmlError> {
        let fake = Self { folder: folder.join("nvml"), epoch: None, counts: false };
        let make = || {
            fs::create_dir_all(fake.pids())?;
            fs::create_dir_all(fake.nodes())?;
            let devices = (0..16).map(|minor| format!("nvidia{minor}"));
            for name in devices.chain(["nvidiactl".to_owned()]) {
                fs::write(fake.nodes().join(name), "")?;
            }
            Ok(())
        };
        make().map_err(|source| fake.file_error(source))?;
        fake.play(scenario)?;
        install(&program::fake_nvml()?, &fake.scenario(), &fake.folder)?;
        Ok(fake)
    }

    /// Lets the scenario's time begin now, for every reader there will be.
    #[must_use]
    pub fn from_now(self) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { epoch: Some(now.as_secs_f64()), ..self }
    }

    /// Scenario time 0 in seconds since the Unix epoch, where it was set.
    pub fn epoch(&self) -> Option<f64> {
        self.epoch
    }

    /// The folder of the files that the library holds open as the real one does its device nodes.
    pub fn nodes(&self) -> PathBuf {
        self.folder.join("nodes")
    }

    /// Changes the scenario's text.
    pub fn edit(&self, change: impl FnOnce(String) -> String) -> Result<(), NvmlError> {
        let path = self.scenario();
        let text = fs::read_to_string(&path)
            .map_err(|source| NvmlError::File { path: path.clone(), source })?;
        Self::replace(&path, &change(text))
    }

    /// Goes on with another scenario; the library notices by itself.
    pub fn play(&self, scenario: &str) -> Result<(), NvmlError> {
        let source = scenario_path(scenario)?;
        let at = source.clone();
        let text =
            fs::read_to_string(source).map_err(|source| NvmlError::File { path: at, source })?;
        Self::replace(&self.scenario(), &text)
    }

    /// What the agent's configuration names.
    pub fn library(&self) -> PathBuf {
        self.folder.join("libnvidia-ml.so.1")
    }

    /// The scenario being played, which a test may rewrite.
    pub fn scenario(&self) -> PathBuf {
        self.folder.join("scenario.toml")
    }

    /// What is being played, to compute what a reading must be.
    pub fn truth(&self) -> Result<Scenario, NvmlError> {
        Ok(Scenario::load(&self.scenario())?)
    }

    /// Binds the processes of a GPU, slot by slot; `None` leaves a slot empty.
    pub fn set_processes(&self, gpu: u32, pids: &[Option<u32>]) -> Result<(), NvmlError> {
        let words = pids.iter().map(|pid| pid.map_or("-".to_owned(), |pid| pid.to_string()));
        let text: Vec<_> = words.collect();
        Self::replace(&self.pids().join(format!("gpu{gpu}")), &text.join("\n"))
    }

    /// Gives a command the environment that the library reads.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some(epoch) = self.epoch {
            command.env("FAKE_NVML_EPOCH", epoch.to_string());
        }
        command.env("FAKE_NVML_SCENARIO", self.scenario()).env("FAKE_NVML_PIDS", self.pids());
        if self.counts {
            command.env("FAKE_NVML_COUNTS", self.counts());
        }
        command.env("FAKE_NVML_NODES", self.nodes())
    }

    /// Takes the library away, as on a host without a driver.
    pub fn take_away(&self) -> Result<(), NvmlError> {
        fs::remove_file(self.library()).map_err(|source| self.file_error(source))
    }

    /// Puts the library where it was.
    pub fn bring_back(&self) -> Result<(), NvmlError> {
        install(&program::fake_nvml()?, &self.scenario(), &self.folder)?;
        Ok(())
    }

    /// Lets the library count its calls; gives the file, which [`nvidia_ml::counts::read`] reads.
    pub fn count_calls(&mut self) -> PathBuf {
        self.counts = true;
        self.counts()
    }

    /// Lets every call take as long as has been published of the real library.
    pub fn take_time(&self) -> Result<(), NvmlError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| NvmlError::File { path, source }
        };
        let known = Path::new(LATENCIES);
        let times = fs::read_to_string(known).map_err(at(known))?;
        let played = self.scenario();
        let scenario = fs::read_to_string(&played).map_err(at(&played))?;
        Self::replace(&played, &format!("{scenario}\n{times}"))
    }

    fn counts(&self) -> PathBuf {
        self.folder.join("counts")
    }

    fn pids(&self) -> PathBuf {
        self.folder.join("pids")
    }

    /// Whole files only: the library may read at any moment.
    fn replace(path: &Path, text: &str) -> Result<(), NvmlError> {
        let fresh = path.with_extension("fresh");
        fs::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, path))
            .map_err(|source| NvmlError::File { path: path.to_owned(), source })
    }

    fn file_error(&self, source: io::Error) -> NvmlError {
        NvmlError::File { path: self.folder.clone(), source }
    }
}

/// The file of a scenario.
pub fn scenario_path(name: &str) -> Result<PathBuf, NvmlError> {
    let path = Path::new(SCENARIOS).join(format!("{name}.toml"));
    let missing = || NvmlError::NoScenario { name: name.to_owned(), known: known_scenarios() };
    path.is_file().then_some(path).ok_or_else(missing)
}

/// The scenarios that there are.
pub fn scenarios() -> Vec<String> {
    let entries = fs::read_dir(SCENARIOS).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    names
}

fn known_scenarios() -> String {
    let names = scenarios();
    if names.is_empty() { format!("none in {SCENARIOS}") } else { names.join(", ") }
}
