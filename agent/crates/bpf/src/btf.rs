//! Reads the kernel's type information (`/sys/kernel/btf/vmlinux`): the byte offset of a
//! structure's member, and the value of an enumerator.
//!
//! Costs one read of about 6 MB at start; nothing stays in memory. The format is described in the
//! kernel's `Documentation/bpf/btf.rst` and `include/uapi/linux/btf.h`.

use std::path::{Path, PathBuf};
use std::{fs, io};

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
/// Anonymous structures nest two or three deep in `task_struct`; deeper nesting is a damaged file.
const MAX_NESTING: u32 = 8;

/// Why the kernel's type information cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The kernel has none, or it is not readable.
    #[error("read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not BTF, or truncated.
    #[error("type information is malformed at byte {0}")]
    Malformed(usize),
    /// This kernel has no such member.
    #[error("this kernel's type information has no {0}.{1}")]
    NoMember(&'static str, &'static str),
}

/// The kernel's type information.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Offset of each type's record, by type id (the first is `void`).
    types: Vec<usize>,
    strings: usize,
}

impl Btf {
    /// Reads the file and indexes its types.
    pub fn read(path: &Path) -> Result<Self, BtfError> {
        let bytes =
            fs::read(path).map_err(|source| BtfError::Read { path: path.to_path_buf(), source })?;
        Self::parse(bytes)
    }

    fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        if bytes.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err(BtfError::Malformed(0));
        }
        let mut btf = Self { bytes, types: vec![usize::MAX], strings: 0 };
        let header = btf.offset_at(4)?;
        let mut at = header + btf.offset_at(8)?;
        let end = at + btf.offset_at(12)?;
        btf.strings = header + btf.offset_at(16)?;
        while at < end {
            btf.types.push(at);
            at += btf.record_bytes(at)?;
        }
        Ok(btf)
    }

    /// Byte offset of a member, also inside anonymous structures and unions.
    pub fn offset(&self, name: &'static str, member: &'static str) -> Result<u32, BtfError> {
        self.types
            .iter()
            .filter(|at| self.is_named(**at, name) && matches!(self.kind(**at), Some(STRUCT)))
            .find_map(|at| self.member_bits(*at, member, MAX_NESTING))
            .map(|bits| bits / 8)
            .ok_or(BtfError::NoMember(name, member))
    }

    /// Value of an enumerator.
    pub fn enumerator(&self, name: &'static str, value: &str) -> Option<u32> {
        let at = *self
            .types
            .iter()
            .find(|at| self.is_named(**at, name) && self.kind(**at) == Some(ENUM))?;
        (0..self.count(at)?)
            .map(|index| at + 12 + index * 8)
            .find(|entry| self.is_named(*entry, value))
            .and_then(|entry| self.word(entry + 4).ok())
    }

    fn member_bits(&self, at: usize, member: &str, nesting: u32) -> Option<u32> {
        // With the kind flag set, the upper 8 bits of the offset are a bit field's width.
        let mask = if self.word(at + 4).ok()? >> 31 == 1 { 0x00ff_ffff } else { u32::MAX };
        for index in 0..self.count(at)? {
            let entry = at + 12 + index * 12;
            let bits = self.word(entry + 8).ok()? & mask;
            if self.is_named(entry, member) {
                return Some(bits);
            }
            let inner = *self.types.get(usize::try_from(self.word(entry + 4).ok()?).ok()?)?;
            if nesting > 0
                && self.word(entry).ok()? == 0
                && matches!(self.kind(inner), Some(STRUCT | UNION))
                && let Some(further) = self.member_bits(inner, member, nesting - 1)
            {
                return Some(bits + further);
            }
        }
        None
    }

    /// Length of a type's record, by kind.
    fn record_bytes(&self, at: usize) -> Result<usize, BtfError> {
        let count = self.count(at).ok_or(BtfError::Malformed(at))?;
        let rest = match self.kind(at) {
            // Pointer, forward, typedef, volatile, const, restrict, function, float, type tag.
            Some(2 | 7..=12 | 16 | 18) => 0,
            // Integer, variable, declaration tag.
            Some(1 | 14 | 17) => 4,
            // Array.
            Some(3) => 12,
            // Structure, union, data section, 64-bit enumeration.
            Some(STRUCT | UNION | 15 | 19) => 12 * count,
            // Enumeration, function prototype.
            Some(ENUM | 13) => 8 * count,
            _ => return Err(BtfError::Malformed(at)),
        };
        Ok(12 + rest)
    }

    fn kind(&self, at: usize) -> Option<u32> {
        self.word(at.checked_add(4)?).ok().map(|info| info >> 24 & 0x1f)
    }

    fn count(&self, at: usize) -> Option<usize> {
        usize::try_from(self.word(at.checked_add(4)?).ok()? & 0xffff).ok()
    }

    /// Whether the name whose offset is at `at` is `name`.
    fn is_named(&self, at: usize, name: &str) -> bool {
        let Ok(offset) = self.offset_at(at) else { return false };
        self.bytes
            .get(self.strings + offset..)
            .and_then(|text| text.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    fn offset_at(&self, at: usize) -> Result<usize, BtfError> {
        usize::try_from(self.word(at)?).map_err(|_| BtfError::Malformed(at))
    }

    fn word(&self, at: usize) -> Result<u32, BtfError> {
        self.bytes
            .get(at..)
            .and_then(|rest| rest.first_chunk())
            .map(|bytes| u32::from_ne_bytes(*bytes))
            .ok_or(BtfError::Malformed(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

    #[test]
    fn running_kernel_has_the_fields_the_probe_needs() {
        if !Path::new(VMLINUX).exists() {
            println!("skipped: needs {VMLINUX}");
            return;
        }
        let btf = Btf::read(Path::new(VMLINUX)).unwrap();
        let tgid = btf.offset("task_struct", "tgid").unwrap();
        // `pid` and `tgid` are adjacent in task_struct since 2.6.
        assert_eq!(btf.offset("task_struct", "pid").unwrap() + 4, tgid);
        assert_eq!(btf.offset("fdtable", "max_fds").unwrap(), 0);
        assert_eq!(btf.enumerator("cgroup_subsys_id", "cpuset_cgrp_id"), Some(0));
        assert_eq!(btf.enumerator("cgroup_subsys_id", "no_such_cgrp_id"), None);
        let missing = btf.offset("task_struct", "no_such_member").unwrap_err();
        assert_eq!(
            missing.to_string(),
            "this kernel's type information has no task_struct.no_such_member"
        );
    }

    #[test]
    fn cut_or_foreign_files_are_refused() {
        assert!(matches!(Btf::parse(Vec::new()), Err(BtfError::Malformed(0))));
        assert!(matches!(Btf::parse(b"\x7fELF".to_vec()), Err(BtfError::Malformed(0))));
        let mut cut = MAGIC.to_ne_bytes().to_vec();
        cut.extend([1, 0, 24, 0, 0, 0]);
        assert!(matches!(Btf::parse(cut), Err(BtfError::Malformed(8))));
    }
}
