use super::*;

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
