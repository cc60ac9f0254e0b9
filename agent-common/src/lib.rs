//! The ABI between gpuwho's BPF programs and its user space: fixed-width records, map sizes,
//! nothing else.
#![no_std]
