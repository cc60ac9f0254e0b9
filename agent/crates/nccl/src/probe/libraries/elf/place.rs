//! Finds the cheapest offset in a function for a probe.

use super::Content;
use std::io;

/// The offset at which a probe of the function costs least, and whether the kernel must single-step
/// the instruction there: it emulates some instructions; for others the CPU traps once more, which
/// costs ten times as much in a virtual machine.
pub(super) fn cheapest_place(file: &Content<'_>, offset: u64) -> io::Result<(u64, bool)> {
    let code = file.bytes(offset, 8)?;
    Ok(if cfg!(target_arch = "aarch64") {
        (offset, !aarch64_is_emulated(&code))
    } else {
        let (behind, is_emulated) = x86_64_place(&code);
        (offset + behind, !is_emulated)
    })
}

/// Distance from the start, and whether the kernel emulates the instruction there. Compilers with
/// branch protection start functions with `endbr64`, which the kernel does not emulate; skipping it
/// has no visible effect.
fn x86_64_place(code: &[u8]) -> (u64, bool) {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    match code.strip_prefix(&ENDBR64) {
        Some(behind) if x86_64_is_emulated(behind) => (ENDBR64.len() as u64, true),
        _ => (0, x86_64_is_emulated(code)),
    }
}

/// Emulated: saving a register, jumps, calls and no-ops (`push_setup_xol_ops` and
/// `branch_setup_xol_ops`, `arch/x86/kernel/uprobes.c`, 4.18 and later).
fn x86_64_is_emulated(code: &[u8]) -> bool {
    const PUSH: std::ops::RangeInclusive<u8> = 0x50..=0x57;
    match *code {
        // `push` of one of the first eight registers and, after a prefix, of the others.
        [first, ..] if PUSH.contains(&first) => true,
        [0x41, second, ..] if PUSH.contains(&second) => true,
        // `nop`, `call`, `jmp`.
        [0x90 | 0xe8 | 0xe9 | 0xeb, ..] => true,
        _ => false,
    }
}

/// Emulated: jumps, calls and address loads (`arm_probe_decode_insn`,
/// `arch/arm64/kernel/probes/decode-insn.c`). Functions start with other instructions: they save
/// registers, or mark the entry for branch protection.
fn aarch64_is_emulated(code: &[u8]) -> bool {
    let Some(first) = code.first_chunk::<4>() else { return false };
    let first = u32::from_le_bytes(*first);
    // `b` and `bl`; `adr` and `adrp`.
    first >> 26 & 0x1f == 0x05 || first >> 24 & 0x1f == 0x10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_skips_the_branch_protection_mark_where_that_is_cheaper() {
        // push %r15; push %rbp; nop; endbr64 and push %rbx.
        assert_eq!(x86_64_place(b"\x41\x57\x49\x89\xf7\x41\x56\x90"), (0, true));
        assert_eq!(x86_64_place(b"\x55\x48\x89\xe5\x41\x56\x49\x89"), (0, true));
        assert_eq!(x86_64_place(b"\x90\x48\x89\xe5\x41\x56\x49\x89"), (0, true));
        assert_eq!(x86_64_place(b"\xf3\x0f\x1e\xfa\x53\x48\x89\xfb"), (4, true));
        // sub $0x10,%rsp, after the mark as well; the file ends.
        assert_eq!(x86_64_place(b"\x48\x83\xec\x10\x41\x51\x4d\x89"), (0, false));
        assert_eq!(x86_64_place(b"\xf3\x0f\x1e\xfa\x48\x83\xec\x10"), (0, false));
        assert_eq!(x86_64_place(b"\xf3\x0f"), (0, false));
    }

    #[test]
    fn functions_for_arm64_start_with_single_stepped_instructions() {
        let is_emulated = |code: u32| aarch64_is_emulated(&code.to_le_bytes());
        // stp x29, x30, [sp, #-16]!; sub sp, sp, #0x40; paciasp; bti c; mov w0, wzr.
        for code in [0xa9bf_7bfd, 0xd101_03ff, 0xd503_233f, 0xd503_245f, 0x2a1f_03e0] {
            assert!(!is_emulated(code), "{code:x}");
        }
        // b; bl; adr x8, .; adrp x2, .
        for code in [0x17ff_fbbd, 0x97ff_f7dc, 0x1000_0008, 0x9000_02a2] {
            assert!(is_emulated(code), "{code:x}");
        }
        assert!(!aarch64_is_emulated(&[0, 0, 0]));
    }
}
