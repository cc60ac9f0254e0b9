//! The device nodes that the real library holds open: one of the control device for each
//! initialisation and event set, one for each device whose handle was taken. With `FAKE_NVML_NODES`
//! files of these names in that folder are held, so that a test sees who lets go.

use std::env;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

static OPEN: Mutex<Vec<(String, File)>> = Mutex::new(Vec::new());

/// Opens a node once more; a device's once only.
pub(crate) fn open(name: &str) {
    let Some(folder) = env::var_os("FAKE_NVML_NODES") else { return };
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let again = name == "nvidiactl" || !open.iter().any(|(known, _)| known == name);
    // A node that is not there is one that the test does not look at.
    if let (true, Ok(file)) = (again, File::open(Path::new(&folder).join(name))) {
        open.push((name.to_owned(), file));
    }
}

/// Closes every one, as the end of the library's use does.
pub(crate) fn close() {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
