//! Decides from mount lists whether a file system may block the kernel indefinitely: the lists of
//! the file's process and of process 1.
//!
//! A FUSE mount may, because its server is a process. It is trusted only if it is below a directory
//! that the operator configured, and process 1 sees it there: that list has no mounts of other
//! mount namespaces, and what `fusermount3` mounts for a user has that user's id. An overlay hides
//! its lower file systems; if process 1 sees the overlay, the paths of its layers are the host's,
//! and their mounts decide. Only lists are read: the kernel contacts no server for them.

use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

/// Limit on the bytes of a process's mount list, which may have up to `fs.mount-max` entries.
const MAX_MOUNTS_BYTES: u64 = 8 << 20;

/// A mount in `/proc/PID/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    id: u64,
    /// The file system's device, `major:minor`.
    device: String,
    point: PathBuf,
    kind: String,
    options: String,
}

/// The file system type if files of a mount must not be probed, because it may never answer.
pub(super) fn may_hang(
    paths: &Paths,
    trusted: &[PathBuf],
    process: ProcKey,
    mount: u64,
) -> Option<String> {
    let Some(mount) = find(paths, &process.pid.to_string(), |one| one.id == mount) else {
        return Some("unknown".to_owned());
    };
    let is_fuse = mount.kind.starts_with("fuse");
    if !is_fuse && mount.kind != "overlay" {
        return None;
    }
    let host = read(paths, "1");
    let is_safe = if is_fuse {
        is_trusted(&host, trusted, &mount)
    } else {
        let seen = host.iter().find(|one| one.device == mount.device && one.kind == "overlay");
        seen.is_some_and(|overlay| {
            let layers = layers(&overlay.options);
            !layers.is_empty() && layers.iter().all(|layer| is_layer(&host, trusted, layer))
        })
    };
    (!is_safe).then_some(mount.kind)
}

/// Whether a FUSE mount is root's, at or below a trusted directory.
fn is_trusted(host: &[Mount], trusted: &[PathBuf], mount: &Mount) -> bool {
    let is_roots = |one: &Mount| one.options.split(',').any(|option| option == "user_id=0");
    let is_named = |one: &Mount| trusted.iter().any(|path| one.point.starts_with(path));
    host.iter().any(|one| one.device == mount.device && is_roots(one) && is_named(one))
}

/// Whether a layer of an overlay is on a local file system or a trusted one.
fn is_layer(host: &[Mount], trusted: &[PathBuf], layer: &Path) -> bool {
    // Of several mounts at one path, the last hides the others.
    let on = host.iter().filter(|mount| layer.starts_with(&mount.point));
    let on = on.max_by_key(|mount| mount.point.components().count());
    on.is_some_and(|on| {
        let is_fuse = on.kind.starts_with("fuse");
        layer.is_absolute() && on.kind != "overlay" && (!is_fuse || is_trusted(host, trusted, on))
    })
}

/// The directories of an overlay.
fn layers(options: &str) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for option in options.split(',') {
        let Some((name, value)) = option.split_once('=') else { continue };
        if matches!(name, "lowerdir" | "lowerdir+" | "datadir+" | "upperdir") {
            all.extend(value.split(':').filter(|one| !one.is_empty()).map(PathBuf::from));
        }
    }
    all
}

fn read(paths: &Paths, process: &str) -> Vec<Mount> {
    let mut all = Vec::new();
    // The closure collects and never matches.
    let _ = find(paths, process, |one| {
        all.push(one.clone());
        false
    });
    all
}

fn find(paths: &Paths, process: &str, matches: impl FnMut(&Mount) -> bool) -> Option<Mount> {
    let list = File::open(paths.proc.join(process).join("mountinfo")).ok()?;
    find_in(BufReader::new(list.take(MAX_MOUNTS_BYTES)), matches)
}

fn find_in(list: impl BufRead, mut matches: impl FnMut(&Mount) -> bool) -> Option<Mount> {
    let lines = list.split(b'\n').map_while(Result::ok);
    let mut mounts = lines.filter_map(|line| mount(&String::from_utf8_lossy(&line)));
    mounts.find(|one| matches(one))
}

/// The file system type of a mount in a list.
#[cfg(any(test, feature = "fixtures"))]
pub(in super::super) fn kind_of(list: impl BufRead, mount: u64) -> Option<String> {
    find_in(list, |one| one.id == mount).map(|mount| mount.kind)
}

