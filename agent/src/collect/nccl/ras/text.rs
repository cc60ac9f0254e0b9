//! Parses NCCL's status as text, made for people (2.24 to 2.28.3, and for clients that do not
//! request JSON): the size of the job and its problems, which are missing ranks and ranks that
//! differ in launched operations. A communicator without problems is not listed, so the text does
//! not identify every rank.
//!
//! Lines are recognised by how they start (`rasClientRunComms` in `src/ras/client_support.cc`);
//! unknown lines are ignored. A text without one of its headings, or that ends within a line, is
//! truncated and rejected, and so is one with more than [`MAX_ENTRIES`] entries. Takes time linear
//! in the length of the text.

use super::answer::{
    Answer, Communicator, LocalNames, LostProcess, MAX_ENTRIES, MAX_LOCAL, MissingRank, Process,
    count, device_bit, hash, sum,
};
use super::unequal::Unequal;
use crate::communicators::CommunicatorHash;
use std::collections::{HashMap, HashSet};

/// Buffer of 2.24 and 2.25 for a list of ranks (`lineBuf` without the final zero): the rest is cut
/// off, possibly within a number.
const MAX_LIST_LEN: usize = 1_023;
/// No job has more processes.
const MAX_PROCESSES: u32 = 1 << 18;

/// The section of the text that a line is in.
#[derive(Default)]
enum Part {
    #[default]
    Other,
    /// Processes that did not answer.
    Late,
    /// Processes that NCCL gave up.
    Dead,
    /// Ranks missing in the communicator at this position.
    Missing(usize),
    /// Ranks of the communicator that differ.
    Mismatch(usize),
    /// Ranks that differ in status: whether the listed ones are non-members.
    Status(usize, bool),
    /// Ranks that differ in launched operations.
    Launched,
}

/// The state of the parser.
#[derive(Default)]
struct Reading {
    answer: Answer,
    part: Part,
    places: HashMap<CommunicatorHash, usize>,
    /// Counts in which ranks differ, with the position of their communicator.
    unequal: Vec<(usize, Unequal)>,
    /// Number of communicators, ranks, processes and counts so far.
    entries: usize,
}

/// Why a text is rejected.
#[derive(Debug, thiserror::Error)]
pub(super) enum TextError {
    /// It has more entries than the limit.
    #[error("more than {MAX_ENTRIES} communicators and ranks")]
    TooMany,
    /// It is not NCCL's format, or it is truncated.
    #[error("not a whole status")]
    NotWhole,
}

/// Parses an answer.
pub(super) fn from_text(text: &str, here: &LocalNames) -> Result<Answer, TextError> {
    let (mut reading, mut is_summary) = (Reading::default(), false);
    let [mut has_summary, mut has_communicators, mut has_warnings] = [false; 3];
    for line in text.lines() {
        if std::mem::take(&mut is_summary) {
            has_summary |= summary(line, &mut reading.answer).is_some();
        }
        if line.starts_with("(total)") || line.starts_with("  (total)") {
            is_summary = true;
        }
        has_communicators |= line.starts_with("Communicators...");
        has_warnings |= line == "Warnings";
        reading.line(line);
        if reading.entries > MAX_ENTRIES {
            return Err(TextError::TooMany);
        }
    }
    let is_whole = has_summary && has_communicators && has_warnings && text.ends_with('\n');
    if is_whole { Ok(reading.end(here)) } else { Err(TextError::NotWhole) }
}

impl Reading {
    fn line(&mut self, line: &str) {
        if line == "INCOMPLETE" {
            self.part = Part::Late;
        } else if line == "DEAD" {
            self.part = Part::Dead;
        } else if let Some(name) = line.strip_prefix('#') {
            self.part = self.named(name).unwrap_or_default();
        } else if line.starts_with(' ') {
            self.detail(line.trim_start());
        } else if !line.is_empty() {
            // Empty lines also separate operations of one communicator (2.26 and later).
            self.part = Part::Other;
        }
    }

