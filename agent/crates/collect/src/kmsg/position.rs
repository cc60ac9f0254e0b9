//! The position in the log, stored in the run directory, so that a restarted agent does not report
//! old records twice. A new boot starts a new count.

use gpuwho_model::paths::Paths;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::PathBuf;

/// The file with sequence numbers.
const FILE: &str = "kmsg.json";
/// The file with record times, for a log read by `syslog(2)`.
const BY_TIME: &str = "kmsg-times.json";

/// The last reported record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    boot_id: String,
    sequence: u64,
}

/// The position and its file.
#[derive(Debug)]
pub(super) struct Position {
    path: PathBuf,
    boot_id: String,
    reported: Option<u64>,
}

impl Position {
    /// The position that an earlier agent stored since the last boot.
    pub(super) fn read(paths: &Paths) -> Self {
        Self::of(paths, FILE)
    }

    /// The same for an agent that reads the log by `syslog(2)`.
    pub(super) fn by_time(paths: &Paths) -> Self {
        Self::of(paths, BY_TIME)
    }

    fn of(paths: &Paths, file: &str) -> Self {
        let boot_id = paths.proc.join("sys/kernel/random/boot_id");
        let boot_id = fs::read_to_string(boot_id).unwrap_or_default().trim().to_owned();
        let path = paths.run.join(file);
        let mark = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let reported = mark.filter(|mark: &Mark| mark.boot_id == boot_id).map(|mark| mark.sequence);
        Self { path, boot_id, reported }
    }

    /// Whether a record was reported before.
    pub(super) fn is_reported(&self, sequence: u64) -> bool {
        self.reported.is_some_and(|reported| sequence <= reported)
    }

    /// Stores that everything up to this record was reported.
    pub(super) fn advance(&mut self, sequence: u64) -> io::Result<()> {
        self.reported = Some(sequence);
        let mark = Mark { boot_id: self.boot_id.clone(), sequence };
        let text = serde_json::to_vec(&mark).map_err(io::Error::other)?;
        // Renamed into place, so that a crash leaves the old or the new file.
        let draft = self.path.with_extension("json.new");
        fs::write(&draft, text)?;
        fs::rename(&draft, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_survives_a_restart_and_not_a_boot() {
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
