//! Parses the lines about processes that the OOM killer killed.
//!
//! Taken from Linux 6.1 to 6.18 (`dump_oom_victim`, `__oom_kill_process`,
//! `mem_cgroup_print_oom_context`, `mem_cgroup_print_oom_group`), and for 4.18 to 5.0 from the
//! patches that changed their format. The lines of a report come in this order, each as its own
//! record:
//!
//! - up to 4.20 `Task in /a/b killed as a result of limit of /a`; since 5.0
//!   `oom-kill:constraint=…,task_memcg=/a/b,task=python,pid=4321,uid=0`, which is limited in rate;
//! - `Memory cgroup out of memory: Killed process 4321 (python) total-vm:…`, for which 5.0 and before
//!   write `Killed process …` alone: the kill itself, written when the signal has been sent;
//! - with `memory.oom.group`, as the kubelet sets it on cgroup v2, `Tasks in /a/b are going to be
//!   killed due to memory.oom.group set`, and a `Killed process` line for each.
//!
//! Tenants choose command names and the names of cgroups below their own.

use super::grammar;
use crate::kmsg::record::Record;
use gpuwho_model::catalog::event::EventKind;
use gpuwho_pipeline::event::{Named, Observation, Place, Severity};
use std::collections::VecDeque;

/// What precedes `Killed process`; the last is of 5.0 and before.
const REASONS: &[&str] = &[
    "Out of memory: ",
    "Memory cgroup out of memory: ",
    "Out of memory (oom_kill_allocating_task): ",
    "",
];
/// Bytes of a command name (`TASK_COMM_LEN` without the terminator).
const MAX_COMM_LEN: usize = 15;

/// Parses the line of the kill.
pub(super) fn read(text: &str) -> Option<Observation> {
    let rest =
        REASONS.iter().find_map(|why| text.strip_prefix(why)?.strip_prefix("Killed process "));
    let (pid, rest) = grammar::number(rest?)?;
    // A command name may contain anything, also a closing bracket; what follows it may not.
    let (comm, rest) = rest.strip_prefix(" (")?.rsplit_once(") total-vm:")?;
    let (_, memory) = grammar::number(rest)?;
    let (_, memory) = grammar::number(memory.strip_prefix("kB, anon-rss:")?)?;
    if comm.chars().count() > MAX_COMM_LEN || !memory.starts_with("kB") {
        return None;
    }
    let uid = rest.split_once(", UID:").and_then(|(_, rest)| Some(grammar::number(rest)?.0));
    let process = Some(Named { pid, comm: Some(comm.into()), uid });
    let event = Observation::new(EventKind::OomKill, Place::Host, Severity::Warning, text);
    Some(Observation { process, ..event })
}

/// Parses the summary before the kill: `…,oom_memcg=/a,task_memcg=/a/b,task=python,pid=4321,uid=0`,
/// or `…,global_oom,task_memcg=…`. The names of cgroups and the command name may contain these
/// separators: then the end of the cgroup is ambiguous, and none is returned.
fn chosen(text: &str) -> Option<(u32, &str)> {
    let rest = text.strip_prefix("oom-kill:constraint=")?;
    let (_, rest) = once(rest, ",task_memcg=")?;
    let (cgroup, rest) = once(rest, ",task=")?;
    let (_, rest) = rest.rsplit_once(",pid=")?;
    let (pid, rest) = grammar::number(rest)?;
    let (_, rest) = grammar::number(rest.strip_prefix(",uid=")?)?;
    (cgroup.starts_with('/') && rest.trim_end().is_empty()).then_some((pid, cgroup))
}

/// Splits at a separator that occurs exactly once.
fn once<'a>(text: &'a str, words: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(words).filter(|(_, rest)| !rest.contains(words))
}

/// The cgroup of the kills that follow a line.
#[derive(Debug)]
enum Heading {
    /// Of the one kill of an old kernel's report.
    One(Box<str>),
    /// Of all kills in a group, by this thread.
    Group { cgroup: Box<str>, caller: Option<Box<str>> },
}

impl Heading {
    fn of(record: &Record<'_>) -> Option<Self> {
        let text: &str = &record.text;
        let one = || {
            let words = " killed as a result of limit of ";
            let (cgroup, limit) = once(text.strip_prefix("Task in ")?, words)?;
            (cgroup.starts_with('/') && limit.starts_with('/')).then(|| Self::One(cgroup.into()))
        };
        let group = || {
            let words = " are going to be killed due to memory.oom.group set";
            let cgroup = text.trim_end().strip_prefix("Tasks in ")?.strip_suffix(words)?;
            let caller = record.caller.map(Box::from);
            cgroup.starts_with('/').then(|| Self::Group { cgroup: cgroup.into(), caller })
        };
        one().or_else(group)
    }
}

