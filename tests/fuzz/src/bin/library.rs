//! Libraries that processes map: any bytes. Tables and names are read from where the file says that
//! they are, and no probe is put outside it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| assert!(gpuwho_nccl::probe::fuzz::library(bytes)));
