use super::*;
use crate::attribute::slurm::{Label, Source};
use gpuwho_model::ids::Hierarchy;

const PATH: &str = "/system.slice/slurmstepd.scope/job_5";
const SECOND: u64 = 1_000_000_000;

fn id(hierarchy: Hierarchy, id: u64) -> CgroupId {
    CgroupId { hierarchy, id }
}

fn appear(jobs: &mut Jobs, ids: &[CgroupId], now_ns: u64) -> bool {
    jobs.appeared(PATH, &SlurmJobId::new("5"), ids, now_ns)
}

fn named(name: &str) -> Facts {
    let mut facts = Facts::default();
    facts.put(Label::JobId, "5", Source::Cgroup);
    for label in [Label::Name, Label::Account, Label::Partition, Label::User] {
        facts.put(label, name, Source::Prolog);
    }
    facts
}

fn reported() -> DeviceAccess {
    DeviceAccess::Known { allowed: Vec::new(), denied: Vec::new() }
}

#[test]
fn a_job_lives_until_its_last_cgroup_goes_and_stays_known_for_a_while() {
    let mut jobs = Jobs::default();
    let (one, other) = (id(Hierarchy::Devices, 1), id(Hierarchy::Memory, 2));
    assert!(appear(&mut jobs, &[one], SECOND));
    assert!(!appear(&mut jobs, &[other], 2 * SECOND));
    jobs.removed(one, 3 * SECOND);
    assert_eq!(jobs.get(PATH).unwrap().removed_ns, None);
    jobs.removed(other, 4 * SECOND);
    let job = jobs.get(PATH).unwrap();
    assert_eq!((job.first_seen_ns, job.removed_ns), (SECOND, Some(4 * SECOND)));
    jobs.expire(4 * SECOND + KEEP_REMOVED_NS);
    assert_eq!(jobs.all().len(), 1);
    jobs.expire(5 * SECOND + KEEP_REMOVED_NS);
    assert_eq!((jobs.all().len(), jobs.by_id.len()), (0, 0));
}

#[test]
fn a_requeued_job_has_no_facts_of_its_first_run() {
    let mut jobs = Jobs::default();
    let cgroup = id(Hierarchy::V2, 1);
    appear(&mut jobs, &[cgroup], SECOND);
    jobs.inspected(PATH, &named("first"), reported(), SECOND);
    jobs.removed(cgroup, 2 * SECOND);
    assert!(appear(&mut jobs, &[id(Hierarchy::V2, 9)], 3 * SECOND));
    let job = jobs.get(PATH).unwrap();
    assert_eq!((&*job.facts, job.first_seen_ns), (&Facts::default(), 3 * SECOND));
    // The end of the first run was lost: the cgroup's id shows it.
    jobs.inspected(PATH, &named("second"), reported(), 3 * SECOND);
    assert!(appear(&mut jobs, &[id(Hierarchy::V2, 10)], 4 * SECOND));
    assert!(jobs.get(PATH).unwrap().facts.is_empty());
}

#[test]
fn a_job_is_inspected_until_it_is_known_or_the_limit_is_reached() {
    let inspections = |every| {
        let mut jobs = Jobs::default();
        appear(&mut jobs, &[id(Hierarchy::V2, 1)], 0);
        let is_inspected = |second: &u64| {
            let is_due = !jobs.due(second * SECOND).is_empty();
            if is_due {
                let undecided = DeviceAccess::Unknown(Undecided::NoProgram);
                jobs.inspected(PATH, &Facts::default(), undecided, second * SECOND);
            }
            is_due
        };
        let seconds: Vec<u64> = (0..200).step_by(every).filter(is_inspected).collect();
        (jobs, seconds)
    };
    assert_eq!(inspections(10).1, [0, 10, 20, 40], "a late one counts for those before it");
    let (mut jobs, seconds) = inspections(1);
    assert_eq!(seconds, [0, 1, 3, 7, 15, 31]);
    // However often its processes cause further inspections.
    for _ in 0..100 {
        jobs.inspected(
            PATH,
            &Facts::default(),
            DeviceAccess::Unknown(Undecided::NoProgram),
            200 * SECOND,
        );
    }
    assert!(jobs.due(u64::MAX).is_empty());
    // A new step starts the inspections again.
    jobs.touched(PATH, 300 * SECOND);
    assert_eq!(jobs.due(300 * SECOND).len(), 1);
    jobs.inspected(PATH, &named("a"), reported(), 300 * SECOND);
    jobs.touched(PATH, 400 * SECOND);
    assert!(jobs.due(u64::MAX).is_empty());
}

#[test]
fn what_is_known_of_a_job_stays_when_its_cgroup_is_gone() {
    let mut jobs = Jobs::default();
    appear(&mut jobs, &[id(Hierarchy::V2, 1)], 0);
    jobs.inspected(PATH, &named("a"), reported(), 0);
    assert_eq!(jobs.take_changed().len(), 1);
    jobs.inspected(PATH, &Facts::default(), DeviceAccess::Unknown(Undecided::Gone), SECOND);
    let job = jobs.get(PATH).unwrap();
    assert_eq!((&*job.facts, &job.devices), (&named("a"), &reported()));
    assert!(jobs.take_changed().is_empty());
}

#[test]
fn the_jobs_that_ended_first_make_room_for_new_ones() {
    let mut jobs = Jobs::default();
    for number in 0..MAX_JOBS as u64 + 10 {
        let path = format!("/slurm/uid_1/job_{number}");
        let cgroup = id(Hierarchy::Memory, number);
        let name = SlurmJobId::new(&number.to_string());
        assert!(jobs.appeared(&path, &name, &[cgroup], number), "{number}");
        jobs.removed(cgroup, number + 1);
    }
    assert_eq!(jobs.all().len(), MAX_JOBS);
    assert!(jobs.get("/slurm/uid_1/job_9").is_none());
    assert!(jobs.get("/slurm/uid_1/job_10").is_some());
}
