//! Loads the probe `device_users`: passes the kernel's layout, attaches the programs that follow
//! processes with an open device, then the best hook that sees opens.

use super::btf::BtfError;
use super::device_users::OpenHook;
use super::layout;
use super::share::Allowances;
use crate::objects::DEVICE_USERS;
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::{
    CgroupAttachMode, CgroupDevice, FExit, ProgramError, RawTracePoint, TracePoint,
};
use aya::{Btf, BtfError as AyaBtfError, Ebpf, EbpfError, EbpfLoader};
use aya_log::EbpfLogger;
use gpuwho_common::device_users::{
    Holder, LOSSES, Layout, LeftOutKey, MAX_HOLDERS, NodeKey, ProcessEvent, SeenKey, Share,
};
use gpuwho_model::paths::Paths;
use gpuwho_owners::nodes::Nodes;
use gpuwho_owners::proc_scan::unified_root;
use gpuwho_sys as sys;
use log::Log;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Programs that follow known processes, with their raw tracepoints.
const FOLLOWERS: [(&str, &str); 6] = [
    ("forked", "sched_process_fork"),
    ("execed", "sched_process_exec"),
    ("exited", "sched_process_exit"),
    ("moved", "cgroup_attach_task"),
    ("cgroup_made", "cgroup_mkdir"),
    ("cgroup_removed", "cgroup_rmdir"),
];

/// Places for processes that are followed, where the host has no more numbers for processes than these
/// or does not say how many it has.
const MIN_HOLDERS: u32 = 4_096;

/// A verifier message may be a page in one line.
const MAX_REASON_CHARS: usize = 200;

/// System calls whose exit shows an open; `openat2` is newer than the other two.
const OPEN_CALLS: [&str; 3] = ["openat", "open", "openat2"];

/// Inode of the root directory of any cgroup hierarchy; any other number is the root of a cgroup
/// namespace or a partial mount.
const CGROUP_ROOT_INODE: u64 = 1;

/// Why the probe, or one of its hooks, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Built without BPF.
    #[error("this binary was built without BPF programs")]
    NotBuilt,
    /// The kernel does not expose its types.
    #[error("{0}")]
    Layout(#[from] BtfError),
    /// The object does not load.
    #[error("load the BPF object: {}", first_line(.0))]
    Object(#[from] EbpfError),
    /// The kernel refuses a program, or there is nothing to attach it to.
    #[error("{program}: {}", first_line(.source))]
    Program {
        /// The program.
        program: &'static str,
        /// The kernel's answer.
        source: ProgramError,
    },
    /// The kernel refuses a map, or the object lacks it.
    #[error("map {name}: {source}")]
    Map {
        /// The map.
        name: &'static str,
        /// Why.
        source: MapError,
    },
    /// A function's type is missing.
    #[error("kernel types: {0}")]
    Types(#[from] AyaBtfError),
    /// The object lacks a part: it was built from other sources.
    #[error("the embedded BPF object has no {0}")]
    Missing(&'static str),
    /// The hierarchy's root cannot be opened.
    #[error("open the root of the unified cgroup hierarchy: {0}")]
    CgroupRoot(io::Error),
    /// The tracepoints cannot be found.
    #[error("tracefs: {0}")]
    Tracefs(io::Error),
    /// The tracepoint's record has another layout than the program expects.
    #[error("sys_exit_openat has its result at another offset: {0}")]
    Format(String),
    /// None of the hooks works.
    #[error("no hook sees openings: {}", listed(.0))]
    NoHook(Vec<(OpenHook, String)>),
}

/// Returns the first line of an error; the verifier's whole log follows it in an aya error.
pub fn first_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    tracing::debug!(%text, "BPF program refused");
    shortened(&text)
}

/// The first line, truncated to a readable length.
pub fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MAX_REASON_CHARS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.to_owned(),
    }
}

