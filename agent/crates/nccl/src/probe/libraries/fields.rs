//! Finds the offsets of rank, size, device and hash in the library's communicator structure, by
//! reading the code of the file in use, because every version has other offsets.
//!
//! `ncclCommUserRank`, `ncclCommCount` and `ncclCommCuDevice` each end in one load from the
//! communicator and one store to the result; the load has the offset. The hash is the only 64-bit
//! field next to the rank that the operations read, for their profilers (2.26 and later; not found
//! in older versions). Only these loads and stores are decoded, and a function of another form, or
//! with two such pairs that differ, gives no offset.

use super::elf::{ReadAt, code};
use object::elf::{EM_AARCH64, EM_X86_64};
use std::collections::BTreeSet;
use std::io;

/// The getter functions, in the order of [`Fields`].
const GETTERS: [&str; 3] = ["CommUserRank", "CommCount", "CommCuDevice"];
/// Operations: if the library reads the hash in operations, it does so in all of these.
const READERS: [&str; 4] = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast"];
/// Maximum distance of the hash from the rank; they are adjacent in every version.
const NEAR: u32 = 64;
/// Ten times the structure of any version.
const MAX_OFFSET: u32 = 16 << 20;
/// Maximum number of instructions between load and store.
const MAX_BETWEEN: usize = 2;

/// Byte offsets in a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Fields {
    pub rank: u32,
    pub ranks: u32,
    pub device: Option<u32>,
    pub hash: Option<u32>,
}

/// The field offsets of a library; `None` if its code does not show them.
pub(in super::super) fn fields(file: &dyn ReadAt) -> io::Result<Option<Fields>> {
    let names: Vec<&str> = GETTERS.into_iter().chain(READERS).collect();
    let Some((machine, code)) = code(file, &names)? else { return Ok(None) };
    let (getters, readers) = code.split_at(GETTERS.len().min(code.len()));
    let find = match machine {
        EM_X86_64 => x86_64_answer,
        EM_AARCH64 => aarch64_answer,
        _ => return Ok(None),
    };
    let answers: Vec<Option<u32>> = getters.iter().map(|code| only(find(code))).collect();
    let [Some(rank), Some(ranks), device] = *answers.as_slice() else { return Ok(None) };
    let words = |code: &Vec<u8>| -> BTreeSet<u32> {
        let all = if machine == EM_X86_64 { x86_64_words(code) } else { aarch64_words(code) };
        let is_near = |at: &u32| at.abs_diff(rank) <= NEAR && at.is_multiple_of(8);
        all.into_iter().filter(is_near).collect()
    };
    let mut read = readers.iter().map(words);
    let first = read.next().unwrap_or_default();
    let by_all = read.fold(first, |common, other| common.intersection(&other).copied().collect());
    // A 64-bit load of two of the numbers is a copy of both, not the hash.
    let is_other = |at: &u32| ![rank, ranks].iter().any(|field| at / 8 == field / 8);
    let hash = only(by_all.into_iter().filter(is_other).collect());
    let all = [Some(rank), Some(ranks), device];
    let reported: BTreeSet<u32> = all.into_iter().flatten().collect();
    let is_sound = reported.iter().all(|at| *at < MAX_OFFSET && at.is_multiple_of(4))
        && reported.len() == all.iter().flatten().count();
    Ok(is_sound.then_some(Fields { rank, ranks, device, hash }))
}

fn only(found: BTreeSet<u32>) -> Option<u32> {
    let mut found = found.into_iter();
    found.next().filter(|_| found.next().is_none())
}

/// A move between a 32-bit or 64-bit register and memory at register plus displacement.
struct Move {
    is_load: bool,
    is_wide: bool,
    register: u8,
    base: u8,
    displacement: u32,
    length: usize,
}

