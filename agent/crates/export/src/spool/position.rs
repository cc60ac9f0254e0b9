//! Where sending is, and what became of the points before: one small file with two slots, of which each
//! write replaces the older. A write that is cut short leaves the other.

use super::segment::{Place, is_sealed, seal, u32_at, u64_at};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

/// The file's name.
pub(super) const NAME: &str = "position";

const MAGIC: &[u8; 8] = b"GPUWHOPO";
const VERSION: u32 = 1;
/// Bytes of a slot.
const SLOT: usize = 88;
/// Where the second slot is: in another block of every file system and every disk.
const SECOND: u64 = 4096;
const FILE_BYTES: usize = 4096 + SLOT;

/// What is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The oldest entry that was not sent.
    pub(super) at: Place,
    /// What became of all points before it, since the spool began.
    pub(super) totals: Totals,
}

/// What became of points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The receiver accepted them.
    pub accepted: u64,
    /// The receiver refused them.
    pub refused: u64,
    /// They gave way to newer ones.
    pub full: u64,
    /// They were too old.
    pub expired: u64,
    /// They could not be read again.
    pub damaged: u64,
}

/// The open file.
#[derive(Debug)]
pub(super) struct PositionFile {
    file: File,
    generation: u64,
}

impl PositionFile {
    /// Opens the file, or makes it with room for both slots, and reads the newer one.
    pub(super) fn open(folder: &Path) -> io::Result<(Self, Option<Position>)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(super::files::NO_LINK).open(folder.join(NAME))?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("`position` is not a regular file"));
        }
        let latest = latest(&file)?;
        if latest.is_none() {
            // Written now, so that a disk that is full later has room for it.
            file.write_all_at(&[0; FILE_BYTES], 0)?;
            file.sync_all()?;
        }
        let generation = latest.map_or(0, |(generation, _)| generation);
        Ok((Self { file, generation }, latest.map(|(_, position)| position)))
    }

    /// Stores it; it is on the disk when this returns.
    pub(super) fn store(&mut self, position: &Position) -> io::Result<()> {
        let generation = self.generation.wrapping_add(1);
        let mut slot = Vec::with_capacity(SLOT);
        slot.extend_from_slice(MAGIC);
        slot.extend_from_slice(&VERSION.to_le_bytes());
        let Position { at, totals } = position;
        let Totals { accepted, refused, full, expired, damaged } = totals;
        let numbers =
            [generation, at.number, at.before, *accepted, *refused, *full, *expired, *damaged];
        for number in numbers {
            slot.extend_from_slice(&number.to_le_bytes());
        }
        slot.resize(SLOT - 4, 0);
        seal(&mut slot);
        self.file.write_all_at(&slot, if generation.is_multiple_of(2) { 0 } else { SECOND })?;
        self.file.sync_data()?;
        self.generation = generation;
        Ok(())
    }
}

/// Reads the newer slot without changing anything.
pub(super) fn read(folder: &Path) -> io::Result<Option<Position>> {
    let mut options = OpenOptions::new();
    let file = match options.read(true).custom_flags(super::files::NO_LINK).open(folder.join(NAME))
    {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(latest(&file)?.map(|(_, position)| position))
}

fn latest(file: &File) -> io::Result<Option<(u64, Position)>> {
    let slots = [slot(file, 0)?, slot(file, SECOND)?];
    Ok(slots.into_iter().flatten().max_by_key(|(generation, _)| *generation))
}

fn slot(file: &File, offset: u64) -> io::Result<Option<(u64, Position)>> {
    let mut slot = [0; SLOT];
    match file.read_exact_at(&mut slot, offset) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    if !slot.starts_with(MAGIC) || u32_at(&slot, 8) != VERSION || !is_sealed(&slot) {
        return Ok(None);
    }
    let number = |index: usize| u64_at(&slot, 12 + 8 * index);
    let position = Position {
        at: Place { number: number(1), before: number(2) },
        totals: Totals {
            accepted: number(3),
            refused: number(4),
            full: number(5),
            expired: number(6),
            damaged: number(7),
        },
    };
    Ok(position.at.is_possible().then_some((number(0), position)))
}
