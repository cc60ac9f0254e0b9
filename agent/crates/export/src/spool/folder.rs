//! A sink's spool as its sender uses it: opened at first use and again while that fails. A disk that is
//! full or read-only is a state; requests then wait in memory.

use super::files::{NO_LINK, Opened, end_of, list, secure};
use super::{Limits, Spool, Taken, Totals, position};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// How often a spool that cannot be opened is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// The file of which a lock says that an agent uses the folder.
const LOCK: &str = "lock";

/// A sink's spool.
#[derive(Debug)]
pub struct SpoolFolder {
    folder: PathBuf,
    /// Held as long as the spool is open.
    lock: Option<File>,
    limits: Limits,
    /// Bytes a second at which what has waited is sent.
    drain: u64,
    spool: Option<Spool>,
    /// Totals when it was opened.
    before: Totals,
    restored: u64,
    tried: Option<Instant>,
    trouble: Option<Trouble>,
}

/// Why a spool is not used, or not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No space is left, or no quota.
    Full,
    /// The file system is read-only.
    ReadOnly,
    /// Not the agent's own folder, or not permitted.
    Denied,
    /// Anything else.
    Failed,
}

impl Trouble {
    /// The trouble behind an error.
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Failed,
        }
    }

    /// What is wrong, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "the disk of the spool is full: requests wait in memory only",
            Self::ReadOnly => "the spool is read-only: requests wait in memory only",
            Self::Denied => "the agent may not use the spool: requests wait in memory only",
            Self::Failed => "the spool does not work: requests wait in memory only",
        }
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Full => "free space there, or lower spool.max_bytes",
            Self::ReadOnly => "mount it writable, or set spool.folder",
            Self::Denied => "make spool.folder the agent's user's own",
            Self::Failed => "the agent's log has the error; check the disk and spool.folder",
        }
    }
}

/// What became of a request that was to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storing {
    /// It is on the disk.
    Stored,
    /// It is larger than the spool can take.
    NoRoom,
    /// The disk does not take it now.
    Failed,
}

/// Figures for the sink's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Points found when the spool was opened.
    pub restored: u64,
    /// Points that wait in it, with those being sent.
    pub points: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Points lost since it was opened, by reason.
    pub lost: Totals,
    /// Why it is not used as it should be.
    pub trouble: Option<Trouble>,
}

impl SpoolFolder {
    /// Opens nothing yet.
    pub fn new(folder: PathBuf, limits: Limits, drain: u64) -> Self {
        let (before, restored) = (Totals::default(), 0);
        let (lock, spool) = (None, None);
        Self { folder, lock, limits, drain, spool, before, restored, tried: None, trouble: None }
    }

    /// Stores a request.
    pub fn store(&mut self, encoding: u16, points: u64, body: &[u8]) -> Storing {
        let Some(spool) = self.open() else { return Storing::Failed };
        match spool.store(SystemTime::now(), encoding, points, body) {
            Ok(true) => {
                self.works();
                Storing::Stored
            }
            Ok(false) => Storing::NoRoom,
            Err(error) => {
                self.fails(&error);
                Storing::Failed
            }
        }
    }

    /// Takes the oldest request.
    pub fn take(&mut self) -> Option<Taken> {
        match self.open()?.take(SystemTime::now()) {
            Ok(taken) => taken,
            Err(error) => {
                self.fails(&error);
                None
            }
        }
    }

    /// The request taken last will be the next again.
    pub fn put_back(&mut self) {
        if let Some(spool) = &mut self.spool {
            spool.put_back();
        }
    }

    /// The request taken last is over.
    pub fn done(&mut self, accepted: u64, refused: u64) {
        if let Some(spool) = &mut self.spool {
            spool.done(accepted, refused);
        }
        self.check_saved();
    }

    /// The request taken last is none of this sink's.
    pub fn discard(&mut self) {
        if let Some(spool) = &mut self.spool {
            spool.discard();
        }
        self.check_saved();
    }

    /// Whether more than one request waits.
    pub fn has_backlog(&self) -> bool {
        self.spool.as_ref().is_some_and(|spool| spool.requests() > 1)
    }

