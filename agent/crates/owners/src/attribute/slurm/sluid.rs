//! Slurm's unique job ids (25.11; they name the cgroup directories since 26.05): `s` and 13
//! Crockford base 32 digits of 12 bits of cluster, 42 bits of milliseconds and 10 bits of sequence.

use gpuwho_model::ids::SlurmJobId;
use std::time::{Duration, SystemTime};

/// The contents of a SLUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sluid {
    /// The cluster's number.
    pub cluster: u16,
    /// When the job was submitted, or requeued.
    pub submitted: SystemTime,
    /// Distinguishes jobs of one millisecond.
    pub sequence: u16,
}

/// Crockford's digits: no I, L, O, U.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const LEN: usize = 13;
const SEQUENCE_BITS: u32 = 10;
const TIME_BITS: u32 = 42;

impl Sluid {
    /// Decodes a job's id, if it is a SLUID.
    pub fn decode(job: &SlurmJobId) -> Option<Self> {
        let digits = job.as_str().strip_prefix('s')?.as_bytes();
        if digits.len() != LEN {
            return None;
        }
        let mut bits: u128 = 0;
        for digit in digits {
            let value = DIGITS.iter().position(|known| known == digit)?;
            bits = bits << 5 | value as u128;
        }
        let bits = u64::try_from(bits).ok()?;
        let ms = bits >> SEQUENCE_BITS & ((1 << TIME_BITS) - 1);
        Some(Self {
            cluster: u16::try_from(bits >> (SEQUENCE_BITS + TIME_BITS)).ok()?,
            submitted: SystemTime::UNIX_EPOCH + Duration::from_millis(ms),
            sequence: u16::try_from(bits & ((1 << SEQUENCE_BITS) - 1)).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Option<(u16, u64, u16)> {
        let sluid = Sluid::decode(&SlurmJobId::new(text))?;
        let since = sluid.submitted.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        Some((sluid.cluster, u64::try_from(since.as_millis()).unwrap(), sluid.sequence))
    }

    #[test]
    fn a_recorded_sluid_gives_the_time_the_job_was_submitted() {
        // Slurm 25.11.8, where Prolog recorded the start of the job at 1795227696.
        let (cluster, ms, sequence) = decoded("s8J1M7XYHE1Z00").unwrap();
        assert_eq!((cluster, ms / 1000, sequence), (2192, 1_795_227_695, 0));
    }

    #[test]
    fn an_invalid_sluid_is_rejected() {
        for text in
            ["123", "s", "sDNDM7XZ1H360", "sDNDM7XZ1H360I", "sZZZZZZZZZZZZZ", "s8J1M7XYHE1Z000"]
        {
            assert_eq!(decoded(text), None, "{text}");
        }
    }
}
