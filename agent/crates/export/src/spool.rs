//! Requests that wait on disk for a sink's receiver: a bounded queue, oldest first, that survives a
//! `kill -9` and a power failure.
//!
//! A request is on the disk before it is sent, and the position behind it before the next one is: after
//! a crash at most one request is sent twice. Whole files are deleted when all in them is sent, or when
//! the newest needs their room. What is read back is checked: lengths are bounded, damage is skipped and
//! its points are counted. The folder is root's, mode 0700.
//!
//! One thread, the sink's sender, reads and writes. A stored request costs one write and one
//! `fdatasync`, a sent one the same.

mod files;
mod folder;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod position;
mod segment;
pub mod settings;

pub use files::Opened;
pub use folder::{Figures, Found, SpoolFolder, Storing, Trouble};
pub use position::Totals;

use files::{NO_LINK, SpoolFile, end_of, list, open_to_read, path, secure};
use position::{Position, PositionFile};
use segment::{Entry, HEADER, Place, Reader, Stored};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Largest file of a large spool, and smallest of a small one.
const SEGMENT_BYTES: [u64; 2] = [64 << 10, 1 << 20];
/// Most files: an agent that is killed again and again makes a small one at each start.
const MAX_FILES: usize = 4096;
/// A file with nothing left to send is deleted once it is larger, so that a restart reads little.
const SPENT_BYTES: u64 = 256 << 10;

/// Bounds of a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all its files.
    pub bytes: u64,
    /// Age at which a request is dropped.
    pub age: Duration,
}

/// A request that was taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// The body as it was stored.
    pub body: Vec<u8>,
    /// Points in it.
    pub points: u64,
    /// The body's encoding, as its sink numbers them.
    pub encoding: u16,
}

/// The queue.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    limits: Limits,
    position: Position,
    position_file: PositionFile,
    /// Oldest first. The last one may be open for writing.
    files: VecDeque<SpoolFile>,
    writer: Option<File>,
    reader: Option<Reader>,
    /// What the next stored request will be.
    end: Place,
    in_flight: Option<Entry>,
    buffer: Vec<u8>,
    /// Why the position could not be stored, or a file not deleted.
    unsaved: Option<io::Error>,
}

impl Spool {
    /// Opens the folder, or makes it.
    pub fn open(folder: &Path, limits: Limits) -> io::Result<(Self, Opened)> {
        secure(folder)?;
        let (files, mut opened, unusable) = list(folder)?;
        for path in unusable {
            fs::remove_file(path)?;
        }
        let (position_file, stored) = PositionFile::open(folder)?;
        opened.lost_position = stored.is_none() && !files.is_empty();
        let oldest = files.front().map_or(Place::default(), |file| file.first);
        let mut position = stored.unwrap_or(Position { at: oldest, ..Position::default() });
        let mut end = end_of(folder, &files)?.unwrap_or(position.at);
        if end.number < position.at.number || end.before < position.at.before {
            // The power failed before the last requests were on the disk, but after they were sent.
            end = position.at;
        }
        if position.at.number < oldest.number {
            let lost = oldest.before.saturating_sub(position.at.before);
            add(&mut position.totals.damaged, lost);
            position.at = oldest;
        }
        let mut spool = Self {
            folder: folder.to_owned(),
            limits,
            position,
            position_file,
            files,
            writer: None,
            reader: None,
            end,
            in_flight: None,
            buffer: Vec::new(),
            unsaved: None,
        };
        spool.remove_sent();
        spool.position_file.store(&spool.position)?;
        Ok((spool, opened))
    }

