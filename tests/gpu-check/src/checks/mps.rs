//! Two clients of an MPS server: each is a process of its own with its own memory, not the server's.

use super::{Bench, Checked};
use crate::load::Running;
use crate::report::Row;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::process as metric;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const CHECK: &str = "clients of MPS";
/// The program that starts servers and ends them; part of NVIDIA's driver.
const CONTROL: &str = "nvidia-cuda-mps-control";
/// MiB that each client takes.
const MEMORY: &str = "1024";

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(why) => return Ok(vec![Row::skip(CHECK, why)]),
    };
    let control = match Control::start(folder.path()) {
        Ok(control) => control,
        Err(why) => return Ok(vec![Row::skip(CHECK, why)]),
    };
    let client = || {
        Running::start_with(&["fma32", "--duty", "40", "--memory", MEMORY], &control.variables())
    };
    let clients = [client()?, client()?];
    std::thread::sleep(Duration::from_secs(2));
    let begun = SystemTime::now();
    std::thread::sleep(bench.options.window);
    let points = bench.of(&clients[0].ready.uuid, begun)?;
    let held = |pid: u32| {
        let of = points.iter().filter(|point| point.pid() == Some(pid));
        let mut memory = of.filter(|point| point.metric == metric::MEMORY_USAGE.def().name);
        memory.next_back().and_then(|point| {
            Some((
                point.value?,
                point.attribute(attr::GPU_PROCESS_TYPE.name).unwrap_or("?").to_owned(),
            ))
        })
    };
    let lines: Vec<_> = clients.iter().map(|client| (client, held(client.pid()))).collect();
    let holds = lines.iter().all(|(client, held)| {
        held.as_ref().is_some_and(|(bytes, _)| *bytes >= client.ready.memory as f64)
    });
    let words: Vec<_> = lines
        .iter()
        .map(|(client, held)| match held {
            Some((bytes, kind)) => {
                format!("client {}: {:.0} MiB as {kind}", client.pid(), bytes / f64::from(1 << 20))
            }
            None => format!("client {}: not listed", client.pid()),
        })
        .collect();
    Ok(vec![Row::judged(CHECK, holds, words.join(", "))])
}

/// A control program of our own, beside one that the machine may have; ended when dropped.
struct Control<'a> {
    folder: &'a Path,
}

impl<'a> Control<'a> {
    fn start(folder: &'a Path) -> Result<Self, String> {
        let control = Self { folder };
        let started = control.command().arg("-d").status();
        match started {
            Ok(status) if status.success() => Ok(control),
            Ok(status) => Err(format!("{CONTROL} -d: {status}")),
            Err(why) => Err(format!("no {CONTROL}: {why}")),
        }
    }

    /// Where its clients find it.
    fn variables(&self) -> [(&'static str, &'a Path); 2] {
        ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"].map(|name| (name, self.folder))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(CONTROL);
        command.envs(self.variables()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

impl Drop for Control<'_> {
    fn drop(&mut self) {
        let Ok(mut child) = self.command().stdin(Stdio::piped()).spawn() else { return };
        if let Some(mut words) = child.stdin.take() {
            // One that has ended hears nothing.
            let _ = words.write_all(b"quit -t 5\n");
        }
        let _ended = child.wait();
    }
}
