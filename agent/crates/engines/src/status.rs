//! How each endpoint stands, for all of them together: what `gpuwho doctor` prints, and the counts.

use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::endpoint::PageOutcome;
use gpuwho_model::status::Report;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names of endpoints or families that one sentence has.
const MAX_NAMED: usize = 5;

/// What all endpoints share.
#[derive(Clone, Debug, Default)]
pub(super) struct Endpoints(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    lines: BTreeMap<u32, Line>,
    outcomes: [u64; PageOutcome::ALL.len()],
    errors: u64,
    refused: usize,
}

/// One endpoint after its last request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// Which engine, and where.
    pub name: String,
    /// Why its page was not read, and what can be done.
    pub problem: Option<(String, &'static str)>,
    /// How its families differ from what is known; empty where they do not.
    pub drift: String,
    /// Lines of series beyond those that are read of its page.
    pub left_out: usize,
}

/// What can be done where a page has more series than are read.
pub(super) const TOO_MANY_SERIES: &str = "see which label of the engine has so many values";

impl Line {
    /// What of the page is not read.
    pub(super) fn words_of_left_out(&self) -> String {
        format!("{}: {} lines of its page are too many series", self.name, self.left_out)
    }
}

impl Endpoints {
    /// Takes what came of a request.
    pub(super) fn put(&self, part: u32, line: Line, outcome: PageOutcome) {
        let mut state = self.0.lock();
        state.errors += u64::from(outcome != PageOutcome::Read);
        if let Some(count) = state.outcomes.get_mut(outcome as usize) {
            *count += 1;
        }
        state.lines.insert(part, line);
    }

    /// An endpoint is not read any more.
    pub(super) fn remove(&self, part: u32) {
        self.0.lock().lines.remove(&part);
    }

    /// How many found engines have no room.
    pub(super) fn set_refused(&self, refused: usize) {
        self.0.lock().refused = refused;
    }

    /// Requests so far, by what came of them.
    pub(super) fn outcomes(&self) -> [u64; PageOutcome::ALL.len()] {
        self.0.lock().outcomes
    }

    /// How the source is doing.
    pub(super) fn report(&self) -> Report {
        let state = self.0.lock();
        let failing: Vec<&Line> =
            state.lines.values().filter(|line| line.problem.is_some()).collect();
        let words = |line: &&Line| {
            let (reason, _) = line.problem.as_ref()?;
            Some(format!("{}: {reason}", line.name))
        };
        let (all, read) = (state.lines.len(), state.lines.len() - failing.len());
        let report = match failing.first().and_then(|line| line.problem.as_ref()) {
            Some((_, remedy)) => {
                let named: Vec<String> = failing.iter().take(MAX_NAMED).filter_map(words).collect();
                let reason = format!("{read} of {all} engines are read; {}", named.join("; "));
                Report::of(SourceState::Degraded, reason, *remedy)
            }
            None if state.refused > 0 => {
                let refused = state.refused;
                let reason = format!("{all} engines are read, {refused} are too many of one owner");
                Report::of(SourceState::Degraded, reason, "name those to read in engines.endpoints")
            }
            None if state.lines.values().any(|line| line.left_out > 0) => {
                let cut = state.lines.values().filter(|line| line.left_out > 0);
                let named: Vec<String> = cut.take(MAX_NAMED).map(Line::words_of_left_out).collect();
                Report::of(SourceState::Degraded, named.join("; "), TOO_MANY_SERIES)
            }
            None if all == 0 => Report::of(
                SourceState::Absent,
                "no process that holds a device serves as a known engine does",
                "",
            ),
            None => Report::ready(),
        };
        Report { errors: state.errors, ..report }
    }
}

/// The families that differ, in words; empty where none does.
pub(super) fn drift(unknown: &[Box<str>], unknown_count: usize, missing: &[&str]) -> String {
    let named = |names: Vec<&str>, count: usize, word: &str| {
        let more = if count > MAX_NAMED { ", …" } else { "" };
        let names = names.into_iter().take(MAX_NAMED).collect::<Vec<_>>().join(", ");
        (count > 0).then(|| format!("{count} {word} ({names}{more})"))
    };
    let unknown = named(unknown.iter().map(AsRef::as_ref).collect(), unknown_count, "unknown");
    let missing = named(missing.to_vec(), missing.len(), "missing");
    unknown.into_iter().chain(missing).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, problem: Option<&str>) -> Line {
        let problem = problem.map(|problem| (problem.to_owned(), "restart it"));
        Line { name: name.into(), problem, ..Line::default() }
    }

    #[test]
    fn one_engine_that_fails_is_named_and_the_others_are_counted() {
        let endpoints = Endpoints::default();
        assert_eq!(endpoints.report().state, SourceState::Absent);
        endpoints.put(1, line("vllm on port 8000", None), PageOutcome::Read);
        assert_eq!(endpoints.report(), Report::ready());
        endpoints.put(2, line("triton on port 8002", Some("late")), PageOutcome::Late);
        let report = endpoints.report();
        let words = "1 of 2 engines are read; triton on port 8002: late";
        assert_eq!((report.reason.as_str(), report.remedy.as_str()), (words, "restart it"));
        assert_eq!((report.state, report.errors), (SourceState::Degraded, 1));
        assert_eq!(endpoints.outcomes()[PageOutcome::Late as usize], 1);
        endpoints.remove(2);
        assert_eq!(endpoints.report(), Report { errors: 1, ..Report::ready() });
        let cut = Line { left_out: 9, ..line("vllm on port 8000", None) };
        endpoints.put(1, cut, PageOutcome::Read);
        let report = endpoints.report();
        let words = "vllm on port 8000: 9 lines of its page are too many series";
        assert_eq!((report.state, report.reason.as_str()), (SourceState::Degraded, words));
        endpoints.set_refused(3);
        assert_eq!(endpoints.report().state, SourceState::Degraded);
    }

    #[test]
    fn drift_names_some_families_and_counts_all() {
        let unknown: Vec<Box<str>> = ["a", "b", "c", "d", "e", "f"].map(Box::from).to_vec();
        let words = "9 unknown (a, b, c, d, e, …), 1 missing (g)";
        assert_eq!(drift(&unknown, 9, &["g"]), words);
        assert_eq!(drift(&[], 0, &[]), "");
    }
}
