//! Environments and drop files: any bytes at all. What is read does not depend on how the kernel
//! cuts it into reads, and nothing longer than a name is kept.

#![no_main]

use gpuwho_nccl::inspector::fuzz::environment;
use gpuwho_owners::attribute::slurm::SlurmEnv;
use libfuzzer_sys::fuzz_target;
use std::io::{self, Read};

/// Gives one byte a read.
struct Slowly<'a>(&'a [u8]);

impl Read for Slowly<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let (Some((first, rest)), Some(place)) = (self.0.split_first(), to.first_mut()) else {
            return Ok(0);
        };
        *place = *first;
        self.0 = rest;
        Ok(1)
    }
}

fuzz_target!(|bytes: &[u8]| {
    assert_eq!(environment(bytes), environment(Slowly(bytes)));
    for end in [0, b'\n'] {
        let Ok(at_once) = SlurmEnv::read(bytes, end) else { continue };
        assert_eq!(SlurmEnv::read(Slowly(bytes), end).ok(), Some(at_once.clone()));
        // `SLURM_JOB_ID=7` and the like: what no name precedes is nothing.
        if !bytes.windows(6).any(|word| word == b"SLURM_") {
            let mut nothing = SlurmEnv::default();
            nothing.truncated = at_once.truncated;
            assert_eq!(at_once, nothing);
        }
    }
});