/// Decodes `mov` with a base register other than the stack's; no index, no program-relative
/// address.
fn x86_64_move(code: &[u8]) -> Option<Move> {
    let (rex, after) = match code.split_first()? {
        (prefix @ 0x40..=0x4f, after) => (*prefix, after),
        _ => (0, code),
    };
    let [opcode @ (0x89 | 0x8b), form, rest @ ..] = after else { return None };
    let (mode, low) = (form >> 6, form & 7);
    // 4 means that a SIB byte follows, which is constant for rsp and r12.
    let (rest, scaled) = match (low, rest) {
        (4, [0x24, rest @ ..]) => (rest, 1),
        (4, _) => return None,
        (_, rest) => (rest, 0),
    };
    let (displacement, size) = match mode {
        0 if low != 5 => (0, 0),
        1 => (u32::try_from(i8::from_le_bytes([*rest.first()?])).ok()?, 1),
        2 => {
            let bytes = rest.get(..4)?.try_into().ok()?;
            (u32::try_from(i32::from_le_bytes(bytes)).ok()?, 4)
        }
        _ => return None,
    };
    let base = low | (rex & 1) << 3;
    let length = usize::from(rex != 0) + 2 + scaled + size;
    // rsp and rbp address the function's own variables.
    (!matches!(base, 4 | 5)).then_some(Move {
        is_load: *opcode == 0x8b,
        is_wide: rex & 8 != 0,
        register: form >> 3 & 7 | (rex & 4) << 1,
        base,
        displacement,
        length,
    })
}

/// Finds 32-bit loads whose register is stored to an address without displacement right after.
fn x86_64_answer(code: &[u8]) -> BTreeSet<u32> {
    let pair = |at: usize| {
        let load = x86_64_move(code.get(at..)?).filter(|load| load.is_load && !load.is_wide)?;
        let mut rest = code.get(at + load.length..)?;
        for _ in 0..=MAX_BETWEEN {
            if let Some(store) = x86_64_move(rest) {
                let is_answer = !store.is_load
                    && !store.is_wide
                    && store.displacement == 0
                    && store.register == load.register
                    && store.base != load.base;
                return is_answer.then_some(load.displacement);
            }
            // `xor` of a register with itself is the return value, success.
            rest = match rest {
                [0x40..=0x4f, 0x31 | 0x33, 0xc0..=0xff, rest @ ..]
                | [0x31 | 0x33, 0xc0..=0xff, rest @ ..] => rest,
                _ => return None,
            };
        }
        None
    };
    (0..code.len()).filter_map(pair).collect()
}

fn x86_64_words(code: &[u8]) -> BTreeSet<u32> {
    let word = |at: usize| x86_64_move(code.get(at..)?).filter(|one| one.is_load && one.is_wide);
    (0..code.len()).filter_map(word).map(|load| load.displacement).collect()
}

/// Decodes a load or store with a constant offset: base, register, offset.
fn aarch64_move(instruction: u32, opcode: u32, scale: u32) -> Option<(u32, u32, u32)> {
    const STACK: u32 = 31;
    let base = instruction >> 5 & 31;
    let is_match = instruction >> 22 == opcode && base != STACK;
    is_match.then_some((base, instruction & 31, (instruction >> 10 & 0xfff) << scale))
}

/// Opcodes: `ldr` of 32 bits, `str` of 32 bits, `ldr` of 64 bits, all with an unsigned offset.
const LOAD: u32 = 0x2e5;
const STORE: u32 = 0x2e4;
const LOAD_WIDE: u32 = 0x3e5;

/// The amount added to a register before an instruction: `add xN, xM, #imm, lsl #12`.
fn aarch64_added(code: &[u32], at: usize, base: u32) -> u32 {
    let before = code.get(at.saturating_sub(MAX_BETWEEN)..at).unwrap_or_default();
    let added = before.iter().rev().find(|one| **one & 31 == base && **one >> 22 == 0x245);
    added.map_or(0, |add| (add >> 10 & 0xfff) << 12)
}

fn aarch64_answer(code: &[u8]) -> BTreeSet<u32> {
    let code = instructions(code);
    let pair = |at: usize| {
        let (base, register, offset) = aarch64_move(*code.get(at)?, LOAD, 2)?;
        let after = code.get(at + 1..)?.iter().take(MAX_BETWEEN + 1);
        let mut stores = after.filter_map(|next| aarch64_move(*next, STORE, 2));
        let (to, stored, place) = stores.next()?;
        let is_answer = stored == register && place == 0 && to != base;
        is_answer.then(|| aarch64_added(&code, at, base) + offset)
    };
    (0..code.len()).filter_map(pair).collect()
}

fn aarch64_words(code: &[u8]) -> BTreeSet<u32> {
    let code = instructions(code);
    let word = |at: usize| {
        let (base, _, offset) = aarch64_move(*code.get(at)?, LOAD_WIDE, 3)?;
        Some(aarch64_added(&code, at, base) + offset)
    };
    (0..code.len()).filter_map(word).collect()
}

fn instructions(code: &[u8]) -> Vec<u32> {
    code.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

#[cfg(test)]
mod tests;
