//! Who uses an accelerator: records and maps of the probe `device_users`.

mod share;

pub use share::{
    Allowance, FOLLOWING, GROUP, HOLDERS, KINDS, LEVELS, LeftOutKey, MAX_LEFT_OUT, OF_OWNER,
    OPENINGS, RATES, SHARES, Share, USER, shares, slot,
};

/// Room for what becomes of the processes followed and for cgroups, which user space has not read
/// yet: about 2,300 process events.
pub const RING_BYTES: u32 = 256 * 1024;
/// Room for openings that user space has not read yet: about 2,300, more than one user is allowed in
/// a second. A ring of its own, so that no number of forks takes an opening's place.
pub const OPENINGS_BYTES: u32 = 256 * 1024;
/// Processes followed at once, at most; where the host has fewer numbers for processes, so many.
pub const MAX_HOLDERS: u32 = 65_536;
/// Device numbers watched: nodes below the configured patterns plus one entry a driver.
pub const MAX_NODES: u32 = 4_096;
/// Openings remembered so that each is told once; the least recently used are forgotten and then
/// told again, which is harmless.
pub const MAX_SEEN: u32 = 16_384;
/// `TASK_COMM_LEN`.
pub const COMM_BYTES: usize = 16;
/// A pod's cgroup path is about 190 bytes.
pub const PATH_BYTES: usize = 256;

/// [`NodeKey::minor`] of an entry that stands for all minors of a driver.
pub const ANY_MINOR: u32 = u32::MAX;
/// An index or number that this kernel does not have.
pub const ABSENT: u32 = u32::MAX;
/// The kernel's clock tick as `/proc` shows it, in nanoseconds (`NSEC_PER_SEC / USER_HZ`).
pub const TICK_NS: u64 = 10_000_000;

/// [`Head::kind`]: a process opened a watched node.
pub const OPENED: u32 = 1;
/// [`Head::kind`]: a holder's child began; `parent_*` is the holder.
pub const FORKED: u32 = 2;
/// [`Head::kind`]: a holder became another program.
pub const EXECED: u32 = 3;
/// [`Head::kind`]: a holder changed its cgroup.
pub const MOVED: u32 = 4;
/// [`Head::kind`]: a holder's last thread ended.
pub const EXITED: u32 = 5;
/// [`Head::kind`]: a cgroup was made.
pub const CGROUP_MADE: u32 = 6;
/// [`Head::kind`]: a cgroup was removed.
pub const CGROUP_REMOVED: u32 = 7;

/// Index into the loss counters: the ring had no room.
pub const LOST_RING: u32 = 0;
/// Index into the loss counters: the map of holders had no room.
pub const LOST_MAP: u32 = 1;
/// Index into the loss counters: a kernel structure could not be read at the offset given.
pub const LOST_UNREADABLE: u32 = 2;
/// Index into the loss counters: the ring of openings had no room.
pub const LOST_OPENINGS: u32 = 3;
/// Index into the loss counters: the owner had used up its allowance of openings.
pub const LOST_ALLOWED_OPENINGS: u32 = 4;
/// Index into the loss counters: the owner had used up its allowance of other records.
pub const LOST_ALLOWED: u32 = 5;
/// Index into the loss counters: the owner had as many processes followed as it may have.
pub const LOST_PLACES: u32 = 6;
/// Number of loss counters.
pub const LOSSES: u32 = 7;

/// Position in [`Process::cgroups`] of the unified hierarchy.
pub const V2: usize = 0;
/// Position in [`Process::cgroups`] of cgroup v1 `devices`.
pub const DEVICES: usize = 1;
/// Position in [`Process::cgroups`] of cgroup v1 `memory`.
pub const MEMORY: usize = 2;
/// Position in [`Process::cgroups`] of cgroup v1 `freezer`.
pub const FREEZER: usize = 3;

abi! {
    /// What every record begins with.
    Head {
        /// `CLOCK_BOOTTIME`, nanoseconds.
        at_ns: u64,
        /// One of the kinds above.
        kind: u32,
        /// Zero.
        reserved: u32,
    }
}

abi! {
    /// A process: its thread group leader's identity, whichever thread acted.
    Process {
        /// `start_boottime` of the leader, nanoseconds.
        start_ns: u64,
        /// Cgroup ids by the positions above; 0 where there is none.
        cgroups: [u64; 4],
        /// Thread group id in the initial PID namespace.
        pid: u32,
        /// Real user id in the initial user namespace.
        uid: u32,
        /// Command name of the leader, NUL-padded.
        comm: [u8; COMM_BYTES],
    }
}

