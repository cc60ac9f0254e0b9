//! Helpers shared by the BPF programs: reading kernel structures at offsets that user space took
//! from the running kernel's BTF.
#![no_std]
#![feature(asm_experimental_arch)]

pub mod registers;

use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::bpf_get_current_task;
use core::arch::asm;

/// An address in the kernel. Only ever read through `bpf_probe_read_kernel`, which answers an
/// error where there is nothing to read.
#[derive(Clone, Copy)]
pub struct Kernel(u64);

impl Kernel {
    /// Takes an address that the kernel handed to the program.
    #[inline(always)]
    pub fn at(address: u64) -> Self {
        Self(address)
    }

    /// The running thread's `task_struct`.
    #[inline(always)]
    pub fn current_task() -> Self {
        // SAFETY: the helper has no arguments and no preconditions.
        Self(unsafe { bpf_get_current_task() })
    }

    /// The address `offset` bytes further.
    #[inline(always)]
    pub fn field(self, offset: u32) -> Self {
        Self(self.0.wrapping_add(u64::from(offset)))
    }

    /// Reads a value of integers here.
    #[inline(always)]
    pub fn read<T: Copy>(self) -> Option<T> {
        // SAFETY: the helper checks the address; T is an integer or an array of them.
        unsafe { bpf_probe_read_kernel(self.0 as *const T) }.ok()
    }

    /// Follows the pointer stored `offset` bytes from here; `None` where it is null.
    #[inline(always)]
    pub fn follow(self, offset: u32) -> Option<Self> {
        let address: u64 = self.field(offset).read()?;
        if address == 0 { None } else { Some(Self(address)) }
    }

    /// The address as a helper wants it.
    #[inline(always)]
    pub fn as_ptr(self) -> *const u8 {
        self.0 as *const u8
    }
}

/// Adds to a number in a map, by the one atomic instruction that kernels before 5.12 have. The
/// target has no atomic types.
#[inline(always)]
pub fn add(slot: *mut u64, by: u64) {
    // SAFETY: a pointer into a map's value, 8-byte aligned and checked by the verifier; entries
    // are not freed while the program runs (RCU). The instruction changes no register.
    unsafe {
        asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) slot, in(reg) by, options(nostack));
    }
}

/// What each object ends with: its licence, and a handler of panics, which the verifier never lets happen.
#[macro_export]
macro_rules! program {
    () => {
        #[cfg(not(test))]
        #[panic_handler]
        fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
            loop {}
        }

        #[unsafe(link_section = "license")]
        #[unsafe(no_mangle)]
        static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
    };
}
