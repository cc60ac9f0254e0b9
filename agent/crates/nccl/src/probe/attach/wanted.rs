//! What to attach to each library file, and which calls the programs see.

use super::Attaching;
use crate::probe::budget::controller::Attach;
use crate::probe::budget::quota::Quotas;
use crate::probe::budget::uptime::{EachPresent, Present};
use crate::probe::libraries::{FileKey, Libraries};
use gpuwho_model::ids::ProcKey;
use std::collections::HashMap;

impl Attaching {
    /// What to attach to each file in use: the most that any of its users is allowed. A duplicate
    /// counts towards its original.
    pub(in super::super) fn wanted(
        &self,
        libraries: &Libraries,
        allowed: impl Fn(ProcKey) -> Attach,
    ) -> HashMap<FileKey, Attach> {
        let mut wanted = HashMap::new();
        for (key, library) in libraries.in_use() {
            let max = library.users.keys().map(|user| allowed(*user)).max();
            let of = wanted.entry(*self.base(key)).or_insert(Attach::Nothing);
            *of = max.unwrap_or(Attach::Full).max(*of);
        }
        wanted
    }

    /// Whether the attached programs differ from the wanted ones, as far as this can change now.
    pub(in super::super) fn differs(&self, wanted: &HashMap<FileKey, Attach>) -> bool {
        wanted.iter().any(|(key, wanted)| {
            let is_attached = self.attached.contains_key(key);
            if *wanted == Attach::Nothing || !is_attached {
                // A file without probes was refused, or is allowed again after a pause.
                let can_be = !self.refusals.is_known(key) && !self.is_detaching(key);
                return is_attached || (*wanted != Attach::Nothing && self.is_loaded() && can_be);
            }
            self.timed.contains(key) != (*wanted == Attach::Full)
        })
    }

    /// Whether old probes of a detached file are still there: a second attachment would count
    /// twice.
    pub(super) fn is_detaching(&self, key: &FileKey) -> bool {
        let file = self.given_up.get(key);
        file.is_some_and(|file| self.detaching.iter().any(|(of, _)| of == file))
    }

    /// Whether a process must wait until the old probes of one of its libraries are gone.
    pub(in super::super) fn must_wait(
        &self,
        libraries: &Libraries,
        is_one: impl Fn(ProcKey) -> bool,
    ) -> bool {
        let mut used = libraries
            .in_use()
            .filter(|(_, library)| library.users.keys().any(|user| is_one(*user)));
        !self.detaching.is_empty()
            && used.any(|(key, _)| {
                let base = self.base(key);
                !self.attached.contains_key(base) && self.is_detaching(base)
            })
    }

    /// The file whose probes cover this file.
    pub(super) fn base<'a>(&'a self, key: &'a FileKey) -> &'a FileKey {
        self.duplicates.get(key).unwrap_or(key)
    }

    /// What is attached for each owner's calls in each file.
    pub(in super::super) fn present(&self, libraries: &Libraries, quotas: &Quotas) -> EachPresent {
        let mut all = EachPresent::new();
        for (key, library) in libraries.in_use() {
            let Some(number) = self.number_of(key) else { continue };
            let is_attached = self.attached.contains_key(self.base(key));
            let is_timed = self.timed.contains(self.base(key));
            for user in library.users.keys() {
                let owner = quotas.owner_of(user.pid);
                let allowed = quotas.allowed(owner);
                let entries = is_attached && allowed != Attach::Nothing;
                let returns = entries && is_timed && allowed == Attach::Full;
                all.insert((number, owner), Present { wanted: true, entries, returns });
            }
        }
        all
    }

    /// How many of a file's functions the kernel single-steps, and how many there are, for files of
    /// a process that the programs cannot identify; the worst of several files.
    pub(in super::super) fn stepped_of(&self, libraries: &Libraries, pid: u32) -> (u64, u64) {
        let is_unidentified =
            |key| self.attached.get(key).is_some_and(|(_, attached)| !attached.has_ids());
        let mine = libraries.in_use().filter(|(key, library)| {
            is_unidentified(self.base(key)) && library.users.keys().any(|user| user.pid == pid)
        });
        let all = mine.map(|(_, library)| {
            let exports = &library.exports;
            (exports.stepped.len() as u64, exports.entries.len() as u64)
        });
        all.max_by_key(|(stepped, functions)| stepped * 1_000 / functions.max(&1)).unwrap_or((0, 1))
    }
}