fn listed(declined: &[(OpenHook, String)]) -> String {
    let texts: Vec<String> = declined.iter().map(|(hook, why)| format!("{hook}: {why}")).collect();
    texts.join("; ")
}

/// The loaded probe; dropping it detaches its programs.
pub(super) struct Loaded {
    pub ring: RingBuf<MapData>,
    pub openings: RingBuf<MapData>,
    pub nodes: HashMap<MapData, NodeKey, u32>,
    pub holders: HashMap<MapData, u32, Holder>,
    pub seen: HashMap<MapData, SeenKey, u8>,
    pub left_out: HashMap<MapData, LeftOutKey, ProcessEvent>,
    pub counted: Array<MapData, Share>,
    pub balance: Array<MapData, u64>,
    pub allowance: Arc<Allowances>,
    pub lost: Arc<PerCpuArray<MapData, u64>>,
    pub layout: Layout,
    pub hook: OpenHook,
    pub declined: Vec<(OpenHook, String)>,
    pub bpf_log: EbpfLogger<BpfLogger>,
    _programs: Ebpf,
}

/// Forwards the programs' log records to the agent's log.
#[derive(Debug)]
pub(super) struct BpfLogger;

impl Log for BpfLogger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        tracing::warn!(record = %record.args(), "a BPF program reported an error");
    }

    fn flush(&self) {}
}

/// Loads and attaches everything; `wanted` is one hook or `Auto`.
pub(super) fn load(wanted: OpenHook, watched: &Nodes, paths: &Paths) -> Result<Loaded, LoadError> {
    if DEVICE_USERS.is_empty() {
        return Err(LoadError::NotBuilt);
    }
    let layout = layout::read(paths)?;
    allow_maps();
    let places = places(paths);
    let mut bpf = EbpfLoader::new()
        .btf(None)
        .override_global("LAYOUT", &layout, true)
        .map_max_entries("HOLDERS", places)
        .load(DEVICE_USERS)?;
    let mut nodes = hash_map(&mut bpf, "NODES")?;
    fill(&mut nodes, watched).map_err(|source| LoadError::Map { name: "NODES", source })?;
    let (ring, openings) = (ring(&mut bpf, "EVENTS")?, ring(&mut bpf, "OPENINGS")?);
    let allowance = Arc::new(Allowances::new(array(&mut bpf, "ALLOWANCE")?, places)?);
    let (counted, balance) = (array(&mut bpf, "COUNTED")?, array(&mut bpf, "BALANCE")?);
    let lost = PerCpuArray::try_from(map(&mut bpf, "LOST")?)
        .map_err(|source| LoadError::Map { name: "LOST", source })?;
    let bpf_log = EbpfLogger::init_with_logger(&mut bpf, BpfLogger)
        .map_err(|_| LoadError::Missing("map of log records"))?;
    let (holders, seen) = (hash_map(&mut bpf, "HOLDERS")?, hash_map(&mut bpf, "SEEN")?);
    let left_out = hash_map(&mut bpf, "LEFT_OUT")?;
    for (program, tracepoint) in FOLLOWERS {
        follow(&mut bpf, program, tracepoint)?;
    }
    let (hook, declined) = attach_best(&mut bpf, wanted, paths)?;
    Ok(Loaded {
        ring,
        openings,
        nodes,
        holders,
        seen,
        left_out,
        counted,
        balance,
        allowance,
        lost: Arc::new(lost),
        layout,
        hook,
        declined,
        bpf_log,
        _programs: bpf,
    })
}

/// How many processes can be followed: as many as the host has numbers for, within bounds.
fn places(paths: &Paths) -> u32 {
    let most = fs::read_to_string(paths.proc.join("sys/kernel/pid_max")).ok();
    let most = most.and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(MAX_HOLDERS);
    most.clamp(MIN_HOLDERS, MAX_HOLDERS)
}

fn ring(bpf: &mut Ebpf, name: &'static str) -> Result<RingBuf<MapData>, LoadError> {
    RingBuf::try_from(map(bpf, name)?).map_err(|source| LoadError::Map { name, source })
}

