//! `/proc/PID/maps`: any bytes, paths among them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| assert!(gpuwho_nccl::probe::fuzz::maps(bytes)));
