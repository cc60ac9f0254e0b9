//! Rules about words: identifiers that the field's own words have replaced, phrases of old messages, and
//! sentences that are too long to be read at night. `agent/docs/glossary.md` has the words in use.

use super::Finding;
use super::tree::{Token, Tree, is_test_file};

/// Whole identifiers that were retired, and their successors. A word is on the list once it is gone
/// from the code.
const RETIRED: &[(&[&str], &str)] = &[
    (&["Parties", "party", "parties", "by_party", "of_party"], "Owner, owners"),
    (&["PartyId", "party_id", "Party", "GpuParty"], "OwnerId, Owner, GpuOwner"),
    (&["PartyFacts"], "OwnerFacts"),
    (&["Person"], "OwnerView"),
    (&["Desk", "desk"], "EventAggregator, ProviderContext or ReaderServer"),
    (&["Happening", "Happenings", "happening", "happenings"], "Observation"),
    (&["Witness", "witness", "witnesses"], "EventSource, ProcessEvidence"),
    (&["Victims", "victims", "struck"], "AffectedOwner, affected"),
    (&["Supplier", "supplier", "is_supplier"], "Provider"),
    (&["Suppliers", "suppliers", "SUPPLIERS", "start_suppliers"], "MetadataProviders, providers"),
    (&["Wants"], "LookupQueue"),
    (&["Questions"], "Lookups"),
    (&["Names"], "MetadataCache, NcclNames or SymbolNames"),
    (&["Shelf", "shelf"], "ProviderCache"),
    (&["Standing", "Standings"], "SourceStatus, RankStatus or RasEndpoint"),
    (&["Ears", "ears"], "EventListener"),
    (&["Heard", "unheard", "is_unheard"], "Received, receive, unanswered"),
    (&["untold", "told", "Told", "told_since"], "undecided, reported, WatchedAgent"),
    (&["tell", "tell_cgroup", "say"], "report, notify, answer, write_line, print_line"),
    (
        &["tell_calls", "tell_coverage", "tell_granted", "tell_known", "tell_means", "tell_once"],
        "report_calls and the like, emit_once",
    ),
    (
        &["tell_presence", "tell_silent", "tell_version", "name_told", "fit_to_tell"],
        "report_presence and the like, recorded_name, printable_name",
    ),
    (&["Waker"], "RescanHandle"),
    (&["Stirred", "stir"], "PendingRescans, pending, request_rescan"),
    (&["recall"], "load_known"),
    (&["Away"], "Unavailable"),
    (&["Knows"], "ReaderContext"),
    (&["Ending"], "Disconnect"),
    (&["Leaving"], "ExitingChild"),
    (&["Hangup"], "CloseHandle"),
    (&["judge"], "classify"),
    (&["credible"], "in_range"),
    (&["Kept"], "CachedReadings"),
    (&["Opening"], "OpenOptions"),
    (&["Refusal"], "OpenErrorKind, RejectReason or ProbeRefusal"),
    (&["name_again"], "refresh_names"),
    (&["Identities"], "PidCache"),
    (&["Lives"], "PidfdSet"),
    (&["Ends"], "ExitDetector"),
    (
        &["Grants", "GrantId", "GrantWords", "GpuGrant", "JobGrants"],
        "AllocationRegistry, AllocationId, AllocationDetails",
    ),
    (&["Beside"], "PinnedResources"),
    (&["Claimed"], "DraDevice"),
    (&["Ledger", "ledger"], "Accounting"),
    (&["Crew", "crew_of"], "Occupancy"),
    (&["seat"], "slot"),
    (&["Presences"], "DeviceOpeners"),
    (&["Enricher", "enricher"], "SeriesRegistry"),
    (&["Looked"], "ScanOutcome, SubjectLookup"),
    (&["Ceiling"], "SeriesLimit"),
    (&["Gauges"], "SelfStats"),
    (&["Own"], "SelfMetrics, ProcessNames"),
    (&["pump"], "tick_loop"),
    (&["lane"], "OtlpQueue"),
    (&["Roll", "roll"], "MemberTable"),
    (&["Punctuality", "lateness_ns", "tell_punctuality"], "ArrivalSkew, skew_ns"),
    (&["Governing", "governing"], "ProbeBudget, ProbeBudgets"),
    (
        &["Governor", "governor", "GOVERNOR", "GovernorLevel", "GovernorChange"],
        "ProbeBudget, ProbeLevel",
    ),
    (&["Patience", "patience"], "RecoveryTiming, recovery"),
    (&["Price", "dearest"], "ProbeCost, costliest"),
    (&["Cover", "Covered", "Covers", "covers"], "Uptime, UptimeTotals, UptimeByUse"),
    (&["Busiest"], "TopCaller"),
    (&["Looks"], "ProcessScan"),
    (&["Hooks"], "LinkerProbes"),
    (&["Study"], "JobInspector"),
    (&["Belief", "belief"], "TrustPolicy"),
    (&["usual", "is_usual"], "default"),
    (&["PATIENCE", "USUAL_LIMIT", "MAX_PARTIES"], "TIMEOUT, DEFAULT_LIMIT, MAX_OWNERS"),
    (&["renumber", "mark_silent"], "reset_slots, mark_hung"),
    (&["Dear", "Drafting", "Fed"], "OverCpuBudget, ParseTurn, DcgmFeeds"),
];

