//! What Slurm has granted on this node, used or not: the devices that each live job's own device
//! program lets it open; where that cannot be read (cgroup v1, devices not constrained), those that
//! a mapping file of the site's gives to the job. A look at the list of jobs a tick; only a change of
//! it costs more.

use super::{DeviceNumber, Granted, Job, Label, Source, Undecided};
use crate::attribute::Workload;
use crate::attribute::allocations::{Allocation, AllocationDetails, DeviceName};
use crate::attribute::owner::Owner;
use crate::attribute::ownership::Ownership;
use crate::catalog::share::{GrantKind, GrantSource};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The source's name among those of grants.
const NAME: &str = "slurm";
/// What Slurm calls the resource.
const RESOURCE: &str = "gres/gpu";

/// The grants of the jobs as they were last told.
#[derive(Debug, Default)]
pub struct JobGrants(Mutex<Vec<Arc<Job>>>);

impl JobGrants {
    /// Tells the grants of the jobs there are, if any of it has changed. `devices` gives the devices
    /// behind the numbers of their nodes; it is asked only then.
    pub fn refresh(
        &self,
        ownership: &Ownership,
        devices: impl Fn(&[DeviceNumber]) -> Vec<DeviceName>,
    ) {
        let mut jobs = ownership.jobs();
        jobs.retain(|job| job.removed_ns.is_none());
        jobs.sort_by(|a, b| a.path.cmp(&b.path));
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    let mut grants = Vec::new();
    for job in jobs {
        let (source, devices) = match &job.granted {
            Granted::Devices { allowed, .. } => (GrantSource::Slurm, behind(allowed)),
            Granted::Untold(why) => (GrantSource::File, mapped(job, *why)),
        };
        if devices.is_empty() {
            continue;
        }
        let workload = Workload { slurm: Some(job.task()), ..Workload::default() };
        let owner_id = ownership.allocation_owner(Owner::Job(job.name.clone()), &workload);
        grants.extend(devices.into_iter().map(|device| Allocation {
            kind: if device.is_part() { GrantKind::Instance } else { GrantKind::Exclusive },
            device,
            owner: owner_id,
            source,
            details: AllocationDetails {
                resource: Some(Arc::from(RESOURCE)),
                ..AllocationDetails::default()
            },
        }));
    }
    share(&mut grants);
    grants
}

/// What mapping files give to a job whose devices the kernel does not tell. The job's environment
/// says such numbers too, and is the user's word: it grants nothing.
fn mapped(job: &Job, why: Undecided) -> Vec<DeviceName> {
    if matches!(why, Undecided::NotRead | Undecided::Gone) {
        return Vec::new();
    }
    let gpus = job.facts.get(Label::Gpus).filter(|fact| fact.source == Source::Mapping);
    let names = gpus.map_or("", |fact| &fact.value).split(',');
    names.filter_map(DeviceName::of_map).collect()
}

/// A device that several jobs may open is divided among them (`gres/shard`, `gres/mps`).
fn share(grants: &mut [Allocation]) {
    let mut holders: HashMap<DeviceName, usize> = HashMap::new();
    for allocation in grants.iter() {
        *holders.entry(allocation.device.clone()).or_default() += 1;
    }
    for allocation in grants.iter_mut().filter(|allocation| allocation.kind == GrantKind::Exclusive)
    {
        if holders.get(&allocation.device).is_some_and(|jobs| *jobs > 1) {
            allocation.kind = GrantKind::Replica;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::slurm::Facts;
    use crate::ids::{GpuUuid, SlurmJobId};
    use crate::paths::Paths;
    use std::path::Path;

    fn job(name: &str, granted: Granted) -> Arc<Job> {
        Arc::new(Job {
            path: Arc::from(format!("/system.slice/slurmstepd.scope/job_{name}")),
            name: SlurmJobId::new(name),
            first_seen_ns: 0,
            removed_ns: None,
            facts: Arc::new(Facts::default()),
            granted,
        })
    }

    fn may_open(minors: &[u32]) -> Granted {
        let allowed = minors.iter().map(|minor| DeviceNumber { major: 195, minor: *minor });
        Granted::Devices { allowed: allowed.collect(), denied: Vec::new() }
    }

    fn minors(numbers: &[DeviceNumber]) -> Vec<DeviceName> {
        let devices = numbers.iter().filter(|number| number.minor != 255);
        devices.map(|number| DeviceName::Minor(number.minor)).collect()
    }

    fn granted(jobs: &[Arc<Job>]) -> Vec<(DeviceName, String, GrantKind)> {
        let ownership = Ownership::new(&Paths::under(Path::new("/nonexistent")));
        let owner_id =
            |allocation: &Allocation| match &ownership.owner(allocation.owner).unwrap().owner {
                Owner::Job(job) => job.to_string(),
                other => panic!("{other:?}"),
            };
        let grants = allocations(jobs, &ownership, minors);
        grants
            .iter()
            .map(|allocation| (allocation.device.clone(), owner_id(allocation), allocation.kind))
            .collect()
    }

    /// A job with the devices that a source has told.
    fn reported(name: &str, granted: Granted, gpus: &str, source: Source) -> Arc<Job> {
        let mut facts = Facts::default();
        facts.put(Label::Gpus, gpus, source);
        Arc::new(Job { facts: Arc::new(facts), ..(*job(name, granted)).clone() })
    }

    #[test]
    fn a_mapping_file_grants_where_the_kernel_does_not_tell() {
        let undecided = |why| Granted::Untold(why);
        let jobs = [
            reported("7", undecided(Undecided::CgroupV1), "2,GPU-4e1a", Source::Mapping),
            reported("8", undecided(Undecided::NoProgram), "0.3", Source::Mapping),
            reported("9", undecided(Undecided::CgroupV1), "5", Source::Environment),
            reported("10", undecided(Undecided::Gone), "6", Source::Mapping),
            reported("11", may_open(&[1]), "3", Source::Mapping),
        ];
        let uuid = DeviceName::Uuid(GpuUuid::new("GPU-4e1a"));
        assert_eq!(
            granted(&jobs),
            [
                (DeviceName::Number(2), "7".to_owned(), GrantKind::Exclusive),
                (uuid, "7".to_owned(), GrantKind::Exclusive),
                (DeviceName::Part(0, 3), "8".to_owned(), GrantKind::Instance),
                (DeviceName::Minor(1), "11".to_owned(), GrantKind::Exclusive),
            ]
        );
        let ownership = Ownership::new(&Paths::under(Path::new("/nonexistent")));
        let grants = allocations(&jobs, &ownership, |_| Vec::new());
        let sources: Vec<_> = grants.iter().map(|allocation| allocation.source).collect();
        assert_eq!(sources, [GrantSource::File; 3], "what is behind no number is not granted");
    }

    #[test]
    fn a_job_is_granted_the_devices_that_its_program_allows() {
        let jobs = [job("7", may_open(&[2, 255])), job("8", Granted::Untold(Undecided::CgroupV1))];
        let expected = (DeviceName::Minor(2), "7".to_owned(), GrantKind::Exclusive);
        assert_eq!(granted(&jobs), [expected]);
    }

    #[test]
    fn a_device_of_two_jobs_is_a_part_for_each() {
        let jobs = [job("7", may_open(&[0, 1])), job("8", may_open(&[1]))];
        let [one, other] = ["7", "8"].map(str::to_owned);
        assert_eq!(
            granted(&jobs),
            [
                (DeviceName::Minor(0), one.clone(), GrantKind::Exclusive),
                (DeviceName::Minor(1), one, GrantKind::Replica),
                (DeviceName::Minor(1), other, GrantKind::Replica),
            ]
        );
    }
}
