//! Limits the lines that the agent logs, on standard error and over OTLP. Tenants can cause lines,
//! so a limit per owner keeps the log useful.
//!
//! A line about a process (it has the field `process`, a [`ProcKey`]) is logged once a minute for
//! each process and call site, [`MAX_OF_OWNER`] times an owner and [`MAX_OF_PROCESSES`] times in
//! all. Other lines are logged [`MAX_OF_PLACE`] times a minute for each call site. Suppressed lines
//! are counted by owner and summarised once a minute. A line costs one lock and one look-up; memory
//! is bounded by the number of lines that pass.

use gpuwho_model::catalog::agent::OwnerLimit;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::quota::QuotaKey;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write as _};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The time to which the limits apply.
const WINDOW: Duration = Duration::from_mins(1);
/// Lines about one owner's processes in a [`WINDOW`].
const MAX_OF_OWNER: u32 = 10;
/// Lines about all processes in a [`WINDOW`]: six owners at their limit, a line a second.
const MAX_OF_PROCESSES: u32 = 60;
/// Lines of one call site that name no process: every source changes its state at the start.
const MAX_OF_PLACE: u32 = 30;
/// The field with the process that a line is about.
const PROCESS: &str = "process";

static LINES: Mutex<Option<Lines>> = Mutex::new(None);
static OWNERS: OnceLock<Ownership> = OnceLock::new();

/// The layer that suppresses lines. It is the outermost, so that no other layer receives them.
#[derive(Debug)]
pub struct LogLimit;

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let place = event.metadata().callsite();
        let mut found = ProcessField(None);
        event.record(&mut found);
        let process = found.0;
        let owner_of = |process| OWNERS.get().map(|owners| owners.try_quota_key(process));
        let about =
            process.map(|process| (process, owner_of(process).unwrap_or(QuotaKey::UNKNOWN)));
        lines().get_or_insert_default().admit(&place, about, Instant::now())
    }
}

/// Sets the ownership table in which the limit finds the owner of a process.
pub fn set_ownership(ownership: &Ownership) {
    // The first table stays.
    let _ = OWNERS.set(ownership.clone());
}

/// Logs the number of lines that were suppressed in the window that is over, and counts them by
/// owner. The agent calls it once a tick.
pub fn sum_up(ownership: &Ownership) {
    let over = lines().as_mut().and_then(|lines| lines.turn(Instant::now()));
    let Some(left_out) = over else { return };
    for (owner, count) in &left_out.of_owners {
        ownership.refuse(*owner, OwnerLimit::LogLines, *count);
    }
    let processes: u64 = left_out.of_owners.values().sum();
    let others = left_out.others;
    tracing::warn!(processes, others, "log lines were left out: too many in a minute");
}

fn lines() -> MutexGuard<'static, Option<Lines>> {
    LINES.lock()
}

/// The lines of a window.
#[derive(Debug, Default)]
struct Lines {
    began: Option<Instant>,
    reported: HashSet<(Identifier, ProcKey)>,
    of_owners: HashMap<QuotaKey, u32>,
    of_processes: u32,
    of_places: HashMap<Identifier, u32>,
    left_out: LeftOut,
}

/// Number of suppressed lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LeftOut {
    of_owners: HashMap<QuotaKey, u64>,
    others: u64,
}

impl Lines {
    /// Whether a line may pass.
    fn admit(
        &mut self,
        place: &Identifier,
        about: Option<(ProcKey, QuotaKey)>,
        now: Instant,
    ) -> bool {
        let began = *self.began.get_or_insert(now);
        if now.duration_since(began) >= WINDOW {
            let left_out = std::mem::take(&mut self.left_out);
            *self = Self { began: Some(now), left_out, ..Self::default() };
        }
        let Some((process, owner)) = about else {
            let lines = self.of_places.entry(place.clone()).or_default();
            *lines += 1;
            let passes = *lines <= MAX_OF_PLACE;
            self.left_out.others += u64::from(!passes);
            return passes;
        };
        let key = (place.clone(), process);
        let of_owner = self.of_owners.get(&owner).copied().unwrap_or(0);
        let passes = of_owner < MAX_OF_OWNER
            && self.of_processes < MAX_OF_PROCESSES
            && self.reported.insert(key);
        if passes {
            self.of_owners.insert(owner, of_owner + 1);
            self.of_processes += 1;
        } else {
            *self.left_out.of_owners.entry(owner).or_default() += 1;
        }
        passes
    }

