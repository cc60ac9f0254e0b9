//! Who opens an accelerator's device node, and what becomes of them.
//!
//! Three programs can see an opening; user space attaches the best one the kernel takes:
//! `opened_fexit` (fexit of `chrdev_open`, 5.5, on arm64 6.4), `opened_cgroup` (the cgroup device
//! hook, 4.15) and `opened_syscall` (the exits of open, openat and openat2). The other programs
//! follow the processes seen, from raw tracepoints whose arguments have been stable since 5.8,
//! which the ring needs anyway. A process that never opens a watched node costs one map lookup at
//! fork, exec and exit, and no event.
//!
//! Openings have a ring of their own. Each owner has an allowance of records a second; what is beyond
//! it is counted, with one example an owner and kind in `LEFT_OUT`, and user space looks for it in
//! `/proc`. A process whose beginning was left out is followed, but nothing more is told of it until
//! user space has found it.
#![no_std]
#![no_main]

// Not of the library: the objects of all programs would have these maps.
#[path = "../device_users/share.rs"]
mod share;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{BPF_NOEXIST, bpf_cgroup_dev_ctx};
use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use aya_ebpf::macros::{cgroup_device, fexit, map, raw_tracepoint, tracepoint};
use aya_ebpf::maps::{HashMap, LruHashMap, RingBuf};
use aya_ebpf::programs::{DeviceContext, FExitContext, RawTracePointContext, TracePointContext};
use gpuwho_common::device_users::{
    ABSENT, ANY_MINOR, CGROUP_MADE, CGROUP_REMOVED, COMM_BYTES, CgroupEvent, DEVICES, EXECED,
    EXITED, FOLLOWING, FORKED, FREEZER, LOST_OPENINGS, LOST_RING, LOST_UNREADABLE, Layout,
    MAX_NODES, MAX_SEEN, MEMORY, MOVED, NodeKey, OPENED, OPENINGS as OPENS, OPENINGS_BYTES,
    PATH_BYTES, Process, ProcessEvent, RING_BYTES, SeenKey, TICK_NS, V2,
};
use gpuwho_ebpf::Kernel;
use share::{
    HOLDERS, admit, follow, forget, head, lost, mark_reported, refuse, slots_of, unreadable,
};

/// Filled by user space before the programs are loaded; read-only after that.
#[unsafe(no_mangle)]
static LAYOUT: Layout = Layout::UNKNOWN;

#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);
#[map]
static OPENINGS: RingBuf = RingBuf::with_byte_size(OPENINGS_BYTES, 0);
/// Watched device numbers; the value is the lowest minor that counts.
#[map]
static NODES: HashMap<NodeKey, u32> = HashMap::with_max_entries(MAX_NODES, 0);
#[map]
static SEEN: LruHashMap<SeenKey, u8> = LruHashMap::with_max_entries(MAX_SEEN, 0);

/// A field of [`LAYOUT`], read so that the compiler cannot put in the zero it sees above.
macro_rules! layout {
    ($($field:tt)+) => {
        // SAFETY: the static is initialised; user space replaced its bytes before loading.
        unsafe { core::ptr::read_volatile(&raw const LAYOUT.$($field)+) }
    };
}

/// `FMODE`-like bits of `bpf_cgroup_dev_ctx.access_type`: read or write, which an open asks for.
const ACCESS_OPEN: u32 = (2 | 4) << 16;
/// `BPF_DEVCG_DEV_CHAR` in the low half of `access_type`.
const TYPE_CHAR: u32 = 2;
/// `S_IFCHR` nodes carry a kernel `dev_t`: 12 bits of major, 20 of minor.
const MINOR_BITS: u32 = 20;

/// fexit of `chrdev_open(struct inode *, struct file *)`: the driver has answered.
/// Kernel 5.5 (arm64: 6.4) with trampolines; falls back to [`opened_cgroup`].
#[fexit]
fn opened_fexit(ctx: FExitContext) -> i32 {
    // The result stands after the two arguments; bpf_get_func_ret would need 5.17.
    if ctx.arg::<i32>(2) == 0 {
        let inode = Kernel::at(ctx.arg::<*const u8>(0) as u64);
        if let Some(rdev) = inode.field(layout!(inode_rdev)).read::<u32>() {
            opened(&ctx, number(rdev));
        }
    }
    0
}

