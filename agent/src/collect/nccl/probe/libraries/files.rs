//! The files that a process maps, by what its list of mappings shows of them, and what each was found
//! to be.
//!
//! Device and inode in that list are those of the file on most file systems. On an overlay over several
//! file systems the device is the overlay's and the inode that of the layer's file (seen on Linux 6.18,
//! `xino=off`, the default), so that two files can show the same pair: there the path tells them apart.

use super::FileKey;
use super::mappings::Mapping;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

/// Bytes of a path that are told.
pub(super) const MAX_PATH_LEN: usize = 512;

/// A file as the list of mappings shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct MapsKey {
    pub key: FileKey,
    /// Of the path; none where device and inode are the file's own.
    path: Option<u64>,
}

impl MapsKey {
    /// Of a file whose own device and inode are shown.
    pub(super) fn exact(key: FileKey) -> Self {
        Self { key, path: None }
    }
}

/// What a file of a process was found to be.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Found {
    Library(FileKey),
    /// None; whether that is known by its key for all processes.
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
    /// Looks in a row at which something was refused.
    pub refused: u32,
    /// Looks in a row at which a mapping was gone before it could be opened.
    pub gone: u32,
    /// Why it was refused, at the last look.
    pub put_off: Option<String>,
    /// Which bound the last list of its mappings has reached.
    pub cut: Option<&'static str>,
    /// Why a file is left out as long as it maps it.
    pub left_out: Option<String>,
}

impl Files {
    /// What is not seen of it.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.left_out.as_deref().or(self.cut).or(self.put_off.as_deref())
    }

    /// By what a mapping's file is, or would be, found.
    pub(in super::super) fn key_of(&self, mapping: &Mapping<'_>) -> MapsKey {
        let exact = MapsKey::exact(mapping.key);
        if self.found.contains_key(&exact) {
            return exact;
        }
        MapsKey { path: Some(path_hash(mapping.path)), ..exact }
    }
}

/// Something new that a process maps.
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

    /// By what it is found from now on.
    pub(super) fn maps_key(&self, is_exact: bool) -> MapsKey {
        MapsKey { key: self.key, path: (!is_exact).then_some(self.path_hash) }
    }
}

/// Of a path; a file that was deleted is the same one.
fn path_hash(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.strip_suffix(b" (deleted)").unwrap_or(path).hash(&mut hasher);
    hasher.finish()
}