    /// The suppressed lines, when a window is over.
    fn turn(&mut self, now: Instant) -> Option<LeftOut> {
        let is_over = self.began.is_some_and(|began| now.duration_since(began) >= WINDOW);
        let is_news = self.left_out != LeftOut::default();
        if !is_over || !is_news {
            return None;
        }
        let last = std::mem::take(self);
        Some(last.left_out)
    }
}

/// Reads [`PROCESS`] of an event.
struct ProcessField(Option<ProcKey>);

impl Visit for ProcessField {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == PROCESS {
            let mut text = String::new();
            // Writing to a String cannot fail.
            let _ = write!(text, "{value:?}");
            self.0 = process(&text);
        }
    }
}

/// Parses the form in which [`ProcKey`] is displayed.
fn process(text: &str) -> Option<ProcKey> {
    let (pid, start_ticks) = text.split_once('@')?;
    Some(ProcKey { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tracing::Callsite as _;
    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt as _;

    fn place() -> Identifier {
        static PLACE: tracing::callsite::DefaultCallsite = {
            static META: tracing::Metadata<'static> = tracing::metadata! {
                name: "place",
                target: "test",
                level: tracing::Level::INFO,
                fields: &[],
                callsite: &PLACE,
                kind: tracing::metadata::Kind::EVENT,
            };
            tracing::callsite::DefaultCallsite::new(&META)
        };
        PLACE.metadata().callsite()
    }

    fn about(pid: u32, user: u32) -> (ProcKey, QuotaKey) {
        (ProcKey { pid, start_ticks: 1 }, QuotaKey::of_user(user))
    }

    #[test]
    fn an_owner_with_many_processes_leaves_room_for_the_lines_of_others() {
        let (mut lines, place, now) = (Lines::default(), place(), Instant::now());
        let flood = (0..1_500).filter(|pid| lines.admit(&place, Some(about(*pid, 1)), now)).count();
        assert_eq!(flood, MAX_OF_OWNER as usize);
        assert!(lines.admit(&place, Some(about(9_000, 2)), now));
        assert!(!lines.admit(&place, Some(about(9_000, 2)), now), "twice of one process");
        assert_eq!(lines.turn(now), None, "the minute is not over");
        let later = now + WINDOW;
        let expected = LeftOut {
            of_owners: HashMap::from([(QuotaKey::of_user(1), 1_490), (QuotaKey::of_user(2), 1)]),
            others: 0,
        };
        assert_eq!(lines.turn(later), Some(expected));
        assert!(lines.admit(&place, Some(about(3, 1)), later), "a new minute");
        assert_eq!(lines.turn(later + WINDOW), None, "nothing was left out");
    }

    #[test]
    fn many_owners_together_have_a_bound() {
        let (mut lines, place, now) = (Lines::default(), place(), Instant::now());
        let passed =
            (0..1_000).filter(|user| lines.admit(&place, Some(about(*user, *user)), now)).count();
        assert_eq!(passed, MAX_OF_PROCESSES as usize);
        assert!(lines.admit(&place, None, now), "what is of no process is not counted with it");
    }

    #[test]
    fn a_place_that_names_no_process_has_a_bound_of_its_own() {
        let (mut lines, place, now) = (Lines::default(), place(), Instant::now());
        let passed = (0..100).filter(|_| lines.admit(&place, None, now)).count();
        assert_eq!(passed, MAX_OF_PLACE as usize);
        let left_out = lines.turn(now + WINDOW).unwrap();
        assert_eq!((left_out.others, left_out.of_owners.len()), (70, 0));
    }

    /// The written text.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Written {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn the_layer_finds_the_process_that_a_line_is_about() {
        let written = Written::default();
        let lines = tracing_subscriber::fmt::layer().with_writer(written.clone());
        let log = tracing_subscriber::registry().with(lines).with(LogLimit);
        tracing::subscriber::with_default(log, || {
            for start_ticks in [7, 7, 7, 8] {
                let process = ProcKey { pid: 4_000_000_000, start_ticks };
                tracing::warn!(%process, "something is odd");
            }
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}
