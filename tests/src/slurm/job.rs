//! Submits jobs, as users do, and ends them.

use super::{Slurm, SlurmError, task};
use crate::until::until;
use crate::worker::script::Script;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A job starts within a tenth of a second, a heterogeneous one with the next run of the backfill
/// scheduler; this is for a machine under load.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// A user whom only the cluster knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Name of the user and of its group.
    pub name: &'static str,
    /// Number of the user and of its group.
    pub uid: u32,
}

/// One user.
pub const ALICE: User = User { name: "alice", uid: 20_001 };

/// Another one.
pub const BOB: User = User { name: "bob", uid: 20_002 };

/// The number Slurm gave a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(pub u32);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A further component of a heterogeneous job; it gets a node of its own.
#[derive(Clone, Copy, Debug)]
pub struct Component<'a> {
    /// GPUs.
    pub gpus: u32,
    /// Tasks.
    pub tasks: u32,
    /// Partition.
    pub partition: &'a str,
}

/// A job to submit.
#[derive(Clone, Copy, Debug)]
pub struct JobSpec<'a> {
    /// Whose.
    pub user: User,
    /// Its name.
    pub name: &'a str,
    /// The account it is charged to; without accounting, as here, Slurm takes any text.
    pub account: &'a str,
    /// Partition: `gpu` or `debug`.
    pub partition: &'a str,
    /// GPUs.
    pub gpus: u32,
    /// Tasks; those of a batch job are started only by its step.
    pub tasks: u32,
    /// `--array`, such as `3-4`.
    pub array: Option<&'a str>,
    /// Further components, which makes it a heterogeneous job.
    pub het: &'a [Component<'a>],
    /// A batch job starts its workers with srun and these options; without, the batch script
    /// itself becomes the worker.
    pub step: Option<&'a [&'a str]>,
    /// What to start the worker with, such as `env -i` or `unshare -Ur`.
    pub prefix: &'a [&'a str],
    /// Further options of sbatch or srun.
    pub more: &'a [&'a str],
}

impl Default for JobSpec<'_> {
    fn default() -> Self {
        Self {
            user: ALICE,
            name: "train",
            account: "ml",
            partition: "gpu",
            gpus: 1,
            tasks: 1,
            array: None,
            het: &[],
            step: None,
            prefix: &[],
            more: &[],
        }
    }
}

/// A job that was submitted. One from [`Slurm::srun`] ends with it.
#[derive(Debug)]
pub struct Job {
    /// Its number: of an array the array's own, of a heterogeneous job the leader's.
    pub id: JobId,
    pub(super) tag: String,
    client: Option<Child>,
}

impl Slurm {
    /// Submits a batch job.
    pub fn sbatch(&self, spec: &JobSpec<'_>) -> Result<Job, SlurmError> {
        let tag = self.next_tag();
        let worker = quoted(&self.worker_words(spec, &tag));
        let script = match spec.step {
            None => format!("exec {worker}"),
            Some(options) if spec.het.is_empty() => format!("srun {} {worker}", options.join(" ")),
            Some(options) => {
                let groups: Vec<_> = (0..=spec.het.len()).map(|group| group.to_string()).collect();
                format!("srun --het-group={} {} {worker}", groups.join(","), options.join(" "))
            }
        };
        let mut words = vec!["--parsable".to_owned(), "--chdir=/".to_owned()];
        words.push(format!("--output={}/out/%j.txt", self.folder().display()));
        words.extend(spec.array.map(|array| format!("--array={array}")));
        words.extend(options(spec));
        words.push(format!("--wrap={script}"));
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let said = self.client(Some(spec.user), "sbatch", &words)?;
        let id = said.trim().split(';').next().and_then(|id| id.parse().ok());
        let refused = || SlurmError::Refused { command: "sbatch".to_owned(), said: said.clone() };
        Ok(Job { id: JobId(id.ok_or_else(refused)?), tag, client: None })
    }

    /// Starts an interactive job with srun, whose tasks are step 0.
    pub fn srun(&self, spec: &JobSpec<'_>) -> Result<Job, SlurmError> {
        let tag = self.next_tag();
        let worker = self.worker_words(spec, &tag);
        let mut words = vec!["--verbose".to_owned(), "--chdir=/".to_owned()];
        words.extend(options(spec));
        words.extend(worker.iter().cloned());
        let words: Vec<_> = words.iter().map(OsString::from).collect();
        let mut command = self.entered(Some(spec.user), "srun", &words)?;
        let path = self.folder().join("log").join(format!("srun.{tag}.err"));
        let error = fs::File::create(&path).map_err(SlurmError::os(&path))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(error);
        let client = command.spawn().map_err(SlurmError::os("srun"))?;
        let mut job = Job { id: JobId(0), tag, client: Some(client) };
        let id = until(STARTS_WITHIN, || job_in(&fs::read_to_string(&path).unwrap_or_default()));
        job.id = id.ok_or_else(|| self.not_seen("srun's job", ""))?;
        Ok(job)
    }

