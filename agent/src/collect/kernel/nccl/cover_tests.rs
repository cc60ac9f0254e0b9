use super::super::governor::{Attach, Governor, Patience};
use super::*;

const BOTH: Present = Present { wanted: true, entries: true, returns: true };
const ENTRIES: Present = Present { wanted: true, entries: true, returns: false };
const NOTHING: Present = Present { wanted: true, entries: false, returns: false };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn sums_are_those_of_the_moment_that_is_asked_about() {
    let start = Instant::now();
    let mut cover = Cover::default();
    assert_eq!((cover.at(start), cover.at(start).parts()), (Covered::default(), None));
    cover.note(start, BOTH);
    cover.note(start + ms(400), ENTRIES);
    cover.note(start + ms(700), NOTHING);
    let sums = |wanted, entries, returns| Covered {
        wanted: ms(wanted),
        attached: [ms(entries), ms(returns)],
    };
    assert_eq!(cover.at(start + ms(700)), sums(700, 700, 400));
    assert_eq!(cover.at(start + ms(1_000)), sums(1_000, 700, 400));
    assert_eq!(cover.at(start + ms(1_000)).parts(), Some([0.7, 0.4]));
    // Nobody maps a library: that time is nobody's.
    cover.note(start + ms(1_000), Present { wanted: false, ..BOTH });
    assert_eq!(cover.at(start + ms(9_000)), sums(1_000, 700, 400));
    let later = cover.at(start + ms(9_000)).since(sums(400, 400, 400));
    assert_eq!(later, sums(600, 300, 0));
}

/// A load under a governor: calls at moments that `due` gives, a look each second, readings at any
/// moment. Gives the calls made, those counted, and the part of the time that was covered.
fn governed(
    budget: u64,
    seconds: u64,
    mut due: impl FnMut(Duration) -> Duration,
) -> (f64, f64, f64) {
    let start = Instant::now();
    let mut governor = Governor::new(budget, Patience::default());
    let mut cover = Cover::default();
    cover.note(start, BOTH);
    let (mut at, mut look, mut last_look) = (Duration::ZERO, ms(1_000), Duration::ZERO);
    let (mut made, mut counted, mut hits) = (0_u64, 0_u64, 0_u64);
    while at < Duration::from_secs(seconds) {
        while look <= at {
            let on = look.saturating_sub(last_look).as_millis();
            let attach = governor.attach();
            let rate = if attach == Attach::Nothing { 0 } else { u128::from(hits) * 1_000 / on };
            governor.look(u64::try_from(rate).unwrap(), start + look);
            let present = match governor.attach() {
                Attach::Full => BOTH,
                Attach::Entries => ENTRIES,
                Attach::Nothing => NOTHING,
            };
            cover.note(start + look, present);
            (hits, last_look) = (0, look);
            let phase = governor.due().map(|due| due.duration_since(start));
            look = phase.filter(|phase| *phase > look).unwrap_or(look + ms(1_000));
            look = look.min(last_look + ms(1_000));
        }
        made += 1;
        let attach = governor.attach();
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
fn counts_divided_by_coverage_are_the_calls_made_when_the_governor_takes_turns() {
    for (rate, most_covered) in [(2_000_u64, 0.6), (4_000, 0.3), (20_000, 0.08)] {
        let step = Duration::from_nanos(1_000_000_000 / rate);
        let (made, counted, covered) = governed(1_000, 240, |at| at + step);
        assert!(covered > 0.0 && covered < most_covered, "{rate}: {covered}");
        let found = counted / covered / made;
        assert!((found - 1.0).abs() < 0.005, "{rate}/s, {covered}: {found}");
    }
}

#[test]
fn a_training_step_as_long_as_a_cycle_is_not_met_at_the_same_place_each_time() {
    // In each four seconds one in which the calls are made, the others computing.
    let burst = |at: Duration| {
        let next = at + Duration::from_micros(100);
        if next.as_millis() % 4_000 < 1_000 {
            return next;
        }
        Duration::from_secs(next.as_secs() / 4 * 4 + 4)
    };
    let (made, counted, covered) = governed(2_500, 1_200, burst);
    let found = counted / covered / made;
    assert!(covered < 0.7 && (found - 1.0).abs() < 0.15, "{covered}: {found}");
}
