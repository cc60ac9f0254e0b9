//! The devices that Slurm has allocated on this node, used or not: those that each live job's own
//! device program allows it to open; if that cannot be read (cgroup v1, devices not constrained),
//! those that a site's mapping file gives to the job. Compares the list of jobs each tick; only a
//! change of it costs more.

use super::{DeviceAccess, DeviceNumber, Job, Label, Source, Undecided};
use crate::attribute::Workload;
use crate::attribute::allocations::{Allocation, AllocationDetails};
use crate::attribute::owner::Owner;
use crate::attribute::ownership::Ownership;
use crate::inventory::DeviceName;
use gpuwho_model::catalog::share::{GrantKind, GrantSource};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The source's name in the allocation registry.
const NAME: &str = "slurm";
/// Slurm's name of the resource.
const RESOURCE: &str = "gres/gpu";

/// The jobs at the last update of the allocations.
#[derive(Debug, Default)]
pub struct JobAllocations(Mutex<Vec<Arc<Job>>>);

impl JobAllocations {
    /// Updates the allocations if the live jobs changed. `devices` finds the devices with the given
    /// node numbers; it is called only then.
    pub fn refresh(
        &self,
        ownership: &Ownership,
        devices: impl Fn(&[DeviceNumber]) -> Vec<DeviceName>,
    ) {
        let mut jobs = ownership.jobs();
        jobs.retain(|job| job.removed_ns.is_none());
        jobs.sort_by(|a, b| a.path.cmp(&b.path));
        let mut known = self.0.lock();
        if known.len() == jobs.len() && known.iter().zip(&jobs).all(|(a, b)| Arc::ptr_eq(a, b)) {
            return;
        }
        ownership.allocations().replace(NAME, allocations(&jobs, ownership, devices));
        *known = jobs;
    }
}

fn allocations(
    jobs: &[Arc<Job>],
    ownership: &Ownership,
    behind: impl Fn(&[DeviceNumber]) -> Vec<DeviceName>,
) -> Vec<Allocation> {
    let mut allocations = Vec::new();
    for job in jobs {
        let (source, devices) = match &job.devices {
            DeviceAccess::Known { allowed, .. } => (GrantSource::Slurm, behind(allowed)),
            DeviceAccess::Unknown(why) => (GrantSource::File, mapped(job, *why)),
        };
        if devices.is_empty() {
            continue;
        }
        let workload = Workload { slurm: Some(job.task()), ..Workload::default() };
        let owner_id = ownership.allocation_owner(Owner::Job(job.name.clone()), &workload);
        allocations.extend(devices.into_iter().map(|device| Allocation {
            kind: if device.is_part() { GrantKind::Instance } else { GrantKind::Exclusive },
            device,
            owner: owner_id,
            holder: owner_id,
            source,
            claim: None,
            details: AllocationDetails {
                resource: Some(Arc::from(RESOURCE)),
                ..AllocationDetails::default()
            },
        }));
    }
    mark_shared(&mut allocations);
    allocations
}

/// The devices that mapping files give to a job without a readable device program. The job's
/// environment contains such numbers too, but the user controls it: it allocates nothing.
fn mapped(job: &Job, why: Undecided) -> Vec<DeviceName> {
    if matches!(why, Undecided::NotRead | Undecided::Gone) {
        return Vec::new();
    }
    let gpus = job.facts.get(Label::Gpus).filter(|fact| fact.source == Source::Mapping);
    let names = gpus.map_or("", |fact| &fact.value).split(',');
    names.filter_map(DeviceName::of_map).collect()
}

