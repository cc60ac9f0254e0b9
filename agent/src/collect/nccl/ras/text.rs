//! NCCL's status as text, made for people (2.24 to 2.28.3, and whoever does not ask for JSON): how
//! large the job is, and what is wrong with it: ranks that are missing, and ranks that differ in
//! what they have launched. A communicator without troubles is not named in it, so it does not say
//! who a rank is.
//!
//! Lines are taken by their beginnings (`rasClientRunComms` in `src/ras/client_support.cc`); lines
//! that are not known pass. A text without one of its headings, or that ends within a line, is no
//! answer: it was cut short. One that names more than [`MOST_ENTRIES`] is none either. Takes time in
//! proportion to the text's length.

use super::answer::{
    Answer, Communicator, LocalNames, LostProcess, MAX_ENTRIES, MAX_LOCAL, MissingRank, Process,
    count, device_bit, hash, sum,
};
use super::unequal::Unequal;
use crate::communicators::CommunicatorHash;
use std::collections::{HashMap, HashSet};

/// Room that 2.24 and 2.25 have for a list of ranks (`lineBuf`, with the zero at its end): what
/// does not fit is cut off, be it within a number.
const MAX_LIST_LEN: usize = 1_023;
/// No job has more.
const MAX_PROCESSES: u32 = 1 << 18;

/// The part of the text that a line is in.
#[derive(Default)]
enum Part {
    #[default]
    Other,
    /// Processes that did not answer.
    Late,
    /// Processes given up.
    Dead,
    /// Ranks missing in the communicator of this place.
    Missing(usize),
    /// Ranks of the communicator that differ in something.
    Mismatch(usize),
    /// In their status: those that are listed now are no members, or are.
    Status(usize, bool),
    /// In how much they have launched.
    Launched,
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    answer: Answer,
    part: Part,
    places: HashMap<CommunicatorHash, usize>,
    /// Counts in which ranks differ, with the place of their communicator.
    unequal: Vec<(usize, Unequal)>,
    /// Communicators, ranks, processes and counts.
    entries: usize,
}

/// Why a text is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum TextError {
    /// It names more communicators and ranks than are read.
    #[error("more than {MAX_ENTRIES} communicators and ranks")]
    TooMany,
    /// It is not what NCCL writes, or was cut short.
    #[error("not a whole status")]
    NotWhole,
}

/// Reads an answer.
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
            // An empty line is also between two operations of one communicator (2.26 and later).
            self.part = Part::Other;
        }
    }

    /// `0-0 (cf264af53edbe986) INCOMPLETE`: a communicator may come once for each trouble.
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

    /// In what ranks differ, and who differs in status.
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
            // Those are members.
        } else if let Some(list) = words.strip_prefix("The unknown ranks: ") {
            // 2.24 and 2.25.
            communicator.absent.extend(listed(list, false));
        } else if let Some((rank, rest)) = rank(words) {
            communicator.absent.extend(absent(rank, manager(rest), false));
        }
        self.entries += communicator.absent.len() - before;
    }

    /// The answer, when all was read. A rank is dead if its process is.
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
            let local = named.into_iter().filter(|(_, is)| here.believed.contains_key(is));
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
    /// 2.24 and 2.25 do not know why a rank is missing: where processes did not answer, those of
    /// unknown status are the missing ones again.
    fn are_not_missing(&self, status: &str) -> bool {
        status != "UNKNOWN" || self.missing == 0
    }

    /// So many ranks' processes have answered and are no members.
    fn leave(&mut self, ranks: u32) {
        self.missing = self.missing.saturating_add(ranks);
        self.left = self.left.saturating_add(ranks);
    }
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
    let is_a_job = nodes <= processes && processes <= MAX_PROCESSES;
    is_a_job.then(|| (answer.nodes, answer.processes) = (nodes, processes))
}

fn first_number(words: &str) -> Option<u32> {
    words.split(' ').find_map(|word| word.parse().ok())
}

/// A line about processes that are not heard; how many it names.
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

/// `Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213`.
fn rank(words: &str) -> Option<(&str, &str)> {
    words.strip_prefix("Rank ")?.split_once(" -- ")
}

/// `3,21`, without the last where it may have been cut off.
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

/// `Process 3487984 on node 172.16.64.213 managing GPUs 4,5 (NVML 6,7)`.
fn lost(words: &str) -> Option<LostProcess> {
    let (pid, rest) = words.strip_prefix("Process ")?.split_once(" on node ")?;
    let (host, devices) = rest.split_once(" managing GPU")?;
    let devices = devices.trim_start_matches(['s', ' ']).split(' ').next().unwrap_or_default();
    let bits = devices.split(',').filter_map(|device| device.parse().ok()).map(device_bit);
    let process = Process::named(host, pid.parse().ok()?)?;
    Some(LostProcess { process, devices: bits.fold(0, |all, bit| all | bit) })
}

/// `GPU 5 managed by process 3487984 on node 172.16.64.213`.
pub(super) fn manager(words: &str) -> Option<Process> {
    let (_, rest) = words.split_once(" managed by process ")?;
    let (pid, host) = rest.split_once(" on node ")?;
    Process::named(host, pid.parse().ok()?)
}

#[cfg(test)]
mod tests;