/// Phrases of the agent's messages that were hard to read, and what they say now.
const RETIRED_PHRASES: &[(&str, &str)] = &[
    ("on the mean", "average"),
    (" at most, of a device", "peak per GPU"),
    ("root sees all", "run as root"),
    ("on no driver's list", "the driver does not list"),
    ("looked for again", "will keep checking"),
    ("wait for a reset", "pending: needs a GPU reset"),
    ("static memor", "SRAM"),
    ("a fault of the", "PCIe bus fault"),
    ("the device is gone", "device lost"),
    ("that was asked for works", "checks passed"),
    ("do not work as they should", "failed"),
    ("opens the devices again", "reopens the devices"),
    ("hardware is well", "hardware is healthy"),
    ("of others are", "of other users are"),
    ("says what to do", "see"),
    (" granted", "allocated"),
];

/// Words of a sentence that a person reads in `gpuwho doctor`.
const MAX_WORDS: usize = 25;

/// How retired identifiers begin, and what their successors begin with.
const RETIRED_PREFIXES: &[(&str, &str)] = &[("MOST_", "MAX_"), ("LONGEST_", "MAX_")];

/// An old word that comes back is a second word for one thing. Strings and comments may hold it.
pub(super) fn retired(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _) in tree.ending(".rs") {
        for token in tree.source(path).tokens() {
            if let Some(successor) = successor(&token.text) {
                findings.push(Finding {
                    file: path.to_owned(),
                    line: token.line,
                    rule: "retired identifiers stay away",
                    remedy: format!("{} is now {successor}", token.text),
                });
            }
        }
    }
    findings
}

/// A phrase that comes back in a message of the agent.
pub(super) fn phrases(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in messages(tree) {
        for token in tree.source(path).shipped() {
            let text = token.string().unwrap_or_default();
            let found = RETIRED_PHRASES.iter().find(|(phrase, _)| text.contains(phrase));
            findings.extend(found.map(|(phrase, now)| Finding {
                file: path.to_owned(),
                line: token.line,
                rule: "messages are plain English",
                remedy: format!("`{phrase}` is now: {now}"),
            }));
        }
    }
    findings
}

/// A finding of `gpuwho doctor` with a sentence that is too long.
pub(super) fn long_sentences(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in messages(tree) {
        let tokens: Vec<&Token> = tree.source(path).shipped().collect();
        let words: Vec<&str> = tokens.iter().map(|token| &*token.text).collect();
        let starts = words.windows(5).enumerate();
        let starts = starts.filter(|(_, of)| *of == ["Finding", ":", ":", "new", "("]);
        for (at, _) in starts {
            let mut depth = 0_usize;
            let inside = tokens.iter().skip(at + 4).take_while(|token| {
                match &*token.text {
                    "(" => depth += 1,
                    ")" => depth -= 1,
                    _ => {}
                }
                depth > 0
            });
            let is_long =
                |text: &str| text.split(". ").any(|one| one.split_whitespace().count() > MAX_WORDS);
            let long = inside.filter(|token| token.string().is_some_and(is_long));
            findings.extend(long.map(|token| Finding {
                file: path.to_owned(),
                line: token.line,
                rule: "a sentence of `gpuwho doctor` has 25 words at most",
                remedy: "make two sentences of it, or say less".to_owned(),
            }));
        }
    }
    findings
}

