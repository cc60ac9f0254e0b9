//! NVIDIA's and AMD's device nodes without either: a `/dev` only this process sees, whose nodes have the numbers of devices that every kernel can open and nobody uses.

use super::script::Script;
use crate::vendors;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, chmod, flock, makedev, mknodat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;
use std::ffi::CStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::OnceLock;

/// Minor of the first virtual console the nodes stand for: far above those with a login.
const FIRST_CONSOLE: u32 = 40;
/// What tells workers of another one.
const VARIABLE: &str = "GPUWHO_FIRST_CONSOLE";
/// Which others a demo may take, so that two demos do not see each other's processes.
const OTHERS: [u32; 2] = [20, 30];

/// The consoles of this process's nodes, once they are chosen.
static CHOSEN: OnceLock<Chosen> = OnceLock::new();

struct Chosen {
    first: u32,
    /// The nodes that they stand for; the usual ones if there are none.
    names: Vec<String>,
    /// Holds the lock.
    _lock: Option<File>,
}

/// Major of the consoles.
const TTY: u32 = 4;

/// `/dev/full`, where the kernel has no virtual consoles.
const FULL: (u32, u32) = (1, 7);

/// As many nodes a host of the demo has.
pub const MAX_NODES: usize = 10;

/// NVIDIA's nodes of a host with eight GPUs.
const NVIDIA: [&str; MAX_NODES] = [
    "nvidia0",
    "nvidia1",
    "nvidia2",
    "nvidia3",
    "nvidia4",
    "nvidia5",
    "nvidia6",
    "nvidia7",
    "nvidiactl",
    "nvidia-uvm",
];

/// AMD's nodes of a host with two, behind NVIDIA's and those of [`open_to_all`].
const AMD: [&str; 3] = ["kfd", "dri/renderD128", "dri/renderD129"];
/// A node of each other vendor's, and two that are no accelerator's: a processor's neural unit and what a
/// virtual machine has of a network card.
const OTHER_VENDORS: [&str; 7] = [
    "accel/accel0",
    "tenstorrent/0",
    "vfio/0",
    "dri/renderD160",
    "neuron0",
    "accel/accel9",
    "vfio/9",
];
/// GPU numbers from here on are minors of render nodes, as DRM numbers them.
const FIRST_RENDER: u32 = 128;
/// Minor of the first of them.
const FIRST_AMD_CONSOLE: u32 = 60;
/// Minor of the first of the other vendors', behind those with a login and before [`OTHERS`].
const FIRST_OTHER_CONSOLE: u32 = 13;

/// What any program expects to find.
const USUAL: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Takes consoles that no other demo has, for this process and its workers; the tests' own where all
/// are taken. They stand for these nodes, ten at most. Call it before anything makes nodes.
pub fn take_own_consoles(names: &[String]) {
    let names: Vec<_> = names.iter().take(MAX_NODES).cloned().collect();
    for first in OTHERS {
        let path = std::env::temp_dir().join(format!("gpuwho-demo-{first}.lock"));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Another user's lock, too, is a lock.
        let Ok(file) = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)) else { continue };
        let file = File::from(file);
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _first = CHOSEN.set(Chosen { first, names, _lock: Some(file) });
            return;
        }
    }
    let _first = CHOSEN.set(Chosen { first: FIRST_CONSOLE, names, _lock: None });
}

/// What a worker needs in its environment to have the same nodes as this process.
pub fn environment() -> (&'static str, String) {
    let chosen = chosen();
    let words = std::iter::once(chosen.first.to_string()).chain(chosen.names.iter().cloned());
    (VARIABLE, words.collect::<Vec<_>>().join(","))
}

fn chosen() -> &'static Chosen {
    CHOSEN.get_or_init(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let mut words = text.split(',');
        let first = words.next().and_then(|number| number.parse().ok()).unwrap_or(FIRST_CONSOLE);
        Chosen { first, names: words.map(str::to_owned).collect(), _lock: None }
    })
}

/// Gives the process a `/dev` of its own with all of these nodes.
pub fn private_dev() -> io::Result<()> {
    let stand_ins = stand_ins();
    crate::sys::own_namespaces(UnshareFlags::NEWNS)?;
    // Without this the new /dev would show up on the host.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("worker", "/dev", "tmpfs", MountFlags::NOSUID, c"mode=0755" as &CStr)?;
    for (name, major, minor) in USUAL {
        make_node(Path::new("/dev"), name, (major, minor))?;
    }
    for (name, number) in stand_ins {
        make_node(Path::new("/dev"), name, number)?;
    }
    Ok(())
}

