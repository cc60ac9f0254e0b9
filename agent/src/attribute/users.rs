//! User numbers to names, from the host's `passwd` file alone: no NSS, so that a lookup never
//! waits for a directory server. Read again when the file changes; one `stat` a resolution.

use super::{Host, KernelCgroups, Owner};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The host's users.
#[derive(Debug)]
pub(crate) struct Users {
    passwd: PathBuf,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    version: Option<Version>,
    names: HashMap<u32, Arc<str>>,
}

/// What changes when the file does, also when it is replaced within the clock's grain.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Version {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
}

/// A file larger than this is no user database.
const MAX_PASSWD: u64 = 4 << 20;

impl Users {
    /// The users of the file at `passwd`.
    pub(crate) fn new(passwd: &Path) -> Self {
        Self { passwd: passwd.to_owned(), known: Mutex::default() }
    }

    /// A user's name; `None` where the file does not have the number.
    pub(crate) fn name(&self, uid: u32) -> Option<Arc<str>> {
        let version = self.version();
        if self.lock().version != version {
            let names = self.read();
            *self.lock() = Known { version, names };
        }
        self.lock().names.get(&uid).map(Arc::clone)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn version(&self) -> Option<Version> {
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::metadata(&self.passwd).ok()?;
        Some(Version { modified: file.modified().ok(), len: file.len(), inode: file.ino() })
    }

    fn read(&self) -> HashMap<u32, Arc<str>> {
        let mut bytes = Vec::new();
        let read =
            File::open(&self.passwd).and_then(|file| file.take(MAX_PASSWD).read_to_end(&mut bytes));
        match read {
            Ok(_) => parse(&String::from_utf8_lossy(&bytes)),
            // No names is what the caller sees: it shows the number.
            Err(_) => HashMap::new(),
        }
    }
}

/// `name:password:uid:…`; the first name of a number counts, as for `getpwuid`.
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

/// The last source: the name of the user.
pub(crate) fn resolve(host: &Host, _cgroups: &KernelCgroups, owner: &mut Owner) {
    owner.user = host.users.name(owner.uid);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_file_and_unknown_numbers_stay_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        let users = Users::new(&file);
        assert_eq!(users.name(1000), None);

        std::fs::write(&file, b"root:x:0:0::/:/bin/sh\n\xff\xfe\nada:x:1000:1000\nbob:x:1000:1\n")
            .unwrap();
        assert_eq!(users.name(1000).as_deref(), Some("ada"));
        assert_eq!(users.name(7), None);

        std::fs::write(&file, "eve:x:1000:1000\n").unwrap();
        assert_eq!(users.name(1000).as_deref(), Some("eve"));
        assert_eq!(users.name(0), None);
    }
}
