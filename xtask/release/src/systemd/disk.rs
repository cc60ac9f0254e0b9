//! A guest's disk: a release of Debian with systemd and its kernel, made of its packages by mmdebstrap,
//! kept in the cache for a week; an ext4 file system is made of it without mounting anything.

use anyhow::{Context as _, Result};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use xtask::{place, shell};

/// A release of Debian.
pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) release: u32,
    /// Its packages' archive where the usual ones do not do.
    archive: Option<&'static str>,
}

/// Those that are tried, the usual one first.
pub(super) const SUITES: &[Suite] = &[
    Suite { name: "bookworm", release: 12, archive: None },
    // Without its security updates: mirrors do not have all that their lists name any more.
    Suite {
        name: "bullseye",
        release: 11,
        archive: Some("deb http://deb.debian.org/debian bullseye main"),
    },
    Suite { name: "trixie", release: 13, archive: None },
];

/// What a host has. The cloud kernel is a quarter of the usual one.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,udev,init-system-helpers,linux-image-cloud-amd64,\
    initramfs-tools,procps,kmod,bpftool,rpm";

/// After so long a release has newer packages.
const WEEK: Duration = Duration::from_hours(7 * 24);

/// Room for the guest's own files.
const SIZE: &str = "2G";

/// Answers commands on the second serial line: runs each line, then says its exit code.
const SHELL: &str = r#"#!/bin/bash
exec 3<>/dev/ttyS1
stty -F /dev/ttyS1 raw -echo 115200
echo "@@READY" >&3
while IFS= read -r line <&3; do
  bash -c "$line" >/run/said 2>&1 </dev/null 3>&-
  code=$?
  head -c 262144 /run/said >&3
  printf '\n@@END %s\n' $code >&3
done
"#;

const SHELL_UNIT: &str = "[Unit]\nDescription=Commands of the checks\nAfter=multi-user.target\n\n\
    [Service]\nExecStart=/opt/check/shell\nType=idle\n";

/// Files of this machine, and where they are in the guest.
pub(super) struct Extra {
    pub(super) files: Vec<(PathBuf, &'static str)>,
}

/// What QEMU boots.
pub(super) struct Host {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
    pub(super) disk: PathBuf,
}

/// The names, for the command line.
pub(super) fn names() -> Vec<&'static str> {
    SUITES.iter().map(|suite| suite.name).collect()
}

/// Makes the disk of a release below `work`.
pub(super) fn make(suite: &Suite, extra: &Extra, work: &Path) -> Result<Host> {
    let path = place::cache("systemd")?.join(format!("{}.tar", suite.name));
    let archive = archive(path, suite.name, PACKAGES, suite.archive)?;
    let work = work.join(suite.name);
    let root = work.join("root");
    fs::create_dir_all(&root).with_context(|| format!("making {}", root.display()))?;
    shell::run(
        shell::program("tar", ["--numeric-owner", "-xf"]).arg(archive).arg("-C").arg(&root),
    )?;
    for (from, to) in &extra.files {
        let to = root.join(to);
        fs::create_dir_all(to.parent().unwrap_or(&root)).context("making a guest's folder")?;
        fs::copy(from, &to).with_context(|| format!("copying {}", from.display()))?;
    }
    write(&root, "etc/fstab", "/dev/vda / ext4 defaults 0 1\n")?;
    write(&root, "etc/hostname", "gpuwho-guest\n")?;
    write(&root, "opt/check/shell", SHELL)?;
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(root.join("opt/check/shell"), mode)
        .context("making a script executable")?;
    write(&root, "etc/systemd/system/check-shell.service", SHELL_UNIT)?;
    let wants = root.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).context("making a unit's folder")?;
    symlink("../check-shell.service", wants.join("check-shell.service"))
        .context("enabling the shell")?;
    let boot = root.join("boot");
    let (kernel, initrd, disk) = (work.join("vmlinuz"), work.join("initrd"), work.join("disk"));
    fs::copy(find(&boot, "vmlinuz-")?, &kernel).context("copying the kernel")?;
    fs::copy(find(&boot, "initrd.img-")?, &initrd).context("copying the initrd")?;
    let mut command = shell::program("mke2fs", ["-q", "-t", "ext4", "-d"]);
    shell::run(command.arg(&root).arg(&disk).arg(SIZE))?;
    fs::remove_dir_all(&root).with_context(|| format!("removing {}", root.display()))?;
    Ok(Host { kernel, initrd, disk })
}

/// A release with these packages in an archive that is not older than a week, or older without the network.
pub(crate) fn archive(
    path: PathBuf,
    suite: &str,
    packages: &str,
    from: Option<&str>,
) -> Result<PathBuf> {
    let modified = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
    let age = modified.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
    if age.is_some_and(|age| age < WEEK) {
        return Ok(path);
    }
    // Made beside the final name and moved, so that an interrupted one is never used.
    let unfinished = path.with_extension(format!("{}.tar", std::process::id()));
    let mut command = shell::program("mmdebstrap", ["--variant=minbase", "--format=tar"]);
    command.arg(format!("--include={packages}"));
    let made = shell::run(command.arg(suite).arg(&unfinished).args(from));
    match made {
        Ok(()) => fs::rename(&unfinished, &path)
            .with_context(|| format!("moving to {}", path.display()))?,
        Err(error) if modified.is_some() => eprintln!("warning: an old one is used: {error:#}"),
        Err(error) => return Err(error),
    }
    Ok(path)
}

fn find(folder: &Path, start: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let fits = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
    };
    paths.find(fits).with_context(|| format!("no {start}* in {}", folder.display()))
}

fn write(root: &Path, path: &str, text: &str) -> Result<()> {
    let path = root.join(path);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}