/// Makes in `folder` the nodes that the driver would make in the host's `/dev`; an agent that is
/// pointed there learns the numbers to watch. Gives the pattern for `devices.nodes` of NVIDIA's.
pub fn host_nodes(folder: &Path) -> io::Result<String> {
    let folder = folder.join("dev");
    fs::create_dir_all(&folder)?;
    for (name, number) in stand_ins() {
        match make_node(&folder, name, number) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(folder.join("nvidia*").display().to_string())
}

/// Makes a node that everybody may open, for an agent that watches it alone: of each `which` below
/// ten another device, so that tests beside each other do not see each other's processes.
pub fn open_to_all(folder: &Path, name: &str, which: u32) -> io::Result<()> {
    let first = FIRST_CONSOLE + u32::try_from(NVIDIA.len()).unwrap_or(0);
    let consoles = Path::new("/dev/tty40").exists();
    make_node(folder, name, if consoles { (TTY, first + which) } else { FULL })
}

/// The number of the device that stands for a node below `/dev`, as sysfs has it; this one, if nothing
/// stands for it.
pub fn number_of(name: &str, otherwise: (u32, u32)) -> String {
    let known = stand_ins().into_iter().find(|(known, _)| *known == name);
    let (major, minor) = known.map_or(otherwise, |(_, number)| number);
    format!("{major}:{minor}")
}

/// The nodes, each with the number of the device that stands for it.
fn stand_ins() -> Vec<(&'static str, (u32, u32))> {
    let consoles = Path::new("/dev/tty40").exists();
    let number = |minor| if consoles { (TTY, minor) } else { FULL };
    let chosen = chosen();
    if !chosen.names.is_empty() {
        let names = chosen.names.iter().map(String::as_str);
        return names.zip((chosen.first..).map(number)).collect();
    }
    let nvidia = NVIDIA.into_iter().zip((chosen.first..).map(number));
    let others = OTHER_VENDORS.into_iter().zip((FIRST_OTHER_CONSOLE..).map(number));
    nvidia.chain(AMD.into_iter().zip((FIRST_AMD_CONSOLE..).map(number))).chain(others).collect()
}

fn make_node(folder: &Path, name: &str, (major, minor): (u32, u32)) -> io::Result<()> {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap_or(folder))?;
    let mode = Mode::from_raw_mode(0o666);
    mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(major, minor))?;
    // mknod's mode is cut by the umask.
    Ok(chmod(&path, mode)?)
}

/// Opens what CUDA or ROCm opens for the script's GPUs, in their order. The descriptors outlive an
/// exec.
pub fn open_gpus(script: &Script) -> io::Result<Vec<OwnedFd>> {
    if script.gpus.is_empty() {
        return Ok(Vec::new());
    }
    let folder = if script.relative {
        std::env::set_current_dir("/dev")?;
        Path::new("")
    } else {
        Path::new("/dev")
    };
    let gpus = script.gpus.iter().map(|gpu| node_of(*gpu));
    let always = always(&script.gpus).iter().map(|name| (*name).to_owned());
    always.chain(gpus).map(|name| open(&folder.join(name))).collect()
}

/// Nodes that a process opens whatever of these GPUs it uses.
pub(super) fn always(gpus: &[u32]) -> &'static [&'static str] {
    if gpus.iter().all(|gpu| vendors::node_of(*gpu).is_some()) {
        &[]
    } else if gpus.iter().all(|gpu| *gpu >= FIRST_RENDER) {
        &["kfd"]
    } else {
        &["nvidiactl", "nvidia-uvm"]
    }
}

/// The node of a GPU of a script, below `/dev`.
pub(super) fn node_of(gpu: u32) -> String {
    let of_amd = || (gpu >= FIRST_RENDER).then(|| format!("dri/renderD{gpu}"));
    vendors::node_of(gpu).or_else(of_amd).unwrap_or_else(|| format!("nvidia{gpu}"))
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let named = |errno: Errno| io::Error::new(errno.kind(), format!("{}: {errno}", path.display()));
    open_node(path).map_err(named)
}

/// Opens a node; what the kernel answers is the caller's to judge.
pub fn open_node(path: &Path) -> Result<OwnedFd, Errno> {
    // A console must not become the process's terminal. The descriptor outlives an exec.
    rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())
}

/// Puts a copy of the running program into the private `/dev` under another name.
pub fn copy_program(name: &str) -> io::Result<()> {
    let path = Path::new("/dev").join(name);
    io::copy(&mut File::open("/proc/self/exe")?, &mut File::create_new(&path)?)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consoles_that_a_demo_takes_are_not_those_of_tests() {
        assert!(FIRST_OTHER_CONSOLE + u32::try_from(OTHER_VENDORS.len()).unwrap() <= OTHERS[0]);
        let count = u32::try_from(NVIDIA.len()).unwrap();
        let all = [OTHERS[0], OTHERS[1], FIRST_CONSOLE, FIRST_AMD_CONSOLE];
        assert!(all.windows(2).all(|two| two[0] + count <= two[1]), "{all:?}");
    }
}