/// The cgroup device hook at the root of the unified hierarchy: runs when a device node is asked
/// for, before the driver answers, and always allows. Kernel 4.15; falls back to
/// [`opened_syscall`].
#[cgroup_device]
fn opened_cgroup(ctx: DeviceContext) -> i32 {
    // SAFETY: the kernel hands a valid bpf_cgroup_dev_ctx; the verifier checks each access.
    let asked: &bpf_cgroup_dev_ctx = unsafe { &*ctx.device };
    if asked.access_type & 0xffff == TYPE_CHAR && asked.access_type & ACCESS_OPEN != 0 {
        opened(&ctx, NodeKey { major: asked.major, minor: asked.minor });
    }
    1
}

/// Exits of `open`, `openat` and `openat2` (classic tracepoints): the file just opened is looked
/// up by its descriptor, so no path is read and symbolic links, relative names and nodes made
/// inside a container are all seen. 32-bit callers on a 64-bit kernel are not.
#[tracepoint]
fn opened_syscall(ctx: TracePointContext) -> u32 {
    if let Some(node) = node_just_opened(&ctx) {
        opened(&ctx, node);
    }
    0
}

#[inline(always)]
fn node_just_opened(ctx: &TracePointContext) -> Option<NodeKey> {
    // The context may only be read at a constant offset: 64-bit kernels have the result at 16;
    // user space checks that in the tracepoint's format before it attaches this.
    // SAFETY: the record of sys_exit_* is 24 bytes long.
    let fd = unsafe { *ctx.as_ptr().cast::<i64>().add(2) };
    if fd < 0 {
        return None;
    }
    let table = Kernel::current_task()
        .follow(layout!(task_files))?
        .follow(layout!(files_fdt))?
        .follow(layout!(fdtable_fd))?;
    let file = table.follow((fd as u32).wrapping_mul(8))?;
    let rdev = file.follow(layout!(file_inode))?.field(layout!(inode_rdev)).read::<u32>()?;
    // Ordinary files end here.
    if rdev == 0 { None } else { Some(number(rdev)) }
}

#[inline(always)]
fn number(rdev: u32) -> NodeKey {
    NodeKey { major: rdev >> MINOR_BITS, minor: rdev & ((1 << MINOR_BITS) - 1) }
}

#[inline(always)]
fn watched(node: &NodeKey) -> bool {
    // SAFETY: entries are not freed while the program runs (RCU); a value that changes under us
    // is one machine word.
    unsafe {
        NODES.get(node).is_some()
            || NODES
                .get(&NodeKey { major: node.major, minor: ANY_MINOR })
                .is_some_and(|lowest| node.minor >= *lowest)
    }
}

/// Tells of an opening once, and follows the process from here on.
#[inline(always)]
fn opened<C: EbpfContext>(ctx: &C, node: NodeKey) {
    if !watched(&node) {
        return;
    }
    let Some((leader, pid, start_ns)) = leader_of(Kernel::current_task()) else {
        return unreadable(ctx);
    };
    let seen = SeenKey { start_ns, pid, major: node.major, minor: node.minor, reserved: 0 };
    if SEEN.insert(&seen, &1, u64::from(BPF_NOEXIST)).is_err() {
        return;
    }
    let event = event(OPENED, leader, Kernel::at(0), node);
    let slots = slots_of(&event.process);
    follow(&event, slots, false);
    if admit::<OPENS>(slots, &event) && report(&OPENINGS, LOST_OPENINGS, &event) {
        mark_reported(pid, 1);
    } else {
        // So that a further try is told.
        let _ = SEEN.remove(&seen);
    }
}

/// A child of a holder has the holder's open files. Raw tracepoint (parent, child).
#[raw_tracepoint(tracepoint = "sched_process_fork")]
fn forked(ctx: RawTracePointContext) -> i32 {
    let Some((parent, known)) = holder(Kernel::current_task()) else { return 0 };
    let child = Kernel::at(ctx.arg::<u64>(1));
    let Some(leader) = child.follow(layout!(task_leader)) else {
        lost(LOST_UNREADABLE);
        return 0;
    };
    // A new thread of the holder is the holder.
    if leader.as_ptr() == parent.as_ptr() {
        return 0;
    }
    let event = event(FORKED, leader, parent, NodeKey { major: 0, minor: 0 });
    if event.process.pid == 0 || event.process.start_ns == 0 {
        lost(LOST_UNREADABLE);
        return 0;
    }
    let slots = slots_of(&event.process);
    let is_reported = if known {
        admit::<FOLLOWING>(slots, &event)
    } else {
        // User space cannot place a child of a process that it does not know.
        refuse::<FOLLOWING>(slots, &event);
        false
    };
    // Before the record: user space may look for the entry.
    if follow(&event, slots, is_reported) && is_reported && !report(&EVENTS, LOST_RING, &event) {
        mark_reported(event.process.pid, 0);
    }
    0
}

