//! What Slurm has granted on this node: the devices that each live job's own device program lets it
//! open, used or not. A look at the list of jobs a tick; only a change of it costs more.

use super::{DeviceNumber, Granted, Job};
use crate::attribute::Workload;
use crate::attribute::grants::{DeviceName, Grant};
use crate::attribute::ownership::Ownership;
use crate::attribute::party::Party;
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
    /// Tells the grants of the jobs there are, if any of it has changed. `node` gives the path (or
    /// `major:minor`) of a device number; it is asked only then.
    pub fn refresh(&self, ownership: &Ownership, node: impl Fn(DeviceNumber) -> Arc<str>) {
        let mut jobs = ownership.jobs();
        jobs.retain(|job| job.removed_ns.is_none());
        jobs.sort_by(|a, b| a.path.cmp(&b.path));
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() == jobs.len() && known.iter().zip(&jobs).all(|(a, b)| Arc::ptr_eq(a, b)) {
            return;
        }
        ownership.grants().replace(NAME, grants(&jobs, ownership, node));
        *known = jobs;
    }
}

fn grants(
    jobs: &[Arc<Job>],
    ownership: &Ownership,
    node: impl Fn(DeviceNumber) -> Arc<str>,
) -> Vec<Grant> {
    let mut grants = Vec::new();
    for job in jobs {
        let Granted::Devices { allowed, .. } = &job.granted else { continue };
        let workload = Workload { slurm: Some(job.task()), ..Workload::default() };
        let party = ownership.grantee(Party::Job(job.name.clone()), &workload);
        let devices = allowed.iter().filter_map(|number| DeviceName::of_node(&node(*number)));
        grants.extend(devices.map(|device| Grant {
            device,
            party,
            source: GrantSource::Slurm,
            kind: GrantKind::Exclusive,
            resource: Some(Arc::from(RESOURCE)),
            replica: None,
        }));
    }
    share(&mut grants);
    grants
}

/// A device that several jobs may open is divided among them (`gres/shard`, `gres/mps`).
fn share(grants: &mut [Grant]) {
    let mut holders: HashMap<DeviceName, usize> = HashMap::new();
    for grant in grants.iter() {
        *holders.entry(grant.device.clone()).or_default() += 1;
    }
    for grant in grants {
        if holders.get(&grant.device).is_some_and(|jobs| *jobs > 1) {
            grant.kind = GrantKind::Replica;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::slurm::{Facts, Untold};
    use crate::ids::SlurmJobId;
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

    fn granted(jobs: &[Arc<Job>]) -> Vec<(DeviceName, String, GrantKind)> {
        let ownership = Ownership::new(&Paths::under(Path::new("/nonexistent")));
        let name = |number: DeviceNumber| match number.minor {
            255 => Arc::from("/dev/nvidiactl"),
            minor => Arc::from(format!("/dev/nvidia{minor}")),
        };
        let party = |grant: &Grant| match &ownership.party(grant.party).unwrap().party {
            Party::Job(job) => job.to_string(),
            other => panic!("{other:?}"),
        };
        let grants = grants(jobs, &ownership, name);
        grants.iter().map(|grant| (grant.device.clone(), party(grant), grant.kind)).collect()
    }

    #[test]
    fn a_job_is_granted_the_devices_that_its_program_allows() {
        let jobs = [job("7", may_open(&[2, 255])), job("8", Granted::Untold(Untold::CgroupV1))];
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
