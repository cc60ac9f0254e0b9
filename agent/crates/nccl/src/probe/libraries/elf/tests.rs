use super::version::version_in;
use super::*;
use std::fs::File;

#[test]
fn a_version_is_a_number_and_no_format() {
    let version = |text: &[u8]| version_in(text);
    assert_eq!(
        version(b"x\0NCCL version %d.%d\0NCCL version 2.27.5+cuda12.9\0"),
        Some("2.27.5+cuda12.9".to_owned())
    );
    assert_eq!(version(b"RCCL version 2.22.3+hip6.4 x"), Some("2.22.3+hip6.4".to_owned()));
    assert_eq!(version(b"NCCL version "), None);
    assert_eq!(version(b"NCCL version 7"), None);
}

#[test]
fn the_set_of_functions_gives_a_minimum_version() {
    let row = |program| gpuwho_common::nccl::Symbol::of_program(program);
    assert_eq!(&*at_least(&[(row("all_reduce"), 1), (row("shrink"), 2)]), ">=2.27");
    assert_eq!(&*at_least(&[(row("all_reduce_config"), 1)]), ">=2.32");
}

#[test]
fn files_that_are_no_library_have_no_functions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut cut_short = b"\x7fELF\x02\x01\x01".to_vec();
    cut_short.resize(64, 0xff);
    for content in [&b""[..], b"#!/bin/sh\n", &cut_short] {
        std::fs::write(&path, content).unwrap();
        assert_eq!(exports(&File::open(&path).unwrap()).unwrap(), None);
    }
    let own = File::open(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(exports(&own).unwrap(), None);
}

/// A shared library with these functions, each `(name, kind, address)`; its only segment is the
/// file, with these flags and bytes.
fn library(functions: &[(&str, u8, u64)], (flags, bytes): (u32, u64)) -> Vec<u8> {
    const SIZE: usize = 0x2000;
    let mut file = vec![0_u8; SIZE];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    let words =
        |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[3, 0]);
    put(18, &OWN_MACHINE.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    put(56, &[2, 0]);
    // The loaded segment, and the dynamic section.
    let segment = |kind: u64, flags: u32, at: u64, size: u64| {
        words(&[kind | u64::from(flags) << 32, at, at, at, size, size, 8])
    };
    put(64, &segment(1, flags, 0, bytes));
    put(120, &segment(2, 4, 0x100, 64));
    put(0x100, &words(&[0x6fff_fef5, 0x200, 6, 0x400, 5, 0x800, 0, 0]));
    // One bucket, a filter that accepts all names.
    put(0x200, &words(&[1 | 1 << 32, 1, u64::MAX]));
    put(0x218, &1_u32.to_le_bytes());
    let mut name = 0x801;
    for (at, (text, kind, address)) in functions.iter().enumerate() {
        let last = u32::from(at + 1 == functions.len());
        put(0x21c + 4 * at, &(gnu_hash(text) & !1 | last).to_le_bytes());
        let symbol = (name as u64 - 0x800) | u64::from(*kind) << 32 | 1 << 48;
        put(0x418 + 24 * at, &words(&[symbol, *address, 16]));
        put(name, text.as_bytes());
        name += text.len() + 1;
    }
    file
}

/// A library file for this machine with these functions.
pub(in super::super) fn sample(functions: &[(&str, u8, u64)]) -> Vec<u8> {
    library(functions, (5, 0x2000))
}

fn found(file: &[u8]) -> Option<Vec<u64>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, file).unwrap();
    let found = exports(&File::open(&path).unwrap()).unwrap();
    found.map(|found| found.entries.into_iter().map(|(_, offset)| offset).collect())
}

#[test]
fn a_function_is_one_by_its_kind_and_inside_an_executable_segment_that_the_file_has() {
    let all_reduce = |kind, at| sample(&[("ncclAllReduce", kind, at)]);
    assert_eq!(found(&all_reduce(0x12, 0x1000)), Some(vec![0x1000]));
    // An object; a section; a function that is resolved when the program starts.
    for kind in [0x11, 0x13, 0x1a] {
        assert_eq!(found(&all_reduce(kind, 0x1000)), None, "{kind:x}");
    }
    assert_eq!(found(&all_reduce(0x12, 0x2000)), None, "behind the segment");
    let of = |segment| found(&library(&[("ncclAllReduce", 0x12, 0x1000)], segment));
    assert_eq!(of((4, 0x2000)), None, "not executable");
    assert_eq!(of((5, 0x2001)), None, "not all of it is in the file");
    assert_eq!(of((5, u64::MAX)), None);
    assert_eq!(of((5, 0x1001)), Some(vec![0x1000]));
    // The mark alone makes a library; only invalid functions are left out.
    let two = [("ncclAllReduce", 0x12, 0x1000), ("ncclBroadcast", 0x11, 0x1040)];
    assert_eq!(found(&sample(&two)), Some(vec![0x1000]));
}

#[test]
fn a_probe_does_not_leave_the_segment_behind_the_mark_of_branch_protection() {
    if cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let mut file = library(&[("ncclAllReduce", 0x12, 0x1000)], (5, 0x1004));
    // `endbr64`, and `push %rbx` after the segment's end.
    file[0x1000..0x1005].copy_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa, 0x53]);
    assert_eq!(found(&file), None);
}
