//! A `libnccl.so.2` without NVIDIA: the real symbols, argument order and calling convention, no
//! data moved. Nothing that loads it can tell by the ABI, and nothing needs to know.
//!
//! A call checks its communicator as the library does, does what is planned (waits, fails, never
//! returns), and returns. [`rank`] is a process that loads such a library, the real one too, and
//! does what it reads.
#![expect(unsafe_code, reason = "a C ABI takes pointers from its caller")]

pub mod abi;
pub mod config;
mod plan;
pub mod rank;
pub mod ras;

/// The version as the real library has it among its constants; agents read it there.
#[used]
static VERSION_TEXT: [u8; 29] = *b"NCCL version 2.29.7+cuda13.0\0";