/// A holder became another program. Raw tracepoint (task, old pid, binprm).
#[raw_tracepoint(tracepoint = "sched_process_exec")]
fn execed(_ctx: RawTracePointContext) -> i32 {
    if let Some((leader, true)) = holder(Kernel::current_task()) {
        notify(EXECED, leader);
    }
    0
}

/// A thread ends; with the last one, so does the holder. Raw tracepoint (task, and from 6.13
/// whether it was the last: `signal->live` says so on every kernel, already counted down here).
#[raw_tracepoint(tracepoint = "sched_process_exit")]
fn exited(_ctx: RawTracePointContext) -> i32 {
    let task = Kernel::current_task();
    let Some((leader, is_reported)) = holder(task) else { return 0 };
    let live = task
        .follow(layout!(task_signal))
        .and_then(|signal| signal.field(layout!(signal_live)).read::<i32>());
    if live != Some(0) {
        return 0;
    }
    let Some(pid) = leader.field(layout!(task_tgid)).read::<u32>() else { return 0 };
    // Two last threads can both find nobody alive: the one that removes the entry tells.
    if forget(pid) && is_reported {
        notify(EXITED, leader);
    }
    0
}

/// A holder is in another cgroup now. Raw tracepoint (cgroup, path, task, whole group).
#[raw_tracepoint(tracepoint = "cgroup_attach_task")]
fn moved(ctx: RawTracePointContext) -> i32 {
    if let Some((leader, true)) = holder(Kernel::at(ctx.arg::<u64>(2))) {
        notify(MOVED, leader);
    }
    0
}

/// Raw tracepoint (cgroup, path).
#[raw_tracepoint(tracepoint = "cgroup_mkdir")]
fn cgroup_made(ctx: RawTracePointContext) -> i32 {
    report_cgroup(CGROUP_MADE, Kernel::at(ctx.arg::<u64>(0)), Kernel::at(ctx.arg::<u64>(1)));
    0
}

/// Raw tracepoint (cgroup, path).
#[raw_tracepoint(tracepoint = "cgroup_rmdir")]
fn cgroup_removed(ctx: RawTracePointContext) -> i32 {
    report_cgroup(CGROUP_REMOVED, Kernel::at(ctx.arg::<u64>(0)), Kernel::at(ctx.arg::<u64>(1)));
    0
}

/// The thread group leader of a task, its number and its start.
#[inline(always)]
fn leader_of(task: Kernel) -> Option<(Kernel, u32, u64)> {
    let leader = task.follow(layout!(task_leader))?;
    let pid = leader.field(layout!(task_tgid)).read()?;
    let start_ns = leader.field(layout!(task_start)).read()?;
    Some((leader, pid, start_ns))
}

/// The leader of a task that is followed, and whether user space knows it. An entry left by an earlier
/// process of the same number is removed.
#[inline(always)]
fn holder(task: Kernel) -> Option<(Kernel, bool)> {
    let pid: u32 = task.field(layout!(task_tgid)).read()?;
    // SAFETY: entries are not freed while the program runs (RCU).
    let (start_ticks, reported) = {
        let found = unsafe { HOLDERS.get(&pid) }?;
        (found.start_ticks, found.reported)
    };
    let (leader, _, start_ns) = leader_of(task)?;
    if start_ns / TICK_NS == start_ticks {
        return Some((leader, reported != 0));
    }
    forget(pid);
    None
}

/// Tells what became of a process that user space knows.
#[inline(always)]
fn notify(kind: u32, leader: Kernel) {
    let event = event(kind, leader, Kernel::at(0), NodeKey { major: 0, minor: 0 });
    if admit::<FOLLOWING>(slots_of(&event.process), &event) {
        report(&EVENTS, LOST_RING, &event);
    }
}

