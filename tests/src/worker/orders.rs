//! A worker that somebody else started, such as Slurm: it connects to the harness, says whose it
//! thinks it is and which nodes of its GPUs it holds, and then does what it is told, line by line.

use super::nodes;
use rustix::io::Errno;
use std::env;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// What Slurm tells a task about itself, in the order of the greeting.
pub const WHO: [&str; 4] = ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_ARRAY_TASK_ID"];

/// Connects, opens what Slurm says it granted, greets with `hello TAG WHO… HELD`, and obeys until
/// the other end closes.
pub fn obey(socket: &Path, tag: &str) -> io::Result<()> {
    let stream = UnixStream::connect(socket)?;
    let mut open = Vec::new();
    let granted = granted();
    let held: Vec<_> =
        granted.iter().map(|gpu| format!("{gpu}={}", answer(take(*gpu, &mut open)))).collect();
    let who = WHO.map(|name| env::var(name).unwrap_or_else(|_| "-".to_owned()));
    writeln!(&stream, "hello {tag} {} {}", who.join(" "), held.join(","))?;
    for line in BufReader::new(&stream).lines() {
        match line?.split_once(' ') {
            Some(("open", gpu)) => {
                let gpu = gpu.parse().map_err(io::Error::other)?;
                writeln!(&stream, "{}", answer(take(gpu, &mut open)))?;
            }
            _ => return Err(io::Error::other("an order that is none")),
        }
    }
    Ok(())
}

/// The step's GPUs, else the job's: a task that srun started directly has only the former.
fn granted() -> Vec<u32> {
    let gpus = env::var("SLURM_STEP_GPUS").or_else(|_| env::var("SLURM_JOB_GPUS"));
    let gpus = gpus.unwrap_or_default();
    gpus.split(',').filter_map(|gpu| gpu.parse().ok()).collect()
}

/// Opens what CUDA or ROCm opens for a GPU and keeps it.
fn take(gpu: u32, open: &mut Vec<OwnedFd>) -> Result<(), Errno> {
    let always = if open.is_empty() { nodes::always(&[gpu]) } else { &[] };
    let names = always.iter().map(|name| (*name).to_owned()).chain([nodes::node_of(gpu)]);
    for name in names {
        open.push(nodes::open_node(&PathBuf::from("/dev").join(name))?);
    }
    Ok(())
}

/// 0, or the number of what went wrong.
fn answer(result: Result<(), Errno>) -> i32 {
    result.map_or_else(Errno::raw_os_error, |()| 0)
}
