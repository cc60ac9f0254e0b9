//! NCCL's older status in text: any text as an answer.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| gpuwho::collect::nccl::ras::fuzz::text(text));