abi! {
    /// Something a process did.
    ProcessEvent {
        /// When and what.
        head: Head,
        /// `FORKED`: the parent's start.
        parent_start_ns: u64,
        /// Who.
        process: Process,
        /// `FORKED`: the parent.
        parent_pid: u32,
        /// `OPENED`: the node's major number.
        major: u32,
        /// `OPENED`: the node's minor number.
        minor: u32,
        /// Zero in a ring. In the map of what was left out: how many records of this kind and owner.
        left_out: u32,
    }
}

abi! {
    /// A process that is followed.
    Holder {
        /// Start of its leader in clock ticks.
        start_ticks: u64,
        /// The slots on which it counts, by level; [`SHARES`] where it counts on none.
        slots: [u16; LEVELS],
        /// Whether user space knows it: 0 or 1. What becomes of others is not told.
        reported: u16,
    }
}

abi! {
    /// Something that happened to a cgroup.
    CgroupEvent {
        /// When and what.
        head: Head,
        /// `kernfs_node.id` of the cgroup.
        id: u64,
        /// `cgroup_root.hierarchy_id`: 0 is the unified hierarchy.
        hierarchy: u32,
        /// Zero.
        reserved: u32,
        /// Path within the hierarchy, NUL-terminated.
        path: [u8; PATH_BYTES],
    }
}

// User space tells the two apart by their length.
const _: () = assert!(size_of::<ProcessEvent>() != size_of::<CgroupEvent>());

abi! {
    /// A watched character device.
    NodeKey {
        /// Major number.
        major: u32,
        /// Minor number, or [`ANY_MINOR`].
        minor: u32,
    }
}

abi! {
    /// An opening already told.
    SeenKey {
        /// The process's start.
        start_ns: u64,
        /// The process.
        pid: u32,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
        /// Zero.
        reserved: u32,
    }
}

abi! {
    /// Where this kernel keeps what the programs read: byte offsets from its BTF.
    Layout {
        /// `task_struct.tgid`.
        task_tgid: u32,
        /// `task_struct.group_leader`.
        task_leader: u32,
        /// `task_struct.start_boottime`.
        task_start: u32,
        /// `task_struct.cgroups`.
        task_cgroups: u32,
        /// `task_struct.signal`.
        task_signal: u32,
        /// `task_struct.comm`.
        task_comm: u32,
        /// `task_struct.real_cred`.
        task_cred: u32,
        /// `task_struct.files`.
        task_files: u32,
        /// `signal_struct.live`.
        signal_live: u32,
        /// `cred.uid`.
        cred_uid: u32,
        /// `css_set.subsys`.
        css_set_subsys: u32,
        /// `css_set.dfl_cgrp`.
        css_set_default: u32,
        /// `cgroup_subsys_state.cgroup`.
        css_cgroup: u32,
        /// `cgroup.kn`.
        cgroup_kn: u32,
        /// `cgroup.root`.
        cgroup_root: u32,
        /// `cgroup_root.hierarchy_id`.
        root_hierarchy: u32,
        /// `kernfs_node.id`.
        kn_id: u32,
        /// `inode.i_rdev`.
        inode_rdev: u32,
        /// `files_struct.fdt`.
        files_fdt: u32,
        /// `fdtable.fd`.
        fdtable_fd: u32,
        /// `file.f_inode`.
        file_inode: u32,
        /// Index in `css_set.subsys` by the positions above (the first is unused), or
        /// [`ABSENT`] where the controller is not on a v1 hierarchy.
        subsys: [u32; 4],
        /// `hierarchy_id` by the positions above, or [`ABSENT`].
        hierarchy: [u32; 4],
    }
}

impl Layout {
    /// Before user space has filled it in: what the programs are compiled with.
    pub const UNKNOWN: Self = Self {
        task_tgid: 0,
        task_leader: 0,
        task_start: 0,
        task_cgroups: 0,
        task_signal: 0,
        task_comm: 0,
        task_cred: 0,
        task_files: 0,
        signal_live: 0,
        cred_uid: 0,
        css_set_subsys: 0,
        css_set_default: 0,
        css_cgroup: 0,
        cgroup_kn: 0,
        cgroup_root: 0,
        root_hierarchy: 0,
        kn_id: 0,
        inode_rdev: 0,
        files_fdt: 0,
        fdtable_fd: 0,
        file_inode: 0,
        subsys: [ABSENT; 4],
        hierarchy: [ABSENT; 4],
    };
}
