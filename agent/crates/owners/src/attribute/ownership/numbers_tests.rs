//! Processes that exit and PIDs that are reused: which process is found, and for how long.

use super::tests::{KEY, SECOND, announce, job_path, line, table};
use super::*;
use crate::attribute::fake::{FakeHost, of_path, opened, v2};
use crate::attribute::pid_cache::PidCache;
use crate::attribute::table::{MAX_ENDED, MAX_HOLDERS};
use crate::attribute::{KernelCgroups, Method, cgroup};

#[test]
fn an_open_reported_after_the_exit_does_not_revive_a_process() {
    let host = FakeHost::new();
    let table = table(&host);
    announce(&table, 5, &job_path(42));
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 3 * SECOND });
    table.observe(Evidence::Opened(opened(KEY, 5, 2 * SECOND)));
    assert_eq!(table.attribution(KEY).unwrap().exited_ns, Some(3 * SECOND));
}

#[test]
fn the_drivers_pid_finds_the_process_that_had_it_then() {
    let host = FakeHost::new();
    let table = table(&host);
    let later = ProcKey { pid: 7, start_ticks: 500 };
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 5 * SECOND + 1_000_000 });
    table.observe(Evidence::Opened(opened(later, 6, 6 * SECOND)));

    assert_eq!(table.process(7, SECOND - 1), None);
    assert_eq!(table.process(7, SECOND), Some(KEY));
    assert_eq!(table.process(7, 5 * SECOND + 1_000_000), Some(KEY));
    assert_eq!(table.process(7, 5 * SECOND + 1_000_001), Some(later));
    assert_eq!(table.process(8, SECOND), None);
}

#[test]
fn a_process_only_the_driver_knows_is_found_in_proc() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line(&job_path(1)));
    let table = table(&host);

    assert_eq!(table.process(7, SECOND - 1), None);
    assert_eq!(table.attribution(KEY), None);
    assert_eq!(table.process(7, 2 * SECOND), Some(KEY));
    let owner = table.attribution(KEY).unwrap();
    assert_eq!((owner.method, owner.user.as_deref()), (Method::Proc, Some("ada")));

    // Its exit is not announced: the next tick finds it.
    host.end(KEY);
    table.expire(20 * SECOND);
    assert_eq!(table.attribution(KEY).unwrap().exited_ns, Some(20 * SECOND));
    assert_eq!(table.openers(), []);
}

#[test]
fn an_exited_process_that_a_driver_still_lists_is_found_for_ten_seconds() {
    let host = FakeHost::new();
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 2 * SECOND });
    assert_eq!(table.process(7, 12 * SECOND), Some(KEY));
    assert_eq!(table.process(7, 12 * SECOND + 1), None);

    // Another process that has the PID by then is found once it opens a device; until then it is nobody's.
    let other = ProcKey { pid: 7, start_ticks: 300 };
    host.start(other, "other", &line("/"));
    assert_eq!(table.process(7, 11 * SECOND), None);
    table.observe(Evidence::Opened(opened(other, 5, 11 * SECOND)));
    assert_eq!(table.process(7, 11 * SECOND), Some(other));
}

/// A context whose descriptor somebody else holds outlives its process: the driver goes on listing the
/// number, and numbers go round.
#[test]
fn a_number_that_a_driver_goes_on_listing_is_not_billed_to_whoever_has_it_next() {
    let host = FakeHost::new();
    let table = table(&host);
    let next = ProcKey { pid: 7, start_ticks: 100_000 };
    let never_known = ProcKey { pid: 8, ..next };
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 2 * SECOND });
    // The entry of the ended process is gone after five minutes, the number is still listed. Another
    // one is listed that nobody had since the agent's start.
    for seconds in 3..1_000 {
        table.process(7, seconds * SECOND);
        table.process(8, seconds * SECOND);
        table.expire(seconds * SECOND);
    }
    host.start(next, "python3", &line(&job_path(1)));
    host.start(never_known, "python3", &line(&job_path(1)));
    for seconds in 1_001..1_100 {
        assert_eq!(table.process(7, seconds * SECOND), None);
        assert_eq!(table.process(8, seconds * SECOND), None);
        table.expire(seconds * SECOND);
    }
    assert_eq!(table.counts().holders, 0);

    // It opens a device itself.
    table.observe(Evidence::Opened(opened(next, 5, 1_101 * SECOND)));
    assert_eq!(table.process(7, 1_102 * SECOND), Some(next));
    // The other is not listed for a while, and then again: for its own work.
    (1_103..1_120).for_each(|seconds| table.expire(seconds * SECOND));
    assert_eq!(table.process(8, 1_120 * SECOND), Some(never_known));
}

#[test]
fn an_exit_that_was_never_reported_is_found() {
    let host = FakeHost::new();
    host.start(KEY, "python3", &line("/"));
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.expire(40 * SECOND);
    assert_eq!(table.counts().holders, 1);
    host.end(KEY);
    table.expire(60 * SECOND);
    assert_eq!(table.counts().holders, 1);
    table.expire(70 * SECOND);
    assert_eq!(table.counts(), TableCounts { ended: 1, ..TableCounts::default() });
}

#[test]
fn a_reused_pid_ends_a_process_with_a_lost_exit() {
    let host = FakeHost::new();
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Opened(opened(ProcKey { pid: 7, start_ticks: 500 }, 6, 6 * SECOND)));
    assert_eq!(table.attribution(KEY).unwrap().exited_ns, Some(5 * SECOND - 1));
}

