//! The node's own folders and addresses, in namespaces that are this process's alone.

use super::{ADDRESS, ClusterError, MACHINE_ID, at};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_move,
};
use std::ffi::CStr;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What the node's programs write to, in memory. Images and roots take a fraction of it.
const FOLDERS: [&str; 3] = ["/run", "/var/lib", "/var/log"];
const OPTIONS: &CStr = c"mode=0755,size=4g";
/// Where the stages of this machine keep their records, which must stay the machine's.
const RECORDS: &str = "/run/gpuwho-stage";
/// What a kubelet finds in the folders above.
const EXPECTED: [&str; 5] =
    ["/run/lock", "/var/lib/kubelet", "/var/lib/etcd", "/var/log/pods", "/var/log/containers"];
/// Settings of the kernel that a kubelet writes unless they are so: it finds them so, and the machine's
/// stay as they are.
const SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];
/// One end of a pair has the node's address: a dummy link is not in every kernel.
const LINKS: [&str; 6] = [
    "link set lo up",
    "link add node0 type veth peer name node1",
    "addr add ADDRESS/24 dev node0",
    "link set node0 up",
    "link set node1 up",
    "route add default via 10.77.0.2",
];

/// Makes them.
pub(crate) fn make(folder: &Path) -> Result<(), ClusterError> {
    let kept = folder.join("records");
    fs::create_dir(&kept).map_err(at(&kept))?;
    mount_bind(RECORDS, &kept).map_err(|errno| at(&kept)(errno.into()))?;
    for path in FOLDERS {
        mount("gpuwho", path, "tmpfs", MountFlags::empty(), OPTIONS)
            .map_err(|errno| at(Path::new(path))(errno.into()))?;
    }
    for path in EXPECTED.into_iter().chain([RECORDS]) {
        fs::create_dir_all(path).map_err(at(Path::new(path)))?;
    }
    mount_move(&kept, RECORDS).map_err(|errno| at(&kept)(errno.into()))?;
    bind_text(folder, "machine-id", MACHINE_ID, Path::new("/etc/machine-id"))?;
    for (name, value) in SETTINGS {
        let path = Path::new("/proc/sys").join(name);
        bind_text(folder, &name.replace('/', "."), value, &path)?;
    }
    // As systemd has it, and as mounts that follow the host's need it.
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_change("/", shared).map_err(|errno| at(Path::new("/"))(errno.into()))?;
    for link in LINKS {
        ip(&link.replace("ADDRESS", ADDRESS))?;
    }
    Ok(())
}

/// Lets a file of the host read as this text.
fn bind_text(folder: &Path, name: &str, text: &str, path: &Path) -> Result<(), ClusterError> {
    let file = folder.join(name);
    fs::write(&file, format!("{text}\n")).map_err(at(&file))?;
    mount_bind(&file, path).map_err(|errno| at(path)(errno.into()))
}

fn ip(words: &str) -> Result<(), ClusterError> {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(at(Path::new("ip")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ClusterError::Refused { what: format!("ip {words}"), said })
}