    /// Stores the newest request. Returns whether there was room for it: older ones give way, except
    /// one that is being sent.
    pub fn store(
        &mut self,
        now: SystemTime,
        encoding: u16,
        points: u64,
        body: &[u8],
    ) -> io::Result<bool> {
        let len = (HEADER + body.len()) as u64;
        if !Stored::fits(points, body) || len > self.limits.bytes / 4 {
            return Ok(false);
        }
        while self.bytes() + len > self.limits.bytes || self.files.len() >= MAX_FILES {
            if !self.drop_oldest() {
                break;
            }
        }
        // A request that is being sent holds its file for one attempt.
        if self.bytes() + len > self.limits.bytes + self.segment_bytes() {
            return Ok(false);
        }
        let points = u32::try_from(points).unwrap_or(u32::MAX);
        let time_ns = unix_ns(now);
        let stored = Stored { at: self.end, time_ns, points, encoding, body };
        let mut buffer = std::mem::take(&mut self.buffer);
        stored.write(&mut buffer);
        let mut written = self.write(&buffer);
        if written.is_err() && self.end.number == self.position.at.number {
            // Nothing waits: what fills the disk may be this spool's sent requests.
            self.writer = None;
            self.remove_sent();
            written = self.write(&buffer);
        }
        self.buffer = buffer;
        written?;
        self.end.number = self.end.number.saturating_add(1);
        self.end.before = self.end.before.saturating_add(u64::from(points));
        Ok(true)
    }

    /// Takes the oldest request, which then is being sent until [`Self::done`] or [`Self::put_back`].
    pub fn take(&mut self, now: SystemTime) -> io::Result<Option<Taken>> {
        self.put_back();
        let before = self.position;
        let taken = self.find(now);
        if self.position != before {
            self.save();
            self.remove_sent();
        }
        taken
    }

    /// The request that was being sent will be the next again.
    pub fn put_back(&mut self) {
        if let (Some(entry), Some(reader)) = (self.in_flight.take(), &mut self.reader) {
            reader.back_to(&entry);
        }
    }

    /// The request that was being sent is over. It is not sent again.
    pub fn done(&mut self, accepted: u64, refused: u64) {
        let Some(entry) = self.in_flight.take() else { return };
        self.position.at = entry.next();
        add(&mut self.position.totals.accepted, accepted);
        add(&mut self.position.totals.refused, refused);
        self.save();
        self.remove_sent();
    }

    /// The request that was being sent is of another kind than this sink's.
    pub fn discard(&mut self) {
        let Some(entry) = self.in_flight.take() else { return };
        self.position.at = entry.next();
        add(&mut self.position.totals.damaged, u64::from(entry.points));
        self.save();
    }

    /// Why the position could not be stored: after a restart more than one request would be repeated.
    pub fn unsaved(&self) -> Option<&io::Error> {
        self.unsaved.as_ref()
    }

    /// Points that wait, with those being sent.
    pub fn points(&self) -> u64 {
        self.end.before.saturating_sub(self.position.at.before)
    }

    /// Requests that wait, with the one being sent.
    pub fn requests(&self) -> u64 {
        self.end.number.saturating_sub(self.position.at.number)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// What became of all points since the spool began.
    pub fn totals(&self) -> Totals {
        self.position.totals
    }

    fn segment_bytes(&self) -> u64 {
        let [least, most] = SEGMENT_BYTES;
        (self.limits.bytes / 16).clamp(least, most)
    }

    /// Appends to the newest file, or begins one. A write that fails leaves nothing behind.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = bytes.len() as u64;
        let is_full = self.files.back().is_none_or(|file| file.bytes + len > self.segment_bytes());
        if self.writer.is_none() || is_full {
            self.begin_file()?;
        }
        let (Some(file), Some(about)) = (&self.writer, self.files.back_mut()) else {
            return Ok(());
        };
        let written = file.write_all_at(bytes, about.bytes).and_then(|()| file.sync_data());
        match written {
            Ok(()) => about.bytes += len,
            Err(_) if file.set_len(about.bytes).is_ok() => {}
            // What is there of the entry is skipped; nothing is written behind it.
            Err(_) => self.writer = None,
        }
        written
    }

