//! `/proc/PID/mountinfo`: any bytes, names of mounts among them.

#![no_main]

use gpuwho_nccl::probe::fuzz::mounts;
use libfuzzer_sys::fuzz_target;

/// One of the corpus's.
const MOUNT: u64 = 36;

fuzz_target!(|bytes: &[u8]| assert!(mounts(bytes, MOUNT)));
