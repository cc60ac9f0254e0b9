//! The small files of state in the agent's state directory, written by one thread of its own, because
//! a file system may hang like a driver. A crash leaves the old file or the new one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long the agent waits at its end for the last write.
const LAST: Duration = Duration::from_secs(1);

/// The thread that writes the files.
#[derive(Debug)]
pub struct StateWriter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    texts: Mutex<Texts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Texts {
    /// The next text of each file; a newer text replaces one that waits.
    due: BTreeMap<&'static str, Vec<u8>>,
    is_writing: bool,
    has_ended: bool,
}

impl StateWriter {
    /// Starts the thread, which writes into `folder`.
    pub fn open(folder: &Path, thread: &str) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (theirs, folder) = (Arc::clone(&shared), folder.to_owned());
        let thread = thread::Builder::new().name(thread.to_owned());
        thread.spawn(move || theirs.write_each(&folder))?;
        Ok(Self(shared))
    }

    /// Gives the text of a file to the thread.
    pub fn put(&self, name: &'static str, text: Vec<u8>) {
        self.0.lock().due.insert(name, text);
        self.0.changed.notify_all();
    }

    /// Waits until everything is written, for a bounded time: a disk that hangs does not delay the
    /// agent's end.
    pub fn flush(&self) {
        let is_busy = |texts: &mut Texts| texts.is_writing || !texts.due.is_empty();
        // Whether it is written or not, the agent ends.
        drop(self.0.changed.wait_timeout_while(self.0.lock(), LAST, is_busy));
    }
}

impl Drop for StateWriter {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
        self.flush();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Texts> {
        // Whole whatever panicked beside it.
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_each(&self, folder: &Path) {
        let mut warned = false;
        let is_idle = |texts: &mut Texts| texts.due.is_empty() && !texts.has_ended;
        loop {
            let waited = self.changed.wait_while(self.lock(), is_idle);
            let mut texts = waited.unwrap_or_else(PoisonError::into_inner);
            let due = std::mem::take(&mut texts.due);
            if due.is_empty() {
                return;
            }
            texts.is_writing = true;
            drop(texts);
            write_all(folder, &due, &mut warned);
            self.lock().is_writing = false;
            self.changed.notify_all();
        }
    }
}

fn write_all(folder: &Path, due: &BTreeMap<&'static str, Vec<u8>>, warned: &mut bool) {
    for (name, text) in due {
        let written = write(&folder.join(name), text);
        if let Err(error) = &written
            && !std::mem::replace(warned, true)
        {
            let (folder, remedy) = (folder.display(), "make it writable, or set paths.state");
            tracing::warn!(%folder, name, %error, remedy, "cannot store state; a restarted agent does not know it");
        }
    }
}

/// Reads a file of at most `limit` bytes; `None` where there is none.
pub fn read(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(limit + 1).read_to_end(&mut text)?;
    if text.len() as u64 > limit {
        return Err(io::Error::other(format!("it is larger than {limit} bytes")));
    }
    Ok(Some(text))
}

/// Writes a new file and renames it.
fn write(path: &PathBuf, text: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let draft = path.with_extension("json.new");
    let mut file = File::create(&draft)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_text_is_written_before_flush_returns() {
        let folder = tempfile::tempdir().unwrap();
        let writer = StateWriter::open(folder.path(), "test").unwrap();
        for round in 0..50 {
            let text = format!("{round}");
            writer.put("one", text.clone().into_bytes());
            writer.flush();
            assert_eq!(fs::read_to_string(folder.path().join("one")).unwrap(), text);
        }
    }
}
