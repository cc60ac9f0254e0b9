//! How far the log has been told, kept in the run directory: an agent that starts again does not
//! tell old records twice. A new boot begins a new count.

use crate::paths::Paths;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::PathBuf;

/// The file.
const FILE: &str = "kmsg.json";
/// The file where the records' times stand for their numbers.
const BY_TIME: &str = "kmsg-times.json";

/// The last record that was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    boot_id: String,
    sequence: u64,
}

/// The mark and its file.
#[derive(Debug)]
pub(super) struct Position {
    path: PathBuf,
    boot_id: String,
    reported: Option<u64>,
}

impl Position {
    /// What an agent before this one has left, if it ran since the host was booted.
    pub(super) fn read(paths: &Paths) -> Self {
        Self::of(paths, FILE)
    }

    /// The same of one that read the log by `syslog(2)`.
    pub(super) fn by_time(paths: &Paths) -> Self {
        Self::of(paths, BY_TIME)
    }

    fn of(paths: &Paths, file: &str) -> Self {
        let boot_id = paths.proc.join("sys/kernel/random/boot_id");
        let boot_id = fs::read_to_string(boot_id).unwrap_or_default().trim().to_owned();
        let path = paths.run.join(file);
        let mark = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let told = mark.filter(|mark: &Mark| mark.boot_id == boot_id).map(|mark| mark.sequence);
        Self { path, boot_id, reported: told }
    }

    /// Whether a record was told before.
    pub(super) fn is_reported(&self, sequence: u64) -> bool {
        self.reported.is_some_and(|told| sequence <= told)
    }

    /// Everything up to this record is told.
    pub(super) fn advance(&mut self, sequence: u64) -> io::Result<()> {
        self.reported = Some(sequence);
        let mark = Mark { boot_id: self.boot_id.clone(), sequence };
        let text = serde_json::to_vec(&mark).map_err(io::Error::other)?;
        // Renamed into its place, so that a crash leaves the old or the new one.
        let draft = self.path.with_extension("json.new");
        fs::write(&draft, text)?;
        fs::rename(&draft, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_known_after_a_restart_and_forgotten_after_a_boot() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::under(folder.path());
        let boot = paths.proc.join("sys/kernel/random");
        fs::create_dir_all(&boot).unwrap();
        fs::create_dir_all(&paths.run).unwrap();
        fs::write(boot.join("boot_id"), "first\n").unwrap();
        let mut position = Position::read(&paths);
        assert!(!position.is_reported(0));
        position.advance(41).unwrap();
        let again = Position::read(&paths);
        assert!(again.is_reported(41) && !again.is_reported(42));
        fs::write(boot.join("boot_id"), "second\n").unwrap();
        assert!(!Position::read(&paths).is_reported(1));
    }
}
