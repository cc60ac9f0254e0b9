use super::*;

fn place(rank: SeriesClass, user: u32) -> Place {
    Place::new(rank, 1, Some(QuotaKey::of_user(user)))
}

const NOTHING: Needed = [0; 5];

/// Runs one batch in which an owner has `alive` live and `new` new series; returns the live ones.
fn batch(
    limit: &mut SeriesLimit,
    place: Place,
    alive: usize,
    new: usize,
    needed: Needed,
) -> (usize, Needed) {
    limit.begin(alive + new, needed, || 0);
    let stay = (0..alive).filter(|_| !limit.evicts(place)).count();
    let come = (0..new).filter(|_| limit.admit(place)).count();
    let (_, wanted) = limit.finish();
    (stay + come, wanted)
}

#[test]
fn a_new_process_gets_its_basic_series_however_many_collectives_others_have() {
    let mut limit = SeriesLimit::new(1_000);
    for (rank, user) in
        [(SeriesClass::Inspector, 1), (SeriesClass::Collective, 2), (SeriesClass::Collective, 3)]
    {
        batch(&mut limit, place(rank, user), 0, 5_000, NOTHING);
    }
    assert!(limit.alive() <= 800, "{}", limit.alive());
    let (basic, wanted) = batch(&mut limit, place(SeriesClass::Basic, 4), 0, 200, NOTHING);
    assert_eq!((basic, wanted), (200, NOTHING), "at once");
}

#[test]
fn one_owner_may_exceed_its_share_until_others_need_the_room() {
    let mut limit = SeriesLimit::new(1_000);
    let (flood, other) = (place(SeriesClass::Collective, 1), place(SeriesClass::Collective, 2));
    let (mut has, _) = batch(&mut limit, flood, 0, 5_000, NOTHING);
    assert_eq!(has, 750, "four fifths but for a twentieth of all");
    let (mut others, mut wanted) = batch(&mut limit, other, 0, 190, NOTHING);
    assert_eq!((others, wanted[SeriesClass::Collective as usize]), (50, 140));
    (has, _) = batch(&mut limit, flood, has, 5_000 - has, wanted);
    (others, wanted) = batch(&mut limit, other, others, 190 - others, wanted);
    assert_eq!((has, others, wanted), (610, 190, NOTHING));
    // No owner needs room: none loses series, and the reserve stays.
    let (later, _) = batch(&mut limit, flood, has, 5_000 - has, wanted);
    assert_eq!((later, limit.alive()), (610, 800));
}

#[test]
fn collectives_of_others_reduce_no_owner_below_its_share() {
    let mut limit = SeriesLimit::new(1_000);
    let places: Vec<Place> = (1..=4).map(|user| place(SeriesClass::Collective, user)).collect();
    for place in &places {
        assert_eq!(batch(&mut limit, *place, 0, 200, NOTHING).0, 200);
    }
    let (has, wanted) = batch(&mut limit, place(SeriesClass::Collective, 5), 0, 100, NOTHING);
    assert_eq!((has, wanted[SeriesClass::Collective as usize]), (0, 100));
    for place in &places {
        assert_eq!(batch(&mut limit, *place, 200, 0, wanted).0, 200);
    }
}

#[test]
fn an_owner_with_many_processes_loses_series_to_another_s_first() {
    let mut limit = SeriesLimit::new(1_000);
    let (many, other) = (place(SeriesClass::Basic, 1), place(SeriesClass::Basic, 2));
    let (has, _) = batch(&mut limit, many, 0, 5_000, NOTHING);
    assert_eq!(has, 950);
    let (others, wanted) = batch(&mut limit, other, 0, 90, NOTHING);
    assert_eq!((others, wanted[SeriesClass::Basic as usize]), (50, 40));
    let (has, _) = batch(&mut limit, many, has, 0, wanted);
    assert_eq!(has, 910);
    assert_eq!(batch(&mut limit, other, others, 40, wanted), (90, NOTHING));
}

#[test]
fn collectives_are_evicted_for_basic_series_when_the_limit_is_reached() {
    let mut limit = SeriesLimit::new(1_000);
    let collectives = place(SeriesClass::Collective, 1);
    batch(&mut limit, collectives, 0, 200, NOTHING);
    for user in 2..=5 {
        batch(&mut limit, place(SeriesClass::Basic, user), 0, 200, NOTHING);
    }
    let (has, wanted) = batch(&mut limit, place(SeriesClass::Basic, 6), 0, 30, NOTHING);
    assert_eq!((has, wanted[SeriesClass::Basic as usize]), (0, 30));
    let (left, _) = batch(&mut limit, collectives, 200, 0, wanted);
    assert_eq!(left, 170);
    assert_eq!(batch(&mut limit, place(SeriesClass::Basic, 6), 0, 30, wanted), (30, NOTHING));
}

#[test]
fn an_owner_s_collectives_displace_none_of_its_processes() {
    let mut limit = SeriesLimit::new(1_000);
    batch(&mut limit, place(SeriesClass::Inspector, 1), 0, 5_000, NOTHING);
    assert_eq!(batch(&mut limit, place(SeriesClass::Basic, 1), 0, 100, NOTHING), (100, NOTHING));
}

#[test]
fn dropped_points_are_reported_once_by_owner() {
    let mut limit = SeriesLimit::new(100);
    batch(&mut limit, place(SeriesClass::Inspector, 1), 0, 100, NOTHING);
    batch(&mut limit, place(SeriesClass::Basic, 2), 0, 10, NOTHING);
    assert_eq!(limit.take_refused(), [(QuotaKey::of_user(1), 45)]);
    assert_eq!(limit.take_refused(), []);
    for _ in 0..10 {
        limit.release(place(SeriesClass::Basic, 2));
    }
    assert_eq!((limit.owners.len(), limit.alive()), (1, 55), "an owner without series is removed");
}

#[test]
fn ended_counters_are_stored_up_to_a_bound() {
    let mut limit = SeriesLimit::new(10);
    let process = place(SeriesClass::Basic, 1);
    assert_eq!((0..100).filter(|_| limit.remember(process)).count(), 10);
    assert!(limit.remember(Place::new(SeriesClass::Device, 1, None)));
    limit.forget();
    limit.forget();
    assert!(limit.remember(process));
}

#[test]
fn a_histogram_takes_the_room_of_its_buckets_and_gives_it_back() {
    let mut limit = SeriesLimit::new(1_000);
    let wide = Place { weight: 102, ..place(SeriesClass::Collective, 1) };
    assert_eq!(batch(&mut limit, wide, 0, 1_000, NOTHING).0, 7, "of four fifths but a twentieth");
    assert_eq!(limit.alive(), 7 * 102);
    limit.release(wide);
    assert_eq!(limit.alive(), 6 * 102);
    assert!(limit.admit(wide));
}