    /// Parses `0-0 (cf264af53edbe986) INCOMPLETE`: a communicator is listed once for each problem.
    fn named(&mut self, name: &str) -> Option<Part> {
        let (_, rest) = name.split_once(" (")?;
        let (digits, what) = rest.split_once(") ")?;
        let hash = hash(digits)?;
        let (all, entries) = (&mut self.answer.communicators, &mut self.entries);
        let mut place = || {
            *self.places.entry(hash).or_insert_with(|| {
                *entries += 1;
                all.push(Communicator::new(hash));
                all.len() - 1
            })
        };
        match what {
            "INCOMPLETE" => Some(Part::Missing(place())),
            "MISMATCH" => Some(Part::Mismatch(place())),
            _ => None,
        }
    }

    fn detail(&mut self, words: &str) {
        match self.part {
            Part::Late => {
                let Answer { late, late_count, .. } = &mut self.answer;
                self.entries += unanswered(words, late, late_count);
            }
            Part::Dead => {
                let Answer { dead, dead_count, .. } = &mut self.answer;
                self.entries += unanswered(words, dead, dead_count);
            }
            Part::Missing(place) => {
                if let Some(communicator) = self.answer.communicators.get_mut(place) {
                    let before = communicator.absent.len();
                    missing(words, communicator);
                    self.entries += communicator.absent.len() - before;
                }
            }
            Part::Mismatch(place) | Part::Status(place, _) => self.differing(words, place),
            Part::Launched => {
                let place = self.unequal.last().map(|(place, _)| *place);
                let is_known =
                    self.unequal.last_mut().is_some_and(|(_, unequal)| unequal.take(words));
                self.entries += usize::from(is_known);
                if let Some(place) = place.filter(|_| !is_known) {
                    self.differing(words, place);
                }
            }
            Part::Other => {}
        }
    }

    /// Parses a line about differing ranks.
    fn differing(&mut self, words: &str, place: usize) {
        if let Some(unequal) = Unequal::begin(words) {
            self.unequal.push((place, unequal));
            self.entries += 1;
            self.part = Part::Launched;
            return;
        }
        let Some(communicator) = self.answer.communicators.get_mut(place) else { return };
        let before = communicator.absent.len();
        let is_member = |status: &str| !matches!(status, "UNKNOWN" | "NOCOMM");
        if let Some((ranks, status)) = words.split_once(" ranks have status ") {
            let has_left = !is_member(status) && communicator.are_not_missing(status);
            if let (true, Ok(ranks)) = (has_left, ranks.parse()) {
                communicator.leave(ranks);
            }
            self.part = Part::Status(place, has_left);
        } else if let Some((rank, status)) =
            words.strip_prefix("Rank ").and_then(|rest| rest.split_once(" has status "))
        {
            let word = status.split(' ').next().unwrap_or_default();
            if !is_member(word) && communicator.are_not_missing(word) {
                communicator.leave(1);
                communicator.absent.extend(absent(rank, manager(status), false));
            }
        } else if !matches!(self.part, Part::Status(_, true)) {
            // The listed ranks are members.
        } else if let Some(list) = words.strip_prefix("The unknown ranks: ") {
            // 2.24 and 2.25.
            communicator.absent.extend(listed(list, false));
        } else if let Some((rank, rest)) = rank(words) {
            communicator.absent.extend(absent(rank, manager(rest), false));
        }
        self.entries += communicator.absent.len() - before;
    }

    /// Builds the answer. A rank is dead if its process is.
    fn end(self, here: &LocalNames) -> Answer {
        let Self { mut answer, unequal, .. } = self;
        let mut by_place: HashMap<usize, Vec<Unequal>> = HashMap::new();
        for (place, one) in unequal {
            by_place.entry(place).or_default().push(one);
        }
        let mut left = MAX_LOCAL;
        for (place, communicator) in answer.communicators.iter_mut().enumerate() {
            let Some(mine) = by_place.get(&place) else { continue };
            communicator.foremost = sum(mine.iter().map(Unequal::foremost));
            let named = Unequal::processes(mine);
            let others = named.values().filter(|process| here.others.contains(process)).count();
            answer.claims += others as u64;
            let local = named.into_iter().filter(|(_, is)| here.trusted.contains_key(is));
            let ranks = local.filter_map(|(number, process)| Unequal::rank(mine, number, process));
            communicator.ranks = ranks.take(left).collect();
            left -= communicator.ranks.len();
        }
        let dead: HashSet<Process> = answer.dead.iter().map(|lost| lost.process).collect();
        let all = answer.communicators.iter_mut();
        for absent in all.flat_map(|communicator| &mut communicator.absent) {
            absent.is_dead = absent.process.is_some_and(|process| dead.contains(&process));
        }
        answer
    }
}