/// Parses `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
fn mount(line: &str) -> Option<Mount> {
    let (about, rest) = line.split_once(" - ")?;
    let mut about = about.split(' ');
    let id = about.next()?.parse().ok()?;
    let device = about.nth(1)?.to_owned();
    let point = PathBuf::from(unescaped(about.nth(1)?));
    let mut rest = rest.split(' ');
    let (kind, options) = (rest.next()?.to_owned(), unescaped(rest.nth(1)?));
    Some(Mount { id, device, point, kind, options })
}

/// Decodes spaces and the like, which are shown as three octal digits (`mangle_path`). An escaped
/// comma or colon of an overlay keeps its backslash, with which no path of the host starts.
fn unescaped(text: &str) -> String {
    let shown = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")];
    shown.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const PROCESS: ProcKey = ProcKey { pid: 7, start_ticks: 1 };
    const HOST: &str = "\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:40 / /cvmfs/sw rw - fuse.cvmfs2 cvmfs2 rw,user_id=0,group_id=0
22 20 0:41 / /cvmfs/mine rw - fuse.sshfs me@there rw,user_id=1000,group_id=1000
23 20 0:42 / /home/me/images rw - fuse.squashfuse squashfuse rw,user_id=0
24 20 7:0 / /images/torch ro - squashfs /dev/loop0 ro
25 20 0:43 / /images/far rw - nfs4 server:/far rw
30 20 0:50 / /run/one rw - overlay overlay rw,lowerdir=/images/torch:/var/lib/l/AB,upperdir=/var/lib/up
31 20 0:51 / /run/two rw - overlay overlay rw,lowerdir=/images/torch:/cvmfs/sw/base
32 20 0:52 / /run/three rw - overlay overlay rw,lowerdir=/images/torch:/home/me/images/x
33 20 0:53 / /run/four rw - overlay overlay rw,lowerdir=12/fs:11/fs
34 20 0:54 / /run/five rw - overlay overlay rw,lowerdir=/run/one/a:/images/torch
35 20 0:55 / /run/with\\040space rw - overlay overlay rw,lowerdir=/images/far/a
36 20 0:56 / /run/six rw - overlay overlay rw,lowerdir=/cvmfs/mine/a
";

    /// The reason for a process with the host's mounts and some of its own.
    fn refused(id: u64, trusted: &[&str]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::under(folder.path());
        for process in ["1", "7"] {
            fs::create_dir_all(paths.proc.join(process)).unwrap();
        }
        // The same names, but mounted in the process's own user namespace, where it is root.
        let own = "\
40 1 0:60 / /cvmfs/sw rw - fuse.cvmfs2 cvmfs2 rw,user_id=0
41 1 0:61 / /run/one rw - overlay overlay rw,lowerdir=/images/torch
";
        fs::write(paths.proc.join("1/mountinfo"), HOST).unwrap();
        fs::write(paths.proc.join("7/mountinfo"), format!("{HOST}{own}")).unwrap();
        let trusted: Vec<PathBuf> = trusted.iter().map(PathBuf::from).collect();
        may_hang(&paths, &trusted, PROCESS, id)
    }

    #[test]
    fn a_fuse_mount_of_root_below_a_configured_directory_is_trusted() {
        let fuse = |kind: &str| Some(format!("fuse.{kind}"));
        assert_eq!(refused(21, &[]), fuse("cvmfs2"), "by default none is");
        assert_eq!(refused(21, &["/cvmfs"]), None);
        assert_eq!(refused(21, &["/cv", "/home"]), fuse("cvmfs2"), "another directory");
        assert_eq!(refused(22, &["/cvmfs"]), fuse("sshfs"), "a user's own");
        assert_eq!(refused(40, &["/cvmfs"]), fuse("cvmfs2"), "in its own namespace");
        assert_eq!(refused(24, &[]).or(refused(25, &[])).or(refused(20, &[])), None);
        assert_eq!(refused(99, &["/"]), Some("unknown".into()));
    }

    #[test]
    fn an_overlay_visible_on_the_host_is_judged_by_its_layers() {
        let overlay = Some("overlay".to_owned());
        assert_eq!(refused(30, &[]), None, "squashfs and ext4");
        assert_eq!((refused(31, &[]), refused(31, &["/cvmfs"])), (overlay.clone(), None));
        assert_eq!(refused(32, &["/cvmfs"]), overlay, "a layer that is not trusted");
        assert_eq!(refused(33, &["/cvmfs"]), overlay, "from where is not known");
        assert_eq!(refused(34, &["/cvmfs"]), overlay, "another overlay below");
        assert_eq!(refused(35, &[]), None, "as NFS itself");
        assert_eq!(refused(36, &["/cvmfs"]), overlay, "a user's own below");
        assert_eq!(refused(41, &["/cvmfs"]), overlay, "in its own namespace");
    }
}
