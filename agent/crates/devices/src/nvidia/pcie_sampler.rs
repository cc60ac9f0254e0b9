//! PCIe throughput of devices without performance counters, where the configuration asks for it.
//!
//! The library's call blocks for 20 ms in each direction. One thread makes it for one device after
//! the other; a reading takes the last answer and requests the next one, and never waits. A call
//! that hangs delays no reading: the devices behind it have no value until it returns.

use super::caller::NvmlCaller;
use crate::wire::{WireValue, push};
use gpuwho_model::catalog::gpm as metric;
use gpuwho_model::catalog::link::Direction;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use std::io;
use std::ops::RangeInclusive;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

/// Bytes in the library's unit, KB/s.
const KB: f64 = 1000.0;
/// Plausible answers in KB/s; PCIe 7.0 with sixteen lanes carries 242 GB/s.
const PLAUSIBLE: RangeInclusive<u32> = 0..=1_000_000_000;

/// KB/s sent and received; `None` where the library gave no answer.
type Sampled = [Option<u32>; 2];

/// A request for one sample of a device.
struct SampleRequest {
    index: u32,
    answer: SyncSender<Sampled>,
}

/// The thread that samples.
#[derive(Clone)]
pub(super) struct PcieSampler(SyncSender<SampleRequest>);

impl PcieSampler {
    /// Starts the thread; `devices` bounds the requests that wait.
    pub(super) fn start(nvml: &'static Nvml, devices: u32) -> io::Result<Self> {
        let (sender, requests) = sync_channel::<SampleRequest>(devices as usize);
        thread::Builder::new().name("reader:pcie".to_owned()).spawn(move || {
            for request in requests {
                // The device may have ended in between; then nobody takes the answer.
                let _ = request.answer.try_send(sample(nvml, request.index));
            }
        })?;
        Ok(Self(sender))
    }
}

fn sample(nvml: &Nvml, index: u32) -> Sampled {
    let Ok(device) = nvml.device_by_index(index) else { return [None; 2] };
    [PcieUtilCounter::Send, PcieUtilCounter::Receive]
        .map(|direction| device.pcie_throughput(direction).ok())
}

/// One device's samples.
pub(super) struct PcieThroughput {
    /// `None` unless the configuration asks for it.
    sampler: Option<PcieSampler>,
    /// The answer that is still to come.
    pending: Option<Receiver<Sampled>>,
}

impl PcieThroughput {
    /// A device that was not sampled yet.
    pub(super) fn new(sampler: Option<PcieSampler>) -> Self {
        Self { sampler, pending: None }
    }

    /// Adds the sample that has come since the last reading, and requests the next.
    pub(super) fn read(&mut self, index: u32, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
        let Some(PcieSampler(requests)) = &self.sampler else { return };
        match self.pending.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Ok([sent, received])) => {
                let answers = [(Direction::Transmit, sent), (Direction::Receive, received)];
                for (direction, rate) in answers {
                    let rate = caller.in_range(rate, PLAUSIBLE).map(|rate| f64::from(rate) * KB);
                    push(out, &metric::PCIE_SAMPLED, direction, rate);
                }
            }
            Some(Err(TryRecvError::Disconnected)) | None => {}
        }
        let (answer, pending) = sync_channel(1);
        let request = SampleRequest { index, answer };
        self.pending = requests.try_send(request).is_ok().then_some(pending);
    }
}
