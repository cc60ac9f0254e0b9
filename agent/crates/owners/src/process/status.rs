//! `/proc/PID/status`, of a process or of a thread: the one reader of the lines that are used.
//!
//! Not by procfs 0.18, which takes 37 µs for all fields where a line takes 0.2: a scan reads it of
//! every holder of a device.

use std::fs::File;
use std::io::Read as _;

/// What the file says.
#[derive(Debug)]
pub struct ProcStatus(String);

/// More than the file is: of its lines only `Groups` is long, `NGROUPS_MAX` numbers of up to ten
/// digits.
const MAX_STATUS: u64 = 1024 * 1024;

impl ProcStatus {
    pub(super) fn read(file: File) -> Option<Self> {
        let mut bytes = Vec::with_capacity(super::COMMON_FILE);
        file.take(MAX_STATUS).read_to_end(&mut bytes).ok()?;
        Some(Self::new(&bytes))
    }

    /// The kernel escapes newlines in the name; bytes that are not UTF-8 are replaced.
    pub fn new(bytes: &[u8]) -> Self {
        Self(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The number of its process: of the first thread.
    pub(crate) fn group(&self) -> Option<u32> {
        self.numbers("Tgid:").next()
    }

    /// The process that started it, or that took it over.
    pub fn parent(&self) -> Option<u32> {
        self.numbers("PPid:").next()
    }

    /// Its number in its own PID namespace; without namespaces in the kernel its only one.
    pub fn innermost_pid(&self) -> Option<u32> {
        self.numbers("NSpid:").last().or_else(|| self.numbers("Pid:").next())
    }

    /// Real, effective, saved and file system user ids.
    pub fn uids(&self) -> Option<[u32; 4]> {
        self.numbers("Uid:").collect::<Vec<_>>().try_into().ok()
    }

    /// Whether SIGKILL is pending: the kernel has ended it, and it has not yet begun to exit.
    pub(crate) fn is_killed(&self) -> bool {
        const KILL: u64 = 1 << 8;
        let pending = ["SigPnd:", "ShdPnd:"]
            .into_iter()
            .filter_map(|name| u64::from_str_radix(self.line(name)?.trim(), 16).ok());
        pending.fold(0, |all, set| all | set) & KILL != 0
    }

    /// Whether a capability, by its number, is in effect.
    pub fn has(&self, capability: u32) -> bool {
        let set = self.line("CapEff:").and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        set.is_some_and(|set| set >> capability & 1 == 1)
    }

    fn numbers(&self, name: &str) -> impl Iterator<Item = u32> {
        let words = self.line(name).unwrap_or_default().split_ascii_whitespace();
        words.map_while(|word| word.parse().ok())
    }

    fn line(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_in_very_many_groups_is_read_whole() {
        let groups = "4294967294 ".repeat(65_536);
        let text = format!(
            "Name:\t\\nUid:\nTgid:\t7\nPid:\t7\nPPid:\t1\nUid:\t5\t6\t7\t8\nGroups:\t{groups}\n\
             NSpid:\t7\t3\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status");
        std::fs::write(&path, text).unwrap();
        let status = ProcStatus::read(File::open(path).unwrap()).unwrap();
        assert_eq!((status.group(), status.parent()), (Some(7), Some(1)));
        assert_eq!((status.uids(), status.innermost_pid()), (Some([5, 6, 7, 8]), Some(3)));
        assert!(status.is_killed());
    }
}