/// Files with messages of the agent.
fn messages(tree: &Tree) -> impl Iterator<Item = &str> {
    let sources = tree.ending(".rs").map(|(path, _)| path);
    sources.filter(|path| path.starts_with("agent/") && !is_test_file(path))
}

/// What took the place of a retired identifier; `None` for any other token.
fn successor(identifier: &str) -> Option<&'static str> {
    let whole = RETIRED.iter().find(|(words, _)| words.contains(&identifier));
    let begun = || RETIRED_PREFIXES.iter().find(|(prefix, _)| identifier.starts_with(prefix));
    whole.map(|(_, successor)| *successor).or_else(|| begun().map(|(_, successor)| *successor))
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::{RETIRED, RETIRED_PREFIXES, long_sentences, phrases, retired};
    use std::collections::BTreeSet;

    fn remedies(text: &str) -> Vec<(usize, String)> {
        let found = retired(&Tree::of([("agent/src/a.rs", text)]));
        found.into_iter().map(|finding| (finding.line, finding.remedy)).collect()
    }

    #[test]
    fn retired_types_functions_modules_fields_and_locals_are_found_with_their_successor() {
        let text = "mod shelf;\nstruct Shelf { seat: u8 }\nfn stir() {\n    let ears = 1;\n}\n";
        let (cache, slot) = ("ProviderCache", "slot");
        let expected = [
            (1, format!("shelf is now {cache}")),
            (2, format!("Shelf is now {cache}")),
            (2, format!("seat is now {slot}")),
            (3, "stir is now PendingRescans, pending, request_rescan".to_owned()),
            (4, "ears is now EventListener".to_owned()),
        ];
        assert_eq!(remedies(text), expected);
    }

    #[test]
    fn a_retired_prefix_is_found_in_every_constant() {
        let expected = [(1, "MOST_FILES is now MAX_".to_owned())];
        assert_eq!(remedies("const MOST_FILES: usize = 8;\n"), expected);
    }

    #[test]
    fn retired_identifiers_are_found_in_tests_and_macros_too() {
        let text = "#[cfg(test)]\nmod tests {\n    fn a() { assert!(ears == 1) }\n}\n";
        assert_eq!(remedies(text).len(), 1);
    }

    #[test]
    fn strings_comments_and_longer_identifiers_are_left_alone() {
        let text = "//! A shelf.\n/// A seat.\nfn seated() { // ears\n    f(\"stir the shelf\", b\"seat\", r#\"ears\"#, bookshelf)\n}\n";
        assert_eq!(remedies(text), []);
    }

    #[test]
    fn a_message_in_old_words_is_found_and_one_in_a_test_is_not() {
        let text = "fn a() { f(\"90 W on the mean\") }\n#[cfg(test)]\nmod t { fn a() { f(\"root sees all\") } }";
        let found = phrases(&Tree::of([("agent/src/a.rs", text)]));
        let found: Vec<_> = found.into_iter().map(|one| (one.line, one.remedy)).collect();
        assert_eq!(found, [(1, "`on the mean` is now: average".to_owned())]);
    }

    #[test]
    fn a_finding_with_a_long_sentence_is_found() {
        let long = "a word ".repeat(13);
        let of = |facts: &str| {
            let text =
                format!("fn a() {{ let x = \"{long}\"; Finding::new(\"a\", f(), \"{facts}\"); }}");
            long_sentences(&Tree::of([("agent/src/a.rs", &text)])).len()
        };
        let two = format!("{}. and more", "a word ".repeat(12));
        assert_eq!((of(&long), of("short"), of(&two)), (1, 0, 0));
    }

    #[test]
    fn every_word_is_listed_once_and_has_a_successor() {
        let words: Vec<_> = RETIRED.iter().flat_map(|(words, _)| words.iter()).collect();
        assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len());
        let successors =
            RETIRED.iter().map(|(_, to)| to).chain(RETIRED_PREFIXES.iter().map(|(_, to)| to));
        assert!(successors.into_iter().all(|to| !to.is_empty()));
    }
}
