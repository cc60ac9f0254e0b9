//! Hooks at the dynamic linkers of processes that have held a device for some time and map no
//! library yet: what they load then is looked at when it is loaded.
//!
//! Not those that are new, which are looked at ten times a second anyway, nor those that map a
//! library: most jobs load it before they open a device, and never cost a hook. A hook costs the
//! process two traps each time it loads or lets go of something, and everybody else a walk of the
//! kernel over those that map the same linker, when it comes and when it goes. Where one cannot be
//! had (a program that was linked statically, a linker without the function, a kernel that
//! refuses), the looks that come anyway have to do.

use super::super::linker::{Link, Linker};
use super::elf::function;
use super::libraries::{code_of, place};
use super::stuck::Waiting;
use crate::collect::proc_scan::is_alive;
use crate::ids::ProcKey;
use crate::paths::Paths;
use gpuwho_common::linker::MAX_WATCHED;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The dynamic linker's function for the debugger, of glibc and musl alike.
const HOOK: &str = "_dl_debug_state";
/// How long hooks are put in or taken out before something else has its turn.
const AT_ONCE: Duration = Duration::from_millis(50);
/// After so long who waited for a disk has gone on, and for so long nobody is looked for when nobody
/// was stuck.
const A_MOMENT: Duration = Duration::from_millis(200);
/// While somebody is stuck, hooks wait for so long: at first, and at last.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_mins(5);
/// Of the auxiliary vector (`linux/auxvec.h`): where the dynamic linker begins, and the program.
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;

/// The hooks that there are.
#[derive(Default)]
pub(super) struct Hooks {
    linker: Probe,
    /// Processes that have been asked for; `None` where there is nothing to hook.
    asked: HashMap<ProcKey, Option<Link>>,
    /// To be taken out when there is nothing better to do.
    letting_go: Vec<Link>,
    /// Those that are still to be asked for.
    waiting: Vec<ProcKey>,
    /// What the dynamic linkers have said so far.
    words: u64,
    /// Those that waited a moment ago.
    suspects: Option<Vec<Waiting>>,
    /// Nobody was stuck a moment ago.
    sure_until: Option<Instant>,
    /// Somebody is, or may be: nothing is done until then, and that is how long it was waited for.
    not_before: Option<Instant>,
    patience: Duration,
}

/// The probe, loaded when the first hook is wanted.
#[derive(Default)]
enum Probe {
    #[default]
    Unasked,
    Loaded(Box<Linker>),
    Refused,
}

impl Hooks {
    /// None will be put in where they are not wanted.
    pub(super) fn new(is_wanted: bool) -> Self {
        let linker = if is_wanted { Probe::Unasked } else { Probe::Refused };
        Self { linker, ..Self::default() }
    }

    /// From now on these are wanted; `None` where those are that were.
    pub(super) fn follow(&mut self, wanted: Option<HashSet<ProcKey>>) {
        // Where none can be had, nobody need be looked at for being stuck.
        let Some(wanted) = wanted.filter(|_| !matches!(self.linker, Probe::Refused)) else {
            return;
        };
        let gone = self.asked.keys().filter(|process| !wanted.contains(*process));
        for process in gone.copied().collect::<Vec<_>>() {
            self.let_go(process);
        }
        let new = wanted.into_iter().filter(|process| !self.asked.contains_key(process));
        self.waiting = new.collect();
    }

    /// Puts some hooks in and takes some out, unless somebody is stuck; `waiting` finds who may be.
    /// What is more urgent is done in between.
    pub(super) fn work(&mut self, waiting: impl Fn() -> Option<Vec<Waiting>>, paths: &Paths) {
        let began = Instant::now();
        let is_early = self.not_before.is_some_and(|not_before| began < not_before);
        if self.due().is_none() || is_early || self.is_held_up(began, waiting) {
            return;
        }
        let end = began + AT_ONCE;
        while Instant::now() < end && self.has_waiting() {
            let Some(process) = self.waiting.pop() else { break };
            let link = self.hook(process, paths);
            self.asked.insert(process, link);
        }
        while Instant::now() < end
            && let Some(link) = self.letting_go.pop()
        {
            drop(link);
        }
    }

