//! Processes that the kernel killed for want of memory.
//!
//! Read in Linux 6.1 to 6.18 (`dump_oom_victim`, `__oom_kill_process`,
//! `mem_cgroup_print_oom_context`, `mem_cgroup_print_oom_group`), and for 4.18 to 5.0 in the patches
//! that took their words away. A report's lines come in this order, and each has its own record:
//!
//! - up to 4.20 `Task in /a/b killed as a result of limit of /a`; since 5.0
//!   `oom-kill:constraint=…,task_memcg=/a/b,task=python,pid=4321,uid=0`, which is limited in rate;
//! - `Memory cgroup out of memory: Killed process 4321 (python) total-vm:…`, for which 5.0 and before
//!   write `Killed process …` alone: the kill itself, written when the signal has been sent;
//! - with `memory.oom.group`, as the kubelet sets it on cgroup v2, `Tasks in /a/b are going to be
//!   killed due to memory.oom.group set`, and a `Killed process` line for each.
//!
//! Command names and the cgroups below a tenant's own are the tenant's words.

use super::grammar;
use crate::catalog::event::EventKind;
use crate::event::{Happening, Named, Place, Severity};

/// What comes before `Killed process`; the last is of 5.0 and before.
const REASONS: &[&str] = &[
    "Out of memory: ",
    "Memory cgroup out of memory: ",
    "Out of memory (oom_kill_allocating_task): ",
    "",
];
/// Bytes of a command name (`TASK_COMM_LEN`, without the end).
const LONGEST_COMM: usize = 15;

/// The kill itself.
pub(super) fn read(text: &str) -> Option<Happening> {
    let rest =
        REASONS.iter().find_map(|why| text.strip_prefix(why)?.strip_prefix("Killed process "));
    let (pid, rest) = grammar::number(rest?)?;
    // A command name may hold anything, a closing bracket too; what follows it may not.
    let (comm, rest) = rest.strip_prefix(" (")?.rsplit_once(") total-vm:")?;
    let (_, memory) = grammar::number(rest)?;
    let (_, memory) = grammar::number(memory.strip_prefix("kB, anon-rss:")?)?;
    if comm.chars().count() > LONGEST_COMM || !memory.starts_with("kB") {
        return None;
    }
    let uid = rest.split_once(", UID:").and_then(|(_, rest)| Some(grammar::number(rest)?.0));
    let process = Some(Named { pid, comm: Some(comm.into()), uid });
    let event = Happening::new(EventKind::OomKill, Place::Host, Severity::Warning, text);
    Some(Happening { process, ..event })
}

/// The summary before the kill: `…,oom_memcg=/a,task_memcg=/a/b,task=python,pid=4321,uid=0`, or
/// `…,global_oom,task_memcg=…`. Names of cgroups and the command name may hold these words
/// themselves: then nobody can say where the cgroup ends, and none is taken.
fn chosen(text: &str) -> Option<(u32, &str)> {
    let rest = text.strip_prefix("oom-kill:constraint=")?;
    let (_, rest) = once(rest, ",task_memcg=")?;
    let (cgroup, rest) = once(rest, ",task=")?;
    let (_, rest) = rest.rsplit_once(",pid=")?;
    let (pid, rest) = grammar::number(rest)?;
    let (_, rest) = grammar::number(rest.strip_prefix(",uid=")?)?;
    (cgroup.starts_with('/') && rest.trim_end().is_empty()).then_some((pid, cgroup))
}

/// Splits at words that are there once.
fn once<'a>(text: &'a str, words: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(words).filter(|(_, rest)| !rest.contains(words))
}

/// The cgroup of the kills behind a line: of an old kernel's one process, or of a group.
fn heading(text: &str) -> Option<&str> {
    let one = || {
        let (cgroup, limit) =
            once(text.strip_prefix("Task in ")?, " killed as a result of limit of ")?;
        limit.starts_with('/').then_some(cgroup)
    };
    let group = || {
        let words = " are going to be killed due to memory.oom.group set";
        text.trim_end().strip_prefix("Tasks in ")?.strip_suffix(words)
    };
    one().or_else(group).filter(|cgroup| cgroup.starts_with('/'))
}

/// The report that is being read: cgroups that have a line of their own go to the kills behind it.
#[derive(Debug, Default)]
pub(super) struct Kills {
    /// Of one process.
    chosen: Option<(u32, Box<str>, u64)>,
    /// Of all kills that follow.
    heading: Option<(Box<str>, u64)>,
}

impl Kills {
    /// A report is written in one go; a number is not used again as soon.
    const APART_US: u64 = 2_000_000;

    /// Looks whether a line names the cgroup of the kills behind it.
    pub(super) fn heed(&mut self, text: &str, at_us: u64) {
        if let Some((pid, cgroup)) = chosen(text) {
            // Another report begins.
            self.chosen = Some((pid, cgroup.into(), at_us));
            self.heading = None;
        } else if let Some(cgroup) = heading(text) {
            self.heading = Some((cgroup.into(), at_us));
        }
    }

    /// Gives a kill the cgroup that the lines before it name.
    pub(super) fn place(&self, what: &mut Happening, at_us: u64) {
        let killed = what.process.as_ref().filter(|_| what.kind == EventKind::OomKill);
        let Some(pid) = killed.map(|process| process.pid) else { return };
        let is_near = |then: u64| at_us.saturating_sub(then) <= Self::APART_US;
        let chosen = self.chosen.as_ref().filter(|(of, _, then)| *of == pid && is_near(*then));
        let heading = self.heading.as_ref().filter(|(_, then)| is_near(*then));
        let cgroup = chosen.map(|(_, cgroup, _)| cgroup).or(heading.map(|(cgroup, _)| cgroup));
        what.cgroup = cgroup.cloned();
    }
}
