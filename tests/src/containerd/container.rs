//! A container that runs: what is in it, what can be started in it, and how it ends.

use super::ContainerdError;
use super::cri::Cri;
use super::pod::{ContainerSpec, Run, worker_command};
use crate::stage::Expected;
use crate::until::until;
use crate::worker::script::Script;
use gpuwho_kubernetes::cri::ContainerState;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A worker is ready in milliseconds; this is for a machine under load.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// A container.
#[derive(Debug)]
pub struct Container {
    cri: Cri,
    /// Its id.
    pub id: String,
    /// Its first process, by the host's PIDs.
    pub pid: u32,
    /// How often it was restarted.
    pub attempt: u32,
    /// What that one forked, if it is a worker.
    pub children: Vec<u32>,
    /// What the agent should say about its processes.
    pub expected: Expected,
    /// The file that its output goes to, each line behind a time and the name of the stream.
    pub log: PathBuf,
}

/// A worker that was started in a container that ran already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// Its PID on the host.
    pub pid: u32,
    /// What it forked and still lives, by the host's PIDs.
    pub children: Vec<u32>,
}

/// What became of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Its exit code.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Container {
    /// A container that was started.
    pub(super) fn started(
        cri: Cri,
        expected: Expected,
        log: PathBuf,
        spec: &ContainerSpec<'_>,
    ) -> Result<Self, ContainerdError> {
        let id = expected.container_id.clone().unwrap_or_default();
        let pid = first_pid(&cri, &id)?;
        let (attempt, children) = (spec.attempt, Vec::new());
        let mut container = Self { cri, id, pid, attempt, children, expected, log };
        if matches!(spec.run, Run::Worker(_)) {
            container.children = container.wait_until_ready(&container.log)?.children;
        }
        Ok(container)
    }

    /// Runs a program in it, as `kubectl exec` does, and waits for its end.
    pub fn exec(&self, command: &[&str]) -> Result<Executed, ContainerdError> {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        self.exec_words(command)
    }

    /// Runs a worker in it and waits for its end: one that holds for a while.
    pub fn exec_worker(&self, script: &Script) -> Result<Executed, ContainerdError> {
        self.exec_words(worker_command(script))
    }

    /// Starts a worker in it that stays, and waits until it has its nodes open.
    pub fn start(&self, script: &Script) -> Result<Inside, ContainerdError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let said = format!("/dev/said-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let shell = format!("\"$@\" </dev/null >{said} 2>&1 &");
        let words = ["/bin/sh".to_owned(), "-c".to_owned(), shell, "start".to_owned()];
        self.exec_words(words.into_iter().chain(worker_command(script)).collect())?;
        self.wait_until_ready(&PathBuf::from(format!("/proc/{}/root{said}", self.pid)))
    }

    /// Its processes now, by the host's PIDs.
    pub fn pids(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| self.has(*pid)).collect()
    }

    /// Whether its first process runs, as the runtime says.
    pub fn runs(&self) -> Result<bool, ContainerdError> {
        let status = self.cri.status(&self.id)?.status.unwrap_or_default();
        Ok(status.state() == ContainerState::ContainerRunning)
    }

    /// Its first process ends by itself, as far as the runtime can tell, which then knows.
    pub fn crash(&self) -> Result<(), ContainerdError> {
        if let Some(pid) = Pid::from_raw(self.pid.cast_signed()) {
            // One that has ended already is what was wanted.
            let _ended = kill_process(pid, Signal::KILL);
        }
        let ended = until(READY_WITHIN, || match self.runs() {
            Ok(runs) => (!runs).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        });
        ended.unwrap_or_else(|| Err(self.not_seen("its end", "it runs")))
    }

    /// Ends it at once; the runtime goes on listing it.
    pub fn stop(&self) -> Result<(), ContainerdError> {
        self.cri.stop(&self.id, 0)
    }

    /// Ends it, and the runtime forgets it.
    pub fn remove(self) -> Result<(), ContainerdError> {
        self.stop()?;
        self.cri.remove(&self.id)
    }

    fn exec_words(&self, command: Vec<String>) -> Result<Executed, ContainerdError> {
        let executed = self.cri.exec(&self.id, command)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Executed {
            code: executed.exit_code,
            stdout: text(&executed.stdout),
            stderr: text(&executed.stderr),
        })
    }

    /// Waits for a worker's word in a file, and finds out who its PIDs are on the host.
    fn wait_until_ready(&self, said: &Path) -> Result<Inside, ContainerdError> {
        let read = || fs::read_to_string(said).unwrap_or_default();
        let found = until(READY_WITHIN, || {
            let text = read();
            let ready = text.lines().find_map(|line| Some(line.split_once("ready ")?.1.to_owned()));
            // When the first process is gone, nothing more comes.
            let gone = !Path::new(&format!("/proc/{}", self.pid)).exists();
            (gone || (ready.is_some() && text.ends_with('\n'))).then_some(ready)
        });
        let words = found.flatten().ok_or_else(|| self.not_seen("a ready worker", &read()))?;
        let here: Vec<_> =
            self.pids().into_iter().filter_map(|pid| Some((inner(pid)?, pid))).collect();
        let on_the_host = |inner: u32| here.iter().find(|(known, _)| *known == inner);
        let mut pids =
            words.split_whitespace().filter_map(|word| Some(on_the_host(word.parse().ok()?)?.1));
        let pid = pids.next().ok_or_else(|| self.not_seen("the worker's PID", &words))?;
        Ok(Inside { pid, children: pids.collect() })
    }

    /// Whether a process is in its cgroup, and not a zombie that nobody has reaped yet.
    fn has(&self, pid: u32) -> bool {
        let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        read("cgroup").contains(&self.id) && !read("stat").contains(") Z ")
    }

    fn not_seen(&self, what: &'static str, instead: &str) -> ContainerdError {
        ContainerdError::NotSeen { what, container: self.id.clone(), instead: instead.to_owned() }
    }
}

/// The PID that the runtime knows, which is the host's when the runtime is in no PID namespace.
fn first_pid(cri: &Cri, id: &str) -> Result<u32, ContainerdError> {
    let status = cri.status(id)?;
    let text = status.info.get("info").map(String::as_str).unwrap_or_default();
    let info: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let pid = info["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    pid.filter(|pid| *pid != 0).ok_or_else(|| ContainerdError::NotSeen {
        what: "the PID",
        container: id.to_owned(),
        instead: text.to_owned(),
    })
}

/// A process's PID in its own namespace.
fn inner(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    pids.split_whitespace().last()?.parse().ok()
}
