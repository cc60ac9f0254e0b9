//! User ids to names, from the host's `passwd` file alone, without NSS. A thread of its own
//! (`users`) reads the file, and a lookup waits at most [`TIMEOUT`] for it: a file system or a pipe
//! that never answers costs only names. The file is checked again after [`REFRESH_EVERY`]; a check
//! costs one `stat` and a thread's start and end, some 50 µs.

use super::{Host, KernelCgroups, ProcessAttribution};
use crate::tenant_files::open_place;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags, fstatfs, open};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The thread's name.
pub const NAME: &str = "users";

/// The host's users.
#[derive(Debug)]
pub(crate) struct Users {
    shared: Arc<Shared>,
    refresh_every: Duration,
}

#[derive(Debug)]
struct Shared {
    passwd: PathBuf,
    known: Mutex<UserNames>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct UserNames {
    version: Option<Version>,
    names: HashMap<u32, Arc<str>>,
    /// When the running refresh started.
    refreshing: Option<Instant>,
    refreshed: Option<Instant>,
}

/// Changes with the file, also if it is replaced within the clock's resolution.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Version {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
}

/// `FUSE_SUPER_MAGIC`.
const FUSE: i64 = 0x6573_5546;
/// A larger file is no user database.
const MAX_PASSWD: u64 = 4 << 20;
/// How long a resolution of an owner waits for the file.
const TIMEOUT: Duration = Duration::from_millis(200);
/// One refresh serves many processes that start together.
const REFRESH_EVERY: Duration = Duration::from_millis(100);
/// A refresh that takes longer than this hangs.
const HANGS_AFTER: Duration = Duration::from_secs(30);

impl Users {
    /// Creates the user names of the file at `passwd`.
    pub(crate) fn new(passwd: &Path) -> Self {
        Self::refreshing_every(passwd, REFRESH_EVERY)
    }

    fn refreshing_every(passwd: &Path, refresh_every: Duration) -> Self {
        let (known, changed) = (Mutex::default(), Condvar::new());
        Self {
            shared: Arc::new(Shared { passwd: passwd.to_owned(), known, changed }),
            refresh_every,
        }
    }

    /// A user's name; `None` if the file does not contain the uid or does not answer.
    pub(crate) fn name(&self, uid: u32) -> Option<Arc<str>> {
        self.refresh();
        self.shared.known.lock().names.get(&uid).map(Arc::clone)
    }

    /// The file and how long it has not answered, if it hangs.
    pub(crate) fn hung(&self) -> Option<(&Path, Duration)> {
        let since = self.shared.known.lock().refreshing?.elapsed();
        (since >= HANGS_AFTER).then_some((&self.shared.passwd, since))
    }

    /// Starts a refresh on a thread if one is due, and waits for it.
    fn refresh(&self) {
        let mut known = self.shared.known.lock();
        if known.refreshing.is_none() {
            if known.refreshed.is_some_and(|at| at.elapsed() < self.refresh_every) {
                return;
            }
            known.refreshing = Some(Instant::now());
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name(NAME.to_owned());
            if thread.spawn(move || shared.refresh()).is_err() {
                // No name now; the next lookup tries again.
                known.refreshing = None;
                return;
            }
        }
        // A refresh that hangs is waited for once, not by each lookup.
        let left =
            known.refreshing.map_or(Duration::ZERO, |at| TIMEOUT.saturating_sub(at.elapsed()));
        let is_running = |known: &mut UserNames| known.refreshing.is_some();
        // After a timeout the lookup uses the known names.
        self.shared.changed.wait_while_for(&mut known, is_running, left);
    }
}

impl Shared {
    /// Reads the file if it has changed. Only this may hang.
    fn refresh(&self) {
        let before = self.known.lock().version;
        let found = self.open();
        let version = found.as_ref().ok().map(|(_, version)| *version);
        // Without a readable file there are no names, and the caller shows the uid.
        let names =
            (version != before).then(|| found.and_then(|(file, _)| read(file)).unwrap_or_default());
        let mut known = self.known.lock();
        if let Some(names) = names {
            (known.version, known.names) = (version, names);
        }
        (known.refreshing, known.refreshed) = (None, Some(Instant::now()));
        drop(known);
        self.changed.notify_all();
    }

    /// Opens a regular file: a pipe or a device is not read. Files on FUSE are refused: each
    /// program that the agent starts closes the agent's open files, and that waits for the file
    /// system's server.
    fn open(&self) -> io::Result<(File, Version)> {
        let place = open(&self.passwd, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        if fstatfs(&place)?.f_type == FUSE {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let file = open_place(place.as_fd())?;
        let stat = file.metadata()?;
        let (modified, len, inode) = (stat.modified().ok(), stat.len(), stat.ino());
        Ok((file, Version { modified, len, inode }))
    }
}

fn read(file: File) -> io::Result<HashMap<u32, Arc<str>>> {
    let mut bytes = Vec::new();
    file.take(MAX_PASSWD).read_to_end(&mut bytes)?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

/// Parses `name:password:uid:…`; the first name of a uid counts, as with `getpwuid`.
fn parse(text: &str) -> HashMap<u32, Arc<str>> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        let (Some(name), Some(uid)) = (fields.next(), fields.nth(1)) else { continue };
        if let (false, Ok(uid)) = (name.is_empty(), uid.parse()) {
            names.entry(uid).or_insert_with(|| Arc::from(name));
        }
    }
    names
}

/// The last resolver: the name of the user.
pub(crate) fn resolve(host: &Host, _cgroups: &KernelCgroups, owner: &mut ProcessAttribution) {
    owner.user = host.users.name(owner.uid);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, mknodat};

    #[test]
    fn names_follow_the_file_and_unknown_numbers_stay_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        let users = Users::refreshing_every(&file, Duration::ZERO);
        // The thread may be late.
        let name = |uid, wanted: Option<&str>| loop {
            let name = users.name(uid);
            if name.as_deref() == wanted && users.shared.known.lock().refreshing.is_none() {
                return;
            }
        };
        name(1000, None);

        std::fs::write(&file, b"root:x:0:0::/:/bin/sh\n\xff\xfe\nada:x:1000:1000\nbob:x:1000:1\n")
            .unwrap();
        name(1000, Some("ada"));
        name(7, None);

        std::fs::write(&file, "eve:x:1000:1000\n").unwrap();
        name(1000, Some("eve"));
        name(0, None);
    }

    #[test]
    fn a_pipe_is_no_user_database_and_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("passwd");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let users = Users::new(&pipe);
        users.shared.refresh();
        assert_eq!((users.name(0), users.hung()), (None, None));
    }

    #[test]
    fn a_file_that_does_not_answer_is_waited_for_once_and_hangs() {
        let users = Users::new(Path::new("/nonexistent"));
        let long_ago = Instant::now().checked_sub(HANGS_AFTER).unwrap();
        users.shared.known.lock().names.insert(7, "ada".into());
        users.shared.known.lock().refreshing = Some(long_ago);
        let began = Instant::now();
        assert_eq!(users.name(7).as_deref(), Some("ada"), "what was read before");
        assert!(began.elapsed() < HANGS_AFTER, "waited for");
        assert!(users.hung().is_some_and(|(_, since)| since >= HANGS_AFTER));
    }
}
