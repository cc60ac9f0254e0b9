//! What is wanted of each library's file by what its users are allowed, and what is seen of them.

use super::Attaching;
use crate::collect::nccl::probe::budget::controller::Attach;
use crate::collect::nccl::probe::budget::quota::Quotas;
use crate::collect::nccl::probe::budget::uptime::{EachPresent, Present};
use crate::collect::nccl::probe::libraries::{FileKey, Libraries};
use crate::ids::ProcKey;
use std::collections::HashMap;

impl Attaching {
    /// What is wanted of each file that is in use: what the one of its users is allowed that is allowed
    /// most. Of a twin, of the file that its probes are on.
    pub(in super::super) fn wanted(
        &self,
        libraries: &Libraries,
        allowed: impl Fn(ProcKey) -> Attach,
    ) -> HashMap<FileKey, Attach> {
        let mut wanted = HashMap::new();
        for (key, library) in libraries.in_use() {
            let most = library.users.keys().map(|user| allowed(*user)).max();
            let of = wanted.entry(*self.base(key)).or_insert(Attach::Nothing);
            *of = most.unwrap_or(Attach::Full).max(*of);
        }
        wanted
    }

    /// Whether something else is attached than is wanted, as far as it can be changed now.
    pub(in super::super) fn differs(&self, wanted: &HashMap<FileKey, Attach>) -> bool {
        wanted.iter().any(|(key, wanted)| {
            let is_attached = self.attached.contains_key(key);
            if *wanted == Attach::Nothing || !is_attached {
                // What is not attached was refused, or has been given up and comes back.
                let can_be = !self.refusals.is_known(key) && !self.is_detaching(key);
                return is_attached || (*wanted != Attach::Nothing && self.is_loaded() && can_be);
            }
            self.timed.contains(key) != (*wanted == Attach::Full)
        })
    }

    /// Whether old probes of a file that was given up are still there: attached twice it would count
    /// twice.
    pub(super) fn is_detaching(&self, key: &FileKey) -> bool {
        let file = self.given_up.get(key);
        file.is_some_and(|file| self.detaching.iter().any(|(of, _)| of == file))
    }

    /// Whether a process has to wait for the old probes of a library of its to go.
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

    /// The file that a file's probes are on.
    pub(super) fn base<'a>(&'a self, key: &'a FileKey) -> &'a FileKey {
        self.twins.get(key).unwrap_or(key)
    }

    /// What is seen of each owner's calls in each file that its processes use.
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

    /// How many of how many functions the kernel steps through, in a file of a process where the
    /// programs do not know it; of several, in the worst.
    pub(in super::super) fn stepped_of(&self, libraries: &Libraries, pid: u32) -> (u64, u64) {
        let is_untold =
            |key| self.attached.get(key).is_some_and(|(_, attached)| !attached.has_ids());
        let mine = libraries.in_use().filter(|(key, library)| {
            is_untold(self.base(key)) && library.users.keys().any(|user| user.pid == pid)
        });
        let all = mine.map(|(_, library)| {
            let exports = &library.exports;
            (exports.stepped.len() as u64, exports.entries.len() as u64)
        });
        all.max_by_key(|(stepped, functions)| stepped * 1_000 / functions.max(&1)).unwrap_or((0, 1))
    }
}