impl Communicator {
    /// False for ranks that are already counted as missing: 2.24 and 2.25 do not say why a rank is
    /// missing, so if processes did not answer, ranks of unknown status are the missing ones again.
    fn are_not_missing(&self, status: &str) -> bool {
        status != "UNKNOWN" || self.missing == 0
    }

    /// Counts ranks whose processes answered and are not members.
    fn leave(&mut self, ranks: u32) {
        self.missing = self.missing.saturating_add(ranks);
        self.left = self.left.saturating_add(ranks);
    }
}

/// Parses `      4          8            1         32       32`: nodes, processes per node, devices
/// per process, processes, devices; without the two in the middle if they differ.
fn summary(line: &str, answer: &mut Answer) -> Option<()> {
    let numbers: Option<Vec<u32>> =
        line.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
    let ([nodes, _, _, processes, _] | [nodes, processes, _]) = *numbers?.as_slice() else {
        return None;
    };
    // The number of nodes determines the query interval.
    let is_a_job = nodes <= processes && processes <= MAX_PROCESSES;
    is_a_job.then(|| (answer.nodes, answer.processes) = (nodes, processes))
}

fn first_number(words: &str) -> Option<u32> {
    words.split(' ').find_map(|word| word.parse().ok())
}

/// Parses a line about processes that do not answer; returns the number of entries.
fn unanswered(words: &str, list: &mut Vec<LostProcess>, total: &mut u32) -> usize {
    if let Some(process) = lost(words) {
        list.push(process);
        *total = (*total).max(count(list.len()));
        return 1;
    }
    if words.contains("job process") {
        *total = first_number(words).unwrap_or(0).min(MAX_PROCESSES);
    }
    0
}

fn missing(words: &str, communicator: &mut Communicator) {
    if words.starts_with("Missing communicator data from ") {
        communicator.missing = first_number(words).unwrap_or(0).min(MAX_PROCESSES);
    } else if let Some(list) = words.strip_prefix("The missing rank") {
        // 2.24 and 2.25: `The missing ranks: 3,21`.
        communicator.absent.extend(listed(list.trim_start_matches(['s', ':', ' ']), true));
    } else if let Some((rank, rest)) = rank(words) {
        communicator.absent.extend(absent(rank, manager(rest), true));
    }
}

/// Parses `Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213`.
fn rank(words: &str) -> Option<(&str, &str)> {
    words.strip_prefix("Rank ")?.split_once(" -- ")
}

/// Parses `3,21`, without the last number if it may be cut off.
fn listed(list: &str, is_unresponsive: bool) -> impl Iterator<Item = MissingRank> + '_ {
    let whole = if list.len() < MAX_LIST_LEN {
        list
    } else {
        list.rsplit_once(',').map_or("", |(whole, _)| whole)
    };
    whole.split(',').filter_map(move |rank| absent(rank, None, is_unresponsive))
}

fn absent(rank: &str, process: Option<Process>, is_unresponsive: bool) -> Option<MissingRank> {
    let rank = rank.trim().parse().ok()?;
    Some(MissingRank { rank, process, is_unresponsive, is_dead: false })
}

/// Parses `Process 3487984 on node 172.16.64.213 managing GPUs 4,5 (NVML 6,7)`.
fn lost(words: &str) -> Option<LostProcess> {
    let (pid, rest) = words.strip_prefix("Process ")?.split_once(" on node ")?;
    let (host, devices) = rest.split_once(" managing GPU")?;
    let devices = devices.trim_start_matches(['s', ' ']).split(' ').next().unwrap_or_default();
    let bits = devices.split(',').filter_map(|device| device.parse().ok()).map(device_bit);
    let process = Process::named(host, pid.parse().ok()?)?;
    Some(LostProcess { process, devices: bits.fold(0, |all, bit| all | bit) })
}

/// Parses `GPU 5 managed by process 3487984 on node 172.16.64.213`.
pub(super) fn manager(words: &str) -> Option<Process> {
    let (_, rest) = words.split_once(" managed by process ")?;
    let (pid, host) = rest.split_once(" on node ")?;
    Process::named(host, pid.parse().ok()?)
}

#[cfg(test)]
mod tests;
