//! Limits the number of collective libraries of a process, a tenant and the host: each is an open
//! file and some dozens of probes.

use super::FileKey;
use super::library::Library;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::tenant_files::FileOwner;
use std::collections::HashMap;

/// Libraries of one process; a job has one or two.
pub(super) const MAX_PER_PROCESS: usize = 64;
/// Libraries that only one tenant uses.
const MAX_PER_TENANT: usize = 128;
/// Libraries on the host.
const MAX_PER_HOST: usize = 512;

/// Whether one more library of a process fits: `None` if so; at the host's limit, the library to
/// drop, one of the tenant with the most; otherwise an error.
pub(super) fn one_more(
    known: &HashMap<FileKey, Library>,
    process: ProcKey,
    tenant: &FileOwner,
) -> Result<Option<FileKey>, String> {
    let of_process = known.values().filter(|one| one.users.contains_key(&process));
    if of_process.count() >= MAX_PER_PROCESS {
        return Err(format!("it maps more than {MAX_PER_PROCESS} collective libraries"));
    }
    let mut of_tenants: HashMap<&FileOwner, Vec<FileKey>> = HashMap::new();
    for (key, library) in known {
        if let Some(tenant) = library.only_tenant() {
            of_tenants.entry(tenant).or_default().push(*key);
        }
    }
    let own = of_tenants.get(tenant).map_or(0, Vec::len);
    if own >= MAX_PER_TENANT {
        return Err(format!("{tenant} maps more than {MAX_PER_TENANT} collective libraries"));
    }
    if known.len() < MAX_PER_HOST {
        return Ok(None);
    }
    let largest = of_tenants.into_values().max_by_key(Vec::len);
    let affected =
        largest.filter(|theirs| theirs.len() > own + 1).and_then(|mut theirs| theirs.pop());
    affected
        .map(Some)
        .ok_or_else(|| format!("more than {MAX_PER_HOST} collective libraries are in use"))
}
