//! slurmstepd's own title, `slurmstepd: [JOB.STEP]`: the only place on a node that connects the
//! SLUID of a cgroup to the job's number (all versions, 22.05 to 26.05).
//!
//! Any process can set a title; it is trusted only of a process that runs as root with all its user
//! ids and executes slurmstepd.

use crate::attribute::cgroup::slurm::step_name;
use crate::process::Living;
use gpuwho_model::paths::Paths;
use std::path::Path;
use std::sync::Arc;

/// A parsed title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Title {
    pub(super) job: u32,
    /// Missing in a namespace helper's title (`[6:namespace]`).
    pub(super) step: Option<Arc<str>>,
}

const PROGRAM: &str = "slurmstepd";
/// Maximum number of processes read of one `cgroup.procs`: a step has one slurmstepd, and perhaps
/// one helper.
const MAX_DAEMONS: usize = 4;
/// Maximum number of parents visited: nested shells, no more.
const MAX_PARENTS: usize = 32;

/// Parses a command line.
pub(super) fn parse(command_line: &str) -> Option<Title> {
    let title = command_line.split('\0').next()?;
    let inside = title.strip_prefix("slurmstepd: [")?.split_once(']')?.0;
    let digits = inside.bytes().take_while(u8::is_ascii_digit).count();
    let (job, rest) = inside.split_at_checked(digits)?;
    let job = job.parse().ok()?;
    if rest.is_empty() || rest.starts_with(':') {
        return Some(Title { job, step: None });
    }
    // A component of a heterogeneous step has its number after a `+`.
    let step = rest.strip_prefix('.')?.split('+').next().filter(|step| !step.is_empty())?;
    Some(Title { job, step: Some(Arc::from(step_name(step))) })
}

/// The title of a process that is certainly slurmstepd.
pub(super) fn title(paths: &Paths, pid: u32) -> Option<Title> {
    let daemon = Living::find(paths, pid)?;
    if !is_stepd(&daemon) {
        return None;
    }
    parse(&daemon.read("cmdline")?)
}

/// Whether a process is slurmstepd. Only root's processes have four user ids of 0: a setuid program
/// that a user started has the user's real uid.
fn is_stepd(daemon: &Living) -> bool {
    let uids = daemon.status().and_then(|status| status.uids());
    let is_root = uids.is_some_and(|uids| uids.iter().all(|uid| *uid == 0));
    let program = daemon.program();
    let name = program.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    // An upgrade replaced the file while the process runs.
    let name = name.map(|name| name.strip_suffix(" (deleted)").unwrap_or(name));
    // Debian calls the file `slurmstepd-wlm`.
    let is_program = |name: &str| {
        name.strip_prefix(PROGRAM).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    is_root && &*daemon.comm == PROGRAM && name.is_none_or(is_program)
}

/// The title of a step's slurmstepd, from the step's directory (v2).
pub(super) fn of_step(paths: &Paths, step: &Path) -> Option<Title> {
    let pids = super::inspect::pids(&step.join("slurm/cgroup.procs"), MAX_DAEMONS);
    pids.into_iter().find_map(|pid| title(paths, pid))
}

/// The title of the slurmstepd among a process's parents.
pub(super) fn above(paths: &Paths, process: &Living) -> Option<Title> {
    let mut child = None;
    for _ in 0..MAX_PARENTS {
        let below = child.as_ref().unwrap_or(process);
        let pid = below.parent().filter(|pid| *pid > 1)?;
        let parent = Living::find(paths, pid)?;
        let title = is_stepd(&parent).then(|| parse(&parent.read("cmdline")?)).flatten();
        // A parent that has ended may have left its PID to another process.
        if below.parent() != Some(pid) {
            return None;
        }
        if title.is_some() {
            return title;
        }
        child = Some(parent);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(u32, Option<String>)> {
        parse(text).map(|title| (title.job, title.step.map(|step| step.to_string())))
    }

    #[test]
    fn recorded_titles_name_job_and_step() {
        let step = |step: &str| Some(step.to_owned());
        // 22.05, 25.11 and 26.05 write the same.
        assert_eq!(parsed("slurmstepd: [1.extern] \0"), Some((1, step("extern"))));
        assert_eq!(parsed("slurmstepd: [6.0]                      "), Some((6, step("0"))));
        assert_eq!(parsed("slurmstepd: [9.interactive]"), Some((9, step("interactive"))));
        assert_eq!(parsed("slurmstepd: [9.4294967291]"), Some((9, step("batch"))));
        assert_eq!(parsed("slurmstepd: [20.0+1]"), Some((20, step("0"))));
        assert_eq!(parsed("slurmstepd: [6:namespace]   \0\0"), Some((6, None)));
    }

    #[test]
    fn other_titles_are_rejected() {
        for text in [
            "",
            "sleep\u{0}600\0",
            "slurmstepd",
            "slurmstepd: []",
            "slurmstepd: [x.0]",
            "slurmstepd: [1.]",
            "slurmstepd: [1.0",
            "slurmstepd: [1x0]",
            "slurmstepd: [4294967296.0]",
            "/bin/sh\0slurmstepd: [1.0]\0",
            "xslurmstepd: [1.0]",
        ] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }
}
