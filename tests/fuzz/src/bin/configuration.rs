//! Configuration files: any bytes. Each is used or refused with a reason that names the file or a key.

#![no_main]

use gpuwho::agent::configuration::Configuration;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::LazyLock;

/// In memory, one for each process that fuzzes.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    PathBuf::from(format!("/dev/shm/gpuwho-fuzz-configuration-{}", std::process::id()))
});

fuzz_target!(|bytes: &[u8]| {
    std::fs::write(&*FILE, bytes).unwrap();
    if let Err(error) = Configuration::check(&FILE) {
        let text = error.to_string();
        assert!(text.contains('`') || text.contains("/dev/shm/"), "{text}");
    }
});
