//! What the agent and a device reader child say to each other: length-prefixed postcard frames
//! over a socket pair. Both ends are the same binary, so a metric travels as its position in the
//! catalogue.

use crate::catalog::{self, DimIndexes, Dims, Metric, MetricDef, Number};
use crate::ids::GpuUuid;
use crate::inventory::{GpuInfo, InstanceExtent};
use crate::sample::{Subject, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// A frame longer than this is not one of ours: 4,000 processes on one device need 300 kB.
const MAX_FRAME_BYTES: usize = 4 << 20;
/// Bytes of the length before each frame.
const PREFIX: usize = 4;

/// What the agent asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Read every device that is not still being read.
    Read {
        /// Which reading this is; its answers carry it.
        tick: u64,
        /// Whether to ask the library again how many devices it has.
        count: bool,
        /// Processes that hold nodes of the vendor's.
        holders: Vec<u32>,
    },
}

/// What the child answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Frame {
    /// The library is initialised.
    Opened {
        /// How many devices it has.
        devices: u32,
    },
    /// The library cannot be used; the child ends.
    Refused {
        /// Of which kind.
        refusal: OpenErrorKind,
        /// What the library said.
        text: String,
    },
    /// A device was read.
    Device {
        /// The request it answers; an earlier one for a device that was late.
        tick: u64,
        /// The device's position in the library's order.
        slot: u32,
        /// What was read.
        reading: Box<Reading>,
    },
    /// A call has not come back within the stall limit.
    Stuck {
        /// The device it is about; none while the library opens.
        slot: Option<u32>,
        /// The call.
        call: Stuck,
    },
    /// How many devices the library has now.
    Counted {
        /// So many.
        devices: u32,
    },
    /// Every device was read or is late.
    Done {
        /// The request it ends.
        tick: u64,
    },
}

/// A call into a library that has not come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The library's name of the function.
    pub name: String,
    /// The child's thread that is in it.
    pub thread: u32,
    /// Since when, in nanoseconds of `CLOCK_BOOTTIME`.
    pub since_ns: u64,
}

/// Why a library cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenErrorKind {
    /// There is no library, or no driver is loaded.
    Absent,
    /// The dynamic linker does not load the library: it, or one that it needs, is missing or damaged.
    Unloadable,
    /// The library and the loaded driver are not of one version.
    Mismatch,
    /// This user may not talk to the driver.
    Forbidden,
    /// Anything else.
    Failed,
}

/// How reading a device ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Well.
    #[default]
    Ok,
    /// The device is gone or needs a reset.
    Lost(String),
    /// Every call failed.
    Failing(String),
    /// The driver itself is gone or was replaced: the library must be loaded anew.
    DriverGone(String),
}

/// Everything read from a device at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// How it ended; readings are there only if well.
    pub outcome: Outcome,
    /// When it began, in nanoseconds of `CLOCK_BOOTTIME`: processes it names started before.
    pub asked_ns: u64,
    /// When it ended, in nanoseconds since the epoch.
    pub time_ns: u64,
    /// What the device is, when that was read anew.
    pub identity: Option<GpuInfo>,
    /// Readings of the device.
    pub values: Vec<WireValue>,
    /// Its partitions, every one there is.
    pub instances: Vec<InstanceReading>,
    /// Readings of processes on it.
    pub processes: Vec<ProcessValue>,
    /// Processes that have left it since the last reading, where the driver keeps accounts.
    pub ended: Vec<Ended>,
    /// What it cost.
    pub cost: Cost,
}

/// Where a partition (a MIG instance, say) is on its device, as the driver's process lists name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// GPU instance id of MIG; the number of a partition of another vendor's.
    pub gpu_instance: u32,
    /// Compute instance id of MIG.
    pub compute_instance: Option<u32>,
}

/// What was read of a partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceReading {
    /// Where it is.
    pub place: Place,
    /// What it is, when it is new at this place or has changed.
    pub identity: Option<InstanceIdentity>,
    /// Readings of it.
    pub values: Vec<WireValue>,
}

