//! NCCL's status as text, made for people (2.24 to 2.28.3, and whoever does not ask for JSON): how
//! large the job is, and what is wrong with it. A healthy communicator is not named in it, so it
//! says nothing of who a rank is.
//!
//! Lines are taken by their beginnings, which are the same in all these versions; lines that are
//! not known pass. Without its two headings a text is no answer.

use super::answer::{Absent, Answer, Communicator, Lost, Process, count, hash};
use std::sync::Arc;

/// No job has more.
const MOST_PROCESSES: u32 = 1 << 18;

/// The part of the text that a line is in.
#[derive(Default)]
enum Part {
    #[default]
    Other,
    /// Processes that did not answer.
    Late,
    /// Processes given up.
    Dead,
    /// Ranks missing in the communicator read last.
    Missing,
}

/// Reads an answer; `None` where it is none.
pub(super) fn from_text(text: &str) -> Option<Answer> {
    let mut answer = Answer::default();
    let (mut part, mut is_summary) = (Part::default(), false);
    let (mut has_summary, mut has_communicators) = (false, false);
    for line in text.lines() {
        if std::mem::take(&mut is_summary) {
            has_summary |= summary(line, &mut answer).is_some();
        }
        let words = line.trim_start();
        if let Some(version) = line.strip_prefix("NCCL version ") {
            answer.version = version.split(' ').next().unwrap_or_default().into();
        } else if line.starts_with("(total)") || line.starts_with("  (total)") {
            is_summary = true;
        } else if line.starts_with("Communicators...") {
            has_communicators = true;
        } else if line == "INCOMPLETE" {
            part = Part::Late;
        } else if line == "DEAD" {
            part = Part::Dead;
        } else if let Some(name) = line.strip_prefix('#') {
            part = named(name, &mut answer).map_or(Part::Other, |()| Part::Missing);
        } else if line.is_empty() || !line.starts_with(' ') {
            part = Part::Other;
        } else {
            detail(words, &part, &mut answer);
        }
    }
    mark_dead(&mut answer);
    (has_summary && has_communicators).then_some(answer)
}

/// `      4          8            1         32       32`: nodes, processes a node, devices a
/// process, processes, devices; without the two in the middle where they differ.
fn summary(line: &str, answer: &mut Answer) -> Option<()> {
    let numbers: Option<Vec<u32>> =
        line.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
    let ([nodes, _, _, processes, _] | [nodes, processes, _]) = *numbers?.as_slice() else {
        return None;
    };
    // By its nodes a job is asked more or less often.
    let is_a_job = nodes <= processes && processes <= MOST_PROCESSES;
    is_a_job.then(|| (answer.nodes, answer.processes) = (nodes, processes))
}

/// `0-0 (cf264af53edbe986) INCOMPLETE`; other troubles of a communicator are not missing ranks.
fn named(name: &str, answer: &mut Answer) -> Option<()> {
    let (_, rest) = name.split_once(" (")?;
    let (digits, what) = rest.split_once(") ")?;
    if what != "INCOMPLETE" {
        return None;
    }
    let hash = hash(digits)?;
    let (ranks, absent) = (Vec::new(), Vec::new());
    answer.communicators.push(Communicator { hash, size: None, ranks, absent, missing: 0 });
    Some(())
}

fn detail(words: &str, part: &Part, answer: &mut Answer) {
    let first_number = |words: &str| words.split(' ').find_map(|word| word.parse::<u32>().ok());
    match part {
        Part::Late | Part::Dead => {
            let (list, total) = if matches!(part, Part::Dead) {
                (&mut answer.dead, &mut answer.dead_count)
            } else {
                (&mut answer.late, &mut answer.late_count)
            };
            if let Some(process) = lost(words) {
                list.push(process);
                *total = (*total).max(count(list.len()));
            } else if words.contains("job process") {
                *total = first_number(words).unwrap_or(0);
            }
        }
        Part::Missing => {
            let Some(communicator) = answer.communicators.last_mut() else { return };
            if words.starts_with("Missing communicator data from ") {
                communicator.missing = first_number(words).unwrap_or(0);
            } else if let Some(list) = words.strip_prefix("The missing rank") {
                // 2.24 and 2.25: `The missing ranks: 3,21`.
                let ranks = list.trim_start_matches(['s', ':', ' ']).split(',');
                communicator.absent.extend(ranks.filter_map(|rank| absent(rank, None)));
            } else if let Some((rank, rest)) =
                words.strip_prefix("Rank ").and_then(|rest| rest.split_once(" -- "))
            {
                communicator.absent.extend(absent(rank, manager(rest)));
            }
        }
        Part::Other => {}
    }
}

fn absent(rank: &str, process: Option<Process>) -> Option<Absent> {
    let rank = rank.trim().parse().ok()?;
    Some(Absent { rank, process, device: None, is_unresponsive: true, is_dead: false })
}

/// `Process 3487984 on node 172.16.64.213 managing GPUs 4,5 (NVML 6,7)`.
fn lost(words: &str) -> Option<Lost> {
    let (pid, rest) = words.strip_prefix("Process ")?.split_once(" on node ")?;
    let (host, devices) = rest.split_once(" managing GPU")?;
    let devices = devices.trim_start_matches(['s', ' ']).split(' ').next();
    let devices = devices.filter(|devices| !devices.is_empty()).map(Box::from);
    Some(Lost { process: Process { host: Arc::from(host), pid: pid.parse().ok()? }, devices })
}

/// `GPU 5 managed by process 3487984 on node 172.16.64.213`.
fn manager(words: &str) -> Option<Process> {
    let (_, rest) = words.split_once(" managed by process ")?;
    let (pid, host) = rest.split_once(" on node ")?;
    Some(Process { host: Arc::from(host), pid: pid.parse().ok()? })
}

/// A rank is dead if its process is.
fn mark_dead(answer: &mut Answer) {
    let Answer { dead, communicators, .. } = answer;
    for absent in communicators.iter_mut().flat_map(|communicator| &mut communicator.absent) {
        let process = absent.process.as_ref();
        absent.is_dead = dead.iter().any(|lost| Some(&lost.process) == process);
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