    /// Whether to wait, since somebody is stuck or may be. Nobody is for some moments after nobody
    /// was.
    fn is_held_up(&mut self, now: Instant, waiting: impl Fn() -> Option<Vec<Waiting>>) -> bool {
        if self.sure_until.is_some_and(|until| now < until) {
            return false;
        }
        let is_stuck = match self.suspects.take() {
            Some(suspects) => suspects.iter().any(Waiting::is_still),
            None => match waiting() {
                Some(found) if !found.is_empty() => {
                    self.suspects = Some(found);
                    self.not_before = Some(now + A_MOMENT);
                    return true;
                }
                found => found.is_none(),
            },
        };
        if !is_stuck {
            self.sure_until = Some(now + A_MOMENT);
            self.patience = Duration::ZERO;
            return false;
        }
        self.patience = (2 * self.patience).clamp(SOONEST, LATEST);
        self.not_before = Some(now + self.patience);
        tracing::debug!(again = ?self.patience, "a process is stuck: no dynamic linker is touched");
        true
    }

    fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.hooked() < MAX_WATCHED as usize
    }

    /// When there is something to do, if there is.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_busy = self.has_waiting() || !self.letting_go.is_empty();
        is_busy.then(|| self.not_before.unwrap_or_else(Instant::now))
    }

    fn hook(&mut self, process: ProcKey, paths: &Paths) -> Option<Link> {
        let linker = self.linker.get()?;
        let (file, offset) = linker_of(&paths.proc.join(process.pid.to_string()))?;
        match linker.watch(process.pid, &file, offset) {
            // Of another process that has been given the number.
            Ok(_) if !is_alive(paths, process) => {
                linker.forget(process.pid);
                None
            }
            Ok(link) => Some(link),
            Err(error) => {
                tracing::debug!(%process, %error, "a dynamic linker cannot be hooked");
                None
            }
        }
    }

    fn let_go(&mut self, process: ProcKey) {
        let Some(Some(link)) = self.asked.remove(&process) else { return };
        if let Probe::Loaded(linker) = &mut self.linker {
            linker.forget(process.pid);
        }
        self.letting_go.push(link);
        let [hits, strangers] = self.runs();
        tracing::debug!(%process, hits, strangers, "a dynamic linker is let go");
    }

    /// How many processes are hooked.
    pub(super) fn hooked(&self) -> usize {
        self.asked.values().flatten().count()
    }

    /// How often a dynamic linker has said something, as far as it was read.
    pub(super) fn words(&self) -> u64 {
        self.words
    }

    /// How often the program has run: for watched processes, and for others.
    pub(super) fn runs(&self) -> [u64; 2] {
        match &self.linker {
            Probe::Loaded(linker) => linker.runs(),
            Probe::Unasked | Probe::Refused => [0; 2],
        }
    }

    /// The processes that have loaded something or let it go.
    pub(super) fn changed(&mut self) -> Vec<ProcKey> {
        let Probe::Loaded(linker) = &mut self.linker else { return Vec::new() };
        let changed = linker.changed();
        self.words += changed.len() as u64;
        let hooked = self.asked.iter().filter(|(_, link)| link.is_some());
        hooked.map(|(process, _)| *process).filter(|one| changed.contains(&one.pid)).collect()
    }

    /// Becomes readable when one of them does.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.linker {
            Probe::Loaded(linker) => Some(linker.as_fd()),
            Probe::Unasked | Probe::Refused => None,
        }
    }
}

impl Probe {
    /// Loads it the first time.
    fn get(&mut self) -> Option<&mut Linker> {
        if matches!(self, Self::Unasked) {
            *self = match Linker::load() {
                Ok(linker) => Self::Loaded(Box::new(linker)),
                Err(error) => {
                    tracing::debug!(%error, "libraries that are loaded late are found by looks");
                    Self::Refused
                }
            };
        }
        match self {
            Self::Loaded(linker) => Some(linker),
            Self::Unasked | Self::Refused => None,
        }
    }
}

/// The file of a process's dynamic linker, whatever its name, and the place of the hook in it. One
/// that was started as a program has been given none, and is itself the program.
pub(super) fn linker_of(folder: &Path) -> Option<(PathBuf, u64)> {
    let auxv = fs::read(folder.join("auxv")).ok()?;
    let of = |kind| value(&auxv, kind).filter(|address| *address != 0);
    let address = of(AT_BASE).or_else(|| of(AT_ENTRY))?;
    let maps = fs::read(folder.join("maps")).ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let (path, file) = place(folder, &code_of(&maps, address)?)?;
    Some((path, function(&file, HOOK).ok()??))
}

/// A value of the auxiliary vector of a process of 64 bits.
fn value(auxv: &[u8], wanted: u64) -> Option<u64> {
    let (pairs, _) = auxv.as_chunks::<16>();
    pairs.iter().find_map(|pair| {
        let (kind, value) = pair.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
        (word(kind)? == wanted).then_some(word(value)?)
    })
}

#[cfg(test)]
#[path = "hooks_tests.rs"]
mod tests;
