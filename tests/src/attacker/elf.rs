//! Crafted shared libraries.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Bytes of one.
pub const SIZE: usize = 0x2000;
/// Where code may be in a file of that size.
pub const CODE: usize = 0x1000;
/// What the agent looks for; without the first a file is no library.
const NAMES: [&str; 4] = ["ncclAllReduce", "ncclAllGather", "ncclCommDestroy", "ncclGroupStart"];
/// Bytes of names, and of symbols, in a sparse one.
const HOLE: u64 = 128 << 20;

/// A file with a function of root's: it returns 42.
pub fn returns_42() -> Vec<u8> {
    let code: &[u8] = if cfg!(target_arch = "aarch64") {
        // mov w0, #42; ret
        &[0x40, 0x05, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6]
    } else {
        // mov $42, %eax; ret
        &[0xb8, 0x2a, 0, 0, 0, 0xc3]
    };
    let mut file = vec![0; SIZE];
    put(&mut file, CODE, code);
    file
}

/// A library that says its functions are at a place in it.
pub fn library(at: u64) -> Vec<u8> {
    let mut file = header(2);
    // What is loaded, and the dynamic section.
    put(&mut file, 64, &segment(1, 5, (0, SIZE as u64)));
    put(&mut file, 120, &segment(2, 4, (0x100, 64)));
    put(&mut file, 0x100, &words(&[0x6fff_fef5, 0x200, 6, 0x400, 5, 0x800, 0, 0]));
    // One bucket, a filter that lets all names pass.
    put(&mut file, 0x200, &words(&[1 | 1 << 32, 1, u64::MAX, 1]));
    let mut name = 0x801;
    for (number, text) in NAMES.iter().enumerate() {
        let last = u32::from(number + 1 == NAMES.len());
        put(&mut file, 0x21c + 4 * number, &(hash(text) & !1 | last).to_le_bytes());
        // A function that the file has, of 16 bytes.
        let symbol = (name as u64 - 0x800) | 0x12 << 32 | 1 << 48;
        put(&mut file, 0x418 + 24 * number, &words(&[symbol, at, 16]));
        put(&mut file, name, text.as_bytes());
        name += text.len() + 1;
    }
    file
}

/// A library whose table of symbols is a hole, and that of names, which begins with a wanted one, as
/// well.
pub fn write_sparse(path: &Path) -> io::Result<()> {
    let mut file = header(1);
    put(&mut file, 64, &segment(1, 5, (0, SIZE as u64)));
    put(&mut file, 40, &0x200_u64.to_le_bytes());
    put(&mut file, 60, &[3, 0]);
    let section = |kind: u64, at: u64, link: u64| words(&[kind << 32, 0, 0, at, HOLE, link, 8, 24]);
    put(&mut file, 0x240, &section(2, SIZE as u64, 2));
    put(&mut file, 0x280, &section(3, SIZE as u64 + HOLE, 0));
    let sparse = File::create(path)?;
    sparse.write_all_at(&file, 0)?;
    sparse.write_all_at(b"\0ncclAllReduce\0", SIZE as u64 + HOLE)?;
    sparse.set_len(SIZE as u64 + 2 * HOLE)
}

fn header(segments: u8) -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut file = vec![0; SIZE];
    put(&mut file, 0, b"\x7fELF\x02\x01\x01");
    put(&mut file, 16, &[3, 0]);
    put(&mut file, 18, &machine.to_le_bytes());
    put(&mut file, 32, &64_u64.to_le_bytes());
    put(&mut file, 56, &[segments, 0]);
    file
}

fn segment(kind: u64, flags: u64, (at, size): (u64, u64)) -> Vec<u8> {
    words(&[kind | flags << 32, at, at, at, size, size, 8])
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
}

/// `dl_new_hash` of the dynamic linker.
fn hash(name: &str) -> u32 {
    name.bytes().fold(5_381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}