    fn begin_file(&mut self) -> io::Result<()> {
        self.writer = None;
        let path = self.path(self.end);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(NO_LINK);
        // One of the same number has no entry in it: the disk was full when it was begun.
        if self.files.back().is_some_and(|file| file.first.number == self.end.number) {
            self.files.pop_back();
            fs::remove_file(&path)?;
        }
        let file = options.open(&path)?;
        let header = segment::file_header(self.end);
        let made = file.write_all_at(&header, 0).and_then(|()| file.sync_data());
        if let Err(error) = made.and_then(|()| File::open(&self.folder)?.sync_all()) {
            // Without this the next attempt finds its name taken; it may fail for the same reason.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.files.push_back(SpoolFile { first: self.end, bytes: HEADER as u64 });
        self.writer = Some(file);
        Ok(())
    }

    fn save(&mut self) {
        self.unsaved = self.position_file.store(&self.position).err();
    }

    /// Deletes the oldest file for the newest request; false where it is being sent or written.
    fn drop_oldest(&mut self) -> bool {
        let Some(next) = self.files.get(1).map(|file| file.first) else { return false };
        if self.in_flight.is_some_and(|entry| entry.at.number < next.number) {
            return false;
        }
        if self.position.at.number < next.number {
            let lost = next.before.saturating_sub(self.position.at.before);
            add(&mut self.position.totals.full, lost);
            self.position.at = next;
            self.save();
        }
        self.remove_oldest();
        true
    }

    /// Deletes the files in which nothing is left to send.
    fn remove_sent(&mut self) {
        while self.files.get(1).is_some_and(|next| next.first.number <= self.position.at.number) {
            self.remove_oldest();
        }
        let is_spent = self.end.number == self.position.at.number;
        if is_spent && (self.writer.is_none() || self.bytes() > SPENT_BYTES) {
            self.writer = None;
            while !self.files.is_empty() {
                self.remove_oldest();
            }
        }
    }

    /// A file that cannot be deleted is deleted at the next start: the position is behind it.
    fn remove_oldest(&mut self) {
        let Some(oldest) = self.files.pop_front() else { return };
        self.reader = None;
        if let Err(error) = fs::remove_file(self.path(oldest.first)) {
            self.unsaved = Some(error);
        }
    }

    /// The oldest request that can be sent. Moves the position behind what cannot.
    fn find(&mut self, now: SystemTime) -> io::Result<Option<Taken>> {
        while self.position.at.number < self.end.number {
            let Some(entry) = self.next_entry()? else {
                // The rest of this file is not readable.
                let next = self.files.get(1).map_or(self.end, |file| file.first);
                self.skip_to(next);
                self.remove_sent();
                continue;
            };
            if entry.at.number < self.position.at.number {
                continue;
            }
            self.skip_to(entry.at);
            let stored = UNIX_EPOCH + Duration::from_nanos(entry.time_ns);
            // A clock that was set back makes no request old.
            if now.duration_since(stored).unwrap_or_default() > self.limits.age {
                add(&mut self.position.totals.expired, u64::from(entry.points));
                self.position.at = entry.next();
                continue;
            }
            let body = match &self.reader {
                Some(reader) => reader.body(&entry)?,
                None => None,
            };
            let Some(body) = body else {
                self.skip_to(entry.next());
                continue;
            };
            self.in_flight = Some(entry);
            let (points, encoding) = (u64::from(entry.points), entry.encoding);
            return Ok(Some(Taken { body, points, encoding }));
        }
        Ok(None)
    }

    /// What is between the position and here was not readable.
    fn skip_to(&mut self, place: Place) {
        let lost = place.before.saturating_sub(self.position.at.before);
        add(&mut self.position.totals.damaged, lost);
        self.position.at = place;
    }

    fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        if self.reader.is_none() {
            let Some(oldest) = self.files.front() else { return Ok(None) };
            let file = open_to_read(&self.path(oldest.first))?;
            self.reader = Some(Reader::new(file, oldest.first));
        }
        let Some(reader) = &mut self.reader else { return Ok(None) };
        // An entry that the end does not know is none of ours.
        Ok(reader.next()?.filter(|entry| entry.at.number < self.end.number))
    }

    fn path(&self, first: Place) -> PathBuf {
        path(&self.folder, first)
    }
}

/// Numbers from a file may be anything.
fn add(total: &mut u64, more: u64) {
    *total = total.saturating_add(more);
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
