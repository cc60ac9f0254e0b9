//! Builds the [`Layout`] for the BPF programs: the offsets of the kernel fields that they read, and
//! the host's cgroup hierarchies.

use super::btf::{Btf, BtfError};
use gpuwho_common::device_users::{ABSENT, DEVICES, FREEZER, Layout, MEMORY, V2};
use gpuwho_model::ids::Hierarchy;
use gpuwho_model::paths::Paths;
use std::fs;

/// cgroup v1 controllers whose hierarchy identifies the owner, with the enumerator of their index
/// in `css_set.subsys`.
const CONTROLLERS: [(usize, &str, &str); 3] = [
    (DEVICES, "devices", "devices_cgrp_id"),
    (MEMORY, "memory", "memory_cgrp_id"),
    (FREEZER, "freezer", "freezer_cgrp_id"),
];

/// The hierarchy at a position of a record's cgroup ids.
pub(super) fn hierarchy_at(position: usize) -> Hierarchy {
    match position {
        DEVICES => Hierarchy::Devices,
        MEMORY => Hierarchy::Memory,
        FREEZER => Hierarchy::Freezer,
        _ => Hierarchy::V2,
    }
}

/// The hierarchy with this `cgroup_root.hierarchy_id`.
pub(super) fn hierarchy_numbered(layout: &Layout, number: u32) -> Option<Hierarchy> {
    (0..layout.hierarchy.len())
        .find(|position| layout.hierarchy.get(*position) == Some(&number))
        .map(hierarchy_at)
}

/// Reads the layout of the running kernel.
pub(super) fn read(paths: &Paths) -> Result<Layout, BtfError> {
    let btf = Btf::read(&paths.sys.join("kernel/btf/vmlinux"))?;
    let (subsys, hierarchy) = hierarchies(&btf, paths);
    Ok(Layout {
        task_tgid: btf.offset("task_struct", "tgid")?,
        task_leader: btf.offset("task_struct", "group_leader")?,
        task_start: btf.offset("task_struct", "start_boottime")?,
        task_cgroups: btf.offset("task_struct", "cgroups")?,
        task_signal: btf.offset("task_struct", "signal")?,
        task_comm: btf.offset("task_struct", "comm")?,
        task_cred: btf.offset("task_struct", "real_cred")?,
        task_files: btf.offset("task_struct", "files")?,
        signal_live: btf.offset("signal_struct", "live")?,
        cred_uid: btf.offset("cred", "uid")?,
        css_set_subsys: btf.offset("css_set", "subsys")?,
        css_set_default: btf.offset("css_set", "dfl_cgrp")?,
        css_cgroup: btf.offset("cgroup_subsys_state", "cgroup")?,
        cgroup_kn: btf.offset("cgroup", "kn")?,
        cgroup_root: btf.offset("cgroup", "root")?,
        root_hierarchy: btf.offset("cgroup_root", "hierarchy_id")?,
        kn_id: btf.offset("kernfs_node", "id")?,
        inode_rdev: btf.offset("inode", "i_rdev")?,
        files_fdt: btf.offset("files_struct", "fdt")?,
        fdtable_fd: btf.offset("fdtable", "fd")?,
        file_inode: btf.offset("file", "f_inode")?,
        subsys,
        hierarchy,
    })
}

/// Reads the hierarchy number of each controller from `/proc/cgroups`. 0 means that the controller
/// is on the unified hierarchy, or on none, so that there is no v1 id.
fn hierarchies(btf: &Btf, paths: &Paths) -> ([u32; 4], [u32; 4]) {
    let mut subsys = [ABSENT; 4];
    let mut hierarchy = [ABSENT; 4];
    if let Some(unified) = hierarchy.get_mut(V2) {
        *unified = 0;
    }
    let table = fs::read_to_string(paths.proc.join("cgroups")).unwrap_or_default();
    for (position, controller, enumerator) in CONTROLLERS {
        let Some(number) = hierarchy_of(&table, controller) else { continue };
        let Some(index) = btf.enumerator("cgroup_subsys_id", enumerator) else { continue };
        if let (Some(index_slot), Some(number_slot)) =
            (subsys.get_mut(position), hierarchy.get_mut(position))
        {
            *index_slot = index;
            *number_slot = number;
        }
    }
    (subsys, hierarchy)
}

fn hierarchy_of(table: &str, controller: &str) -> Option<u32> {
    let mut fields = table
        .lines()
        .map(str::split_ascii_whitespace)
        .find_map(|mut fields| (fields.next() == Some(controller)).then_some(fields))?;
    fields.next()?.parse().ok().filter(|number| *number != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_on_the_unified_hierarchy_has_no_v1_number() {
        let table = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n\
                     memory\t0\t24\t1\ndevices\t5\t1\t1\n";
        assert_eq!(hierarchy_of(table, "memory"), None);
        assert_eq!(hierarchy_of(table, "devices"), Some(5));
        assert_eq!(hierarchy_of(table, "freezer"), None);
    }
}
