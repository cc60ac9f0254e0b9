use super::version::version_in;
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
