use super::*;

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
fn a_set_of_functions_tells_at_least_which_version_it_is() {
    let row = |program| gpuwho_common::nccl::Symbol::of_program(program);
    assert_eq!(&*at_least(&[(row("all_reduce"), 1), (row("shrink"), 2)]), ">=2.27");
    assert_eq!(&*at_least(&[(row("all_reduce_config"), 1)]), ">=2.32");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_probe_goes_behind_the_mark_of_branch_protection_where_that_is_cheaper() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("code");
    let place = |code: &[u8]| {
        std::fs::write(&path, code).unwrap();
        cheapest_place(&File::open(&path).unwrap(), 0).unwrap()
    };
    // push %r15; push %rbp; nop; endbr64 and push %rbx.
    assert_eq!(place(b"\x41\x57\x49\x89\xf7\x41\x56\x90"), (0, false));
    assert_eq!(place(b"\x55\x48\x89\xe5\x41\x56\x49\x89"), (0, false));
    assert_eq!(place(b"\x90\x48\x89\xe5\x41\x56\x49\x89"), (0, false));
    assert_eq!(place(b"\xf3\x0f\x1e\xfa\x53\x48\x89\xfb"), (4, false));
    // sub $0x10,%rsp, behind the mark as well; the file ends.
    assert_eq!(place(b"\x48\x83\xec\x10\x41\x51\x4d\x89"), (0, true));
    assert_eq!(place(b"\xf3\x0f\x1e\xfa\x48\x83\xec\x10"), (0, true));
    assert_eq!(place(b"\xf3\x0f"), (0, true));
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
