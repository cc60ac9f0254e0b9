//! A collective library in use: its open file, its contents and its users.

use super::elf::{Exports, ReadAt as _, exports, version};
use super::fields::{Fields, fields};
use super::mapped::{Mapped, NotRead, Stamp};
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::tenant_files::FileOwner;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A collective library in use.
#[derive(Debug)]
pub(in super::super) struct Library {
    file: Mapped,
    /// Whether every list of mappings shows it under its own key.
    pub is_exact: bool,
    /// Its functions and version.
    pub exports: Exports,
    /// Its field offsets, if its code shows them.
    pub fields: Option<Fields>,
    /// The processes that map it.
    pub users: HashMap<ProcKey, User>,
    /// The process that mapped it first.
    pub finder: ProcKey,
    /// The start of the first function's code in the file.
    pub begins: [u8; 4],
}

/// A user of a library.
#[derive(Debug)]
pub(in super::super) struct User {
    pub path: Arc<str>,
    /// The address of the file's first byte, if all of it were mapped like its code.
    pub base: u64,
    pub tenant: FileOwner,
}

/// Version and path, as exported.
pub(in super::super) type VersionAndPath = (Arc<str>, Arc<str>);

impl Library {
    /// Reads the functions of a file; `None` if it is not a library.
    pub(super) fn read(
        file: Mapped,
        finder: ProcKey,
        is_exact: bool,
    ) -> Result<Option<Self>, NotRead> {
        let content = file.content()?;
        let Some(exports) = exports(&content)? else { return Ok(None) };
        let fields = fields(&content).ok().flatten();
        let mut begins = [0; 4];
        if let Some((_, offset)) = exports.entries.first()
            && content.read_at(&mut begins, *offset)? < begins.len()
        {
            return Ok(None);
        }
        drop(content);
        let users = HashMap::new();
        Ok(Some(Self { file, is_exact, exports, fields, users, finder, begins }))
    }

    /// Reads its version, which takes longer than attaching to it.
    pub(super) fn read_version(&mut self) {
        let found = self.file.content().and_then(|content| version(&content));
        if let Ok(Some(version)) = found {
            self.exports.version = version;
        }
    }

    /// Version and path, as exported for one of its users.
    pub(in super::super) fn version_and_path(&self, process: ProcKey) -> VersionAndPath {
        let version = self.exports.version.split('+').next().unwrap_or_default();
        let path = self.users.get(&process).map(|user| Arc::clone(&user.path));
        (version.into(), path.unwrap_or_else(|| self.path()))
    }

    /// Its path as one of its users sees it.
    pub(in super::super) fn path(&self) -> Arc<str> {
        let first = self.users.iter().min_by_key(|(process, _)| **process);
        first.map_or_else(|| Arc::from(""), |(_, user)| Arc::clone(&user.path))
    }

    /// A path by which the kernel opens exactly this file.
    pub(in super::super) fn place(&self) -> PathBuf {
        self.file.place()
    }

    /// Distinguishes it from other files.
    pub(in super::super) fn stamp(&self) -> Stamp {
        self.file.stamp
    }

    /// The tenant, if only one uses it.
    pub(super) fn only_tenant(&self) -> Option<&FileOwner> {
        let first = &self.users.values().next()?.tenant;
        self.users.values().all(|user| user.tenant == *first).then_some(first)
    }
}