/// Marks a device that several jobs may open as shared (`gres/shard`, `gres/mps`).
fn mark_shared(allocations: &mut [Allocation]) {
    let mut jobs: HashMap<DeviceName, usize> = HashMap::new();
    for allocation in allocations.iter() {
        *jobs.entry(allocation.device.clone()).or_default() += 1;
    }
    for allocation in
        allocations.iter_mut().filter(|allocation| allocation.kind == GrantKind::Exclusive)
    {
        if jobs.get(&allocation.device).is_some_and(|jobs| *jobs > 1) {
            allocation.kind = GrantKind::Replica;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::slurm::Facts;
    use gpuwho_model::ids::{GpuUuid, SlurmJobId};
    use gpuwho_model::paths::Paths;
    use std::path::Path;

    fn job(name: &str, devices: DeviceAccess) -> Arc<Job> {
        Arc::new(Job {
            path: Arc::from(format!("/system.slice/slurmstepd.scope/job_{name}")),
            name: SlurmJobId::new(name),
            first_seen_ns: 0,
            removed_ns: None,
            facts: Arc::new(Facts::default()),
            devices,
        })
    }

    fn may_open(minors: &[u32]) -> DeviceAccess {
        let allowed = minors.iter().map(|minor| DeviceNumber { major: 195, minor: *minor });
        DeviceAccess::Known { allowed: allowed.collect(), denied: Vec::new() }
    }

    fn minors(numbers: &[DeviceNumber]) -> Vec<DeviceName> {
        let devices = numbers.iter().filter(|number| number.minor != 255);
        devices.map(|number| DeviceName::Minor(number.minor)).collect()
    }

    fn devices(jobs: &[Arc<Job>]) -> Vec<(DeviceName, String, GrantKind)> {
        let ownership = Ownership::new(&Paths::under(Path::new("/nonexistent")));
        let owner_id =
            |allocation: &Allocation| match &ownership.owner(allocation.owner).unwrap().owner {
                Owner::Job(job) => job.to_string(),
                other => panic!("{other:?}"),
            };
        let allocations = allocations(jobs, &ownership, minors);
        allocations
            .iter()
            .map(|allocation| (allocation.device.clone(), owner_id(allocation), allocation.kind))
            .collect()
    }

    /// A job with devices from a given source.
    fn reported(name: &str, devices: DeviceAccess, gpus: &str, source: Source) -> Arc<Job> {
        let mut facts = Facts::default();
        facts.put(Label::Gpus, gpus, source);
        Arc::new(Job { facts: Arc::new(facts), ..(*job(name, devices)).clone() })
    }

    #[test]
    fn a_mapping_file_allocates_where_the_device_program_is_unknown() {
        let undecided = |why| DeviceAccess::Unknown(why);
        let jobs = [
            reported("7", undecided(Undecided::CgroupV1), "2,GPU-4e1a", Source::Mapping),
            reported("8", undecided(Undecided::NoProgram), "0.3", Source::Mapping),
            reported("9", undecided(Undecided::CgroupV1), "5", Source::Environment),
            reported("10", undecided(Undecided::Gone), "6", Source::Mapping),
            reported("11", may_open(&[1]), "3", Source::Mapping),
        ];
        let uuid = DeviceName::Uuid(GpuUuid::new("GPU-4e1a"));
        assert_eq!(
            devices(&jobs),
            [
                (DeviceName::Number(2), "7".to_owned(), GrantKind::Exclusive),
                (uuid, "7".to_owned(), GrantKind::Exclusive),
                (DeviceName::Part(0, 3), "8".to_owned(), GrantKind::Instance),
                (DeviceName::Minor(1), "11".to_owned(), GrantKind::Exclusive),
            ]
        );
        let ownership = Ownership::new(&Paths::under(Path::new("/nonexistent")));
        let allocations = allocations(&jobs, &ownership, |_| Vec::new());
        let sources: Vec<_> = allocations.iter().map(|allocation| allocation.source).collect();
        assert_eq!(sources, [GrantSource::File; 3], "unknown device numbers allocate nothing");
    }

    #[test]
    fn a_job_has_the_devices_that_its_program_allows() {
        let jobs =
            [job("7", may_open(&[2, 255])), job("8", DeviceAccess::Unknown(Undecided::CgroupV1))];
        let expected = (DeviceName::Minor(2), "7".to_owned(), GrantKind::Exclusive);
        assert_eq!(devices(&jobs), [expected]);
    }

    #[test]
    fn a_device_of_two_jobs_is_shared_by_both() {
        let jobs = [job("7", may_open(&[0, 1])), job("8", may_open(&[1]))];
        let [one, other] = ["7", "8"].map(str::to_owned);
        assert_eq!(
            devices(&jobs),
            [
                (DeviceName::Minor(0), one.clone(), GrantKind::Exclusive),
                (DeviceName::Minor(1), one, GrantKind::Replica),
                (DeviceName::Minor(1), other, GrantKind::Replica),
            ]
        );
    }
}
