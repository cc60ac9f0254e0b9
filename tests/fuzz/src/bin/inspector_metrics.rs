//! Files of metrics of NCCL's Inspector: any text; no more rows are kept than may be.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| assert!(gpuwho_nccl::inspector::fuzz::exposition(text)));