    /// The time that a body of this length takes at the rate at which a backlog is sent.
    pub fn drain_time(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.drain.max(1) as f64)
    }

    /// Figures of now.
    pub fn figures(&self) -> Figures {
        let trouble = self.trouble;
        let Some(spool) = &self.spool else { return Figures { trouble, ..Figures::default() } };
        let (now, then) = (spool.totals(), self.before);
        let lost = Totals {
            accepted: 0,
            refused: 0,
            full: now.full.saturating_sub(then.full),
            expired: now.expired.saturating_sub(then.expired),
            damaged: now.damaged.saturating_sub(then.damaged),
        };
        Figures {
            restored: self.restored,
            points: spool.points(),
            bytes: spool.bytes(),
            lost,
            trouble,
        }
    }

    fn open(&mut self) -> Option<&mut Spool> {
        if self.spool.is_none() {
            let now = Instant::now();
            if self.tried.is_some_and(|tried| now.duration_since(tried) < RETRY) {
                return None;
            }
            self.tried = Some(now);
            match lock(&self.folder)
                .and_then(|lock| Ok((lock, Spool::open(&self.folder, self.limits)?)))
            {
                Ok((lock, (spool, opened))) => {
                    self.lock = Some(lock);
                    self.before = spool.totals();
                    self.restored = spool.points();
                    log(&self.folder, &opened, spool.requests());
                    self.spool = Some(spool);
                    self.works();
                }
                Err(error) => self.fails(&error),
            }
        }
        self.spool.as_mut()
    }

    fn check_saved(&mut self) {
        let error = self.spool.as_ref().and_then(Spool::unsaved);
        let Some(error) = error.map(|error| io::Error::new(error.kind(), error.to_string())) else {
            return;
        };
        self.fails(&error);
    }

    fn works(&mut self) {
        let is_saved = self.spool.as_ref().is_none_or(|spool| spool.unsaved().is_none());
        if is_saved && self.trouble.take().is_some() {
            tracing::info!(folder = %self.folder.display(), "the spool works again");
        }
    }

    fn fails(&mut self, error: &io::Error) {
        let trouble = Trouble::of(error);
        if self.trouble.replace(trouble) != Some(trouble) {
            let (folder, remedy) = (self.folder.display(), trouble.remedy());
            tracing::warn!(%folder, %error, remedy, "cannot use the spool; requests wait in memory only");
        }
    }
}

/// Two agents, or an agent and `gpuwho collect`, do not use one folder.
fn lock(folder: &Path) -> io::Result<File> {
    secure(folder)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_LINK);
    let file = options.open(folder.join(LOCK))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(io::Error::other("another gpuwho uses this folder")),
        Err(error) => Err(error.into()),
    }
}

fn log(folder: &Path, opened: &Opened, requests: u64) {
    let folder = folder.display();
    if let Some((files, bytes, version)) = opened.foreign {
        tracing::warn!(%folder, files, bytes, version, "discarded requests that another version of gpuwho has stored");
    }
    let damaged = opened.damaged_files;
    if damaged > 0 {
        tracing::warn!(%folder, damaged, "discarded unreadable files of the spool");
    }
    if opened.lost_position {
        tracing::warn!(%folder, "the spool's position is not readable; requests may be sent again");
    }
    if requests > 0 {
        tracing::info!(%folder, requests, "requests of an earlier run wait in the spool");
    }
}

/// What waits in a folder, as `gpuwho doctor` prints it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Requests.
    pub requests: u64,
    /// Points in them.
    pub points: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Points of all requests since the spool was made.
    pub made: u64,
    /// Files that cannot be used.
    pub unusable: usize,
    /// What became of the points before.
    pub totals: Totals,
}

impl Found {
    /// Reads a folder and changes nothing in it. The agent may write at the same time.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let (files, opened, _) = match list(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            listed => listed?,
        };
        let position = position::read(folder)?.unwrap_or_default();
        let end = end_of(folder, &files)?.unwrap_or(position.at);
        Ok(Self {
            requests: end.number.saturating_sub(position.at.number),
            points: end.before.saturating_sub(position.at.before),
            bytes: files.iter().map(|file| file.bytes).sum(),
            made: end.before.max(position.at.before),
            unusable: opened.damaged_files + opened.foreign.map_or(0, |(files, ..)| files),
            totals: position.totals,
        })
    }
}
