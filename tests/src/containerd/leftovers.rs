//! What a containerd has outside its cgroups: a folder with mounts in it, the sockets of its
//! shims, and the states of runc, which has one place for every containerd of the machine. The
//! folder is named after its owner, so that whoever comes later can remove what a killed one left.

use super::ContainerdError;
use crate::stage::{Hierarchies, Reach, Stage, record};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::env;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where runc keeps the states of the containers of the namespace that kubelets use.
const RUNC_STATES: &str = "/run/containerd/runc/k8s.io";

/// Images and roots of hundreds of containers take a tenth of this.
const OPTIONS: &CStr = c"mode=0700,size=1g";

/// A bundle a container, below the state folder.
const BUNDLES: &str = "state/io.containerd.runtime.v2.task/k8s.io";

/// A new folder of this process, in memory: containerd waits for the disk with every step, and the
/// kernel when a container's root is unmounted.
pub(super) fn folder() -> Result<PathBuf, ContainerdError> {
    let folder = all().join(record::own_name());
    fs::create_dir_all(&folder)
        .and_then(|()| Ok(mount("gpuwho", &folder, "tmpfs", MountFlags::empty(), OPTIONS)?))
        .map_err(|source| ContainerdError::at(&folder, source))?;
    Ok(folder)
}

/// Removes what containerds left whose process is gone; gives the number of such.
pub(super) fn sweep() -> Result<usize, ContainerdError> {
    Stage::sweep()?;
    let _lock = record::lock()?;
    let entries = fs::read_dir(all()).into_iter().flatten().flatten();
    let dead: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| !record::owner_lives(path)).collect();
    for folder in &dead {
        remove(folder).map_err(|source| ContainerdError::at(folder, source))?;
    }
    Ok(dead.len())
}

/// Removes a containerd's traces once none of its processes lives.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    for bundle in fs::read_dir(folder.join(BUNDLES)).into_iter().flatten().flatten() {
        let address = fs::read_to_string(bundle.path().join("address")).unwrap_or_default();
        if let Some(socket) = address.strip_prefix("unix://") {
            remove_if_there(fs::remove_file(socket))?;
        }
        let id = bundle.file_name();
        remove_if_there(fs::remove_dir_all(Path::new(RUNC_STATES).join(&id)))?;
        literal_groups(&id.to_string_lossy())?
            .iter()
            .try_for_each(|group| remove_if_there(fs::remove_dir(group)))?;
    }
    // Removing a folder must never reach through a mount.
    let mut mounts = mounts_below(folder)?;
    mounts.sort();
    for point in mounts.iter().rev() {
        unmount(point, UnmountFlags::DETACH)?;
    }
    remove_if_there(fs::remove_dir_all(folder))
}

/// The groups that runc made of a name in the systemd driver's notation. In cgroup v1 they are in
/// the group of the runtime, in v2 at the top.
fn literal_groups(id: &str) -> io::Result<Vec<PathBuf>> {
    let hierarchies = Hierarchies::parse(&fs::read_to_string("/proc/self/mountinfo")?);
    let name = format!(":cri-containerd:{id}");
    let entries = hierarchies.within(Reach::All).flat_map(fs::read_dir).flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    Ok(paths.filter(|path| path.to_string_lossy().ends_with(&name)).collect())
}

fn all() -> PathBuf {
    env::temp_dir().join("gpuwho-containerd")
}

fn mounts_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.map(PathBuf::from).filter(|point| point.starts_with(folder)).collect())
}

fn remove_if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
