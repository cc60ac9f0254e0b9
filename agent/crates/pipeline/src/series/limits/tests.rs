use super::*;
use gpuwho_model::catalog::level::Level;

/// Limits of 1,000 series in all, and of 100 of the processes' and 50 of NCCL's.
fn limits() -> (SeriesLimits, Selection) {
    let family = |pattern: &str, limit| Family { pattern: pattern.into(), limit };
    let families = vec![family("gpu.process.*", 100), family("nccl.*", 50)];
    let selection = Selection::new(Level::All, &[], &[]).unwrap().with_families(families).unwrap();
    let mut limits = SeriesLimits::new(1_000);
    limits.set_families(&selection, std::iter::empty());
    (limits, selection)
}

fn place(family: Option<u8>, rank: SeriesClass, user: u32) -> Place {
    Place { family, ..Place::new(rank, 1, Some(QuotaKey::of_user(user))) }
}

const PROCESSES: Option<u8> = Some(0);
const NCCL: Option<u8> = Some(1);
const SOURCE: SourcePart = SourcePart { source: "test", part: 0 };

/// Runs one batch in which an owner has `alive` live and `new` new series; returns the live ones.
fn batch(limits: &mut SeriesLimits, part: u32, place: Place, alive: usize, new: usize) -> usize {
    limits.begin(alive + new, |_| 0);
    let stay = (0..alive).filter(|_| !limits.evicts(place)).count();
    let come = (0..new).filter(|_| limits.admit(place)).count();
    limits.finish(SourcePart { part, ..SOURCE });
    stay + come
}

fn dropped(limits: &SeriesLimits) -> Vec<(DropReason, u64)> {
    limits.report(None).map(|report| report.dropped).unwrap_or_default()
}

#[test]
fn a_family_has_no_more_series_than_its_limit_and_the_others_have_their_room() {
    let (mut limits, _) = limits();
    let process = place(PROCESSES, SeriesClass::Basic, 1);
    assert_eq!(batch(&mut limits, 1, process, 0, 5_000), 95, "but for a twentieth");
    let of_nobody = Place { owner: None, ..process };
    assert_eq!(batch(&mut limits, 2, of_nobody, 0, 10), 5, "the rest");
    let other = place(None, SeriesClass::Basic, 1);
    assert_eq!(batch(&mut limits, 3, other, 0, 500), 500);
    assert_eq!(limits.alive(), 600);
    assert_eq!(dropped(&limits), [(DropReason::MetricLimit, 4_910)]);
    let report = limits.report(Some(("job 7".into(), 4_905))).unwrap();
    let reason = "4910 series of gpu.process.* are dropped: 100 exist and the limit is 100 (metrics.limits); \
                  most of them (4905) are of job 7";
    assert_eq!((report.state, &*report.reason), (SourceState::Degraded, reason));
    assert_eq!(
        report.remedy,
        "raise metrics.limits, or send less: metrics.level and metrics.exclude"
    );
    let refused: HashMap<_, _> = limits.take_refused().into_iter().collect();
    assert_eq!(refused, HashMap::from([(QuotaKey::of_user(1), 4_905)]));
}

#[test]
fn an_owner_loses_series_of_a_family_to_one_below_its_share() {
    let (mut limits, _) = limits();
    let (flood, other) =
        (place(PROCESSES, SeriesClass::Basic, 1), place(PROCESSES, SeriesClass::Basic, 2));
    let mut has = batch(&mut limits, 1, flood, 0, 5_000);
    let mut others = batch(&mut limits, 2, other, 0, 20);
    assert_eq!((has, others), (95, 5));
    has = batch(&mut limits, 1, flood, has, 5_000 - has);
    others = batch(&mut limits, 2, other, others, 20 - others);
    assert_eq!((has, others), (80, 20));
    assert_eq!(limits.alive(), 100, "what left its family has left the whole");
}

#[test]
fn collectives_may_fill_their_family() {
    let (mut limits, _) = limits();
    let of_inspector = place(NCCL, SeriesClass::Inspector, 1);
    assert_eq!(batch(&mut limits, 1, of_inspector, 0, 500), 48);
}

#[test]
fn what_the_whole_refuses_takes_no_room_of_its_family() {
    let (mut limits, _) = limits();
    let device = place(None, SeriesClass::Device, 0);
    assert_eq!(batch(&mut limits, 1, device, 0, 1_000), 1_000);
    let process = place(PROCESSES, SeriesClass::Basic, 1);
    assert_eq!(batch(&mut limits, 2, process, 0, 200), 0);
    assert_eq!(limits.families[0].1.series.alive(), 0);
    assert_eq!(dropped(&limits), [(DropReason::SeriesLimit, 200)]);
}

#[test]
fn the_agent_s_own_pass_and_what_ends_makes_room() {
    let (mut limits, _) = limits();
    let process = place(PROCESSES, SeriesClass::Basic, 1);
    assert_eq!(batch(&mut limits, 1, process, 0, 200), 95);
    let own = Place { family: PROCESSES, ..Place::new(SeriesClass::Agent, 1, None) };
    assert_eq!(batch(&mut limits, 2, own, 0, 50), 50);
    (0..95).for_each(|_| limits.release(process));
    limits.end(SourcePart { part: 1, ..SOURCE });
    assert_eq!((limits.alive(), limits.report(None).unwrap().state), (50, SourceState::Ready));
    assert_eq!(batch(&mut limits, 1, process, 0, 200), 45);
}

#[test]
fn a_reload_counts_the_live_series_in_their_new_families() {
    let (mut limits, mut selection) = limits();
    let process = place(PROCESSES, SeriesClass::Basic, 1);
    assert_eq!(batch(&mut limits, 1, process, 0, 200), 95);
    let lower = Family { pattern: "gpu.process.*".into(), limit: 60 };
    selection = selection.with_families(vec![lower]).unwrap();
    limits.set_families(&selection, (0..95).map(|_| process));
    assert_eq!((limits.alive(), limits.families[0].1.series.alive()), (95, 95));
    assert_eq!(dropped(&limits), [(DropReason::MetricLimit, 105)], "none is forgotten");
    assert_eq!(batch(&mut limits, 1, process, 95, 5), 95, "those that are there stay");
    limits.set_families(&Selection::all(), std::iter::empty());
    assert_eq!(batch(&mut limits, 1, place(None, SeriesClass::Basic, 1), 0, 200), 200);
    assert_eq!(dropped(&limits), [(DropReason::MetricLimit, 110)]);
}
