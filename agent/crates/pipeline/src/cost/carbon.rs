//! The carbon intensity in use: a configured number, or a file that another program refreshes.
//!
//! The upkeep thread reads the file once an interval: at most [`MAX_FILE_BYTES`], a regular file, one
//! number of grams per kilowatt-hour. A file that is wrong, or older than `carbon_max_age`, does not
//! count; then the configured number does, if there is one, and the source's status says so.

use super::settings::wrong;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::cost::CarbonSource;
use gpuwho_model::config::{ConfigError, checks};
use gpuwho_model::status::Report;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The name under which the file's state is reported.
pub const STATUS: &str = "carbon";

/// A number needs no more.
const MAX_FILE_BYTES: u64 = 64;
/// Burning peat gives some 1,200 g/kWh.
const MAX_INTENSITY: f64 = 10_000.0;
/// Grids' figures are of an hour.
const DEFAULT_MAX_AGE: Duration = Duration::from_hours(2);
/// No value: no intensity is this high.
const NONE: u64 = u64::MAX;

/// The settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CarbonSettings {
    configured: Option<u64>,
    file: Option<PathBuf>,
    max_age: Duration,
}

/// The intensity in use, read by the pipeline and refreshed by the upkeep thread.
#[derive(Debug)]
pub struct Carbon {
    settings: CarbonSettings,
    /// Milligrams per kilowatt-hour of the file, or [`NONE`].
    of_file: AtomicU64,
}

#[derive(Debug, thiserror::Error)]
enum CarbonError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("it is not a regular file")]
    NotAFile,
    #[error("it was last written {} ago", humantime::format_duration(*.0))]
    Stale(Duration),
    #[error("it does not hold one number of grams per kilowatt-hour from 0 to {MAX_INTENSITY}")]
    NotANumber,
}

impl CarbonSettings {
    pub(super) fn resolve(
        number: Option<f64>,
        file: Option<PathBuf>,
        max_age: Option<String>,
    ) -> Result<Self, ConfigError> {
        let configured = match number.map(milligrams) {
            Some(None) => {
                let problem = "it is no carbon intensity".to_owned();
                return Err(wrong("carbon_intensity", problem, "write grams per kilowatt-hour"));
            }
            known => known.flatten(),
        };
        checks::absolute(file.iter().map(|path| ("cost.carbon_file", path.as_path())))?;
        let max_age =
            gpuwho_model::config::duration("cost.carbon_max_age", max_age, DEFAULT_MAX_AGE)?;
        Ok(Self { configured, file, max_age })
    }
}

impl Carbon {
    /// Starts with the configured number.
    pub fn new(settings: CarbonSettings) -> Self {
        Self { settings, of_file: AtomicU64::new(NONE) }
    }

    /// Milligrams per kilowatt-hour.
    pub(super) fn milligrams(&self) -> Option<u64> {
        let of_file = self.of_file.load(Ordering::Relaxed);
        Some(of_file).filter(|of_file| *of_file != NONE).or(self.settings.configured)
    }

    /// Grams per kilowatt-hour, and where they come from.
    pub(super) fn intensity(&self) -> Option<(f64, CarbonSource)> {
        let is_file = self.of_file.load(Ordering::Relaxed) != NONE;
        let source = if is_file { CarbonSource::File } else { CarbonSource::Configured };
        Some((self.milligrams()? as f64 / 1000.0, source))
    }

    /// Reads the file, if one is configured, and reports its state.
    pub fn refresh(&self, now: SystemTime) -> Option<Report> {
        let file = self.settings.file.as_deref()?;
        let read = read(file, self.settings.max_age, now);
        self.of_file.store(*read.as_ref().unwrap_or(&NONE), Ordering::Relaxed);
        Some(match read {
            Ok(_) => Report::ready(),
            Err(error) => {
                let instead = match self.settings.configured {
                    Some(_) => "the configured carbon_intensity counts instead",
                    None => "carbon is not counted",
                };
                let reason = format!("{}: {error}; {instead}", file.display());
                let remedy = "look at the program that writes cost.carbon_file";
                Report::of(SourceState::Failed, reason, remedy)
            }
        })
    }
}

fn milligrams(grams: f64) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 10^7, and rounded"
    )]
    (0.0..=MAX_INTENSITY).contains(&grams).then(|| (grams * 1000.0).round() as u64)
}

fn read(path: &Path, max_age: Duration, now: SystemTime) -> Result<u64, CarbonError> {
    // `open` neither waits for a pipe's writer nor makes a terminal the controlling one.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(CarbonError::NotAFile);
    }
    let age = now.duration_since(metadata.modified()?).unwrap_or_default();
    if age > max_age {
        return Err(CarbonError::Stale(Duration::from_secs(age.as_secs())));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|_| CarbonError::NotANumber)?;
    let number = Some(&text).filter(|text| text.len() as u64 <= MAX_FILE_BYTES);
    let number = number.and_then(|text| text.trim().parse().ok()).and_then(milligrams);
    number.ok_or(CarbonError::NotANumber)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn carbon(folder: &Path, number: Option<f64>) -> Carbon {
        let file = folder.join("intensity");
        Carbon::new(CarbonSettings::resolve(number, Some(file), None).unwrap())
    }

    #[test]
    fn a_file_counts_until_it_is_old_or_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let carbon = carbon(folder.path(), Some(350.0));
        let now = SystemTime::now();
        let state = |report: Option<Report>| report.unwrap().state;
        assert_eq!(state(carbon.refresh(now)), SourceState::Failed, "no file");
        assert_eq!(carbon.intensity(), Some((350.0, CarbonSource::Configured)));
        fs::write(folder.path().join("intensity"), "42.5\n").unwrap();
        assert_eq!(state(carbon.refresh(now)), SourceState::Ready);
        assert_eq!(carbon.intensity(), Some((42.5, CarbonSource::File)));
        let later = now + Duration::from_hours(3);
        assert_eq!(state(carbon.refresh(later)), SourceState::Failed, "stale");
        assert_eq!(carbon.intensity(), Some((350.0, CarbonSource::Configured)));
        for text in ["", "NaN", "-1", "1e9", "12 13", &"1".repeat(1000), "\u{0}"] {
            fs::write(folder.path().join("intensity"), text).unwrap();
            assert_eq!(state(carbon.refresh(now)), SourceState::Failed, "{text:?}");
        }
    }

    #[test]
    fn without_a_number_a_stale_file_means_no_carbon() {
        let folder = tempfile::tempdir().unwrap();
        let carbon = carbon(folder.path(), None);
        let report = carbon.refresh(SystemTime::now()).unwrap();
        assert!(report.reason.contains("carbon is not counted"), "{}", report.reason);
        assert_eq!(carbon.intensity(), None);
        let fifo = folder.path().join("intensity");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(carbon.refresh(SystemTime::now()).unwrap().state, SourceState::Failed, "a pipe");
    }
}
