//! Helpers shared by the BPF programs.
#![no_std]
