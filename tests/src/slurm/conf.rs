//! What a cluster is made of: its configuration, users, hooks and ports, and the library that lets
//! Slurm's cgroup/v2 plugin run on a hybrid host.

use super::job::{ALICE, BOB};
use super::{GPUS_PER_NODE, Gpus, Plugin, Setup, Slurm, SlurmError};
use crate::stage::random_bytes;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// What is missing where a program of Slurm is.
pub(super) const PACKAGES: &str = "slurm (cargo xtask setup slurm)";

/// Jobs get numbers from here on, plus a random one: below Slurm's highest (67043328), and so that
/// clusters side by side have different ones.
const FIRST_JOB: u32 = 50_000_000;

/// Ports are chosen below the kernel's own choice (32768 and up), so that no client takes one
/// before its daemon does.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

const UNIFIED: &str = include_str!("unified.c");
const HOOKS: [(&str, &str); 2] = [
    ("prolog", include_str!("../../../deploy/slurm/gpuwho-prolog.sh")),
    ("epilog", include_str!("../../../deploy/slurm/gpuwho-epilog.sh")),
];

/// A program on the search path, or where users do not look.
pub(super) fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Ports that nobody listens on.
pub(super) fn free_ports(count: u32) -> Result<Vec<u16>, SlurmError> {
    let mut held = Vec::new();
    while held.len() < usize::try_from(count).unwrap_or_default() {
        let random = random_bytes(2)?.iter().fold(0, |number, byte| number << 8 | u16::from(*byte));
        let port = PORTS.start + random % (PORTS.end - PORTS.start);
        // All are held until the last is found, so as to be different.
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    }
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    held.iter().map(port).collect::<Result<_, _>>().map_err(SlurmError::os("ports"))
}

/// Whether a daemon listens; `Some(false)` when it has ended instead.
pub(super) fn answers(port: u16, daemon: &mut Option<Child>) -> Option<bool> {
    let ended = daemon.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
    let listens = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
    if ended { Some(false) } else { listens().then_some(true) }
}

/// The library that hides cgroup v1 from the plugin; none where there is nothing to hide.
pub(super) fn unified(folder: &Path) -> Result<Option<PathBuf>, SlurmError> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if own.lines().count() < 2 {
        return Ok(None);
    }
    let library = folder.join("unified.so");
    if library.exists() {
        return Ok(Some(library));
    }
    let source = folder.join("unified.c");
    fs::write(&source, UNIFIED).map_err(SlurmError::os(&source))?;
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl");
    let output = command.output().map_err(SlurmError::os("cc"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(SlurmError::Refused { command: "cc unified.c".to_owned(), said });
    }
    Ok(Some(library))
}

/// Writes all of a cluster's files.
pub(super) fn write(slurm: &Slurm) -> Result<(), SlurmError> {
    let folder = slurm.folder();
    for name in ["log", "state", "spool", "jobs", "out"] {
        let path = folder.join(name);
        fs::create_dir(&path).map_err(SlurmError::os(&path))?;
    }
    let own = |database: &str| fs::read_to_string(database).unwrap_or_default();
    let (mut passwd, mut group) = (own("/etc/passwd"), own("/etc/group"));
    for user in [ALICE, BOB] {
        // Writing to a string cannot fail.
        let _ = writeln!(passwd, "{0}:x:{1}:{1}::/:/bin/sh", user.name, user.uid);
        let _ = writeln!(group, "{0}:x:{1}:", user.name, user.uid);
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let files = [
        ("slurm.conf", slurm_conf(slurm, host.split('.').next().unwrap_or_default())?),
        ("cgroup.conf", cgroup_conf(slurm.setup)),
        ("gres.conf", gres_conf(slurm.setup)),
        ("passwd", passwd),
        ("group", group),
        // The worker is mounted on it.
        ("worker", String::new()),
    ];
    for (name, text) in files {
        put(&folder.join(name), &text, 0o644)?;
    }
    for (name, script) in HOOKS {
        put(&folder.join(name).with_extension("installed"), script, 0o755)?;
        // As a site would that wants another folder than the default one.
        let call = folder.join(name).with_extension("installed");
        let jobs = slurm.prolog_dir();
        let wrapper = format!("#!/bin/sh\nexec {} {}\n", call.display(), jobs.display());
        put(&folder.join(name), &wrapper, 0o755)?;
    }
    let out = folder.join("out");
    fs::set_permissions(&out, fs::Permissions::from_mode(0o1777)).map_err(SlurmError::os(&out))
}

fn put(path: &Path, text: &str, mode: u32) -> Result<(), SlurmError> {
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(SlurmError::os(path))
}

fn slurm_conf(slurm: &Slurm, host: &str) -> Result<String, SlurmError> {
    let random = random_bytes(3)?.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
    let mut text = format!(
        "\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmdDebug=verbose
FirstJobId={first}
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
GresTypes=gpu
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/{gather}
JobAcctGatherFrequency=5
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
{hooks}PrologFlags=Alloc,Contain
KillWait=2
DefMemPerCPU=100
AccountingStorageType=accounting_storage/none
",
        port = slurm.port,
        folder = slurm.folder().display(),
        first = FIRST_JOB + random,
        hooks = if slurm.setup.hooks { hooks(slurm.folder()) } else { String::new() },
        // The other one needs controllers that a hybrid host has given to v1.
        gather = if slurm.setup.plugin == Plugin::V1 { "cgroup" } else { "linux" },
    );
    let gpus = if slurm.setup.gpus == Gpus::Amd { ("mi300x", 2) } else { ("h200", GPUS_PER_NODE) };
    for node in &slurm.nodes {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "NodeName={} NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=16 RealMemory=8000 \
             Gres=gpu:{}:{} State=UNKNOWN",
            node.name, node.port, gpus.0, gpus.1
        );
    }
    text.push_str(
        "\
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=debug Nodes=ALL MaxTime=00:30:00 State=UP
",
    );
    Ok(text)
}

fn hooks(folder: &Path) -> String {
    let line = |(name, key)| format!("{key}={}\n", folder.join(name).display());
    [("prolog", "Prolog"), ("epilog", "Epilog")].map(line).concat()
}

fn cgroup_conf(setup: Setup) -> String {
    let devices = if setup.constrain { "yes" } else { "no" };
    let (version, ram) = match setup.plugin {
        Plugin::V1 => ("v1", "yes"),
        // Needs a controller that a hybrid host has given to v1.
        Plugin::V2 => ("v2\nIgnoreSystemd=yes", "no"),
    };
    format!(
        "\
CgroupPlugin=cgroup/{version}
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=no
ConstrainRAMSpace={ram}
ConstrainDevices={devices}
"
    )
}

/// The same on every node: Slurm numbers a node's GPUs by position, so that a second node with
/// `nvidia4` as its first would call it 0, and on this one host there is one `nvidia0`. AMD's are as
/// `AutoDetect=rsmi` finds them with ROCm's library (`gpu_rsmi.c`): by their render nodes.
fn gres_conf(setup: Setup) -> String {
    if setup.gpus == Gpus::Amd {
        return "Name=gpu Type=mi300x File=/dev/dri/renderD[128-129]\n".to_owned();
    }
    format!("Name=gpu Type=h200 File=/dev/nvidia[0-{}]\n", GPUS_PER_NODE - 1)
}
