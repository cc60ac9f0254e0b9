//! Entry point of the fuzz target (`tests/fuzz`): any bytes as the files of a spool.

use super::{Limits, Spool};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Writes the bytes as a spool's newest file behind a good one, or as its position, opens the folder
/// and takes everything. What was stored well comes out unless its file was replaced; nothing is longer
/// than it may be, and a spool that was read to its end is empty.
pub fn folder(root: &Path, bytes: &[u8]) -> io::Result<()> {
    // An error means that there is none.
    let _ = fs::remove_dir_all(root);
    let limits = Limits { bytes: 16 << 20, age: Duration::from_hours(1) };
    let now = SystemTime::now();
    let (mut spool, _) = Spool::open(root, limits)?;
    for body in [&b"first"[..], b"second"] {
        assert!(spool.store(now, 1, 2, body)?);
    }
    drop(spool);
    let (what, content) = bytes.split_first().unwrap_or((&0, &[]));
    let good = root.join(format!("{}{:020}", super::files::PREFIX, 0));
    match what % 4 {
        // A file of its own, with whatever header.
        0 => fs::write(root.join(format!("{}{:020}", super::files::PREFIX, 2)), content)?,
        1 => fs::write(root.join("position"), content)?,
        // Behind good entries, and over them.
        2 => {
            let mut text = fs::read(&good)?;
            text.extend_from_slice(content);
            fs::write(&good, text)?;
        }
        _ => {
            let mut text = fs::read(&good)?;
            let at = content.first().map_or(0, |at| usize::from(*at));
            let room = text.iter_mut().skip(at);
            for (old, new) in room.zip(content.iter().skip(1)) {
                *old = *new;
            }
            fs::write(&good, text)?;
        }
    }
    let (mut spool, _) = Spool::open(root, limits)?;
    let mut taken = 0;
    while let Some(request) = spool.take(now)? {
        assert!(request.body.len() <= 4 << 20 && request.points > 0);
        spool.done(request.points, 0);
        taken += 1;
        assert!(taken < 1 << 20);
    }
    assert_eq!((spool.requests(), spool.points()), (0, 0));
    // It goes on working.
    if spool.store(now, 1, 1, b"later")? {
        assert_eq!(spool.take(now)?.map(|request| request.body), Some(b"later".to_vec()));
    }
    Ok(())
}