fn array<V: aya::Pod>(bpf: &mut Ebpf, name: &'static str) -> Result<Array<MapData, V>, LoadError> {
    Array::try_from(map(bpf, name)?).map_err(|source| LoadError::Map { name, source })
}

/// Puts the watched devices into the programs' map and removes stale ones.
pub(super) fn fill(
    map: &mut HashMap<MapData, NodeKey, u32>,
    watched: &Nodes,
) -> Result<(), MapError> {
    let stale: Vec<NodeKey> = map
        .keys()
        .flatten()
        .filter(|key| !watched.entries().any(|(wanted, _)| wanted == *key))
        .collect();
    for key in stale {
        map.remove(&key)?;
    }
    watched.entries().try_for_each(|(key, lowest)| map.insert(key, lowest, 0))
}

/// A loss counter, summed over all CPUs.
pub(super) fn losses(lost: &PerCpuArray<MapData, u64>, reason: u32) -> u64 {
    debug_assert!(reason < LOSSES, "no such counter");
    lost.get(&reason, 0).map_or(0, |counts| counts.iter().sum())
}

/// Before 5.11 maps count against the limit of locked memory; if raising it fails, creating the
/// first map fails.
pub fn allow_maps() {
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
}

pub(super) fn map(bpf: &mut Ebpf, name: &'static str) -> Result<aya::maps::Map, LoadError> {
    bpf.take_map(name).ok_or(LoadError::Missing(name))
}

pub(super) fn hash_map<K: aya::Pod, V: aya::Pod>(
    bpf: &mut Ebpf,
    name: &'static str,
) -> Result<HashMap<MapData, K, V>, LoadError> {
    HashMap::try_from(map(bpf, name)?).map_err(|source| LoadError::Map { name, source })
}

fn follow(
    bpf: &mut Ebpf,
    program: &'static str,
    tracepoint: &'static str,
) -> Result<(), LoadError> {
    let found: &mut RawTracePoint = typed(bpf, program)?;
    found
        .load()
        .and_then(|()| found.attach(tracepoint).map(drop))
        .map_err(|source| LoadError::Program { program, source })
}

pub(super) fn typed<'a, T>(bpf: &'a mut Ebpf, program: &'static str) -> Result<&'a mut T, LoadError>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    bpf.program_mut(program)
        .ok_or(LoadError::Missing(program))?
        .try_into()
        .map_err(|source| LoadError::Program { program, source })
}

/// Tries the hooks, cheapest first, and records why each one failed.
fn attach_best(
    bpf: &mut Ebpf,
    wanted: OpenHook,
    paths: &Paths,
) -> Result<(OpenHook, Vec<(OpenHook, String)>), LoadError> {
    let mut declined = Vec::new();
    for hook in [OpenHook::Fexit, OpenHook::Cgroup, OpenHook::Syscall] {
        if wanted != OpenHook::Auto && wanted != hook {
            continue;
        }
        let attached = match hook {
            OpenHook::Fexit => attach_fexit(bpf, paths),
            OpenHook::Cgroup => attach_cgroup(bpf, paths),
            OpenHook::Syscall | OpenHook::Auto => attach_syscall(bpf),
        };
        match attached {
            Ok(()) => return Ok((hook, declined)),
            Err(why) => declined.push((hook, why.to_string())),
        }
    }
    Err(LoadError::NoHook(declined))
}

fn attach_fexit(bpf: &mut Ebpf, paths: &Paths) -> Result<(), LoadError> {
    const PROGRAM: &str = "opened_fexit";
    let types = Btf::parse_file(paths.sys.join("kernel/btf/vmlinux"), aya::Endianness::default())?;
    let program: &mut FExit = typed(bpf, PROGRAM)?;
    program
        .load("chrdev_open", &types)
        .and_then(|()| program.attach().map(drop))
        .map_err(|source| LoadError::Program { program: PROGRAM, source })
}

