use super::*;
use std::fs::File;

/// End of `ncclCommCount` in libnccl 2.27.5 and 2.28.9 for x86-64, from the wheels.
const COUNT_2_27: [u8; 14] =
    [0x41, 0x8b, 0x84, 0x24, 0xbc, 0x44, 0x10, 0x00, 0x31, 0xdb, 0x41, 0x89, 0x45, 0x00];
const COUNT_2_28: [u8; 12] =
    [0x41, 0x8b, 0x85, 0xd4, 0x44, 0x10, 0x00, 0x31, 0xdb, 0x41, 0x89, 0x06];
/// The same of 2.27.5 for aarch64.
const COUNT_ARM: [u32; 5] = [0x9144_12d6, 0x5280_0013, 0xb944_bec0, 0xb900_02e0, 0x17ff_ff90];

fn arm(code: &[u32]) -> Vec<u8> {
    code.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn the_answers_field_is_found_in_the_code_of_real_libraries() {
    assert_eq!(x86_64_answer(&COUNT_2_27), BTreeSet::from([1_066_172]));
    assert_eq!(x86_64_answer(&COUNT_2_28), BTreeSet::from([1_066_196]));
    assert_eq!(aarch64_answer(&arm(&COUNT_ARM)), BTreeSet::from([1_066_172]));
}

#[test]
fn the_hash_is_a_wide_load_beside_the_rank() {
    // 2.27.5, `ncclAllReduce`: `mov 0x1044b0(%rcx),%rax`.
    let load = [0x74, 0x07, 0x48, 0x8b, 0x81, 0xb0, 0x44, 0x10, 0x00, 0x48, 0x89, 0x44, 0x24, 0x10];
    assert!(x86_64_words(&load).contains(&1_066_160));
    let load = arm(&[0xb400_0075, 0x9144_02a0, 0xf962_5800, 0xf900_57e0]);
    assert_eq!(aarch64_words(&load), BTreeSet::from([1_066_160]));
}

#[test]
fn code_of_another_form_gives_no_offset() {
    // The store goes elsewhere; the store is of another register; a local variable.
    let elsewhere = [0x8b, 0x87, 0xbc, 0x44, 0x10, 0x00, 0x89, 0x46, 0x08];
    let other = [0x8b, 0x87, 0xbc, 0x44, 0x10, 0x00, 0x89, 0x0e];
    let own = [0x8b, 0x45, 0x10, 0x89, 0x06];
    for code in [&elsewhere[..], &other, &own, &[], &[0x41], &[0x8b, 0x87, 0xbc]] {
        assert_eq!(x86_64_answer(code), BTreeSet::new(), "{code:x?}");
    }
    let [add, mov, load, _, end] = COUNT_ARM;
    assert_eq!(aarch64_answer(&arm(&[add, mov, load, end])), BTreeSet::new());
    assert_eq!(aarch64_answer(&[1, 2, 3]), BTreeSet::new());
}

#[test]
fn two_answers_that_differ_are_none() {
    assert_eq!(only(BTreeSet::from([8, 12])), None);
    assert_eq!(only(BTreeSet::from([8])), Some(8));
}

/// The rank's offset by version, from the debug information of the same files; and whether
/// operations read the hash.
const KNOWN: [(&str, u32, bool); 6] = [
    ("2.21.5", 13_536, false),
    ("2.24.3", 246_952, false),
    ("2.27.5", 1_066_168, true),
    ("2.28.9", 1_066_192, true),
    ("2.29.7", 1_181_400, true),
    ("2.30.4", 1_181_408, true),
];

#[test]
fn a_real_librarys_fields_are_where_its_debug_information_says() {
    let Some(path) = std::env::var_os("GPUWHO_TEST_NCCL") else {
        println!("skipped: needs the real NCCL (cargo xtask setup nccl), in GPUWHO_TEST_NCCL");
        return;
    };
    let file = File::open(path).unwrap();
    let version = crate::probe::libraries::elf::version(&file).unwrap().unwrap();
    let known = KNOWN.iter().find(|(known, ..)| version.starts_with(known));
    let Some((_, rank, reads_hash)) = known else { panic!("no places are known of {version}") };
    let (ranks, device) = (rank + 4, Some(rank + 8));
    let hash = reads_hash.then_some(rank - 8);
    assert_eq!(fields(&file).unwrap(), Some(Fields { rank: *rank, ranks, device, hash }));
}

#[test]
fn a_file_that_is_no_library_has_no_fields() {
    let own = File::open(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(fields(&own).unwrap(), None);
}
