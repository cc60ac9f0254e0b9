//! `/proc/PID/stat`, of a process or of a thread: the one reader of this file.
//!
//! One `read` into the stack and one allocation. Not by procfs 0.18, which panics on a text without
//! a name and takes 3 µs for all 52 fields where this takes 0.6 and the kernel 4 to write them: every
//! holder of a device is asked for at every scan.

use std::io::Read;
use std::sync::Arc;

/// What the file says.
#[derive(Debug)]
pub(crate) struct ProcStat {
    /// Command name; bytes that are not UTF-8 are replaced.
    pub(crate) comm: Arc<str>,
    /// The process that started it, or that took it over.
    pub(crate) parent: u32,
    /// When it started, in ticks since the host did.
    pub(crate) start_ticks: u64,
    /// The address of its arguments, which changes with each program that it executes; 0 where that
    /// is not shown.
    pub(crate) arguments_at: u64,
    state: char,
    flags: u32,
    threads: u32,
}

/// More than the file's 52 numbers and its name of 64 bytes can be.
pub(crate) const MAX_STAT: usize = 2048;

impl ProcStat {
    /// From the open file; one read gives all of it.
    pub(super) fn read(mut file: impl Read) -> Option<Self> {
        let mut buffer = [0; MAX_STAT + 1];
        let length = file.read(&mut buffer).ok()?;
        Self::parse(buffer.get(..length).filter(|bytes| bytes.len() <= MAX_STAT)?)
    }

    /// The name is in parentheses between spaces and may itself hold them, and any other byte.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let begins = bytes.iter().position(|byte| *byte == b'(')?;
        let ends = bytes.iter().rposition(|byte| *byte == b')')?;
        let comm = String::from_utf8_lossy(bytes.get(begins + 1..ends)?);
        let is_between = bytes.get(..begins)?.ends_with(b" ");
        let numbers = bytes.get(ends + 1..).filter(|_| is_between)?.trim_ascii_end();
        let is_plain = numbers.iter().all(|byte| *byte == b' ' || byte.is_ascii_graphic());
        let numbers = str::from_utf8(numbers).ok().filter(|_| is_plain)?.strip_prefix(' ')?;
        // Fields 3, 4, 9, 20, 22 and 48 of proc_pid_stat(5).
        let mut fields = numbers.split(' ');
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let flags = fields.nth(4)?.parse().ok()?;
        let threads = fields.nth(10)?.parse().ok()?;
        let start_ticks = fields.nth(1)?.parse().ok()?;
        let arguments_at = fields.nth(25).and_then(|field| field.parse().ok()).unwrap_or_default();
        let comm = Arc::from(comm);
        Some(Self { comm, parent, start_ticks, arguments_at, state, flags, threads })
    }

    /// Whether the last thread of the process has ended: a zombie has let go of all that it held,
    /// but a first thread that ended before the others is a zombie too.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_dead() && self.threads <= 1
    }

    /// Whether this thread has begun to exit: its v1 `cgroup` lines then say `/` whatever it did
    /// (`proc_cgroup_show`, 6.18), so that its most specific line may be a weaker one.
    pub(crate) fn is_exiting(&self) -> bool {
        const PF_EXITING: u32 = 0x4;
        self.flags & PF_EXITING != 0 || self.is_dead()
    }

    /// Whether it runs its parent's program since it was forked. The kernel clears the flag when the
    /// process executes a program (`begin_new_exec`).
    pub(crate) fn is_fork(&self) -> bool {
        const PF_FORKNOEXEC: u32 = 0x40;
        self.flags & PF_FORKNOEXEC != 0
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name_and_state: &str, threads: u32) -> ProcStat {
        let text = format!(
            "42 {name_and_state} 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 12345 1 1 1 \
             1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 4711 0 0 0 0\n"
        );
        ProcStat::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn name_with_parentheses_does_not_shift_the_fields() {
        let stat = stat("(a) b) (c) S", 1);
        let read = (&*stat.comm, stat.parent, stat.start_ticks, stat.arguments_at);
        assert_eq!(read, ("a) b) (c", 7, 12345, 4711));
    }

    #[test]
    fn zombie_is_not_alive() {
        let stat = stat("(gone) Z", 1);
        assert!(stat.has_ended() && stat.is_exiting());
    }

    #[test]
    fn process_outlives_its_first_thread() {
        let stat = stat("(train) Z", 3);
        assert!(!stat.has_ended() && stat.is_exiting());
        assert_eq!(stat.start_ticks, 12345);
    }
}
