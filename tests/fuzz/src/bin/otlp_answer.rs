//! Answers of an OTLP receiver: any status, headers and bytes. What is said of them is a line, and no answer
//! makes the sender wait for longer than ten minutes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (text, wait) = gpuwho_export::otlp::fuzz::answer(bytes);
    assert!(text <= 2048 && wait <= 600, "{text} {wait}");
});