/// What a partition is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceIdentity {
    /// The driver's name of it.
    pub uuid: GpuUuid,
    /// Its profile.
    pub profile: Option<String>,
    /// How much of the device it is.
    pub extent: InstanceExtent,
}

/// A reading of a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessValue {
    /// The process as the driver names it.
    pub pid: u32,
    /// The partition it is in, where the driver tells.
    pub place: Option<Place>,
    /// The reading.
    pub value: WireValue,
}

/// The driver's account of a process that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The process as the driver names it.
    pub pid: u32,
    /// The partition it was in, where the driver told.
    pub place: Option<Place>,
    /// A moment at which it was there, in nanoseconds of `CLOCK_BOOTTIME`.
    pub seen_ns: u64,
    /// When it left the device, in nanoseconds since the epoch.
    pub ended_ns: u64,
    /// Seconds for which it was on the device.
    pub seconds: f64,
    /// Bytes of device memory it had at most.
    pub memory_peak: Option<i64>,
    /// Fraction of the time in which it had a kernel on the device.
    pub busy: Option<f64>,
    /// Fraction of the time in which it had device memory read or written.
    pub memory_busy: Option<f64>,
}

/// What reading a device cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Calls into the library.
    pub calls: u32,
    /// Those that failed and will be tried again.
    pub failed: u32,
    /// Values that cannot be true and were left out.
    pub implausible: u32,
    /// Nanoseconds inside the library.
    pub library_ns: u64,
}

/// One value of one metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireValue {
    metric: u16,
    dims: DimIndexes,
    number: WireNumber,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum WireNumber {
    Int(i64),
    Double(f64),
}

impl WireValue {
    /// A reading of a metric; `None` for a distribution, which no device call gives.
    pub fn new<S, D, N>(metric: &'static Metric<S, D, N>, dims: D, value: N) -> Option<Self>
    where
        S: Into<Subject>,
        D: Dims,
        N: Number,
    {
        let number = match value.value() {
            Value::Int(number) => WireNumber::Int(number),
            Value::Double(number) => WireNumber::Double(number),
            Value::Histogram(_) => return None,
        };
        Some(Self { metric: catalog::index_of(metric.def()), dims: dims.indexes(), number })
    }

    /// The metric; `None` if the catalogue has none of that position.
    pub fn metric(&self) -> Option<&'static MetricDef> {
        catalog::by_index(self.metric)
    }

    /// Its dimensions.
    pub fn dims(&self) -> DimIndexes {
        self.dims
    }

    /// The value.
    pub fn value(&self) -> Value {
        match self.number {
            WireNumber::Int(number) => Value::Int(number),
            WireNumber::Double(number) => Value::Double(number),
        }
    }

    /// The value as a fraction, if the metric and dimensions are these.
    pub fn double<S: Into<Subject>, D: Dims>(
        &self,
        metric: &'static Metric<S, D, f64>,
        dims: D,
    ) -> Option<f64> {
        match self.number {
            WireNumber::Double(number) if self.is(metric.def(), dims.indexes()) => Some(number),
            _ => None,
        }
    }

    /// The value as a whole number, if the metric and dimensions are these.
    pub fn int<S: Into<Subject>, D: Dims>(
        &self,
        metric: &'static Metric<S, D, i64>,
        dims: D,
    ) -> Option<i64> {
        match self.number {
            WireNumber::Int(number) if self.is(metric.def(), dims.indexes()) => Some(number),
            _ => None,
        }
    }

    fn is(&self, metric: &'static MetricDef, dims: DimIndexes) -> bool {
        self.metric == catalog::index_of(metric) && self.dims == dims
    }
}

/// Adds a reading, if there is one.
pub(super) fn push<S, D, N>(
    out: &mut Vec<WireValue>,
    metric: &'static Metric<S, D, N>,
    dims: D,
    value: Option<N>,
) where
    S: Into<Subject>,
    D: Dims,
    N: Number,
{
    out.extend(value.and_then(|value| WireValue::new(metric, dims, value)));
}

