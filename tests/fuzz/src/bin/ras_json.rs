//! NCCL's status in JSON: any bytes as an answer.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| gpuwho_nccl::ras::fuzz::json(bytes));
