//! The protocol between the agent and a device reader child: length-prefixed postcard frames over a
//! socket pair. Both ends are the same binary, so a metric travels as its position in the
//! catalogue.

use gpuwho_model::catalog::{self, DimIndexes, Dims, Metric, MetricDef, Number};
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::ids::Place;
use gpuwho_model::sample::{Subject, Value};
use gpuwho_owners::inventory::{GpuInfo, InstanceExtent};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Upper limit of a frame: 4,000 processes on one device need 300 kB.
const MAX_FRAME_BYTES: usize = 4 << 20;
/// Bytes of the length prefix of a frame.
const PREFIX: usize = 4;

/// A request of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Read every device that is not still being read.
    Read {
        /// The number of this reading; its answers carry it.
        tick: u64,
        /// Whether to query the library's device count again.
        count: bool,
        /// Processes that have the vendor's nodes open.
        openers: Vec<u32>,
    },
}

/// An answer of the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Frame {
    /// The library is initialised.
    Opened {
        /// The library's device count.
        devices: u32,
    },
    /// The library cannot be used; the child ends.
    Refused {
        /// The kind.
        refusal: OpenErrorKind,
        /// The library's message.
        text: String,
    },
    /// A device was read.
    Device {
        /// The request it answers; an earlier one if the device was late.
        tick: u64,
        /// The device's position in the library's order.
        slot: u32,
        /// What was read.
        reading: Box<Reading>,
    },
    /// A call has not returned within the stall limit.
    Stuck {
        /// The device; `None` while the library opens.
        slot: Option<u32>,
        /// The call.
        call: Stuck,
    },
    /// The library's current device count.
    Counted {
        /// The count.
        devices: u32,
    },
    /// Every device was read or is late.
    Done {
        /// The request that is complete.
        tick: u64,
    },
}

/// A library call that has not returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The library's function.
    pub name: String,
    /// The child's thread that is blocked in it.
    pub thread: u32,
    /// Start of the call, in nanoseconds of `CLOCK_BOOTTIME`.
    pub since_ns: u64,
}

/// Why a library cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenErrorKind {
    /// There is no library, or no driver is loaded.
    Absent,
    /// The dynamic linker cannot load the library: it, or a dependency, is missing or damaged.
    Unloadable,
    /// The library and the loaded driver have different versions.
    Mismatch,
    /// This user may not access the driver.
    Forbidden,
    /// Anything else.
    Failed,
}

/// The outcome of reading a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Success.
    #[default]
    Ok,
    /// The device is gone or needs a reset.
    Lost(String),
    /// Every call failed.
    Failing(String),
    /// The driver itself is gone or was replaced: the library must be reloaded.
    DriverGone(String),
}

/// Everything read from a device at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The outcome; the readings are empty unless it is `Ok`.
    pub outcome: Outcome,
    /// When it began, in nanoseconds of `CLOCK_BOOTTIME`: the processes it lists started before.
    pub asked_ns: u64,
    /// When it ended, in nanoseconds since the epoch.
    pub time_ns: u64,
    /// The device's identity, if it was read again.
    pub identity: Option<GpuInfo>,
    /// Readings of the device.
    pub values: Vec<WireValue>,
    /// All of its partitions.
    pub instances: Vec<InstanceReading>,
    /// Readings of the processes on it.
    pub processes: Vec<ProcessValue>,
    /// Processes that have left it since the last reading, if the driver's accounting is on.
    pub ended: Vec<Ended>,
    /// What of a good reading is missing and why, for the status; empty if nothing.
    pub note: String,
    /// The cost.
    pub cost: Cost,
}

/// The readings of a partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceReading {
    /// Its place on the device.
    pub place: Place,
    /// Its identity, if it is new at this place or changed.
    pub identity: Option<InstanceIdentity>,
    /// Readings of it.
    pub values: Vec<WireValue>,
}

/// The identity of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceIdentity {
    /// The driver's UUID.
    pub uuid: GpuUuid,
    /// Its profile.
    pub profile: Option<String>,
    /// Its share of the device.
    pub extent: InstanceExtent,
}

/// A reading of a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessValue {
    /// The PID that the driver lists.
    pub pid: u32,
    /// Its partition, if the driver reports it.
    pub place: Option<Place>,
    /// The reading.
    pub value: WireValue,
}

/// The driver's accounting record of a process that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The PID that the driver lists.
    pub pid: u32,
    /// Its partition, if the driver reported it.
    pub place: Option<Place>,
    /// A time at which it existed, in nanoseconds of `CLOCK_BOOTTIME`.
    pub seen_ns: u64,
    /// When it left the device, in nanoseconds since the epoch.
    pub ended_ns: u64,
    /// Seconds it spent on the device.
    pub seconds: f64,
    /// Peak bytes of device memory.
    pub memory_peak: Option<i64>,
    /// Fraction of the time in which a kernel of it ran on the device.
    pub busy: Option<f64>,
    /// Fraction of the time in which it read or wrote device memory.
    pub memory_busy: Option<f64>,
}

/// The cost of reading a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Calls into the library.
    pub calls: u32,
    /// Calls that failed and will be retried.
    pub failed: u32,
    /// Implausible values that were left out.
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
    /// A reading of a metric; `None` for a histogram, which no device call returns.
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

    /// The metric; `None` if the catalogue has none at that position.
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

    /// The value as a floating-point number, if metric and dimensions match.
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

    /// The value as an integer, if metric and dimensions match.
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

/// Adds a reading unless it is `None`.
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

/// Why a message could not be sent or received.
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

/// Sends messages with one reused buffer.
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

/// Receives messages; buffers an incomplete one.
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

/// Maps the errors of a closed peer to [`WireError::Closed`].
fn closed(error: io::Error) -> WireError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => WireError::Closed,
        _ => WireError::Socket(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{Frame, Inbox, Outbox, Outcome, ProcessValue, Reading, WireError, WireValue};
    use gpuwho_model::catalog::{device, process};

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
    fn a_message_arrives_whole_however_it_is_split() {
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
    fn a_length_over_the_limit_is_refused() {
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
