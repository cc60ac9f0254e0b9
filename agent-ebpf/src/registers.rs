//! Arguments, stack pointer and result of the user-space function whose entry or return fired,
//! by the calling conventions of System V (x86-64) and AAPCS64 (arm64).
//!
//! The verifier wants every register read at a constant offset, so positions are constants.
#![expect(unexpected_cfgs, reason = "aya-build sets `bpf_target_arch` to the machine's")]

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_probe_read_user;
use core::ffi::c_void;

/// `struct pt_regs` as the kernel hands it to a program (`arch/x86/include/uapi/asm/ptrace.h`).
#[cfg(not(bpf_target_arch = "aarch64"))]
#[repr(C)]
struct Saved {
    before: [u64; 8],
    r9: u64,
    r8: u64,
    rax: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    orig_rax: u64,
    rip: u64,
    between: [u64; 2],
    rsp: u64,
    ss: u64,
}

/// `struct user_pt_regs` (`arch/arm64/include/uapi/asm/ptrace.h`).
#[cfg(bpf_target_arch = "aarch64")]
#[repr(C)]
struct Saved {
    regs: [u64; 31],
    sp: u64,
    pc: u64,
    pstate: u64,
}

/// The caller's registers, and what the probe says of the function.
#[derive(Clone, Copy)]
pub struct Registers(*const Saved, u64);

/// A field of the saved registers.
macro_rules! saved {
    ($self:ident . $($field:tt)+) => {
        // SAFETY: the context of a probe is the saved registers, and the verifier checks each
        // access; volatile, so that each is a load of its own at a constant offset.
        unsafe { core::ptr::read_volatile(&raw const (*$self.0).$($field)+) }
    };
}

impl Registers {
    /// Of the function that the context is about.
    #[inline(always)]
    pub fn of<C: EbpfContext>(ctx: &C) -> Self {
        Self::at(ctx.as_ptr())
    }

    /// Of the function that a program's context is about.
    #[inline(always)]
    pub fn at(context: *mut c_void) -> Self {
        Self::with(context, 0)
    }

    /// The same, where the probe has a cookie.
    #[inline(always)]
    pub fn with(context: *mut c_void, cookie: u64) -> Self {
        Self(context.cast::<Saved>().cast_const(), cookie)
    }

    /// The cookie; 0 where there is none.
    #[inline(always)]
    pub fn cookie(self) -> u64 {
        self.1
    }

    /// Where the thread is: the function's first instruction, or where it returns to.
    #[cfg(not(bpf_target_arch = "aarch64"))]
    #[inline(always)]
    pub fn instruction(self) -> u64 {
        saved!(self.rip)
    }

    /// Where the thread is: the function's first instruction, or where it returns to.
    #[cfg(bpf_target_arch = "aarch64")]
    #[inline(always)]
    pub fn instruction(self) -> u64 {
        saved!(self.pc)
    }

    /// The argument at a position, counted from 0, among those that are integers or pointers.
    #[inline(always)]
    pub fn argument(self, position: usize) -> Option<u64> {
        match self.register(position) {
            Some(value) => Some(value),
            None => self.on_stack(position - REGISTERS),
        }
    }

    #[cfg(not(bpf_target_arch = "aarch64"))]
    #[inline(always)]
    fn register(self, position: usize) -> Option<u64> {
        match position {
            0 => Some(saved!(self.rdi)),
            1 => Some(saved!(self.rsi)),
            2 => Some(saved!(self.rdx)),
            3 => Some(saved!(self.rcx)),
            4 => Some(saved!(self.r8)),
            5 => Some(saved!(self.r9)),
            _ => None,
        }
    }

    #[cfg(bpf_target_arch = "aarch64")]
    #[inline(always)]
    fn register(self, position: usize) -> Option<u64> {
        if position < REGISTERS { Some(saved!(self.regs[position])) } else { None }
    }

    /// An argument that found no register, at the function's entry.
    #[inline(always)]
    fn on_stack(self, index: usize) -> Option<u64> {
        read_user(self.stack() + STACK_ARGUMENTS + 8 * index as u64)
    }

    /// The argument after one that is passed by value and larger than two registers: that one
    /// takes no register on x86-64, and one on arm64.
    #[inline(always)]
    pub fn argument_after_value(self, position: usize) -> Option<u64> {
        if VALUES_ARE_POINTED_TO { self.argument(position) } else { self.argument(position - 1) }
    }

    /// Where an argument is that is passed by value and larger than two registers, where no other
    /// argument is on the stack before it.
    #[inline(always)]
    pub fn value(self, position: usize) -> Option<u64> {
        if VALUES_ARE_POINTED_TO {
            self.argument(position)
        } else {
            Some(self.stack() + STACK_ARGUMENTS)
        }
    }

    /// The stack pointer.
    #[cfg(not(bpf_target_arch = "aarch64"))]
    #[inline(always)]
    pub fn stack(self) -> u64 {
        saved!(self.rsp)
    }

    /// The stack pointer.
    #[cfg(bpf_target_arch = "aarch64")]
    #[inline(always)]
    pub fn stack(self) -> u64 {
        saved!(self.sp)
    }

    /// What the stack pointer was at the entry of the function that now returns.
    #[inline(always)]
    pub fn stack_at_entry(self) -> u64 {
        self.stack().wrapping_sub(RETURN_ADDRESS)
    }

    /// The result, at the function's return.
    #[cfg(not(bpf_target_arch = "aarch64"))]
    #[inline(always)]
    pub fn result(self) -> u32 {
        saved!(self.rax) as u32
    }

    /// The result, at the function's return.
    #[cfg(bpf_target_arch = "aarch64")]
    #[inline(always)]
    pub fn result(self) -> u32 {
        saved!(self.regs[0]) as u32
    }
}

/// Registers for arguments.
#[cfg(not(bpf_target_arch = "aarch64"))]
const REGISTERS: usize = 6;
#[cfg(bpf_target_arch = "aarch64")]
const REGISTERS: usize = 8;

/// What `call` has pushed when the function begins, and `ret` has popped when it returns.
#[cfg(not(bpf_target_arch = "aarch64"))]
const RETURN_ADDRESS: u64 = 8;
#[cfg(bpf_target_arch = "aarch64")]
const RETURN_ADDRESS: u64 = 0;

/// From the stack pointer at entry to the first argument on the stack.
const STACK_ARGUMENTS: u64 = RETURN_ADDRESS;

/// A large argument by value is a pointer to a copy.
const VALUES_ARE_POINTED_TO: bool = cfg!(bpf_target_arch = "aarch64");

/// Reads integers from the memory of the running process.
#[inline(always)]
pub fn read_user<T: Copy>(address: u64) -> Option<T> {
    // SAFETY: the helper checks the address and answers an error where there is nothing to read;
    // T is an integer or an array of them.
    unsafe { bpf_probe_read_user(address as *const T) }.ok()
}
