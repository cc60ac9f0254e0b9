//! Lines of NCCL's Inspector: any bytes at all.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| gpuwho_nccl::inspector::fuzz::record(line));
