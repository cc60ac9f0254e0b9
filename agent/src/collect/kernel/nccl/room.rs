//! How many collective libraries a process, a tenant and the host may have: each is an open file,
//! and some dozens of probes.

use super::libraries::FileKey;
use super::library::Library;
use crate::ids::ProcKey;
use crate::tenant_files::Tenant;
use std::collections::HashMap;

/// Libraries of one process; a job has one or two.
pub(super) const MOST_OF_PROCESS: usize = 64;
/// Libraries that only one tenant uses.
const MOST_OF_TENANT: usize = 128;
/// Libraries on the host.
const MOST: usize = 512;

/// Whether there is room for one more of a process: `None` where there is, and where the host has too
/// many the library that has to go, one of the tenant with most of its own. Otherwise why not.
pub(super) fn one_more(
    known: &HashMap<FileKey, Library>,
    (process, tenant): (ProcKey, &Tenant),
) -> Result<Option<FileKey>, String> {
    let of_process = known.values().filter(|one| one.users.contains_key(&process));
    if of_process.count() >= MOST_OF_PROCESS {
        return Err(format!("it maps more than {MOST_OF_PROCESS} collective libraries"));
    }
    let mut of_tenants: HashMap<&Tenant, Vec<FileKey>> = HashMap::new();
    for (key, library) in known {
        if let Some(tenant) = library.only_tenant() {
            of_tenants.entry(tenant).or_default().push(*key);
        }
    }
    let own = of_tenants.get(tenant).map_or(0, Vec::len);
    if own >= MOST_OF_TENANT {
        return Err(format!("{tenant} maps more than {MOST_OF_TENANT} collective libraries"));
    }
    if known.len() < MOST {
        return Ok(None);
    }
    let greatest = of_tenants.into_values().max_by_key(Vec::len);
    let victim =
        greatest.filter(|theirs| theirs.len() > own + 1).and_then(|mut theirs| theirs.pop());
    victim.map(Some).ok_or_else(|| format!("more than {MOST} collective libraries are in use"))
}
