//! What a caller did to the library: for each function the calls, how many of them were answered
//! with an error, and the time spent inside. Written to a file after each call, one line of fixed
//! length a function, so that another process can read it at any moment.

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Bytes of a line: the longest function has 52 letters.
const LINE: usize = 128;

/// What was done to a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Calls that came back.
    pub calls: u64,
    /// Those of them that gave an error.
    pub errors: u64,
    /// Nanoseconds inside.
    pub wall_ns: u64,
    /// Nanoseconds of them in which the caller's thread was running.
    pub cpu_ns: u64,
}

impl Count {
    /// What came after an earlier look.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            errors: self.errors.saturating_sub(before.errors),
            wall_ns: self.wall_ns.saturating_sub(before.wall_ns),
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            errors: self.errors + other.errors,
            wall_ns: self.wall_ns + other.wall_ns,
            cpu_ns: self.cpu_ns + other.cpu_ns,
        }
    }
}

/// The counts in a file, by function; none before the first call.
pub fn read(path: &Path) -> io::Result<BTreeMap<String, Count>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().filter_map(parse).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

fn parse(line: &str) -> Option<(String, Count)> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    let mut number = || words.next()?.parse().ok();
    let count =
        Count { calls: number()?, errors: number()?, wall_ns: number()?, cpu_ns: number()? };
    Some((name, count))
}

/// A call that is inside.
pub(crate) struct Inside {
    name: &'static str,
    begun: Instant,
    cpu_ns: u64,
}

/// The open file and every function's place in it.
struct Book {
    file: File,
    lines: BTreeMap<String, (u64, Count)>,
}

static BOOK: OnceLock<Option<Mutex<Book>>> = OnceLock::new();

fn book() -> Option<&'static Mutex<Book>> {
    BOOK.get_or_init(|| {
        let path = env::var_os("FAKE_NVML_COUNTS")?;
        // A child that was started again goes on counting.
        let known = read(Path::new(&path)).unwrap_or_default();
        let file = File::options().write(true).create(true).truncate(true).open(path).ok()?;
        let numbered = (0..).zip(known);
        let lines = numbered.map(|(line, (name, count))| (name, (line, count))).collect();
        let book = Book { file, lines };
        book.lines.keys().for_each(|name| book.save(name));
        Some(Mutex::new(book))
    })
    .as_ref()
}

/// Begins a call, if anybody counts.
pub(crate) fn enter(name: &'static str) -> Option<Inside> {
    book()?;
    Some(Inside { name, begun: Instant::now(), cpu_ns: thread_cpu_ns() })
}

/// Ends a call.
pub(crate) fn leave(inside: Option<Inside>, failed: bool) {
    let (Some(inside), Some(book)) = (inside, book()) else { return };
    let one = Count {
        calls: 1,
        errors: u64::from(failed),
        wall_ns: u64::try_from(inside.begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
        cpu_ns: thread_cpu_ns().saturating_sub(inside.cpu_ns),
    };
    let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
    let next = book.lines.len() as u64;
    let line = book.lines.entry(inside.name.to_owned()).or_insert((next, Count::default()));
    line.1 = line.1.and(one);
    book.save(inside.name);
    // Writing this down is none of the caller's doing either; it is on the next line that is written.
    let (wall, cpu) = (inside.begun.elapsed(), thread_cpu_ns().saturating_sub(inside.cpu_ns));
    if let Some((_, count)) = book.lines.get_mut(inside.name) {
        count.wall_ns += u64::try_from(wall.as_nanos()).unwrap_or(0).saturating_sub(one.wall_ns);
        count.cpu_ns += cpu.saturating_sub(one.cpu_ns);
    }
}

impl Book {
    fn save(&self, name: &str) {
        let Some((line, count)) = self.lines.get(name) else { return };
        let mut text = String::with_capacity(LINE);
        let Count { calls, errors, wall_ns, cpu_ns } = count;
        // Writing to a string cannot fail.
        let _ = write!(text, "{name} {calls} {errors} {wall_ns} {cpu_ns}");
        let room = LINE - 1;
        let text = format!("{text:<room$}\n");
        // On a full disk the reader finds too few calls, which its test shows.
        let _ = self.file.write_all_at(text.as_bytes(), line * LINE as u64);
    }
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let nanos = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    u64::try_from(nanos).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts");
        assert_eq!(read(&path).unwrap(), BTreeMap::new());
        let count = Count { calls: 7, errors: 2, wall_ns: 123_456, cpu_ns: 99 };
        let other = Count { calls: 1, ..Count::default() };
        let lines = [("nvmlInit_v2", (1, other)), ("nvmlShutdown", (0, count))];
        let lines = lines.map(|(name, line)| (name.to_owned(), line));
        let book = Book { file: File::create(&path).unwrap(), lines: lines.into() };
        book.lines.keys().for_each(|name| book.save(name));
        let expected = [("nvmlInit_v2".to_owned(), other), ("nvmlShutdown".to_owned(), count)];
        assert_eq!(read(&path).unwrap(), expected.into());
    }
}
