//! AMD's table of readings, of every revision: any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| gpuwho_devices::fuzz::gpu_metrics(bytes));
