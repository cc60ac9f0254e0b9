//! What the collective library is asked to do, counted in the kernel.
//!
//! Uprobes on the library's file: nothing else on the host pays. No record a call: a call costs
//! five or six lookups in hash maps, and is counted where it happens. The arguments' places are
//! constants to the verifier, so each symbol has a function of its own here, and there are three
//! ways to get to it:
//!
//! | program | needs | told by |
//! |---|---|---|
//! | `passed`: entries, and the returns that the entry wants | 6.13, a session | cookie |
//! | `entered` and `returned`: all entries, all returns | 6.6, one link for many | cookie |
//! | one a symbol, and `returned` | 5.8, for the clock | the program |
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

// Not of the library: the objects of all programs would have these maps, and each loader makes every
// map of its object.
#[path = "../nccl/programs.rs"]
mod nccl;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_get_func_ip};
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use core::ffi::c_void;
use gpuwho_common::nccl::{ABORTED, COOKIE_ROW, DESTROYED, Does, HIT_ENTRY, SYMBOLS, Symbol};
use gpuwho_ebpf::registers::Registers;
use nccl::birth::{asked, birth_began, death_began};
use nccl::call::{called, group_ended, group_started};
use nccl::count;

/// The entry of the symbol at a position of the table; gives whether its return is to be seen, where
/// it can be left out.
/// Apart from the programs, so that the one for all of them has a small stack.
#[inline(never)]
fn at_entry<const AT: usize>(context: *mut c_void, cookie: u64, can_skip: bool) -> u64 {
    const { assert!(AT < SYMBOLS.len()) };
    count(HIT_ENTRY);
    let registers = Registers::with(context, cookie);
    let wants_return = match const { SYMBOLS[AT].does } {
        Does::Call(call) => called(registers, &call, const { SYMBOLS[AT].wraps }, can_skip),
        Does::GroupStart => group_started(registers),
        Does::GroupEnd => group_ended(registers, can_skip),
        Does::Birth(birth) => birth_began(registers, &birth),
        Does::Death(end) => death_began(registers, end, end == DESTROYED || end == ABORTED),
        Does::Question(ask) => asked(registers, ask),
    };
    u64::from(wants_return)
}

/// One program a symbol, named as in the table, and the way to all of them by its position.
macro_rules! entries {
    ($($program:ident)+) => {
        $(
            #[uprobe]
            fn $program(ctx: ProbeContext) -> u32 {
                at_entry::<{ Symbol::of_program(stringify!($program)) }>(ctx.as_ptr(), 0, false);
                0
            }
        )+

        /// The entry of the symbol that a cookie says.
        #[inline(always)]
        fn dispatch(cookie: u64, context: *mut c_void, can_skip: bool) -> bool {
            match cookie & COOKIE_ROW {
                $(
                    at if at == const { Symbol::of_program(stringify!($program)) as u64 } => {
                        at_entry::<{ Symbol::of_program(stringify!($program)) }>(
                            context, cookie, can_skip,
                        ) != 0
                    }
                )+
                _ => false,
            }
        }
    };
}

entries! {
    all_reduce all_reduce_config all_reduce_bias all_gather all_gather_config reduce_scatter
    reduce_scatter_config broadcast broadcast_config bcast reduce reduce_config gather
    gather_config scatter scatter_config all_to_all all_to_all_config all_to_all_rccl
    all_to_all_v all_to_all_v_later send recv put_signal signal wait_signal group_start group_end
    group_simulate_end init_rank
    init_rank_config init_rank_scalable init_all split shrink grow finalize destroy abort revoke
    async_error comm_count comm_user_rank comm_device error_string unique_id
}

/// The entry of every probed function.
#[uprobe]
fn entered(ctx: ProbeContext) -> u32 {
    // SAFETY: the context is the kernel's own.
    dispatch(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) }, ctx.as_ptr(), false);
    0
}

/// The return of every probed function.
#[uretprobe]
fn returned(ctx: RetProbeContext) -> u32 {
    nccl::returned::returned(Registers::of(&ctx));
    0
}

/// Entry and return of every probed function. At an entry the answer is whether the kernel shall
/// leave out the return, which costs nothing then. Not by aya's macro, which answers 0 always.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn passed(context: *mut c_void) -> u32 {
    let registers = Registers::at(context);
    // SAFETY: the context is the kernel's own.
    let function = unsafe { bpf_get_func_ip(context) };
    if registers.instruction() != function {
        nccl::returned::returned(registers);
        return 0;
    }
    // SAFETY: as above.
    let wants_return = dispatch(unsafe { bpf_get_attach_cookie(context) }, context, true);
    u32::from(!wants_return)
}

gpuwho_ebpf::program!();