#[test]
fn a_pid_reused_between_two_scans_is_the_later_process_once_it_is_seen_to_hold_a_device() {
    let host = FakeHost::new();
    let (later, listed) = (ProcKey { start_ticks: 1_100, ..KEY }, ProcKey { pid: 8, ..KEY });
    let again = ProcKey { pid: 8, ..later };
    let table = table(&host);
    table.ends_are_unannounced();
    for key in [KEY, listed] {
        host.start(key, "python3", &line(&job_path(1)));
    }
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let identities = PidCache::new(&table);
    assert_eq!(*identities.of(&[7, 8], 10 * SECOND), BTreeMap::from([(7, KEY), (8, listed)]));

    for key in [later, again] {
        host.start(key, "python3", &line(&job_path(2)));
    }
    // The driver's list is unchanged, and there was no scan since; the upkeep runs between the list and
    // the search for its processes.
    table.sweep(13 * SECOND);
    assert_eq!(*identities.of(&[7, 8], 12 * SECOND), BTreeMap::new());
    for key in [later, again] {
        table.observe(Evidence::Opened(opened(key, 5, 14 * SECOND)));
    }
    assert_eq!(*identities.of(&[7, 8], 12 * SECOND), BTreeMap::from([(7, later), (8, again)]));
    let owner = table.attribution(later).unwrap();
    assert_eq!(of_path(&owner.workload), cgroup::parse_path(&job_path(2)));
}

#[test]
fn a_pid_that_only_the_driver_listed_is_checked_again_where_bpf_announces_exits() {
    let host = FakeHost::new();
    let later = ProcKey { start_ticks: 1_100, ..KEY };
    let table = table(&host);
    host.start(KEY, "python3", &line(&job_path(1)));
    let identities = PidCache::new(&table);
    assert_eq!(*identities.of(&[7], 10 * SECOND), BTreeMap::from([(7, KEY)]));
    host.start(later, "python3", &line(&job_path(2)));
    assert_eq!(*identities.of(&[7], 12 * SECOND), BTreeMap::new());
    assert_eq!(table.openers(), [], "who has the number now opened nothing");
}

#[test]
fn a_resolution_that_a_move_overtook_changes_nothing() {
    let mut table = Table::default();
    let found = |case: Option<Resolution>, job| {
        let mut case = case.unwrap();
        case.attribution.method = Method::Proc;
        case.attribution.workload = cgroup::parse_path(&job_path(job));
        case
    };
    let before = found(table.opened(&opened(KEY, 5, SECOND), &[]), 1);
    let after = found(table.moved(KEY, KernelCgroups(vec![v2(6)])), 2);
    for case in [after, before] {
        table.apply(case);
        assert_eq!(table.attribution(KEY).unwrap().workload, cgroup::parse_path(&job_path(2)));
    }
}

#[test]
fn the_path_of_a_removed_cgroup_is_removed_after_five_minutes() {
    let host = FakeHost::new();
    let table = table(&host);
    let later = ProcKey { pid: 8, ..KEY };
    announce(&table, 5, &job_path(1));
    table.observe(Evidence::CgroupRemoved { id: v2(5) });
    for (process, seconds, method) in [(KEY, 309, Method::Kernel), (later, 311, Method::Pending)] {
        table.expire(seconds * SECOND);
        table.observe(Evidence::Opened(opened(process, 5, SECOND)));
        assert_eq!(table.attribution(process).unwrap().method, method, "{seconds} s");
    }
}

#[test]
fn a_process_that_executes_program_after_program_has_three_names() {
    let host = FakeHost::new();
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    let names = ["a", "b", "b", "c", "d", "a"].map(|name| {
        table.observe(Evidence::Execed { process: KEY, comm: Arc::from(name) });
        table.attribution(KEY).unwrap().comm.to_string()
    });
    assert_eq!(names, ["a", "b", "b", "other", "other", "other"]);
}

#[test]
fn an_ended_process_is_removed_after_five_minutes() {
    let host = FakeHost::new();
    let table = table(&host);
    table.observe(Evidence::Opened(opened(KEY, 5, SECOND)));
    table.observe(Evidence::Exited { process: KEY, at_ns: 2 * SECOND });
    table.expire(302 * SECOND);
    assert!(table.attribution(KEY).is_some());
    table.expire(302 * SECOND + 1);
    assert_eq!(table.attribution(KEY), None);
    assert_eq!(table.counts(), TableCounts::default());
}

#[test]
fn a_storm_of_ended_processes_costs_bounded_memory_and_only_its_own_owners_entries() {
    let mut table = Table::default();
    let key = |index: usize| ProcKey { pid: u32::try_from(index).unwrap(), start_ticks: 1 };
    let mut end = |index: usize, owner_id: u32| {
        let mut case = table.opened(&opened(key(index), 5, SECOND), &[]).unwrap();
        (case.attribution.owner, case.attribution.method) =
            (OwnerId::numbered(owner_id), Method::Proc);
        table.apply(case);
        table.exited(key(index), 2 * SECOND);
    };
    // The first belongs to another owner.
    end(0, 8);
    (1..MAX_ENDED + 10).for_each(|index| end(index, 9));
    assert!((MAX_ENDED - 200..=MAX_ENDED).contains(&table.ended_count()));
    assert_eq!((table.attribution(key(0)).is_some(), table.attribution(key(9))), (true, None));
    assert!(table.attribution(key(MAX_ENDED)).is_some());
}

#[test]
fn processes_beyond_the_bound_are_counted_not_stored() {
    let mut table = Table::default();
    for index in 0..=MAX_HOLDERS {
        let key = ProcKey { pid: u32::try_from(index).unwrap(), start_ticks: 1 };
        table.opened(&opened(key, 5, SECOND), &[]);
    }
    assert_eq!((table.holding(), table.refused), (MAX_HOLDERS, 1));
}
