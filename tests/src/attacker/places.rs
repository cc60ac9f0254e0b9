//! What a tenant puts where the agent's files should be, in a folder where everybody may make some.

use super::{Attack, become_nobody};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[Attack { name: "place", run: place }];

/// `PATH [TARGET]`: a link to the target, or a folder of his own.
fn place(arguments: &[String]) -> io::Result<()> {
    become_nobody()?;
    match arguments {
        [path, target] => symlink(target, path),
        [path] => DirBuilder::new().mode(0o755).create(path),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "place PATH [TARGET]")),
    }
}
