//! The devices a job may open, from the program that slurmstepd attaches to the job's cgroup (v2,
//! with `ConstrainDevices=yes`): the kernel's own answer, which no environment can change.
//!
//! The program is not matched against a pattern but evaluated: [`Program::allows`] interprets the
//! few kinds of instruction a device program has, so it stays right if Slurm orders them
//! differently. Three system calls (4 to 7 µs together) when a job is first seen, never on a tick.

use gpuwho_sys::bpf::{Instruction, device_programs};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

/// A device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The driver's device.
    pub minor: u32,
}

/// A job's access to devices on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceAccess {
    /// The device program's decision on each character device it names.
    Known {
        /// The job may open these.
        allowed: Vec<DeviceNumber>,
        /// The job may not open these, which may be other jobs'.
        denied: Vec<DeviceNumber>,
    },
    /// It is not known.
    Unknown(Undecided),
}

/// Why a job's devices are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// Not read yet.
    NotRead,
    /// The job is in cgroup v1; its `devices.list` does not list denied devices.
    CgroupV1,
    /// Slurm has attached no program: `ConstrainDevices` is off, or it is not attached yet.
    NoProgram,
    /// The kernel denies the agent access.
    Refused,
    /// The program has an unknown instruction.
    NotUnderstood,
    /// The job's cgroup was removed.
    Gone,
}

/// The name of slurmstepd's program (`common_cgroup.c`/`ebpf.c`, 22.05 to 26.05).
const SLURM_PROGRAM: &str = "Slurm_Cgroup_v2";

/// A device program, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program(Vec<Step>);

/// One instruction of a device program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    operation: Operation,
    /// Whether it is on 64 bits; else on the lower 32.
    wide: bool,
    target: usize,
    operand: Operand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Value(u64),
    Register(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Loads a field of the context, by its offset.
    Load(i16),
    Move,
    And,
    Or,
    ShiftLeft,
    ShiftRight,
    /// Jumps forward by this many instructions.
    Jump(i16),
    JumpIf(Test, i16),
    Exit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Equal,
    NotEqual,
    Set,
}

/// Number of registers.
const REGISTERS: usize = 11;
/// `struct bpf_cgroup_dev_ctx`: access and type, major, minor.
const ACCESS_TYPE: i16 = 0;
const MAJOR: i16 = 4;
const MINOR: i16 = 8;
/// `BPF_DEVCG_DEV_CHAR`, and an open for reading and writing (`BPF_DEVCG_ACC_*`).
const CHARACTER: u64 = 2;
const READ_WRITE: u64 = 2 | 4;

impl Program {
    /// Decodes the kernel's instructions; `None` if one is unknown.
    pub(super) fn decode(instructions: &[Instruction]) -> Option<Self> {
        instructions.iter().copied().map(step).collect::<Option<Vec<_>>>().map(Self)
    }

    /// Whether a character device may be opened for reading and writing; `None` if the program does
    /// something unexpected.
    pub(super) fn allows(&self, device: DeviceNumber) -> Option<bool> {
        let mut registers = [0_u64; REGISTERS];
        let mut at = 0_usize;
        loop {
            let step = self.0.get(at)?;
            at += 1;
            let operand = match step.operand {
                Operand::Value(value) => value,
                Operand::Register(register) => *registers.get(register)?,
            };
            let target = registers.get_mut(step.target)?;
            let old = if step.wide { *target } else { *target & LOW };
            let shift = operand & if step.wide { 63 } else { 31 };
            let new = match step.operation {
                Operation::Exit => return registers.first().map(|verdict| *verdict & LOW != 0),
                Operation::Jump(by) => {
                    at = at.checked_add(usize::try_from(by).ok()?)?;
                    continue;
                }
                Operation::JumpIf(test, by) => {
                    let operand = if step.wide { operand } else { operand & LOW };
                    if test.holds(old, operand) {
                        at = at.checked_add(usize::try_from(by).ok()?)?;
                    }
                    continue;
                }
                Operation::Load(offset) => field(offset, device)?,
                Operation::Move => operand,
                Operation::And => old & operand,
                Operation::Or => old | operand,
                Operation::ShiftLeft => old << shift,
                Operation::ShiftRight => old >> shift,
            };
            *target = if step.wide { new } else { new & LOW };
        }
    }