    /// Waits until so many workers of a job have reported; each comes once.
    pub fn wait_started(&self, job: &Job, tasks: usize) -> Result<Vec<task::Task>, SlurmError> {
        let mut arrived = self.arrived.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let enough = until(STARTS_WITHIN, || {
            while let Ok((stream, _)) = self.listener.accept() {
                // One that ends before it has said who it is does not count.
                arrived.extend(task::Task::greet(stream));
            }
            let count = arrived.iter().filter(|task| task.tag() == job.tag).count();
            (count >= tasks).then_some(())
        });
        if enough.is_none() {
            let queue = self.client(None, "squeue", &["--all"]).unwrap_or_default();
            let out = super::traces::logs(&self.folder().join("out"));
            let what = format!("{tasks} tasks of job {}", job.id);
            return Err(self.not_seen(&what, &format!("{arrived:?}\n{queue}{out}")));
        }
        let (mine, others) = arrived.drain(..).partition(|task| task.tag() == job.tag);
        *arrived = others;
        Ok(mine)
    }

    /// Cancels a job.
    pub fn scancel(&self, job: &Job) -> Result<(), SlurmError> {
        self.client(None, "scancel", &[&job.id.to_string()]).map(drop)
    }

    /// Waits until a job is gone from the queue: its processes have ended and its epilog has run.
    pub fn wait_ended(&self, job: &Job) -> Result<(), SlurmError> {
        let id = job.id.to_string();
        let mut last = String::new();
        let gone = until(STARTS_WITHIN, || {
            last = self.client(None, "squeue", &["-h", "-j", &id]).unwrap_or_default();
            last.is_empty().then_some(())
        });
        gone.ok_or_else(|| self.not_seen(&format!("the end of job {id}"), &last))
    }

    fn next_tag(&self) -> String {
        self.next_tag.fetch_add(1, Ordering::Relaxed).to_string()
    }

    fn worker_words(&self, spec: &JobSpec<'_>, tag: &str) -> Vec<String> {
        let socket = self.folder().join("tasks").display().to_string();
        let script = Script { task: Some((socket, tag.to_owned())), ..Script::default() };
        let worker = self.folder().join("worker").display().to_string();
        let prefix = spec.prefix.iter().map(|word| (*word).to_owned());
        prefix.chain([worker]).chain(script.to_arguments()).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(client) = &mut self.client {
            // One that has ended already is what was wanted.
            let _ended = client.kill();
            let _reaped = client.wait();
        }
    }
}

/// What sbatch and srun understand alike.
fn options(spec: &JobSpec<'_>) -> Vec<String> {
    let mut words =
        vec![format!("--job-name={}", spec.name), format!("--account={}", spec.account)];
    let first = Component { gpus: spec.gpus, tasks: spec.tasks, partition: spec.partition };
    words.extend(spec.more.iter().map(|word| (*word).to_owned()));
    words.extend(resources(&first));
    for component in spec.het {
        words.extend([":".to_owned(), format!("--account={}", spec.account)]);
        words.extend(resources(component));
    }
    words
}

fn resources(component: &Component<'_>) -> Vec<String> {
    let mut words = vec![
        format!("--partition={}", component.partition),
        format!("--ntasks={}", component.tasks),
        "--nodes=1".to_owned(),
    ];
    words.extend((component.gpus > 0).then(|| format!("--gres=gpu:{}", component.gpus)));
    words
}

/// The number in what `srun --verbose` says first about its job.
fn job_in(said: &str) -> Option<JobId> {
    let (_, rest) = said.split_once("jobid ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    // Without what follows it, the number may be half written.
    (rest.len() > digits.len()).then(|| digits.parse().ok().map(JobId)).flatten()
}

fn quoted(words: &[String]) -> String {
    let word = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_is_in_what_srun_says() {
        assert_eq!(job_in("srun: jobid 50000012: nodes(1):`gpu01'"), Some(JobId(50_000_012)));
        assert_eq!(job_in("srun: jobid 5000"), None);
        assert_eq!(job_in("srun: error: Unable to allocate resources"), None);
    }

    #[test]
    fn the_shell_takes_words_as_they_are() {
        let words = ["a b", "it's"].map(str::to_owned);
        assert_eq!(quoted(&words), r"'a b' 'it'\''s'");
    }
}
