//! A process of a job, which the test can ask to open a GPU's node.

use crate::worker::orders::WHO;
use rustix::io::Errno;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A worker answers at once; this is for a machine under load.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// A running worker of a job. It ends when dropped, and its job after the last.
#[derive(Debug)]
pub struct Task {
    tag: String,
    pid: u32,
    said: [Option<u32>; WHO.len()],
    opened: Vec<(u32, Result<(), Errno>)>,
    stream: BufReader<UnixStream>,
}

impl Task {
    /// Its PID on the host, as the kernel says it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The job its environment names: of a heterogeneous job the leader, whatever the component.
    pub fn job(&self) -> Option<u32> {
        self.said[0]
    }

    /// The step its environment names; a batch script has none.
    pub fn step(&self) -> Option<u32> {
        self.said[1]
    }

    /// Its rank.
    pub fn rank(&self) -> Option<u32> {
        self.said[2]
    }

    /// The index of its job in the array.
    pub fn array_task(&self) -> Option<u32> {
        self.said[3]
    }

    /// The GPUs whose nodes it has open.
    pub fn held(&self) -> Vec<u32> {
        let open = self.opened.iter().filter(|(_, result)| result.is_ok());
        open.map(|(gpu, _)| *gpu).collect()
    }

    /// Has it open a GPU's node and keep it; the error is the kernel's answer to it.
    pub fn open(&mut self, gpu: u32) -> io::Result<Result<(), Errno>> {
        writeln!(self.stream.get_ref(), "open {gpu}")?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer)?;
        let result = outcome(answer.trim()).ok_or_else(|| io::Error::other(answer))?;
        self.opened.push((gpu, result));
        Ok(result)
    }

    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    /// Takes a connection and hears who it is.
    pub(super) fn greet(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let mut words = line.trim_end_matches('\n').split(' ').skip(1);
        let tag = words.next().unwrap_or_default().to_owned();
        let said = [(); WHO.len()].map(|()| words.next().and_then(|word| word.parse().ok()));
        let held = words.next().unwrap_or_default().split(',');
        let opened = held.filter_map(|pair| {
            let (gpu, answer) = pair.split_once('=')?;
            Some((gpu.parse().ok()?, outcome(answer)?))
        });
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        Ok(Self { tag, pid, said, opened: opened.collect(), stream })
    }
}

/// What the worker answers about an open.
fn outcome(answer: &str) -> Option<Result<(), Errno>> {
    let number = answer.parse().ok()?;
    Some(if number == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(number)) })
}
