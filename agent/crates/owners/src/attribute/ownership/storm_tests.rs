//! Random storms of processes against a model with the truth: never a wrong owner, and an unknown
//! one only for a process that was gone before its cgroup's path was learned.

use super::*;
use crate::attribute::fake::{FakeHost, of_path, opened, v2};
use crate::attribute::{KernelCgroups, Method, Workload, cgroup};
use proptest::prelude::*;
use std::collections::HashMap;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pods and jobs; a cgroup's number is one more than its workload's.
const WORKLOADS: u64 = 50;
/// Few PIDs, so that they are reused often.
const PIDS: u32 = 6;
const TICK_NS: u64 = 10_000_000;

#[derive(Clone, Debug)]
enum Step {
    /// A process starts and opens a device; it may exit before the report is read.
    Open {
        pid: u32,
        workload: u64,
        gone: bool,
    },
    Fork {
        parent: u32,
        pid: u32,
        gone: bool,
    },
    Exec {
        pid: u32,
    },
    /// The driver lists a process without a reported open.
    List {
        pid: u32,
        workload: u64,
    },
    Move {
        pid: u32,
        workload: u64,
    },
    Exit {
        pid: u32,
        reported: bool,
    },
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    let pid = 1..=PIDS;
    prop_oneof![
        4 => (pid.clone(), 0..WORKLOADS, any::<bool>())
            .prop_map(|(pid, workload, gone)| Step::Open { pid, workload, gone }),
        2 => (pid.clone(), pid.clone(), any::<bool>())
            .prop_map(|(parent, pid, gone)| Step::Fork { parent, pid, gone }),
        1 => pid.clone().prop_map(|pid| Step::Exec { pid }),
        1 => (pid.clone(), 0..WORKLOADS).prop_map(|(pid, workload)| Step::List { pid, workload }),
        2 => (pid.clone(), 0..WORKLOADS).prop_map(|(pid, workload)| Step::Move { pid, workload }),
        4 => (pid, prop::bool::weighted(0.8))
            .prop_map(|(pid, reported)| Step::Exit { pid, reported }),
        1 => Just(Step::Tick),
    ]
}

fn path(workload: u64) -> String {
    if workload.is_multiple_of(2) {
        format!("/kubepods/burstable/podaaaaaaaa-0000-4000-8000-{workload:012}/{workload:064x}")
    } else {
        format!("/system.slice/slurmstepd.scope/job_{workload}/step_0/user/task_0")
    }
}

/// The true state of a process.
struct Life {
    workload: u64,
    /// Whether its PID is in `/proc`.
    lives: bool,
}

struct Storm {
    host: FakeHost,
    table: Ownership,
    now_ns: u64,
    /// Paths of cgroups up to here were announced; the rest were not.
    announced: u64,
    lives: HashMap<ProcKey, Life>,
    /// An exit was not reported, and the ring's count of losses has not been read yet.
    has_lost: bool,
    /// Whether BPF announces every exit; a scan comes too late for any.
    announces_exits: bool,
    clock: Arc<AtomicU64>,
}

impl Storm {
    fn new(announced: u64, announces_exits: bool) -> Self {
        let host = FakeHost::new();
        let clock = Arc::new(AtomicU64::new(0));
        let at = Arc::clone(&clock);
        let table = Ownership::with_clock(&host.paths, move || at.load(Ordering::Relaxed));
        if !announces_exits {
            table.ends_are_unannounced();
        }
        for workload in 0..announced {
            let path = Arc::from(path(workload));
            table.observe(Evidence::CgroupMade { id: v2(workload + 1), path });
        }
        let lives = HashMap::new();
        let (now_ns, has_lost) = (1000 * TICK_NS, false);
        Self { host, table, now_ns, announced, lives, has_lost, announces_exits, clock }
    }

    fn living(&self, pid: u32) -> Option<ProcKey> {
        let mut keys = self.lives.iter().filter(|(key, life)| key.pid == pid && life.lives);
        keys.next().map(|(key, _)| *key)
    }

    fn start(&mut self, pid: u32, workload: u64) -> Option<ProcKey> {
        if self.living(pid).is_some() {
            return None;
        }
        let process = ProcKey { pid, start_ticks: self.now_ns / TICK_NS };
        self.host.start(process, "python", &format!("0::{}\n", path(workload)));
        self.lives.insert(process, Life { workload, lives: true });
        Some(process)
    }

    fn end(&mut self, process: ProcKey) {
        self.host.end(process);
        if let Some(life) = self.lives.get_mut(&process) {
            life.lives = false;
        }
    }

