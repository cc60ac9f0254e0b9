//! Processes that the kernel killed for want of memory.
//!
//! Read in Linux 6.1 and 6.12 (`dump_oom_victim`, `__oom_kill_process`,
//! `mem_cgroup_print_oom_context`, `mem_cgroup_print_oom_group`), and for 4.18 to 5.0 in the patches
//! that took their words away. A report's lines come in this order, and each has its own record:
//!
//! - up to 4.20 `Task in /a/b killed as a result of limit of /a`; since 5.0
//!   `oom-kill:constraint=…,task_memcg=/a/b,task=python,pid=4321,uid=0`;
//! - `Memory cgroup out of memory: Killed process 4321 (python) total-vm:…`, for which 5.0 and before
//!   write `Killed process …` alone;
//! - with `memory.oom.group`, as the kubelet sets it on cgroup v2, `Tasks in /a/b are going to be
//!   killed due to memory.oom.group set`, and a `Killed process` line for each.

use crate::catalog::event::EventKind;
use crate::event::{Happening, Named, Place, Severity};

/// What such a line says.
pub(super) fn read(text: &str) -> Option<Happening> {
    if text.contains("Killed process ") {
        return killed(text);
    }
    chosen(text.strip_prefix("oom-kill:constraint=")?, text)
}

/// The kill itself.
fn killed(text: &str) -> Option<Happening> {
    let (why, rest) = text.split_once("Killed process ")?;
    // `Out of memory: `, `Memory cgroup out of memory: `, `Out of memory (oom_kill_allocating_task): `.
    let is_why = why.contains("ut of memory") && why.ends_with(": ");
    if !(why.is_empty() || is_why) {
        return None;
    }
    let (pid, rest) = rest.split_once(" (")?;
    // A command name may hold anything, a closing bracket too; what follows it may not.
    let (comm, rest) = rest.rsplit_once(") total-vm:")?;
    let uid = rest.split_once(", UID:").and_then(|(_, rest)| rest.split(' ').next());
    kill((pid, comm, uid), None, text)
}

/// The summary before the kill: `…,oom_memcg=/a,task_memcg=/a/b,task=python,pid=4321,uid=0`, or
/// `…,global_oom,task_memcg=…`; it has the cgroup, which names container or job.
fn chosen(rest: &str, text: &str) -> Option<Happening> {
    let (_, rest) = rest.split_once(",task_memcg=")?;
    let (cgroup, rest) = rest.split_once(",task=")?;
    // A command name may hold commas; the numbers behind it may not.
    let (comm, rest) = rest.rsplit_once(",pid=")?;
    let (pid, uid) = rest.split_once(",uid=")?;
    kill((pid, comm, Some(uid)), Some(cgroup), text)
}

fn kill(
    (pid, comm, uid): (&str, &str, Option<&str>),
    cgroup: Option<&str>,
    text: &str,
) -> Option<Happening> {
    let uid = uid.and_then(|uid| uid.trim_end().parse().ok());
    let process = Some(Named { pid: pid.parse().ok()?, comm: Some(comm.into()), uid });
    let event = Happening::new(EventKind::OomKill, Place::Host, Severity::Warning, text);
    Some(Happening { process, cgroup: cgroup.map(Box::from), ..event })
}

/// The report that is being read: its two lines about one process are one event, and a cgroup that
/// has a line of its own goes to the kills behind it.
#[derive(Debug, Default)]
pub(in crate::collect::kmsg) struct Kills {
    last: Option<(u32, u64)>,
    cgroup: Option<(Box<str>, u64)>,
}

impl Kills {
    /// A report is written in one go; a number is not used again as soon.
    const APART_US: u64 = 2_000_000;

    /// Looks whether a line names the cgroup of the kills behind it.
    pub(in crate::collect::kmsg) fn heed(&mut self, text: &str, at_us: u64) {
        let one = || text.strip_prefix("Task in ")?.split_once(" killed as a result of limit of ");
        let group =
            || text.strip_prefix("Tasks in ")?.split_once(" are going to be killed due to ");
        if let Some((cgroup, _)) = one().or_else(group) {
            self.cgroup = Some((cgroup.into(), at_us));
        }
    }

    /// What is to be told of a line: nothing if the line before has told it.
    pub(in crate::collect::kmsg) fn told(
        &mut self,
        mut what: Happening,
        at_us: u64,
    ) -> Option<Happening> {
        let killed = what.process.as_ref().filter(|_| what.kind == EventKind::OomKill);
        let Some(pid) = killed.map(|process| process.pid) else { return Some(what) };
        let is_near = |then: u64| at_us.saturating_sub(then) <= Self::APART_US;
        let before = self.last.replace((pid, at_us));
        if before.is_some_and(|(last, then)| last == pid && is_near(then)) {
            return None;
        }
        if what.cgroup.is_some() {
            // Another report begins.
            self.cgroup = None;
        } else if let Some((cgroup, then)) = &self.cgroup
            && is_near(*then)
        {
            what.cgroup = Some(cgroup.clone());
        }
        Some(what)
    }
}
