//! Eight GPUs with eight real processes each, half of them in pods, half in Slurm jobs.

use super::BenchError;
use super::receiver::Receiver;
use crate::agent::{Agent, Config, Otlp};
use crate::nvml::FakeNvml;
use crate::stage::{Driver, PodSpec, Qos, Stage};
use crate::worker::Worker;
use crate::worker::script::Script;

/// GPUs.
const GPUS: u32 = 8;
/// Processes that a worker forks: four with itself, two workers a GPU.
const FORKS: u32 = 3;
/// The jobs' user.
const UID: u32 = 1001;

/// Everybody at work, and the driver that knows.
#[derive(Debug)]
pub struct Load {
    /// Dropped before the stage.
    _workers: Vec<Worker>,
    /// The driver.
    pub nvml: FakeNvml,
    /// Their groups.
    pub stage: Stage,
}

impl Load {
    /// Starts everybody on the usual machine.
    pub fn start(stage: Stage) -> Result<Self, BenchError> {
        Self::of(stage, "h100x8")
    }

    /// Starts everybody on the machine of a scenario.
    pub fn of(mut stage: Stage, scenario: &str) -> Result<Self, BenchError> {
        let nvml = FakeNvml::install(stage.folder(), scenario)?;
        let mut workers = Vec::new();
        for gpu in 0..GPUS {
            let pod = stage.pod(&PodSpec {
                namespace: "research",
                name: &format!("trainer-{gpu}"),
                container: "train",
                qos: Qos::Burstable,
                driver: Driver::Cgroupfs,
            })?;
            let job = stage.slurm_task(UID, None, gpu)?;
            let script = Script { gpus: vec![gpu], forks: FORKS, ..Script::default() };
            let mut pids = Vec::new();
            // As srun sets them for each process of a job.
            let number = job.expected.slurm_job.clone().unwrap_or_default();
            let environment = [
                ("SLURM_JOB_ID", number.as_str()),
                ("SLURM_JOB_NAME", "train"),
                ("SLURM_JOB_ACCOUNT", "research"),
                ("SLURM_JOB_PARTITION", "gpu"),
                ("SLURM_JOB_UID", "1001"),
                ("SLURM_JOB_USER", "alice"),
            ];
            for (group, uid, environment) in [(pod, None, &[][..]), (job, Some(UID), &environment)]
            {
                let script = Script { uid, ..script.clone() };
                let worker = Worker::start_with(Some(&group), &script, environment)?;
                pids.push(Some(worker.pid()));
                pids.extend(worker.children().iter().map(|pid| Some(*pid)));
                workers.push(worker);
            }
            nvml.set_processes(gpu, &pids)?;
        }
        Ok(Self { _workers: workers, nvml, stage })
    }

    /// Starts the agent on them; it sends to a receiver.
    pub fn agent(&self, every: &str, receiver: &Receiver) -> Result<Agent, BenchError> {
        let config = Config {
            default_metrics: true,
            interval: Some(every.to_owned()),
            pod_logs: Some(self.stage.pod_logs()),
            otlp: Some(Otlp { endpoint: receiver.endpoint().to_owned(), protocol: None }),
            ..Config::default()
        };
        Ok(Agent::start(self.stage.folder(), &config, Some(&self.nvml))?)
    }
}
