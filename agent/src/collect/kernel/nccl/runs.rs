//! What the programs take, by the kernel's own measure: while somebody asks for it, it takes the time
//! around every run of every program on the host. So for a second a minute, while probes are hit.

use super::governor::LOOK_EVERY;
use crate::paths::Paths;
use crate::sys::uprobes::measure_programs;
use std::fs;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Between the ends of two measurements.
const EVERY: Duration = Duration::from_mins(1);
/// Fewer runs are no mean.
const FEWEST: u64 = 50;

/// Runs of programs and the nanoseconds they took, as far as they were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs {
    pub count: u64,
    pub ns: u64,
}

impl Runs {
    /// Of programs so far (`bpf_prog_show_fdinfo`, 5.1).
    pub(super) fn of(programs: &[BorrowedFd<'_>], paths: &Paths) -> Self {
        let mut sum = Self::default();
        for program in programs {
            let file = format!("self/fdinfo/{}", program.as_raw_fd());
            if let Ok(text) = fs::read_to_string(paths.proc.join(file)) {
                let runs = parse(&text);
                sum = Self { count: sum.count + runs.count, ns: sum.ns + runs.ns };
            }
        }
        sum
    }

    fn mean_since(self, before: Self) -> Option<Duration> {
        let count = self.count.checked_sub(before.count).filter(|count| *count >= FEWEST)?;
        Some(Duration::from_nanos(self.ns.checked_sub(before.ns)? / count))
    }
}

fn parse(fdinfo: &str) -> Runs {
    let number = |name: &str| {
        let line = fdinfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    };
    Runs { count: number("run_cnt"), ns: number("run_time_ns") }
}

/// Measures now and then.
#[derive(Debug, Default)]
pub(super) struct Runner {
    /// While it lives the kernel measures; and the sums when that began.
    measuring: Option<(OwnedFd, Runs)>,
    next: Option<Instant>,
}

impl Runner {
    /// Goes on from look to look; gives what a run takes where that was just measured.
    pub(super) fn look(
        &mut self,
        now: Instant,
        is_hit: bool,
        runs: impl FnOnce() -> Runs,
    ) -> Option<Duration> {
        if let Some((kept, before)) = self.measuring.take() {
            let mean = runs().mean_since(before);
            drop(kept);
            self.next = Some(now + EVERY);
            return mean;
        }
        if is_hit && self.next.is_none_or(|next| now >= next) {
            match measure_programs() {
                Ok(kept) => self.measuring = Some((kept, runs())),
                Err(error) => {
                    tracing::debug!(%error, "the kernel does not measure programs");
                    self.next = Some(now + EVERY + LOOK_EVERY);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_read_from_what_the_kernel_says_of_a_program() {
        let text = "pos:\t0\nprog_type:\t2\nrun_time_ns:\t91584739\nrun_cnt:\t186004\n";
        let runs = parse(text);
        assert_eq!(runs, Runs { count: 186_004, ns: 91_584_739 });
        let before = Runs { count: 186_004 - 100, ns: 91_584_739 - 40_000 };
        assert_eq!(runs.mean_since(before), Some(Duration::from_nanos(400)));
        assert_eq!(runs.mean_since(runs), None, "no runs have no mean");
        assert_eq!(before.mean_since(runs), None, "another program");
        assert_eq!(parse("pos:\t0\n"), Runs::default());
    }
}
