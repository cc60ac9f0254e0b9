//! Files that a site's Prolog leaves on the node: gpuwho's (one for each job, Slurm's variables as
//! `KEY=VALUE`), and the mapping files of other tools: dcgm-exporter's job mapping directory and
//! jobstats' `/run/gpustat` (one file for each GPU, with the jobs on it as lines).
//!
//! A file is trusted only if nobody except root can have written it: the directory and the file
//! belong to root (or to the agent's own user) and no other user can write either. Read when a job
//! is first seen, never on a tick; 3 µs a file.

use super::Settings;
use super::claims::SlurmEnv;
use super::facts::Label;
use gpuwho_model::ids::SlurmJobId;
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::process::geteuid;
use std::fs::{File, read_dir};
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// The directories.
#[derive(Debug)]
pub(super) struct DropFiles {
    jobs: Place,
    maps: Vec<Place>,
}

/// One directory; a rejected file in it is logged once.
#[derive(Debug)]
struct Place {
    directory: PathBuf,
    warned: AtomicBool,
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum RejectReason {
    /// Usually the file does not exist.
    #[error(transparent)]
    Open(#[from] rustix::io::Errno),
    /// Another user may have written it.
    #[error("users other than root can write {0}")]
    Writable(String),
    /// It is a directory, a device or a pipe.
    #[error("{0} is no regular file")]
    Irregular(String),
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// Maximum number of files read in one directory: jobs or GPUs of one node.
const MAX_FILES: usize = 1024;
/// Maximum length of a mapping file, which contains some job numbers.
const MAX_MAP: u64 = 16 * 1024;
/// Maximum length of a device's name: `MIG-` and a UUID.
const MAX_DEVICE_NAME: usize = 64;

impl DropFiles {
    pub(super) fn new(settings: &Settings) -> Self {
        let place =
            |path: &PathBuf| Place { directory: path.clone(), warned: AtomicBool::new(false) };
        let maps = settings.gpu_map.iter().chain([&settings.gpustat]);
        Self { jobs: place(&settings.jobs), maps: maps.map(place).collect() }
    }

    /// Prolog's variables of a job. A file that contains another job's number than its name is
    /// rejected.
    pub(super) fn job(&self, number: u32) -> Option<SlurmEnv> {
        let name = number.to_string();
        let file = self.jobs.open(&name)?;
        let claims = SlurmEnv::read(file, b'\n').ok()?;
        (claims.label(Label::JobId) == Some(name.as_str())).then_some(claims)
    }

    /// The job with this SLUID in Prolog's file (from 25.11 on).
    pub(super) fn run(&self, sluid: &SlurmJobId) -> Option<(u32, SlurmEnv)> {
        self.jobs.names().into_iter().find_map(|name| {
            let number = name.parse().ok()?;
            let claims = self.job(number)?;
            (claims.label(Label::Sluid) == Some(sluid.as_str())).then_some((number, claims))
        })
    }

    /// The GPUs that mapping files give to a job, by file name: numbers, `N.M` for MIG instances,
    /// or UUIDs if the site uses them.
    pub(super) fn gpus(&self, job: u32) -> Option<String> {
        self.maps.iter().find_map(|place| place.gpus(job))
    }
}

impl Place {
    fn gpus(&self, job: u32) -> Option<String> {
        let has_job = |name: &String| {
            let text = self.open(name).and_then(|file| {
                let mut text = String::new();
                file.take(MAX_MAP).read_to_string(&mut text).ok()?;
                Some(text)
            });
            let jobs = |line: &str| line.split_ascii_whitespace().next()?.parse::<u32>().ok();
            text.is_some_and(|text| text.lines().any(|line| jobs(line) == Some(job)))
        };
        let mut found: Vec<String> =
            self.names().into_iter().filter(|name| is_device(name)).filter(has_job).collect();
        // jobstats writes a GPU twice, by its number and by its UUID.
        let is_uuid = |name: &String| name.starts_with("GPU-") || name.starts_with("MIG-");
        if found.iter().any(is_uuid) {
            found.retain(is_uuid);
        }
        found.sort_by_key(|name| (name.len(), name.clone()));
        (!found.is_empty()).then(|| found.join(","))
    }

    fn names(&self) -> Vec<String> {
        let entries = read_dir(&self.directory).into_iter().flatten().flatten();
        entries.take(MAX_FILES).filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn open(&self, name: &str) -> Option<File> {
        match self.try_open(name) {
            Ok(file) => Some(file),
            Err(RejectReason::Open(_)) => None,
            Err(reason) => {
                if !self.warned.swap(true, Ordering::Relaxed) {
                    let directory = self.directory.display();
                    tracing::warn!(%directory, %reason, "ignoring files of Slurm jobs");
                }
                None
            }
        }
    }

    fn try_open(&self, name: &str) -> Result<File, RejectReason> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::open(&self.directory, flags | OFlags::DIRECTORY, Mode::empty())?;
        check(&directory, "the directory")?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat(&directory, name, flags, Mode::empty())?;
        if !FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
            return Err(RejectReason::Irregular(name.to_owned()));
        }
        check(&file, name)?;
        Ok(File::from(file))
    }
}

/// Checks that it belongs to root, or to the agent's own user, and that no other user can write it.
fn check(fd: impl AsFd, what: &str) -> Result<(), RejectReason> {
    let stat = fstat(fd)?;
    let is_ours = stat.st_uid == 0 || stat.st_uid == geteuid().as_raw();
    let others_write = Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH);
    if is_ours && !others_write { Ok(()) } else { Err(RejectReason::Writable(what.to_owned())) }
}

fn is_device(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
    !name.starts_with('.') && name.len() <= MAX_DEVICE_NAME && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests;
