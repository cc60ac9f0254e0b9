//! The small files of state in the agent's state directory, written by one thread of its own, because
//! a file system may hang like a driver. A crash leaves the old file or the new one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long the agent waits at its end for the last write.
const LAST: Duration = Duration::from_secs(1);

/// The next text of each file; a newer text replaces one that waits.
type Texts = Mutex<BTreeMap<&'static str, Vec<u8>>>;

/// The thread that writes the files.
#[derive(Debug)]
pub struct StateWriter {
    latest: Arc<Texts>,
    wake: Option<SyncSender<()>>,
    ended: Mutex<Receiver<()>>,
}

impl StateWriter {
    /// Starts the thread, which writes into `folder`.
    pub fn open(folder: &Path, thread: &str) -> io::Result<Self> {
        let latest = Arc::new(Texts::default());
        let (wake, woken) = sync_channel(1);
        let (end, ended) = sync_channel(1);
        let (texts, folder) = (Arc::clone(&latest), folder.to_owned());
        thread::Builder::new().name(thread.to_owned()).spawn(move || {
            write_each(&woken, &texts, &folder);
            // `drop` waits for this, at most `LAST`.
            let _ = end.send(());
        })?;
        Ok(Self { latest, wake: Some(wake), ended: Mutex::new(ended) })
    }

    /// Gives the text of a file to the thread.
    pub fn put(&self, name: &'static str, text: Vec<u8>) {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).insert(name, text);
        if let Some(wake) = &self.wake {
            // A full channel means that the thread runs or will run: it takes the latest text.
            let _ = wake.try_send(());
        }
    }
}

impl Drop for StateWriter {
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

fn write_each(woken: &Receiver<()>, texts: &Texts, folder: &Path) {
    let mut warned = false;
    for () in woken {
        let due = std::mem::take(&mut *texts.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, text) in due {
            let written = write(&folder.join(name), &text);
            if let Err(error) = &written
                && !std::mem::replace(&mut warned, true)
            {
                let (folder, remedy) = (folder.display(), "make it writable, or set paths.state");
                tracing::warn!(%folder, name, %error, remedy, "cannot store state; a restarted agent does not know it");
            }
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
