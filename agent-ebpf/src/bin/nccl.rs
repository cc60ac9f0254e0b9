//! What the collective library is asked to do, counted in the kernel.
//!
//! One program an entry, because the arguments' places are constants to the verifier, and one for
//! all returns. Uprobes on the library's file: nothing else on the host pays. No record a call: a
//! call costs five or six lookups in hash maps, and is counted where it happens. Kernel 5.8, for
//! the clock; no newer helper.
#![no_std]
#![no_main]

use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use gpuwho_common::nccl::{ABORTED, DESTROYED, Does, SYMBOLS, Symbol};
use gpuwho_ebpf::nccl::birth::{asked, birth_began, death_began};
use gpuwho_ebpf::nccl::call::{called, group_ended, group_started};
use gpuwho_ebpf::registers::Registers;

/// The entry of the symbol at a position of the table.
#[inline(always)]
fn entered<const AT: usize>(ctx: &ProbeContext) -> u32 {
    let registers = Registers::of(ctx);
    match const { SYMBOLS[AT].does } {
        Does::Call(call) => called(registers, &call, const { SYMBOLS[AT].wraps }),
        Does::GroupStart => group_started(registers),
        Does::GroupEnd => group_ended(registers),
        Does::Birth(birth) => birth_began(registers, &birth),
        Does::Death(end) => death_began(registers, end, end == DESTROYED || end == ABORTED),
        Does::Question(ask) => asked(registers, ask),
    }
    0
}

/// One program a symbol, named as in the table.
macro_rules! entries {
    ($($program:ident)+) => {$(
        #[uprobe]
        fn $program(ctx: ProbeContext) -> u32 {
            entered::<{ Symbol::of_program(stringify!($program)) }>(&ctx)
        }
    )+};
}

entries! {
    all_reduce all_reduce_config all_reduce_bias all_gather all_gather_config reduce_scatter
    reduce_scatter_config broadcast broadcast_config bcast reduce reduce_config gather
    gather_config scatter scatter_config all_to_all all_to_all_config all_to_all_rccl
    all_to_all_v send recv put_signal signal wait_signal group_start group_end init_rank
    init_rank_config init_rank_scalable init_all split shrink grow finalize destroy abort revoke
    async_error comm_count comm_user_rank comm_device unique_id
}

/// The return of every probed function.
#[uretprobe]
fn returned(ctx: RetProbeContext) -> u32 {
    gpuwho_ebpf::nccl::returned::returned(Registers::of(&ctx));
    0
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
