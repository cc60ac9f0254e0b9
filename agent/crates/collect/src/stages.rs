//! What each stage of the pipeline costs: CPU time of the threads that run it, added up where it is
//! spent and told by the agent's own collector. Two looks at the thread's clock a stage and batch,
//! some 0.2 µs each.

use gpuwho_model::catalog::agent::Stage;
use gpuwho_sys::clock::thread_cpu;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds by the stage's place in [`Stage::ALL`].
#[derive(Debug, Default)]
pub struct Stages([AtomicU64; Stage::ALL.len()]);

impl Stages {
    /// Adds what a stage has used.
    pub fn spend(&self, stage: Stage, time: Duration) {
        if let Some(spent) = self.0.get(stage as usize) {
            let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            spent.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// Does a stage's work on this thread, and adds what it uses.
    pub fn time<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let began = thread_cpu();
        let done = work();
        self.spend(stage, thread_cpu().saturating_sub(began));
        done
    }

    /// Seconds used so far.
    pub fn seconds(&self, stage: Stage) -> f64 {
        let nanos = self.0.get(stage as usize).map_or(0, |spent| spent.load(Ordering::Relaxed));
        nanos as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_has_the_time_of_its_own_work() {
        let stages = Stages::default();
        let busy = stages.time(Stage::Table, || {
            let began = thread_cpu();
            let since = || thread_cpu().saturating_sub(began);
            while since() < Duration::from_millis(2) {}
            since()
        });
        stages.spend(Stage::Owners, Duration::from_millis(5));
        let table = stages.seconds(Stage::Table);
        assert!(table >= busy.as_secs_f64(), "{table}, not {busy:?}");
        for stage in Stage::ALL {
            let expected = match stage {
                Stage::Table => table,
                Stage::Owners => 0.005,
                _ => 0.0,
            };
            assert_eq!(stages.seconds(*stage).to_bits(), f64::to_bits(expected), "{stage:?}");
        }
    }
}
