//! A kernel log of our own: a file in the format of `/dev/kmsg`, which the agent reads instead.

use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A log that grows.
#[derive(Debug)]
pub struct Kmsg {
    path: PathBuf,
    file: File,
    sequence: u64,
}

impl Kmsg {
    /// An empty one in a folder.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let path = folder.join("kmsg");
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        Ok(Self { path, file, sequence: 1000 })
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// The kernel says this now.
    pub fn write_line(&mut self, text: &str) -> io::Result<()> {
        self.write_line_of(text, Duration::ZERO)
    }

    /// The kernel said this some time ago.
    pub fn write_line_of(&mut self, text: &str, ago: Duration) -> io::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(
            u64::try_from(now.tv_sec).unwrap_or_default(),
            u32::try_from(now.tv_nsec).unwrap_or_default(),
        );
        self.sequence += 1;
        let at = now.saturating_sub(ago).as_micros();
        // Priority 3 of facility 0: an error, and the kernel's own.
        self.file.write_all(format!("3,{},{at},-;{text}\n", self.sequence).as_bytes())
    }
}
