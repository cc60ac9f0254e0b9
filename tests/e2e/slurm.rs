//! The test bed's Slurm itself, and the hooks for it: what other tests and the agent stand on.

use gpuwho_tests::or_skip;
use gpuwho_tests::slurm::{ALICE, BOB, Component, JobSpec, Plugin, Slurm, SlurmError};

/// A cluster; the error is what the machine lacks for one. Anything else fails the test.
pub(crate) fn cluster(plugin: Plugin, nodes: u32) -> Result<Slurm, SlurmError> {
    match Slurm::start(plugin, nodes) {
        Err(error) if !matches!(error, SlurmError::Unavailable(_)) => panic!("{error}"),
        result => result,
    }
}

#[test]
fn smoke() {
    let t = std::time::Instant::now();
    let slurm = or_skip!(cluster(Plugin::V1, 1));
    println!("start {:?}", t.elapsed());
    let job = slurm.sbatch(&JobSpec { gpus: 2, ..JobSpec::default() }).unwrap();
    let tasks = slurm.wait_started(&job, 1).unwrap();
    println!("started {:?} {tasks:?}", t.elapsed());
    println!("{}", std::fs::read_to_string(format!("/proc/{}/cgroup", tasks[0].pid())).unwrap());
    println!("{:?}", slurm.drop_file(job.id));
    drop(tasks);
    slurm.wait_ended(&job).unwrap();
    println!("ended {:?}", t.elapsed());
    println!("{:?}", slurm.drop_file(job.id));
    drop(slurm);
    println!("dropped {:?}", t.elapsed());
}
