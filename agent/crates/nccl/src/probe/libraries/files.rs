//! The files in a process's list of mappings, and what each one is.
//!
//! On most file systems the list shows the file's own device and inode. On an overlay over several
//! file systems it shows the overlay's device and the inode of the layer's file (observed on Linux
//! 6.18, `xino=off`, the default), so that two files can have the same pair: there the path
//! distinguishes them.

use super::FileKey;
use super::mappings::Mapping;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

/// Maximum length of a reported path.
pub(super) const MAX_PATH_LEN: usize = 512;

/// A file as the list of mappings shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct MapsKey {
    pub key: FileKey,
    /// Hash of the path; `None` if device and inode are the file's own.
    path: Option<u64>,
}

impl MapsKey {
    /// The key of a file with its own device and inode.
    pub(super) fn exact(key: FileKey) -> Self {
        Self { key, path: None }
    }
}

/// What a file of a process is.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Found {
    Library(FileKey),
    /// Not a library; `for_all` if this is known by its key for all processes.
    Other {
        for_all: bool,
    },
}

impl Found {
    /// Whether both are the same library.
    pub(super) fn is_library(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Library(one), Self::Library(two)) if one == two)
    }
}

/// The files that a process maps.
#[derive(Debug, Default)]
pub(in super::super) struct Files {
    pub found: HashMap<MapsKey, Found>,
    /// Scans in a row at which a file could not be read.
    pub refused: u32,
    /// Scans in a row at which a mapping was gone before it could be opened.
    pub gone: u32,
    /// Why a file could not be read at the last scan.
    pub retry_reason: Option<String>,
    /// The limit that the last list of its mappings reached.
    pub cut: Option<&'static str>,
    /// The name of a file with code speaks of NCCL.
    pub is_named: bool,
    /// Why a file is ignored as long as the process maps it.
    pub left_out: Option<String>,
}

impl Files {
    /// Why the process is not completely observed.
    pub(super) fn problem(&self) -> Option<&str> {
        self.left_out.as_deref().or(self.cut).or(self.retry_reason.as_deref())
    }

    /// The key under which a mapping's file is stored, or would be.
    pub(in super::super) fn key_of(&self, mapping: &Mapping<'_>) -> MapsKey {
        let exact = MapsKey::exact(mapping.key);
        if self.found.contains_key(&exact) {
            return exact;
        }
        MapsKey { path: Some(path_hash(mapping.path)), ..exact }
    }
}

/// A new file in a process's mappings.
pub(super) struct New {
    pub range: (u64, u64),
    pub offset: u64,
    pub key: FileKey,
    pub path: Arc<str>,
    path_hash: u64,
}

impl New {
    pub(super) fn of(mapping: &Mapping<'_>) -> Self {
        let path = mapping.path.get(..MAX_PATH_LEN).unwrap_or(mapping.path);
        let clean = |one: char| if one.is_control() { char::REPLACEMENT_CHARACTER } else { one };
        let path: String = String::from_utf8_lossy(path).chars().map(clean).collect();
        Self {
            range: mapping.range,
            offset: mapping.offset,
            key: mapping.key,
            path: Arc::from(path),
            path_hash: path_hash(mapping.path),
        }
    }

    /// The key under which it will be stored.
    pub(super) fn maps_key(&self, is_exact: bool) -> MapsKey {
        MapsKey { key: self.key, path: (!is_exact).then_some(self.path_hash) }
    }
}

/// Hashes a path; a deleted file has the same hash.
fn path_hash(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.strip_suffix(b" (deleted)").unwrap_or(path).hash(&mut hasher);
    hasher.finish()
}
