use super::*;
use crate::probe::budget::controller::{Attach, ProbeBudget, RecoveryTiming};

const BOTH: Present = Present { wanted: true, entries: true, returns: true };
const ENTRIES: Present = Present { wanted: true, entries: true, returns: false };
const NOTHING: Present = Present { wanted: true, entries: false, returns: false };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn sums_are_exact_at_any_time() {
    let start = Instant::now();
    let mut cover = Uptime::default();
    assert_eq!((cover.at(start), cover.at(start).parts()), (UptimeTotals::default(), None));
    cover.note(start, BOTH);
    cover.note(start + ms(400), ENTRIES);
    cover.note(start + ms(700), NOTHING);
    let sums = |wanted, entries, returns| UptimeTotals {
        wanted: ms(wanted),
        attached: [ms(entries), ms(returns)],
    };
    assert_eq!(cover.at(start + ms(700)), sums(700, 700, 400));
    assert_eq!(cover.at(start + ms(1_000)), sums(1_000, 700, 400));
    assert_eq!(cover.at(start + ms(1_000)).parts(), Some([0.7, 0.4]));
    // No process maps a library: this time does not count.
    cover.note(start + ms(1_000), Present { wanted: false, ..BOTH });
    assert_eq!(cover.at(start + ms(9_000)), sums(1_000, 700, 400));
    let later = cover.at(start + ms(9_000)).since(sums(400, 400, 400));
    assert_eq!(later, sums(600, 300, 0));
}

/// A load under a budget: calls at the times of `due`, a reading each second, collections at any
/// time. Returns the calls made, those counted, and the covered fraction of the time.
fn decision(
    budget: u64,
    seconds: u64,
    mut due: impl FnMut(Duration) -> Duration,
) -> (f64, f64, f64) {
    let start = Instant::now();
    let mut budget = ProbeBudget::new(budget, RecoveryTiming::default());
    let mut cover = Uptime::default();
    cover.note(start, BOTH);
    let (mut at, mut look, mut last_look) = (Duration::ZERO, ms(1_000), Duration::ZERO);
    let (mut made, mut counted, mut hits) = (0_u64, 0_u64, 0_u64);
    while at < Duration::from_secs(seconds) {
        while look <= at {
            let on = look.saturating_sub(last_look).as_millis();
            let attach = budget.attach();
            let rate = if attach == Attach::Nothing { 0 } else { u128::from(hits) * 1_000 / on };
            budget.update(u64::try_from(rate).unwrap(), start + look);
            let present = match budget.attach() {
                Attach::Full => BOTH,
                Attach::Entries => ENTRIES,
                Attach::Nothing => NOTHING,
            };
            cover.note(start + look, present);
            (hits, last_look) = (0, look);
            let phase = budget.due().map(|due| due.duration_since(start));
            look = phase.filter(|phase| *phase > look).unwrap_or(look + ms(1_000));
            look = look.min(last_look + ms(1_000));
        }
        made += 1;
        let attach = budget.attach();
        if attach != Attach::Nothing {
            counted += 1;
            hits += if attach == Attach::Full { 2 } else { 1 };
        }
        at = due(at);
    }
    let [covered, _] = cover.at(start + at).parts().unwrap();
    (made as f64, counted as f64, covered)
}

#[test]
fn scaled_counts_are_the_calls_made_when_probes_are_cycled() {
    for (rate, most_covered) in [(2_000_u64, 0.6), (4_000, 0.3), (20_000, 0.08)] {
        let step = Duration::from_nanos(1_000_000_000 / rate);
        let (made, counted, covered) = decision(1_000, 240, |at| at + step);
        assert!(covered > 0.0 && covered < most_covered, "{rate}: {covered}");
        let found = counted / covered / made;
        assert!((found - 1.0).abs() < 0.005, "{rate}/s, {covered}: {found}");
    }
}

#[test]
fn a_step_as_long_as_a_cycle_is_sampled_at_varying_places() {
    // In each four seconds there is one with calls; the others compute.
    let burst = |at: Duration| {
        let next = at + Duration::from_micros(100);
        if next.as_millis() % 4_000 < 1_000 {
            return next;
        }
        Duration::from_secs(next.as_secs() / 4 * 4 + 4)
    };
    let (made, counted, covered) = decision(2_500, 1_200, burst);
    let found = counted / covered / made;
    assert!(covered < 0.7 && (found - 1.0).abs() < 0.15, "{covered}: {found}");
}

#[test]
fn each_use_has_its_own_sums_and_those_of_one_that_is_over_are_read_once_more() {
    let start = Instant::now();
    let mut uptime = UptimeByUse::default();
    let refused = Present { entries: false, returns: false, ..BOTH };
    let files = |of: &[(u32, Present)]| {
        of.iter().map(|(owner, present)| ((3, *owner), *present)).collect::<EachPresent>()
    };
    let sums = |wanted, entries, returns| UptimeTotals {
        wanted: ms(wanted),
        attached: [ms(entries), ms(returns)],
    };
    uptime.note(start, 7, &files(&[(1, BOTH), (2, refused)]));
    let first = uptime.read(start + ms(1_000));
    let uses = [((3, 1), sums(1_000, 1_000, 1_000)), ((3, 2), sums(1_000, 0, 0))];
    assert_eq!(first.uses, uses.into());
    assert_eq!(first.all, sums(2_000, 1_000, 1_000));
    uptime.note(start + ms(1_000), 8, &files(&[(1, BOTH), (2, ENTRIES)]));
    uptime.note(start + ms(2_000), 9, &files(&[(2, ENTRIES)]));
    let second = uptime.read(start + ms(3_000));
    assert_eq!(second.parts_since(&first, (3, 1)), Some([1.0, 1.0]));
    assert_eq!(second.parts_since(&first, (3, 2)), Some([1.0, 0.0]));
    assert_eq!(second.parts_since(&first, (1, 1)), None);
    let third = uptime.read(start + ms(4_000));
    assert_eq!(third.parts_since(&second, (3, 1)), None, "nobody wanted it");
    let fourth = uptime.read(start + ms(4_000));
    assert_eq!((fourth.uses.len(), fourth.all), (1, third.all), "sums only grow");
}

#[test]
fn calls_may_have_been_missed_before_a_use_was_seen_again_but_not_before_the_first_time() {
    let start = Instant::now();
    let mut uptime = UptimeByUse::default();
    let files = |of: &[(u32, Present)]| {
        of.iter().map(|(owner, present)| ((3, *owner), *present)).collect::<EachPresent>()
    };
    uptime.note(start, 7, &files(&[(1, BOTH), (2, NOTHING)]));
    uptime.note(start + ms(1), 8, &files(&[(1, BOTH), (2, BOTH)]));
    let gaps = |uptime: &UptimeByUse| [1, 2].map(|owner| uptime.gap_ns(Some(3), owner));
    assert_eq!(gaps(&uptime), [0, 0]);
    uptime.note(start + ms(2), 9, &files(&[(1, NOTHING), (2, NOTHING)]));
    uptime.note(start + ms(3), 10, &files(&[(1, BOTH), (2, NOTHING)]));
    uptime.note(start + ms(4), 11, &files(&[(1, BOTH), (2, ENTRIES)]));
    uptime.note(start + ms(5), 12, &files(&[(1, ENTRIES), (2, BOTH)]));
    assert_eq!(gaps(&uptime), [10, 11]);
    assert_eq!((uptime.gap_ns(None, 1), uptime.gap_ns(Some(4), 1)), (10, 0));
}
