//! Probes all functions of a library by one or two links: one program for every function, which a
//! cookie identifies.
//!
//! aya 0.14 cannot load such programs, so their instructions are taken from the same object and
//! linked to the maps that aya created. Detaching then costs one wait in the kernel for all
//! functions instead of one per function.

use aya::Ebpf;
use aya::maps::Map;
use aya_obj::Object;
use gpuwho_bpf::load::shortened;
use gpuwho_bpf::objects::NCCL;
use gpuwho_sys::uprobes::{Kind, Place, attach, is_offered, load};
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Why this kind of link is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManyError {
    /// The object does not parse.
    #[error("read the BPF object: {0}")]
    Object(String),
    /// The kernel refuses a program.
    #[error("program {program}: {source}: {}", shortened(.words))]
    Program { program: &'static str, source: io::Error, words: String },
    /// The kernel is too old for this kind of link.
    #[error("no links for many uprobes")]
    NotOffered,
}

/// How functions are probed, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// One session per file; since 6.13.
    Session,
    /// One link for a file's entries and one for its returns; since 6.6.
    Multi,
    /// One probe per function.
    Each,
}

impl Way {
    /// A description.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "one session a file",
            Self::Multi => "one link a file",
            Self::Each => "one probe a function",
        }
    }
}

/// The programs for all functions.
#[derive(Debug)]
pub(super) enum Many {
    /// Entries, which request the returns they need.
    Session(OwnedFd),
    /// All entries, all returns.
    Multi { entered: OwnedFd, returned: OwnedFd },
}

impl Many {
    /// Loads the best kind that the kernel supports, starting with `best`; also returns why better
    /// ones are not used.
    pub(super) fn load(bpf: &Ebpf, best: Way) -> (Option<Self>, Vec<ManyError>) {
        if best == Way::Each {
            return (None, Vec::new());
        }
        let object = match linked(bpf) {
            Ok(object) => object,
            Err(error) => return (None, vec![error]),
        };
        let mut refused = Vec::new();
        for way in [Way::Session, Way::Multi].into_iter().filter(|way| *way >= best) {
            let loaded = match way {
                Way::Session => Self::session(&object),
                Way::Multi | Way::Each => Self::multi(&object),
            };
            match loaded {
                Ok(found) => return (Some(found), refused),
                Err(error) => refused.push(error),
            }
        }
        (None, refused)
    }

    fn session(object: &Object) -> Result<Self, ManyError> {
        let passed = program(object, "passed", Kind::Session)?;
        let offered = is_offered(passed.as_fd(), Kind::Session);
        offered.then_some(Self::Session(passed)).ok_or(ManyError::NotOffered)
    }

    fn multi(object: &Object) -> Result<Self, ManyError> {
        let returned = program(object, "returned", Kind::Multi)?;
        if !is_offered(returned.as_fd(), Kind::Multi) {
            return Err(ManyError::NotOffered);
        }
        Ok(Self::Multi { entered: program(object, "entered", Kind::Multi)?, returned })
    }

    /// How functions are probed.
    pub(super) fn way(&self) -> Way {
        match self {
            Self::Session(_) => Way::Session,
            Self::Multi { .. } => Way::Multi,
        }
    }

    /// Attaches to the entries, and in a session to the returns as well.
    pub(super) fn entries(&self, file: &Path, places: &[Place]) -> io::Result<OwnedFd> {
        let file = CString::new(file.as_os_str().as_bytes())?;
        match self {
            Self::Session(passed) => attach(passed.as_fd(), Kind::Session, false, &file, places),
            Self::Multi { entered, .. } => {
                attach(entered.as_fd(), Kind::Multi, false, &file, places)
            }
        }
    }

    /// Attaches to the returns; `None` if attaching to the entries included them.
    pub(super) fn returns(&self, file: &Path, places: &[Place]) -> io::Result<Option<OwnedFd>> {
        let Self::Multi { returned, .. } = self else { return Ok(None) };
        let file = CString::new(file.as_os_str().as_bytes())?;
        attach(returned.as_fd(), Kind::Multi, true, &file, places).map(Some)
    }
}

/// The object, linked to aya's maps.
fn linked(bpf: &Ebpf) -> Result<Object, ManyError> {
    let refused = |error: &dyn std::error::Error| ManyError::Object(error.to_string());
    let mut object = Object::parse(NCCL).map_err(|error| refused(&error))?;
    let fds: HashMap<&str, RawFd> =
        bpf.maps().filter_map(|(name, map)| Some((name, fd(map)?))).collect();
    let maps: Vec<_> = object.maps.drain().collect();
    let made = maps.iter().filter_map(|(name, map)| Some((name.as_str(), *fds.get(&**name)?, map)));
    let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_maps(made, &sections).map_err(|error| refused(&error))?;
    object.relocate_calls(&sections).map_err(|error| refused(&error))?;
    Ok(object)
}

fn program(object: &Object, name: &'static str, kind: Kind) -> Result<OwnedFd, ManyError> {
    let missing = || ManyError::Object(format!("it has no {name}"));
    let found = object.programs.get(name).ok_or_else(missing)?;
    let function = object.functions.get(&found.function_key()).ok_or_else(missing)?;
    load(name, &function.instructions, &found.license, kind)
        .map_err(|(source, words)| ManyError::Program { program: name, source, words })
}

fn fd(map: &Map) -> Option<RawFd> {
    match map {
        Map::Array(data) | Map::HashMap(data) | Map::LruHashMap(data) | Map::PerCpuArray(data) => {
            Some(data.fd().as_fd().as_raw_fd())
        }
        _ => None,
    }
}