    /// Every character device that the program names: each compared major number, with each minor
    /// number compared after it.
    pub(super) fn named(&self) -> Vec<DeviceNumber> {
        let mut fields = [None; REGISTERS];
        let mut major = None;
        let mut named = Vec::new();
        for step in &self.0 {
            match (step.operation, step.operand) {
                (Operation::Load(offset), _) => set(&mut fields, step.target, Some(offset)),
                (Operation::Move, Operand::Register(from)) => {
                    let moved = fields.get(from).copied().flatten();
                    set(&mut fields, step.target, moved);
                }
                (Operation::Move, _) => set(&mut fields, step.target, None),
                (Operation::JumpIf(..), Operand::Value(value)) => {
                    let value = u32::try_from(value & LOW).unwrap_or(u32::MAX);
                    match (fields.get(step.target).copied().flatten(), major) {
                        (Some(MAJOR), _) => major = Some(value),
                        (Some(MINOR), Some(major)) => {
                            named.push(DeviceNumber { major, minor: value });
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        named.sort_unstable();
        named.dedup();
        named
    }
}

const LOW: u64 = 0xffff_ffff;

impl Test {
    fn holds(self, left: u64, right: u64) -> bool {
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Set => left & right != 0,
        }
    }
}

fn set(fields: &mut [Option<i16>], register: usize, field: Option<i16>) {
    if let Some(place) = fields.get_mut(register) {
        *place = field;
    }
}

fn field(offset: i16, device: DeviceNumber) -> Option<u64> {
    match offset {
        ACCESS_TYPE => Some(READ_WRITE << 16 | CHARACTER),
        MAJOR => Some(u64::from(device.major)),
        MINOR => Some(u64::from(device.minor)),
        _ => None,
    }
}

/// Opcodes as in `linux/bpf_common.h` and `linux/bpf.h`: three bits of class, one of source (the
/// immediate or a register), four of operation.
fn step(instruction: Instruction) -> Option<Step> {
    const REGISTER_SOURCE: u8 = 0x08;
    let [code, registers, o0, o1, i0, i1, i2, i3] = instruction;
    let offset = i16::from_ne_bytes([o0, o1]);
    let immediate = i32::from_ne_bytes([i0, i1, i2, i3]);
    // An immediate is sign-extended to 64 bits.
    let value = Operand::Value(i64::from(immediate).cast_unsigned());
    let from_register = Operand::Register(usize::from(registers >> 4));
    let has_operand = if code & REGISTER_SOURCE == 0 { value } else { from_register };
    let (operation, wide, operand) = match (code & 0x07, code & 0xf0) {
        // BPF_LDX | BPF_MEM | BPF_W: all of a field of the context.
        (0x1, _) if code == 0x61 => (Operation::Load(offset), true, value),
        (class @ (0x4 | 0x7), kind) => {
            let operation = match kind {
                0x40 => Operation::Or,
                0x50 => Operation::And,
                0x60 => Operation::ShiftLeft,
                0x70 => Operation::ShiftRight,
                0xb0 if offset == 0 => Operation::Move,
                _ => return None,
            };
            (operation, class == 0x7, has_operand)
        }
        (0x5, 0x00) => (Operation::Jump(offset), true, value),
        (0x5, 0x90) => (Operation::Exit, true, value),
        (class @ (0x5 | 0x6), kind) => {
            let test = match kind {
                0x10 => Test::Equal,
                0x40 => Test::Set,
                0x50 => Test::NotEqual,
                _ => return None,
            };
            (Operation::JumpIf(test, offset), class == 0x5, has_operand)
        }
        _ => return None,
    };
    Some(Step { operation, wide, target: usize::from(registers & 0x0f), operand })
}

/// Reads the programs attached to the job's own directory in the unified hierarchy.
pub(super) fn read(directory: &Path) -> DeviceAccess {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(open) = rustix::fs::open(directory, flags, Mode::empty()) else {
        return DeviceAccess::Unknown(Undecided::Gone);
    };
    match device_programs(open.as_fd()) {
        Ok(programs) => {
            let slurm = programs.iter().find(|program| program.name == SLURM_PROGRAM);
            slurm.map_or(DeviceAccess::Unknown(Undecided::NoProgram), |program| {
                evaluate(&program.instructions)
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DeviceAccess::Unknown(Undecided::Gone)
        }
        Err(_) => DeviceAccess::Unknown(Undecided::Refused),
    }
}

/// The devices that a program names, by its decision on each.
pub(super) fn evaluate(instructions: &[Instruction]) -> DeviceAccess {
    let verdicts = || {
        let program = Program::decode(instructions)?;
        let named = program.named().into_iter();
        named.map(|device| Some((device, program.allows(device)?))).collect::<Option<Vec<_>>>()
    };
    let Some(verdicts) = verdicts() else { return DeviceAccess::Unknown(Undecided::NotUnderstood) };
    let of = |allowed: bool| {
        let those = verdicts.iter().filter(|(_, verdict)| *verdict == allowed);
        those.map(|(device, _)| *device).collect()
    };
    DeviceAccess::Known { allowed: of(true), denied: of(false) }
}

#[cfg(test)]
mod tests;
