//! The files of a spool: any bytes in place of them, behind them and over them. What is read back is
//! bounded, damage costs no more than what is damaged, and the spool goes on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::LazyLock;

/// In memory, one for each process that fuzzes.
static ROOT: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/gpuwho-fuzz-spool-{}", std::process::id())));

fuzz_target!(|bytes: &[u8]| gpuwho_export::spool::fuzz::folder(&ROOT, bytes).unwrap());
