//! The programs a containerd consists of, and its configuration.

use super::Unavailable;
use rustix::fs::statfs;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The variable that names a folder with the programs of a containerd that has events, where the
/// system's is older.
const FOLDER: &str = "GPUWHO_CONTAINERD";

/// Oldest version with the CRI's event stream.
const EVENTS: (u32, u32) = (1, 7);

/// Type of an overlay file system, which cannot be the upper layer of another.
const OVERLAY: u64 = 0x794c_7630;

/// Where to find them.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) containerd: PathBuf,
    pub(crate) ctr: PathBuf,
    /// The only program in the images, so it must need no library.
    pub(crate) busybox: PathBuf,
    /// A search path that finds the shim and runc, also for a user without system folders in it.
    pub(crate) path: OsString,
}

impl Programs {
    /// The system's.
    pub(crate) fn find() -> Result<Self, Unavailable> {
        Self::find_with(None)
    }

    /// The system's if it is new enough, else the one that was fetched for the tests.
    pub(crate) fn find_with_events() -> Result<Self, Unavailable> {
        let system = Self::find()?;
        if system.have_events() {
            return Ok(system);
        }
        let missing =
            || Unavailable("containerd 1.7 or newer (cargo xtask test fetches it)".to_owned());
        let fetched = PathBuf::from(env::var_os(FOLDER).ok_or_else(missing)?);
        let fetched = Self::find_with(Some(fetched))?;
        if fetched.have_events() { Ok(fetched) } else { Err(missing()) }
    }

    /// Whether they are new enough for the CRI's event stream.
    pub(super) fn have_events(&self) -> bool {
        version(&self.containerd).is_some_and(|version| version >= EVENTS)
    }

    fn find_with(first: Option<PathBuf>) -> Result<Self, Unavailable> {
        let default = env::var_os("PATH").unwrap_or_default();
        let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
        let folders = first.into_iter().chain(env::split_paths(&default)).chain(system);
        let folders: Vec<_> = folders.collect();
        let find = |name: &str| {
            let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
            let what = if name == "containerd" { "" } else { &format!(" with {name}") };
            let remedy = format!("containerd{what} (cargo xtask setup containerd)");
            found.ok_or(Unavailable(remedy))
        };
        let containerd = find("containerd")?;
        find("containerd-shim-runc-v2")?;
        find("runc")?;
        let busybox = find("busybox")?;
        if !is_static(&busybox) {
            let what = "containerd with a static busybox (cargo xtask setup containerd)";
            return Err(Unavailable(what.to_owned()));
        }
        let path = env::join_paths(&folders).unwrap_or(default);
        Ok(Self { containerd, ctr: find("ctr")?, busybox, path })
    }
}

/// The version in `containerd github.com/containerd/containerd 1.6.20~ds1 …`.
fn version(containerd: &Path) -> Option<(u32, u32)> {
    let output = Command::new(containerd).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let word = text.split_whitespace().nth(2)?.trim_start_matches('v');
    let mut numbers = word.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether a program names no dynamic loader; its path is near the beginning.
fn is_static(program: &Path) -> bool {
    let bytes = fs::read(program).unwrap_or_default();
    let start = bytes.get(..4096.min(bytes.len())).unwrap_or_default();
    !bytes.is_empty() && !start.windows(4).any(|window| window == b"/ld-")
}

/// Its configuration file, of the format that versions 1.6 to 2 read.
pub(super) fn text(folder: &Path, pause: &str) -> String {
    let snapshotter = snapshotter(folder);
    let folder = folder.display();
    format!(
        "\
version = 2
root = \"{folder}/root\"
state = \"{folder}/state\"
disabled_plugins = [
  \"io.containerd.internal.v1.opt\",
  \"io.containerd.internal.v1.tracing\",
  \"io.containerd.snapshotter.v1.aufs\",
  \"io.containerd.snapshotter.v1.btrfs\",
  \"io.containerd.snapshotter.v1.devmapper\",
  \"io.containerd.snapshotter.v1.zfs\",
  \"io.containerd.tracing.processor.v1.otlp\",
]
[grpc]
  address = \"{folder}/containerd.sock\"
[ttrpc]
  address = \"{folder}/containerd.sock.ttrpc\"
[plugins.\"io.containerd.grpc.v1.cri\"]
  sandbox_image = \"{pause}\"
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  restrict_oom_score_adj = true
  [plugins.\"io.containerd.grpc.v1.cri\".containerd]
    snapshotter = \"{snapshotter}\"
    default_runtime_name = \"runc\"
    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]
      runtime_type = \"io.containerd.runc.v2\"
      [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins.\"io.containerd.grpc.v1.cri\".cni]
    bin_dir = \"{folder}/cni\"
    conf_dir = \"{folder}/cni\"
"
    )
}

/// Overlays where the kernel and the file system have them, copies elsewhere.
fn snapshotter(folder: &Path) -> &'static str {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let has_overlay = known.lines().any(|line| line.ends_with("\toverlay"));
    let kind = statfs(folder).map(|stat| u64::try_from(stat.f_type).unwrap_or_default());
    if has_overlay && kind.is_ok_and(|kind| kind != OVERLAY) { "overlayfs" } else { "native" }
}