/// The report that is being parsed: a cgroup on a line of its own applies to the kills that follow
/// it.
///
/// The kernel writes one report at a time (`oom_lock`), and the thread's id is on each line if the
/// kernel has `CONFIG_PRINTK_CALLER`. A report starts with a summary, which ends the previous
/// report; but of many in a short time only the first have one (`oom_rs` in `oom_kill_process`).
/// Then the end of a group's kills is ambiguous, and they get no cgroup.
#[derive(Debug, Default)]
pub(super) struct Kills {
    /// PID and cgroup of the process in the summary.
    chosen: Option<(u32, Box<str>, u64)>,
    /// The heading of the kills that follow.
    heading: Option<(Heading, u64)>,
    /// Times of the last [`Self::BURST`] summaries.
    begun: VecDeque<u64>,
    /// Lines before the next one were lost.
    has_lost: bool,
    /// Until then, lost lines may have been summaries.
    unsure_until_us: u64,
}

impl Kills {
    /// A report is written in one go; a PID is not reused as quickly.
    const APART_US: u64 = 2_000_000;
    /// Summaries per interval: `DEFAULT_RATELIMIT_BURST` per `DEFAULT_RATELIMIT_INTERVAL`, 5 s on a
    /// clock of 100 ticks a second.
    const BURST: usize = 10;
    const INTERVAL_US: u64 = 5_500_000;

    /// Records that lines before the next one are missing.
    pub(super) fn lost(&mut self) {
        self.has_lost = true;
    }

    /// Checks whether a line names the cgroup of the kills that follow it.
    pub(super) fn scan(&mut self, record: &Record<'_>) {
        if std::mem::take(&mut self.has_lost) {
            (self.chosen, self.heading) = (None, None);
            self.unsure_until_us = record.at_us.saturating_add(Self::INTERVAL_US);
        }
        if let Some((pid, cgroup)) = chosen(&record.text) {
            self.begin(record.at_us);
            self.chosen = Some((pid, cgroup.into(), record.at_us));
        } else if let Some(heading) = Heading::of(record) {
            if matches!(heading, Heading::One(_)) {
                self.begin(record.at_us);
            }
            self.heading = Some((heading, record.at_us));
        }
    }

    /// Starts another report.
    fn begin(&mut self, at_us: u64) {
        (self.chosen, self.heading) = (None, None);
        if self.begun.len() >= Self::BURST {
            self.begun.pop_front();
        }
        self.begun.push_back(at_us);
    }

    /// Sets a kill's cgroup from the lines before it.
    pub(super) fn place(&mut self, what: &mut Observation, record: &Record<'_>) {
        let killed = what.process.as_ref().filter(|_| what.kind == EventKind::OomKill);
        let Some(pid) = killed.map(|process| process.pid) else { return };
        let is_near = |then: u64| record.at_us.saturating_sub(then) <= Self::APART_US;
        let chosen = self.chosen.as_ref().filter(|(of, _, then)| *of == pid && is_near(*then));
        what.cgroup = chosen.map(|(_, cgroup, _)| cgroup.clone());
        if what.cgroup.is_none() && self.heading.as_ref().is_some_and(|(_, then)| is_near(*then)) {
            what.cgroup = self.of_heading(record);
        }
    }

    fn of_heading(&mut self, record: &Record<'_>) -> Option<Box<str>> {
        let is_sure = self.is_sure(record.at_us);
        match self.heading.take()? {
            (Heading::One(cgroup), _) => Some(cgroup),
            (Heading::Group { cgroup, caller }, then) => {
                let is_other = |caller: &str| record.caller.is_some_and(|other| other != caller);
                if !is_sure || caller.as_deref().is_some_and(is_other) {
                    return None;
                }
                let found = Some(cgroup.clone());
                self.heading = Some((Heading::Group { cgroup, caller }, then));
                found
            }
        }
    }

    /// Whether every report has a summary now.
    fn is_sure(&self, at_us: u64) -> bool {
        let first = self.begun.front().filter(|_| self.begun.len() >= Self::BURST);
        let is_limited = first.is_some_and(|at| at_us.saturating_sub(*at) <= Self::INTERVAL_US);
        !is_limited && at_us >= self.unsure_until_us
    }
}