#[inline(always)]
fn event(kind: u32, leader: Kernel, parent: Kernel, node: NodeKey) -> ProcessEvent {
    let mut event = ProcessEvent {
        head: head(kind),
        parent_start_ns: 0,
        process: process(leader),
        parent_pid: 0,
        major: node.major,
        minor: node.minor,
        left_out: 0,
    };
    if kind == FORKED {
        event.parent_start_ns = parent.field(layout!(task_start)).read().unwrap_or(0);
        event.parent_pid = parent.field(layout!(task_tgid)).read().unwrap_or(0);
    }
    event
}

/// Writes a process event; false where the ring was full.
#[inline(always)]
fn report(ring: &RingBuf, full: u32, event: &ProcessEvent) -> bool {
    let Some(mut entry) = ring.reserve::<ProcessEvent>(0) else {
        lost(full);
        return false;
    };
    entry.write(*event);
    entry.submit(0);
    true
}

/// What can be read of a process; what cannot is zero, and user space leaves it out.
#[inline(always)]
fn process(leader: Kernel) -> Process {
    let uid = leader
        .follow(layout!(task_cred))
        .and_then(|cred| cred.field(layout!(cred_uid)).read::<u32>());
    Process {
        start_ns: leader.field(layout!(task_start)).read().unwrap_or(0),
        cgroups: cgroups(leader).unwrap_or([0; 4]),
        pid: leader.field(layout!(task_tgid)).read().unwrap_or(0),
        uid: uid.unwrap_or(u32::MAX),
        comm: leader.field(layout!(task_comm)).read().unwrap_or([0; COMM_BYTES]),
    }
}

#[inline(always)]
fn cgroups(leader: Kernel) -> Option<[u64; 4]> {
    let set = leader.follow(layout!(task_cgroups))?;
    let mut ids = [0; 4];
    ids[V2] = set.follow(layout!(css_set_default)).and_then(cgroup_id).unwrap_or(0);
    ids[DEVICES] = v1_id(set, layout!(subsys[DEVICES]));
    ids[MEMORY] = v1_id(set, layout!(subsys[MEMORY]));
    ids[FREEZER] = v1_id(set, layout!(subsys[FREEZER]));
    Some(ids)
}

#[inline(always)]
fn v1_id(set: Kernel, index: u32) -> u64 {
    if index == ABSENT {
        return 0;
    }
    set.follow(layout!(css_set_subsys).wrapping_add(index.wrapping_mul(8)))
        .and_then(|state| state.follow(layout!(css_cgroup)))
        .and_then(cgroup_id)
        .unwrap_or(0)
}

#[inline(always)]
fn cgroup_id(cgroup: Kernel) -> Option<u64> {
    cgroup.follow(layout!(cgroup_kn))?.field(layout!(kn_id)).read()
}

#[inline(always)]
fn report_cgroup(kind: u32, cgroup: Kernel, path: Kernel) {
    let hierarchy = cgroup
        .follow(layout!(cgroup_root))
        .and_then(|root| root.field(layout!(root_hierarchy)).read::<u32>());
    let (Some(hierarchy), Some(id)) = (hierarchy, cgroup_id(cgroup)) else {
        return lost(LOST_UNREADABLE);
    };
    let wanted = hierarchy == layout!(hierarchy[V2])
        || hierarchy == layout!(hierarchy[DEVICES])
        || hierarchy == layout!(hierarchy[MEMORY])
        || hierarchy == layout!(hierarchy[FREEZER]);
    if !wanted {
        return;
    }
    let Some(mut entry) = EVENTS.reserve::<CgroupEvent>(0) else {
        return lost(LOST_RING);
    };
    let event = entry.as_mut_ptr();
    // SAFETY: the reservation is as large as the record and 8-byte aligned; each field is written
    // before it is submitted, the path by the helper or by its first byte.
    unsafe {
        (&raw mut (*event).head).write(head(kind));
        (&raw mut (*event).id).write(id);
        (&raw mut (*event).hierarchy).write(hierarchy);
        (&raw mut (*event).reserved).write(0);
        let text = (&raw mut (*event).path).cast::<u8>();
        text.write(0);
        let _ = bpf_probe_read_kernel_str(text.cast(), PATH_BYTES as u32, path.as_ptr().cast());
    }
    entry.submit(0);
}

gpuwho_ebpf::program!();
