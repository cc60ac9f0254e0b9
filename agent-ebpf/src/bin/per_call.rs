//! What is measured against: a program that does nothing, which shows what the probes themselves
//! cost, and a record a call through a ring, as others do it. No part of the agent.
#![no_std]
#![no_main]

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_current_comm, bpf_ktime_get_boot_ns};
use aya_ebpf::macros::{map, uprobe, uretprobe};
use aya_ebpf::maps::{HashMap, RingBuf};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use core::ffi::c_void;
use gpuwho_ebpf::registers::Registers;

/// A call: 80 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Record {
    at_ns: u64,
    took_ns: u64,
    task: u64,
    count: u64,
    datatype: u64,
    communicator: u64,
    stream: u64,
    result: u64,
    comm: [u8; 16],
}

/// Records of a second at the highest rate.
#[map]
static RECORDS: RingBuf = RingBuf::with_byte_size(16 << 20, 0);
/// Calls that have not returned, by thread.
#[map]
static PENDING: HashMap<u64, Record> = HashMap::with_max_entries(4_096, 0);

#[uprobe]
fn nothing(_ctx: ProbeContext) -> u32 {
    0
}

#[uretprobe]
fn nothing_returned(_ctx: RetProbeContext) -> u32 {
    0
}

/// Entry and return by one program, which wants every return.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn nothing_through(_context: *mut c_void) -> u32 {
    0
}

#[uprobe]
fn begins(ctx: ProbeContext) -> u32 {
    let registers = Registers::at(ctx.as_ptr());
    let argument = |at: usize| registers.argument(at).unwrap_or(0);
    let mut record = Record {
        at_ns: now(),
        took_ns: 0,
        task: bpf_get_current_pid_tgid(),
        count: argument(2),
        datatype: argument(3),
        communicator: argument(5),
        stream: 0,
        result: 0,
        comm: [0; 16],
    };
    // SAFETY: the buffer is as long as the helper is told.
    unsafe { bpf_get_current_comm((&raw mut record.comm).cast(), 16) };
    let _ = PENDING.insert(&record.task, &record, 0);
    0
}

#[uretprobe]
fn ends(ctx: RetProbeContext) -> u32 {
    let task = bpf_get_current_pid_tgid();
    let Some(open) = PENDING.get_ptr_mut(&task) else { return 0 };
    // SAFETY: only this thread writes its entry.
    let open = unsafe { *open };
    let result = Registers::of(&ctx).result().into();
    let record = Record { took_ns: now().saturating_sub(open.at_ns), result, ..open };
    let _ = PENDING.remove(&task);
    if let Some(mut entry) = RECORDS.reserve::<Record>(0) {
        entry.write(record);
        entry.submit(0);
    }
    0
}

fn now() -> u64 {
    // SAFETY: the helper has no arguments and no preconditions.
    unsafe { bpf_ktime_get_boot_ns() }
}

gpuwho_ebpf::program!();
