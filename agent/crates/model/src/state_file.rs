//! The small files of state in the agent's state directory, written by a thread that runs while there is
//! something to write, because a file system may hang like a driver. A crash leaves the old file or the new one.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long the agent waits at its end for the last write.
const LAST: Duration = Duration::from_secs(1);

/// Writes the files.
#[derive(Debug)]
pub struct StateWriter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    thread: &'static str,
    texts: Mutex<Texts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Texts {
    /// The next text of each file; a newer text replaces one that waits.
    due: BTreeMap<&'static str, Vec<u8>>,
    /// Whether the thread runs.
    is_writing: bool,
    has_warned: bool,
}

impl StateWriter {
    /// Writes into `folder`, on threads of this name.
    pub fn new(folder: &Path, thread: &'static str) -> Self {
        let (texts, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { folder: folder.to_owned(), thread, texts, changed }))
    }

    /// Has the text of a file written.
    pub fn put(&self, name: &'static str, text: Vec<u8>) {
        let mut texts = self.0.texts.lock();
        texts.due.insert(name, text);
        if texts.is_writing {
            return;
        }
        let theirs = Arc::clone(&self.0);
        let thread = thread::Builder::new().name(self.0.thread.to_owned());
        match thread.spawn(move || theirs.write_each()) {
            Ok(_) => texts.is_writing = true,
            // The next text tries again.
            Err(error) => tracing::warn!(name, %error, "no thread to store state"),
        }
    }

    /// Waits until everything is written, for a bounded time: a disk that hangs does not delay the
    /// agent's end.
    pub fn flush(&self) {
        let is_busy = |texts: &mut Texts| texts.is_writing;
        // Whether it is written or not, the agent ends.
        self.0.changed.wait_while_for(&mut self.0.texts.lock(), is_busy, LAST);
    }
}

impl Drop for StateWriter {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Shared {
    fn write_each(&self) {
        let mut texts = self.texts.lock();
        while !texts.due.is_empty() {
            let (due, has_warned) = (std::mem::take(&mut texts.due), texts.has_warned);
            drop(texts);
            let has_warned = write_all(&self.folder, &due, has_warned);
            texts = self.texts.lock();
            texts.has_warned = has_warned;
        }
        texts.is_writing = false;
        drop(texts);
        self.changed.notify_all();
    }
}

/// Logs the first file that cannot be written; returns whether there was one, now or before.
fn write_all(folder: &Path, due: &BTreeMap<&'static str, Vec<u8>>, mut has_warned: bool) -> bool {
    for (name, text) in due {
        let written = write(&folder.join(name), text);
        if let Err(error) = &written
            && !std::mem::replace(&mut has_warned, true)
        {
            let (folder, remedy) = (folder.display(), "make it writable, or set paths.state");
            tracing::warn!(%folder, name, %error, remedy, "cannot store state; a restarted agent does not know it");
        }
    }
    has_warned
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
        let writer = StateWriter::new(folder.path(), "test");
        for round in 0..50 {
            let text = format!("{round}");
            writer.put("one", text.clone().into_bytes());
            writer.flush();
            assert_eq!(fs::read_to_string(folder.path().join("one")).unwrap(), text);
        }
    }
}