/// Why a message did not pass.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The socket failed.
    #[error("socket to the other process: {0}")]
    Socket(#[from] io::Error),
    /// The other end closed it.
    #[error("the other process closed its socket")]
    Closed,
    /// The bytes are not a message.
    #[error("not a message: {0}")]
    Message(#[from] postcard::Error),
    /// The length is not one of a message.
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
}

/// Sends messages, reusing one buffer.
#[derive(Debug, Default)]
pub struct Outbox {
    buffer: Vec<u8>,
}

impl Outbox {
    /// Sends a message.
    pub fn send(
        &mut self,
        socket: &mut impl Write,
        message: &impl Serialize,
    ) -> Result<(), WireError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.extend([0; PREFIX]);
        let mut buffer = postcard::to_extend(message, buffer)?;
        let length = buffer.len() - PREFIX;
        if length > MAX_FRAME_BYTES {
            return Err(WireError::TooLong(length));
        }
        let prefix = u32::try_from(length).map_err(|_| WireError::TooLong(length))?.to_le_bytes();
        buffer.iter_mut().zip(prefix).for_each(|(to, byte)| *to = byte);
        let sent = socket.write_all(&buffer);
        self.buffer = buffer;
        sent.map_err(closed)
    }
}

/// Receives messages: keeps the bytes of one that is not complete yet.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    /// Reads once from the socket.
    pub fn fill(&mut self, socket: &mut impl Read) -> Result<(), WireError> {
        let mut chunk = [0; 16 << 10];
        match socket.read(&mut chunk) {
            Ok(0) => Err(WireError::Closed),
            Ok(count) => {
                self.bytes.extend(chunk.iter().take(count));
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(closed(error)),
        }
    }

    /// Takes the next complete message out.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        let Some((prefix, rest)) = self.bytes.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(WireError::TooLong(length));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = postcard::from_bytes(body)?;
        self.bytes.drain(..PREFIX + length);
        Ok(Some(message))
    }
}

/// The other end's hanging up has several faces.
fn closed(error: io::Error) -> WireError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => WireError::Closed,
        _ => WireError::Socket(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{Frame, Inbox, Outbox, Outcome, ProcessValue, Reading, WireError, WireValue};
    use crate::catalog::{device, process};

    fn frame() -> Frame {
        let power = WireValue::new(&device::POWER, (), 345.25).unwrap();
        let busy = process::ProcessTask::Sm;
        let sm = WireValue::new(&process::UTILIZATION, busy, 0.5).unwrap();
        let reading = Box::new(Reading {
            outcome: Outcome::Ok,
            values: vec![power],
            processes: vec![ProcessValue { pid: 42, place: None, value: sm }],
            ..Reading::default()
        });
        Frame::Device { tick: 7, slot: 3, reading }
    }

    #[test]
    fn a_message_arrives_whole_however_it_was_cut() {
        let mut sent = Vec::new();
        let mut outbox = Outbox::default();
        outbox.send(&mut sent, &frame()).unwrap();
        outbox.send(&mut sent, &Frame::Done { tick: 7 }).unwrap();
        for size in 1..sent.len() {
            let mut inbox = Inbox::default();
            let mut received = Vec::new();
            for mut piece in sent.chunks(size) {
                inbox.fill(&mut piece).unwrap();
                while let Some(frame) = inbox.take::<Frame>().unwrap() {
                    received.push(frame);
                }
            }
            assert_eq!(received, [frame(), Frame::Done { tick: 7 }], "pieces of {size}");
        }
    }

    #[test]
    fn a_length_that_no_message_has_is_refused() {
        let mut inbox = Inbox::default();
        inbox.fill(&mut [0xff_u8; 8].as_slice()).unwrap();
        assert!(matches!(inbox.take::<Frame>(), Err(WireError::TooLong(_))));
    }

    #[test]
    fn a_value_keeps_its_metric_and_dimension() {
        let Frame::Device { reading, .. } = frame() else { panic!("not a device frame") };
        let sm = reading.processes[0].value;
        assert_eq!(sm.metric(), Some(process::UTILIZATION.def()));
        assert_eq!(sm.double(&process::UTILIZATION, process::ProcessTask::Sm), Some(0.5));
        assert_eq!(sm.double(&process::UTILIZATION, process::ProcessTask::Memory), None);
    }
}
