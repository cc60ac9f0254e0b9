use super::*;
use proptest::prelude::*;
use std::path::PathBuf;

/// Encodes the instructions of a recorded bpftool listing.
fn recorded(name: &str) -> Vec<Instruction> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/slurm");
    let text = std::fs::read_to_string(dir.join(name)).unwrap();
    text.lines().map(assemble).collect()
}

fn assemble(line: &str) -> Instruction {
    let (code, rest) = line.split_once('(').unwrap().1.split_once(") ").unwrap();
    let code = u8::from_str_radix(code, 16).unwrap();
    let tokens: Vec<&str> = rest.split(' ').collect();
    let register = |token: &str| -> u8 { token[1..].parse().unwrap() };
    let number = |token: &str| -> i32 {
        let hex = token.strip_prefix("0x").map(|hex| i64::from_str_radix(hex, 16).unwrap());
        i32::try_from(hex.unwrap_or_else(|| token.parse().unwrap())).unwrap()
    };
    match tokens.as_slice() {
        [target, "=", "*(u32", _, field] => {
            let offset = field.strip_suffix(')').unwrap().strip_prefix('+').unwrap();
            instruction(code, register(target), offset.parse().unwrap(), 0)
        }
        [target, _, value] => instruction(code, register(target), 0, number(value)),
        ["if", target, "!=", value, "goto", to] => {
            let offset = to.strip_prefix("pc+").unwrap().parse().unwrap();
            instruction(code, register(target), offset, number(value))
        }
        ["exit"] => instruction(code, 0, 0, 0),
        other => panic!("{other:?}"),
    }
}

fn instruction(code: u8, target: u8, offset: i16, value: i32) -> Instruction {
    let ([o0, o1], [i0, i1, i2, i3]) = (offset.to_ne_bytes(), value.to_ne_bytes());
    // `rN = *(u32 *)(r1 +M)` has its source register in the upper half.
    let registers = if code == 0x61 { target | 1 << 4 } else { target };
    [code, registers, o0, o1, i0, i1, i2, i3]
}

fn device(minor: u32) -> DeviceNumber {
    DeviceNumber { major: 240, minor }
}

#[test]
fn slurms_recorded_program_names_what_the_job_may_and_may_not_open() {
    let program = recorded("device-program-22.05.8.txt");
    assert_eq!(program.len(), 28);
    let expected = DeviceAccess::Known {
        allowed: vec![device(0), device(1)],
        denied: vec![device(2), device(3)],
    };
    assert_eq!(evaluate(&program), expected);
}

#[test]
fn a_device_that_the_program_does_not_name_has_its_default() {
    let program = Program::decode(&recorded("device-program-22.05.8.txt")).unwrap();
    assert_eq!(program.allows(DeviceNumber { major: 195, minor: 255 }), Some(true));
    assert_eq!(program.allows(device(2)), Some(false));
}

#[test]
fn a_program_that_compares_the_other_way_round_gives_the_same_answer() {
    // r4 = major; r5 = minor; if r4 == 240 goto +2; r0 = 1; exit; if r5 == 3 goto +2;
    // r0 = 0; exit; r0 = 1; exit
    let program = [
        instruction(0x61, 4, 4, 0),
        instruction(0x61, 5, 8, 0),
        instruction(0x15, 4, 2, 240),
        instruction(0xb7, 0, 0, 1),
        instruction(0x95, 0, 0, 0),
        instruction(0x15, 5, 2, 3),
        instruction(0xb7, 0, 0, 0),
        instruction(0x95, 0, 0, 0),
        instruction(0xb7, 0, 0, 1),
        instruction(0x95, 0, 0, 0),
    ];
    let expected = DeviceAccess::Known { allowed: vec![device(3)], denied: vec![] };
    assert_eq!(evaluate(&program), expected);
    assert_eq!(Program::decode(&program).unwrap().allows(device(2)), Some(false));
}

#[test]
fn a_program_with_an_unknown_instruction_allows_nothing() {
    // A call, a jump back, a jump beyond the end, no end at all.
    let not_understood = DeviceAccess::Unknown(Undecided::NotUnderstood);
    assert_eq!(evaluate(&[instruction(0x85, 0, 0, 12)]), not_understood);
    let looping = [
        instruction(0x61, 4, 4, 0),
        instruction(0x61, 5, 8, 0),
        instruction(0x55, 4, 1, 240),
        instruction(0x55, 5, -3, 0),
    ];
    assert_eq!(evaluate(&looping), not_understood);
}

#[test]
fn a_job_without_slurms_program_or_without_a_directory_has_unknown_devices() {
    let dir = tempfile::tempdir().unwrap();
    // Not a cgroup: the kernel refuses the query.
    assert_eq!(read(dir.path()), DeviceAccess::Unknown(Undecided::Refused));
    assert_eq!(read(&dir.path().join("gone")), DeviceAccess::Unknown(Undecided::Gone));
}

proptest! {
    #[test]
    fn no_program_makes_the_reader_fail_or_hang(
        program in proptest::collection::vec(any::<[u8; 8]>(), 0..64),
        known in proptest::collection::vec((0_usize..8, 0_u8..11, -2_i16..8, 0_i32..4), 0..64),
    ) {
        evaluate(&program);
        let codes = [0x61, 0x15, 0x55, 0xb7, 0xbf, 0x54, 0x05, 0x95];
        let known: Vec<_> = known
            .into_iter()
            .map(|(code, target, offset, value)| instruction(codes[code], target, offset, value))
            .collect();
        evaluate(&known);
    }
}
