//! The kernel log: any text as its records, one a line.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| gpuwho::collect::kmsg::fuzz::log(text));
