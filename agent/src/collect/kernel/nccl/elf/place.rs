//! Where in a function a probe costs least.

use super::bytes;
use std::fs::File;
use std::io;

/// Where a probe of the function at a place costs least, and whether the kernel has to step through
/// the instruction there: it carries out by itself those that save a register, jump, call or do
/// nothing (`push_setup_xol_ops` and `branch_setup_xol_ops`, `arch/x86/kernel/uprobes.c`, 4.18 and
/// later), and else lets the processor trap once more, which a virtual machine pays tenfold.
/// `endbr64`, with which compilers that protect branches begin functions, is one of the others,
/// and does nothing that shows behind it.
pub(super) fn cheapest_place(file: &File, offset: u64) -> io::Result<(u64, bool)> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    if !cfg!(target_arch = "x86_64") {
        return Ok((offset, false));
    }
    let code = bytes(file, offset, 8)?;
    Ok(match code.strip_prefix(&ENDBR64) {
        Some(behind) if is_carried_out(behind) => (offset + ENDBR64.len() as u64, false),
        _ => (offset, !is_carried_out(&code)),
    })
}

fn is_carried_out(code: &[u8]) -> bool {
    const PUSH: std::ops::RangeInclusive<u8> = 0x50..=0x57;
    match *code {
        // `push` of one of the first eight registers and, behind a prefix, of the others.
        [first, ..] if PUSH.contains(&first) => true,
        [0x41, second, ..] if PUSH.contains(&second) => true,
        // `nop`, `call`, `jmp`.
        [0x90 | 0xe8 | 0xe9 | 0xeb, ..] => true,
        _ => false,
    }
}
