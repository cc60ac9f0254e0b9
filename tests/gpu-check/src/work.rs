//! What `gpu-load` does: a kernel of known kind, on a known part of the device, for a known part of
//! the time. Ends when its standard input does, so it never outlives whoever asked for it.

use crate::cuda::{CudaError, Device, HostMemory, Kernel, Memory};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Threads of a block: half of what a multiprocessor holds since Volta, so that one block a
/// multiprocessor is half its occupancy and two are all of it.
const THREADS: u32 = 1024;
/// How long one launch is to take: short beside a period, long beside a launch's own cost.
const LAUNCH: Duration = Duration::from_millis(2);
/// The time that is divided into busy and idle.
const PERIOD: Duration = Duration::from_millis(50);
/// Rounds that the first launch, which measures, takes.
const FIRST_ROUNDS: u32 = 2048;
/// Bytes that a thread of `stream` moves at once.
const CHUNK: usize = 16;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Hold memory and do nothing.
    Idle,
    /// Multiply and add in FP32.
    Fma32,
    /// The same in FP64.
    Fma64,
    /// Matrix products of FP16 in the tensor cores.
    Tensor,
    /// Read and write all of the memory taken.
    Stream,
    /// Copy from the host to all of the memory taken.
    Copy,
    /// Write where nothing is: the driver ends it and tells XID 31.
    Fault,
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Percent of the multiprocessors.
    pub multiprocessors: u32,
    /// Blocks on each.
    pub blocks: u32,
    /// Percent of the time.
    pub duty: u32,
}

/// What is said when the memory is taken and the work begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The device, as NVML names it.
    pub uuid: String,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Bytes taken.
    pub memory: usize,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Kernels run.
    pub launches: u64,
    /// Seconds in which a kernel ran.
    pub busy: f64,
    /// Seconds in all.
    pub wall: f64,
    /// Bytes of device memory read and written.
    pub bytes: u64,
}

/// A prepared load.
pub struct Load {
    device: Device,
    kind: Kind,
    share: Share,
    kernel: Option<Kernel>,
    memory: Memory,
    /// What is copied.
    host: Option<HostMemory>,
    rounds: u32,
}

impl Load {
    /// Takes the memory and finds out how many rounds a launch is to have.
    pub fn prepare(
        ordinal: u32,
        kind: Kind,
        share: Share,
        bytes: usize,
    ) -> Result<Self, CudaError> {
        let device = Device::open(ordinal)?;
        let memory = device.allocate(bytes)?;
        let source = if kind == Kind::Tensor {
            include_str!("kernels/tensor.ptx")
        } else {
            include_str!("kernels/load.ptx")
        };
        let kernel = match kind.kernel() {
            Some(name) => Some(device.kernel(source, name)?),
            None => None,
        };
        let host = (kind == Kind::Copy).then(|| device.host_memory(bytes)).transpose()?;
        let mut load = Self { device, kind, share, kernel, memory, host, rounds: 1 };
        load.calibrate()?;
        Ok(load)
    }

    /// What it is.
    pub fn ready(&self) -> Ready {
        Ready {
            uuid: self.device.uuid.clone(),
            multiprocessors: self.device.multiprocessors,
            memory: self.memory.bytes,
        }
    }

    /// Works until told to stop, and for one period at least.
    pub fn run(&self, stop: &AtomicBool) -> Result<Done, CudaError> {
        let begun = Instant::now();
        let mut done = Done::default();
        loop {
            let period = Instant::now();
            if self.kernel.is_some() || self.host.is_some() {
                while period.elapsed() < PERIOD * self.share.duty / 100 {
                    let launched = Instant::now();
                    self.once()?;
                    done.busy += launched.elapsed().as_secs_f64();
                    done.launches += 1;
                    done.bytes += self.moved();
                }
            }
            thread::sleep(PERIOD.saturating_sub(period.elapsed()));
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        done.wall = begun.elapsed().as_secs_f64();
        Ok(done)
    }

    /// One launch, or one copy.
    fn once(&self) -> Result<(), CudaError> {
        if let Some(host) = &self.host {
            return self.device.copy(host, self.memory);
        }
        self.kernel.map_or(Ok(()), |kernel| self.launch(kernel))
    }

    /// Sets the rounds so that a launch takes [`LAUNCH`]; all of the memory once for a stream.
    fn calibrate(&mut self) -> Result<(), CudaError> {
        let Some(kernel) = self.kernel else { return Ok(()) };
        match self.kind {
            Kind::Stream => {
                let chunk = CHUNK * self.threads();
                self.rounds = u32::try_from(self.memory.bytes / chunk).unwrap_or(u32::MAX).max(1);
            }
            Kind::Copy | Kind::Fault | Kind::Idle => {}
            Kind::Fma32 | Kind::Fma64 | Kind::Tensor => {
                self.rounds = FIRST_ROUNDS;
                // The first launch pays for what is loaded late.
                self.launch(kernel)?;
                let begun = Instant::now();
                self.launch(kernel)?;
                let took = begun.elapsed().as_nanos().max(1);
                let rounds = u128::from(FIRST_ROUNDS) * LAUNCH.as_nanos() / took;
                self.rounds = u32::try_from(rounds).unwrap_or(u32::MAX).max(1);
            }
        }
        Ok(())
    }

    fn launch(&self, kernel: Kernel) -> Result<(), CudaError> {
        self.device.launch(kernel, (self.blocks(), THREADS), self.memory, self.rounds)?;
        self.device.wait()
    }

    fn blocks(&self) -> u32 {
        let busy = self.device.multiprocessors * self.share.multiprocessors.min(100) / 100;
        busy.max(1) * self.share.blocks.max(1)
    }

    fn threads(&self) -> usize {
        self.blocks() as usize * THREADS as usize
    }

    /// Bytes that one launch reads and writes, or one copy moves.
    fn moved(&self) -> u64 {
        if self.host.is_some() {
            return self.memory.bytes as u64;
        }
        if self.kind != Kind::Stream {
            return 0;
        }
        2 * (CHUNK * self.threads()) as u64 * u64::from(self.rounds)
    }
}

impl Kind {
    fn kernel(self) -> Option<&'static str> {
        match self {
            Self::Copy | Self::Idle => None,
            Self::Fma32 => Some("fma32"),
            Self::Fma64 => Some("fma64"),
            Self::Tensor => Some("tensor"),
            Self::Stream => Some("stream"),
            Self::Fault => Some("fault"),
        }
    }
}
