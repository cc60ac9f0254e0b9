use super::*;
use crate::event::{EventSource, Moment, Named, Observation, Severity};
use gpuwho_model::catalog::event::EventKind;

fn event(kind: EventKind, seconds: u64) -> Event {
    let mut what = Observation::new(kind, Place::Host, Severity::Critical, "NVRM: Xid 79, eve");
    what.code = (kind == EventKind::Xid).then_some(79);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    Event {
        what,
        at: Moment { time, boot_ns: 0 },
        seen: time,
        source: EventSource::Kmsg,
        gpu: None,
        affected_owners: Vec::new(),
        owners: 0,
        count: 1,
        id: 1,
    }
}

fn stored(kind: EventKind, named: Option<u32>, affected: &[(u32, u32)]) -> StoredEvent {
    let view = EventView::of(&event(kind, 0));
    let owner = |&(uid, pid): &(u32, u32)| AffectedView {
        uid: Some(uid),
        pid,
        comm: format!("comm-{pid}"),
        ..AffectedView::default()
    };
    let affected = affected.iter().map(owner).collect();
    let is_about_process = kind.is_about_process();
    StoredEvent {
        view: EventView { affected, ..view },
        severity: Severity::Critical,
        is_about_process,
        named,
        bytes: 0,
    }
}

/// Whose names a user sees, how many not, and whether the driver's words.
fn seen(stored: &StoredEvent, uid: u32) -> Option<(Vec<u32>, u64, bool)> {
    let view = stored.seen_by(Some(uid))?;
    let uids = view.affected.iter().filter_map(|owner| owner.uid).collect();
    Some((uids, view.affected_others, view.message.is_some()))
}

#[test]
fn the_last_events_are_kept_within_number_and_bytes() {
    let recent = RecentEvents::default();
    for seconds in 0..300 {
        recent.push(&event(EventKind::Xid, seconds));
    }
    let events = recent.report(String::new(), None).events;
    assert_eq!((events.len(), &*events[0].time), (MAX_EVENTS, "1970-01-01T00:00:44Z"));
    for seconds in 0..300 {
        let mut large = event(EventKind::Xid, seconds);
        large.what.message = "é".repeat(4_000).into();
        recent.push(&large);
    }
    let large = recent.report(String::new(), None).events;
    let size = large.iter().map(|event| serde_json::to_vec(event).unwrap().len()).sum::<usize>();
    assert!(size <= MAX_BYTES && large.len() > 100, "{size} bytes in {}", large.len());
}

#[test]
fn a_tenant_whose_processes_end_without_a_pause_hides_no_broken_device() {
    let recent = RecentEvents::default();
    recent.push(&event(EventKind::Xid, 0));
    for seconds in 1..1_000 {
        let mut ended = event(EventKind::ProcessEnded, seconds);
        ended.what.severity = Severity::Info;
        recent.push(&ended);
    }
    let events = recent.report(String::new(), None).events;
    assert_eq!((events.len(), events[0].code), (MAX_EVENTS, Some(79)));
}

#[test]
fn an_event_has_the_meaning_and_the_remedy_of_its_code() {
    let view = EventView::of(&event(EventKind::Xid, 60));
    assert!(view.meaning.contains("bus") && view.remedy.contains("drain"), "{view:?}");
    assert_eq!((view.title(), &*view.time), ("XID 79".into(), "1970-01-01T00:01:00Z"));
}

#[test]
fn a_user_sees_of_others_no_name_and_no_word_that_holds_one() {
    let of_device = stored(EventKind::Xid, None, &[(7, 70), (8, 80)]);
    assert_eq!(seen(&of_device, 7), Some((vec![7], 1, false)));
    assert_eq!(seen(&of_device, 9), Some((vec![], 2, false)));
    let nobodys = stored(EventKind::Xid, None, &[]);
    assert_eq!(seen(&nobodys, 9), Some((vec![], 0, true)));
    let named = stored(EventKind::Xid, Some(80), &[]);
    assert_eq!(seen(&named, 9), Some((vec![], 0, false)), "a name beside no known owner");
    let named = stored(EventKind::Xid, Some(80), &[(7, 70)]);
    assert_eq!(seen(&named, 7), Some((vec![7], 0, false)), "another's name");
    let own = stored(EventKind::Xid, Some(70), &[(7, 70)]);
    assert_eq!(seen(&own, 7), Some((vec![7], 0, true)));
}

#[test]
fn an_event_of_a_process_is_its_owners_alone() {
    let killed = stored(EventKind::OomKill, Some(70), &[(7, 70)]);
    assert_eq!(seen(&killed, 7), Some((vec![7], 0, true)));
    assert_eq!(seen(&killed, 8), None);
    assert_eq!(killed.seen_by(None), Some(killed.view.clone()), "root");
    let recent = RecentEvents::default();
    let mut kill = event(EventKind::OomKill, 0);
    kill.what.process = Some(Named::pid(70));
    recent.push(&kill);
    recent.push(&event(EventKind::Xid, 0));
    let report = recent.report("node1".into(), Some(8));
    assert_eq!((report.hidden, report.events.len()), (1, 1));
}

#[test]
fn the_table_points_to_the_worst_of_the_last_day() {
    let recent = RecentEvents::default();
    recent.push(&event(EventKind::Xid, 100));
    let mut warning = event(EventKind::Lost, 200);
    (warning.what.severity, warning.count) = (Severity::Warning, 3);
    recent.push(&warning);
    let summary = |seconds| {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        recent.report(String::new(), None).summary(now).sentence(now)
    };
    let text = summary(400).unwrap();
    assert!(
        text.starts_with("1 critical event, 3 warnings in the last day; last, 5m ago: XID 79"),
        "{text}"
    );
    assert!(text.ends_with("see `gpuwho events`"), "{text}");
    assert_eq!(summary(400 + 24 * 3600), None);
}
