//! A small file of state in the agent's state directory, written by a thread of its own, because a
//! file system may hang like a driver. A crash leaves the old file or the new one.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long the agent waits at its end for the last write.
const LAST: Duration = Duration::from_secs(1);

/// The thread that writes one file.
#[derive(Debug)]
pub struct StateFile {
    /// The next text to write; a newer text replaces one that waits.
    latest: Arc<Mutex<Option<Vec<u8>>>>,
    wake: Option<SyncSender<()>>,
    ended: Mutex<Receiver<()>>,
}

impl StateFile {
    /// Starts the thread; it writes `name` in `folder`.
    pub fn open(folder: &Path, name: &'static str, thread: &str) -> io::Result<Self> {
        let latest = Arc::new(Mutex::new(None::<Vec<u8>>));
        let (wake, woken) = sync_channel(1);
        let (end, ended) = sync_channel(1);
        let (texts, folder) = (Arc::clone(&latest), folder.to_owned());
        thread::Builder::new().name(thread.to_owned()).spawn(move || {
            write_each(&woken, &texts, &folder, name);
            // `drop` waits for this, at most `LAST`.
            let _ = end.send(());
        })?;
        Ok(Self { latest, wake: Some(wake), ended: Mutex::new(ended) })
    }

    /// Gives a text to the thread.
    pub fn put(&self, text: Vec<u8>) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        if let Some(wake) = &self.wake {
            // A full channel means that the thread runs or will run: it takes the latest text.
            let _ = wake.try_send(());
        }
    }
}

impl Drop for StateFile {
    /// Waits for the last write, for a bounded time: a disk that hangs does not delay the agent's
    /// end.
    fn drop(&mut self) {
        drop(self.wake.take());
        let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LAST);
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

fn write_each(
    woken: &Receiver<()>,
    texts: &Mutex<Option<Vec<u8>>>,
    folder: &Path,
    name: &'static str,
) {
    let mut warned = false;
    for () in woken {
        let text = texts.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(text) = text else { continue };
        let written = write(&folder.join(name), &text);
        if let Err(error) = &written
            && !std::mem::replace(&mut warned, true)
        {
            let (folder, remedy) = (folder.display(), "make it writable, or set paths.state");
            tracing::warn!(%folder, name, %error, remedy, "cannot store state; a restarted agent does not know it");
        }
    }
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
