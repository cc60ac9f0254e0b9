use super::*;

fn place(rank: SeriesClass, user: u32) -> Place {
    Place { rank, owner: Some(QuotaKey::of_user(user)) }
}

const NOTHING: Needed = [0; 5];

/// One batch in which an owner has this many series alive and this many that would be new; what is
/// alive afterwards.
fn batch(
    limit: &mut SeriesLimit,
    place: Place,
    alive: usize,
    new: usize,
    needed: Needed,
) -> (usize, Needed) {
    limit.begin(alive + new, needed, || 0);
    let stay = (0..alive).filter(|_| !limit.takes_back(place)).count();
    let come = (0..new).filter(|_| limit.admit(place)).count();
    let (_, wanted) = limit.finish();
    (stay + come, wanted)
}

#[test]
fn a_new_process_has_its_basic_series_whatever_others_have_of_collectives() {
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
fn alone_an_owner_may_have_more_than_its_share_and_gives_it_back() {
    let mut limit = SeriesLimit::new(1_000);
    let (flood, other) = (place(SeriesClass::Collective, 1), place(SeriesClass::Collective, 2));
    let (mut has, _) = batch(&mut limit, flood, 0, 5_000, NOTHING);
    assert_eq!(has, 750, "four fifths but for a twentieth of all");
    let (mut others, mut wanted) = batch(&mut limit, other, 0, 190, NOTHING);
    assert_eq!((others, wanted[SeriesClass::Collective as usize]), (50, 140));
    (has, _) = batch(&mut limit, flood, has, 5_000 - has, wanted);
    (others, wanted) = batch(&mut limit, other, others, 190 - others, wanted);
    assert_eq!((has, others, wanted), (610, 190, NOTHING));
    // Nobody needs room: nobody makes way, and what is free is kept.
    let (later, _) = batch(&mut limit, flood, has, 5_000 - has, wanted);
    assert_eq!((later, limit.alive()), (610, 800));
}

#[test]
fn nobody_is_brought_below_the_share_by_another_who_wants_collectives() {
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
fn a_crowd_of_one_owners_processes_makes_way_for_anothers_first() {
    let mut limit = SeriesLimit::new(1_000);
    let (crowd, other) = (place(SeriesClass::Basic, 1), place(SeriesClass::Basic, 2));
    let (has, _) = batch(&mut limit, crowd, 0, 5_000, NOTHING);
    assert_eq!(has, 950);
    let (others, wanted) = batch(&mut limit, other, 0, 90, NOTHING);
    assert_eq!((others, wanted[SeriesClass::Basic as usize]), (50, 40));
    let (has, _) = batch(&mut limit, crowd, has, 0, wanted);
    assert_eq!(has, 910);
    assert_eq!(batch(&mut limit, other, others, 40, wanted), (90, NOTHING));
}

#[test]
fn collectives_make_way_for_basic_series_when_all_is_taken() {
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
fn an_owners_own_collectives_keep_no_process_of_it_out() {
    let mut limit = SeriesLimit::new(1_000);
    batch(&mut limit, place(SeriesClass::Inspector, 1), 0, 5_000, NOTHING);
    assert_eq!(batch(&mut limit, place(SeriesClass::Basic, 1), 0, 100, NOTHING), (100, NOTHING));
}

#[test]
fn what_was_refused_is_told_by_owner_once() {
    let mut limit = SeriesLimit::new(100);
    batch(&mut limit, place(SeriesClass::Inspector, 1), 0, 100, NOTHING);
    batch(&mut limit, place(SeriesClass::Basic, 2), 0, 10, NOTHING);
    assert_eq!(limit.take_refused(), [(QuotaKey::of_user(1), 45)]);
    assert_eq!(limit.take_refused(), []);
    for _ in 0..10 {
        limit.release(place(SeriesClass::Basic, 2));
    }
    assert_eq!((limit.owners.len(), limit.alive()), (1, 55), "who has none is forgotten");
}

#[test]
fn ended_counters_are_remembered_up_to_a_bound() {
    let mut limit = SeriesLimit::new(10);
    let process = place(SeriesClass::Basic, 1);
    assert_eq!((0..100).filter(|_| limit.remember(process)).count(), 10);
    assert!(limit.remember(Place { rank: SeriesClass::Device, owner: None }));
    limit.forget();
    limit.forget();
    assert!(limit.remember(process));
}