    fn report(&mut self, process: ProcKey, parent: Option<ProcKey>, workload: u64, gone: bool) {
        if gone {
            self.end(process);
        }
        let child = opened(process, workload + 1, self.now_ns);
        self.table.observe(match parent {
            Some(parent) => Evidence::Forked { parent, child },
            None => Evidence::Opened(child),
        });
        if gone {
            self.table.observe(Evidence::Exited { process, at_ns: self.now_ns });
        }
    }

    fn apply(&mut self, step: &Step) {
        self.now_ns += TICK_NS;
        self.clock.store(self.now_ns, Ordering::Relaxed);
        let had_lost = std::mem::take(&mut self.has_lost);
        self.take(step, had_lost);
        if had_lost {
            self.table.lost_evidence();
        }
    }

    fn take(&mut self, step: &Step, had_lost: bool) {
        match *step {
            Step::Open { pid, workload, gone } => {
                let Some(process) = self.living(pid).or_else(|| self.start(pid, workload)) else {
                    return;
                };
                let workload = self.lives[&process].workload;
                self.report(process, None, workload, gone && self.announces_exits);
            }
            Step::Fork { parent, pid, gone } => {
                let Some(parent) = self.living(parent) else { return };
                let workload = self.lives[&parent].workload;
                let Some(process) = self.start(pid, workload) else { return };
                self.report(process, Some(parent), workload, gone && self.announces_exits);
            }
            Step::Exec { pid } => {
                let Some(process) = self.living(pid) else { return };
                self.table.observe(Evidence::Execed { process, comm: Arc::from("train") });
            }
            Step::List { pid, workload } => {
                if self.start(pid, workload).is_some() {
                    // The ring's losses are read before the driver's list.
                    if had_lost {
                        self.table.lost_evidence();
                    }
                    self.table.process(pid, self.now_ns);
                }
            }
            Step::Move { pid, workload } => self.move_to(pid, workload),
            Step::Exit { pid, reported } => {
                let Some(process) = self.living(pid) else { return };
                self.end(process);
                if !self.announces_exits {
                    return;
                }
                if reported {
                    self.table.observe(Evidence::Exited { process, at_ns: self.now_ns });
                } else {
                    self.has_lost = true;
                }
            }
            Step::Tick => self.table.expire(self.now_ns),
        }
    }

    fn move_to(&mut self, pid: u32, workload: u64) {
        let Some(process) = self.living(pid) else { return };
        self.host.start(process, "python", &format!("0::{}\n", path(workload)));
        if let Some(life) = self.lives.get_mut(&process) {
            life.workload = workload;
        }
        let cgroups = KernelCgroups(vec![v2(workload + 1)]);
        self.table.observe(Evidence::Moved { process, cgroups });
    }

    /// Asserts that every process in the table has its true owner.
    fn check(&self) -> Result<(), TestCaseError> {
        for (process, life) in &self.lives {
            let Some(owner) = self.table.attribution(*process) else { continue };
            let truth = cgroup::parse_path(&path(life.workload));
            if owner.method == Method::Pending {
                prop_assert_eq!(&owner.workload, &Workload::default());
                // Unknown is allowed only for a process that was gone before its path was learned.
                prop_assert!(!life.lives && life.workload >= self.announced, "{:?}", owner);
            } else {
                prop_assert_eq!(of_path(&owner.workload), truth, "{:?}", owner);
                let job = owner.workload.slurm.as_ref();
                let number = job.map(|job| u64::from_str(&job.number()).unwrap());
                prop_assert!(number.is_none_or(|number| number == life.workload), "{:?}", owner);
            }
        }
        for pid in 1..=PIDS {
            self.check_number(pid)?;
        }
        Ok(())
    }

    /// Asserts that the driver's PID leads to a process that was alive then or ended just before.
    fn check_number(&self, pid: u32) -> Result<(), TestCaseError> {
        let Some(found) = self.table.process(pid, self.now_ns) else { return Ok(()) };
        let life = self.lives.get(&found);
        prop_assert!(life.is_some(), "{} never was", found);
        // Of those that opened a device, or were listed before the number was anybody's.
        let is_known = |key: &&ProcKey| key.pid == pid && self.table.attribution(**key).is_some();
        let newest = self.lives.keys().filter(is_known).max();
        prop_assert_eq!(Some(&found), newest);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_storm_of_short_processes_has_no_wrong_owner(
        announced in 0..=WORKLOADS,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut storm = Storm::new(announced, true);
        for step in &steps {
            storm.apply(step);
            storm.check()?;
        }
    }

    #[test]
    fn a_storm_without_announced_exits_has_no_wrong_owner(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut storm = Storm::new(WORKLOADS, false);
        for step in &steps {
            storm.apply(step);
            storm.check()?;
        }
    }
}
