//! The places of the host's files, which differ in a container that mounts the host, and in tests.

use rustix::process::geteuid;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The host's directories as this process sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// procfs in the host's PID namespace.
    pub proc: PathBuf,
    /// sysfs.
    pub sys: PathBuf,
    /// The mount point of the cgroup hierarchies.
    pub cgroup: PathBuf,
    /// Device nodes.
    pub dev: PathBuf,
    /// The kubelet's pod-log directory.
    pub pod_logs: PathBuf,
    /// The host's user database.
    pub passwd: PathBuf,
    /// The host's machine id.
    pub machine_id: PathBuf,
    /// The kernel log, one record a line as `/dev/kmsg` writes them.
    pub kmsg: PathBuf,
    /// The directory of the agent's own sockets.
    pub run: PathBuf,
    /// The directory of the agent's state that outlives a boot.
    pub state: PathBuf,
}

/// A folder in which another user could put or replace the agent's files.
#[derive(Debug, thiserror::Error)]
#[error(
    "{setting} {folder}: {part} {problem}, who could replace what the agent keeps there; \
     name a folder below folders of root's, or take it from them"
)]
pub struct SharedFolder {
    setting: &'static str,
    folder: PathBuf,
    part: PathBuf,
    problem: String,
}

/// Makes the agent's own folders, which no other user can replace.
pub fn own_folders(paths: &Paths) -> Result<(), SharedFolder> {
    own_folder("paths.run", &paths.run)?;
    own_folder("paths.state", &paths.state)
}

/// Makes the folder of a setting, or takes it from all others, and checks that nobody but root and the
/// agent's own user can replace it: in one above it all may write only if they cannot replace what others
/// have there (sticky). A folder that cannot be made is refused by whoever uses it.
fn own_folder(setting: &'static str, folder: &Path) -> Result<(), SharedFolder> {
    let shared = |part: &Path, problem: String| {
        let (folder, part) = (folder.to_owned(), part.to_owned());
        SharedFolder { setting, folder, part, problem }
    };
    // Before anything is made where it leads.
    if let Some((link, uid)) = link_of_another(folder) {
        return Err(shared(link, format!("is a link of user {uid}")));
    }
    let _ = fs::create_dir_all(folder);
    if let Ok(about) = fs::symlink_metadata(folder)
        && about.is_dir()
        && about.uid() == geteuid().as_raw()
        && about.mode() & (OTHERS_WRITE | STICKY) == OTHERS_WRITE
    {
        // What stays writable is refused below.
        let _ = fs::set_permissions(folder, Permissions::from_mode(about.mode() & 0o755));
    }
    let Some((part, user)) = shared_part(folder, false) else { return Ok(()) };
    let of_user = |user| format!("belongs to user {user}");
    let problem = user.map_or_else(|| "can be written by every user".to_owned(), of_user);
    Err(shared(part, problem))
}

/// A part of a folder's path that another user can replace, and whose it is if it is not everybody's. In the
/// folder itself all may write only where it may be sticky and is.
pub fn shared_part(folder: &Path, may_be_sticky: bool) -> Option<(&Path, Option<u32>)> {
    folder.ancestors().find_map(|part| {
        // A folder that cannot be looked at is refused by whoever uses it.
        let about = fs::metadata(part).ok()?;
        let is_open = about.mode() & OTHERS_WRITE != 0;
        let is_sticky = about.mode() & STICKY != 0 && (may_be_sticky || part != folder);
        match about.uid() {
            uid if uid != 0 && uid != geteuid().as_raw() => Some((part, Some(uid))),
            _ if is_open && !is_sticky => Some((part, None)),
            _ => None,
        }
    })
}

/// The link on the way to a file that a user other than root and the agent's own has made, and the user.
pub fn link_of_another(path: &Path) -> Option<(&Path, u32)> {
    path.ancestors().find_map(|part| {
        let about = fs::symlink_metadata(part).ok().filter(fs::Metadata::is_symlink)?;
        let is_ours = [0, geteuid().as_raw()].contains(&about.uid());
        (!is_ours).then_some((part, about.uid()))
    })
}

/// Of a folder's mode: everybody may write in it; nobody may replace what is another's.
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

impl Default for Paths {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl Paths {
    /// The default places below `root`.
    pub fn under(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
            sys: root.join("sys"),
            cgroup: root.join("sys/fs/cgroup"),
            dev: root.join("dev"),
            pod_logs: root.join("var/log/pods"),
            passwd: root.join("etc/passwd"),
            machine_id: root.join("etc/machine-id"),
            kmsg: root.join("dev/kmsg"),
            run: root.join("run/gpuwho"),
            state: root.join("var/lib/gpuwho"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, lchown, symlink};

    #[test]
    fn a_folder_that_another_user_can_fill_is_none_of_the_agents() {
        let place = tempfile::tempdir().unwrap();
        let (above, folder) = (place.path().join("a"), place.path().join("a/run"));
        fs::create_dir_all(&folder).unwrap();
        let mode =
            |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let error = || own_folder("paths.run", &folder).err().map(|error| error.problem);
        let all = Some("can be written by every user".to_owned());
        assert_eq!(error(), None);
        mode(&above, 0o1777);
        assert_eq!(error(), None, "nobody can replace it there");
        mode(&above, 0o777);
        assert_eq!(error(), all);
        mode(&above, 0o755);
        mode(&folder, 0o1777);
        assert_eq!(error(), all);
        mode(&folder, 0o777);
        assert_eq!(error(), None, "taken from all others, as an emptyDir");
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o755);
        assert!(own_folder("paths.run", &folder.join("not/there")).is_ok());
        if chown(&above, Some(65_534), None).is_err() {
            println!("skipped: needs root, to make another user's folder");
            return;
        }
        let link = place.path().join("link");
        symlink(place.path(), &link).unwrap();
        lchown(&link, Some(65_534), None).unwrap();
        let of_link = own_folder("paths.run", &link.join("run")).unwrap_err();
        assert_eq!((of_link.part, &*of_link.problem), (link, "is a link of user 65534"));
        let error = own_folder("paths.run", &folder).unwrap_err().to_string();
        let start =
            format!("paths.run {}: {} belongs to user 65534", folder.display(), above.display());
        assert!(error.starts_with(&start), "{error}");
    }
}
