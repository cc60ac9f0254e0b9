//! Which processes load and let go of libraries while they run: the dynamic linker calls an empty
//! function for the debugger, `_dl_debug_state`, whenever it changes its list of what is loaded.
//!
//! A uprobe there, kernel 5.8 for the ring, put by the kernel into the memory of the watched
//! processes alone. A hit is one lookup, and a record only where user space has looked since the
//! last one: loading a thousand libraries is a handful of records.
#![no_std]
#![no_main]

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::macros::{map, uprobe};
use aya_ebpf::maps::{HashMap, PerCpuArray, RingBuf};
use aya_ebpf::programs::ProbeContext;
use gpuwho_common::linker::{COUNTERS, HITS, MAX_WATCHED, QUIET, RING_BYTES, STRANGERS, TOLD};

#[map]
static CHANGED: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);
/// Watched processes, and whether they were told.
#[map]
static WATCHED: HashMap<u32, u32> = HashMap::with_max_entries(MAX_WATCHED, 0);
#[map]
static COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);

/// `_dl_debug_state()`: the list is about to change, or has.
#[uprobe]
fn changed(_ctx: ProbeContext) -> u32 {
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let Some(state) = WATCHED.get_ptr_mut(&pid) else {
        count(STRANGERS);
        return 0;
    };
    count(HITS);
    // SAFETY: entries are not freed while the program runs (RCU). The word is aligned; two threads
    // that write it tell twice, which is harmless.
    if unsafe { state.read_volatile() } != QUIET {
        return 0;
    }
    // SAFETY: as above.
    unsafe { state.write_volatile(TOLD) };
    if CHANGED.output::<u64>(u64::from(pid), 0).is_err() {
        // SAFETY: as above.
        unsafe { state.write_volatile(QUIET) };
    }
    0
}

fn count(counter: u32) {
    if let Some(slot) = COUNTS.get_ptr_mut(counter) {
        // SAFETY: the slot is this CPU's own and the verifier has seen that it is not null.
        unsafe { *slot += 1 };
    }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
