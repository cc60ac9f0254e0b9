//! Metrics pages of inference engines, two one after the other: a reader that knows the first reads
//! of the second what a new one reads.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|page: &[u8]| assert!(gpuwho_engines::fuzz::pages(page)));