fn attach_cgroup(bpf: &mut Ebpf, paths: &Paths) -> Result<(), LoadError> {
    const PROGRAM: &str = "opened_cgroup";
    let root = cgroup_root(paths).map_err(LoadError::CgroupRoot)?;
    let program: &mut CgroupDevice = typed(bpf, PROGRAM)?;
    // Since 5.7 this creates a link, which always allows others at the same level and below; the
    // kernel refuses the flag that requests this for a link (`cgroup_bpf_link_attach`).
    program
        .load()
        .and_then(|()| program.attach(root, CgroupAttachMode::Single).map(drop))
        .map_err(|source| LoadError::Program { program: PROGRAM, source })
}

/// Opens the real root, not that of a cgroup namespace: a program there would see only one
/// container.
fn cgroup_root(paths: &Paths) -> io::Result<OwnedFd> {
    let mounted = unified_root(paths)
        .filter(|root| fs::metadata(root).is_ok_and(|found| found.ino() == CGROUP_ROOT_INODE));
    let root = match mounted {
        Some(path) => File::open(path)?,
        None => File::from(sys::mounts::detached("cgroup2")?),
    };
    if root.metadata()?.ino() != CGROUP_ROOT_INODE {
        return Err(io::Error::other("this process has a cgroup namespace of its own"));
    }
    Ok(root.into())
}

fn attach_syscall(bpf: &mut Ebpf) -> Result<(), LoadError> {
    const PROGRAM: &str = "opened_syscall";
    let program: &mut TracePoint = typed(bpf, PROGRAM)?;
    program.load().map_err(|source| LoadError::Program { program: PROGRAM, source })?;
    if let Some(tracefs) = mounted_tracefs() {
        return attach_open_calls(program, &tracefs);
    }
    let tracefs = Path::new("/sys/kernel/tracing");
    sys::mounts::with_tracefs(|| attach_open_calls(program, tracefs)).map_err(LoadError::Tracefs)?
}

fn mounted_tracefs() -> Option<PathBuf> {
    ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .map(PathBuf::from)
        .into_iter()
        .find(|tracefs| tracefs.join("events/syscalls").is_dir())
}

fn attach_open_calls(program: &mut TracePoint, tracefs: &Path) -> Result<(), LoadError> {
    for call in OPEN_CALLS {
        let name = format!("sys_exit_{call}");
        let event = tracefs.join("events/syscalls").join(&name);
        // arm64 has no `open`, and kernels before 5.6 no `openat2`; all have `openat`.
        if call != "openat" && !event.exists() {
            continue;
        }
        let format = fs::read_to_string(event.join("format")).map_err(LoadError::Tracefs)?;
        result_is_at_16(&format)?;
        program
            .attach("syscalls", &name)
            .map_err(|source| LoadError::Program { program: "opened_syscall", source })?;
    }
    Ok(())
}

/// The program reads `ret` at a constant offset, because the verifier allows no other.
fn result_is_at_16(format: &str) -> Result<(), LoadError> {
    let field = format.lines().find(|line| line.contains(" ret;")).unwrap_or("no field ret");
    if field.contains("offset:16;") && field.contains("size:8;") {
        Ok(())
    } else {
        Err(LoadError::Format(field.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifier_text_is_truncated() {
        assert_eq!(shortened("refused\n0: R1=ctx()\n"), "refused");
        let long = shortened(&"é".repeat(300));
        assert_eq!((long.chars().count(), long.ends_with('…')), (201, true));
    }

    #[test]
    fn tracepoint_with_another_layout_is_refused() {
        let line = "\tfield:long ret;\toffset:16;\tsize:8;\tsigned:1;\n";
        assert!(result_is_at_16(line).is_ok());
        let moved = result_is_at_16(&line.replace("16", "24")).unwrap_err();
        assert!(moved.to_string().contains("offset:24"), "{moved}");
        assert!(result_is_at_16("").is_err());
    }
}
