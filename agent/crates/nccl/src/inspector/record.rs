//! Parses a line of the Inspector's records: one completed collective or message.
//!
//! The format is `v4.0` from 2.28 to 2.30; unknown keys are ignored, so that verbose records and
//! later versions parse as well. The job controls the content: it is validated, and counted only
//! for the process that wrote the file.

use gpuwho_common::nccl::MAX_RANKS;
use gpuwho_model::catalog::inspector::LineOutcome;
use gpuwho_model::catalog::nccl::Operation;
use gpuwho_owners::communicators::printable_name;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use std::borrow::Cow;
use std::fmt;

/// No collective takes longer than a day.
const MAX_DURATION_US: u64 = 86_400_000_000;
/// No message has more bytes than any memory.
const MAX_MESSAGE_BYTES: u64 = 1 << 50;
/// A thousand times faster than any link, in bytes a second.
const MAX_SPEED: f64 = 1e17;
/// Digits of the hash that fit the Inspector's 17-byte buffer with `0x` and a NUL.
const DIGITS: u32 = 14;

/// A communicator's hash as the Inspector writes it: without leading zeros, truncated to 14 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum HashText {
    /// The whole hash.
    Whole(u64),
    /// Its first 14 digits; there may be no more.
    Start(u64),
}

impl HashText {
    /// Parses `0x1db14a8a713c2f`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("0x")?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hash = u64::from_str_radix(digits, 16).ok().filter(|hash| is_hex && *hash != 0)?;
        let is_cut = digits.len() == DIGITS as usize;
        Some(if is_cut { Self::Start(hash) } else { Self::Whole(hash) })
    }

    /// Whether this can be the text of `hash`.
    pub(super) fn is_of(self, hash: u64) -> bool {
        match self {
            Self::Whole(whole) => whole == hash,
            Self::Start(start) => {
                let digits = (u64::BITS - hash.leading_zeros()).div_ceil(4);
                hash >> (4 * digits.saturating_sub(DIGITS)) == start
            }
        }
    }
}

/// A completed collective or message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record<'a> {
    pub hash: HashText,
    pub name: Option<Cow<'a, str>>,
    pub rank: u32,
    pub ranks: u32,
    /// The writer's PID in its own namespace.
    pub pid: u32,
    pub operation: Operation,
    /// Of a collective; counted for each operation of the communicator.
    pub sequence: Option<u64>,
    pub bytes: u64,
    /// Bytes that the bus bandwidth is calculated from.
    pub bus_bytes: u64,
    pub seconds: f64,
    /// In bytes a second.
    pub algorithm_bandwidth: f64,
    pub bus_bandwidth: f64,
}

#[derive(serde::Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    header: Header<'a>,
    metadata: Metadata,
    #[serde(borrow)]
    coll_perf: Option<Collective<'a>>,
    #[serde(borrow)]
    p2p_perf: Option<Message<'a>>,
}

#[derive(serde::Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    comm_name: Option<Cow<'a, str>>,
    rank: u32,
    n_ranks: u32,
}

#[derive(serde::Deserialize)]
struct Metadata {
    pid: u32,
}

#[derive(serde::Deserialize)]
struct Collective<'a> {
    #[serde(borrow, rename = "coll")]
    operation: Cow<'a, str>,
    #[serde(rename = "coll_sn")]
    sequence: u64,
    #[serde(rename = "coll_msg_size_bytes")]
    bytes: u64,
    #[serde(rename = "coll_exec_time_us")]
    time_us: u64,
    #[serde(borrow, rename = "coll_timing_source")]
    timing: Option<Cow<'a, str>>,
    #[serde(rename = "coll_algobw_gbs", default)]
    algorithm_gbs: Gigabytes,
    #[serde(rename = "coll_busbw_gbs", default)]
    bus_gbs: Gigabytes,
}

#[derive(serde::Deserialize)]
struct Message<'a> {
    #[serde(borrow, rename = "p2p")]
    operation: Cow<'a, str>,
    #[serde(rename = "p2p_msg_size_bytes")]
    bytes: u64,
    #[serde(rename = "p2p_exec_time_us")]
    time_us: u64,
    #[serde(borrow, rename = "p2p_timing_source")]
    timing: Option<Cow<'a, str>>,
    #[serde(rename = "p2p_algobw_gbs", default)]
    algorithm_gbs: Gigabytes,
    #[serde(rename = "p2p_busbw_gbs", default)]
    bus_gbs: Gigabytes,
}

/// The fields that both kinds have.
struct Measured<'a> {
    operation: &'a str,
    sequence: Option<u64>,
    bytes: u64,
    time_us: u64,
    timing: Option<&'a str>,
    gigabytes: [Gigabytes; 2],
}

impl<'a> Record<'a> {
    /// Parses a line.
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, LineOutcome> {
        let line: Line<'a> = serde_json::from_slice(line).map_err(|error| {
            if error.is_data() { LineOutcome::Incomplete } else { LineOutcome::Malformed }
        })?;
        let measured = match (&line.coll_perf, &line.p2p_perf) {
            (Some(collective), None) => collective.measured(),
            (None, Some(message)) => message.measured(),
            _ => return Err(LineOutcome::Incomplete),
        };
        let operation = operation(measured.operation).ok_or(LineOutcome::UnknownOperation)?;
        // The host's time of a collective includes its enqueueing and everything before it.
        if measured.timing == Some("collective_cpu") || measured.time_us == 0 {
            return Err(LineOutcome::NotTimed);
        }
        let header = line.header;
        let ranks = header.n_ranks;
        let is_sound = (1..=MAX_RANKS).contains(&ranks)
            && header.rank < ranks
            && measured.time_us <= MAX_DURATION_US;
        let hash = HashText::parse(&header.id).filter(|_| is_sound);
        let bytes = message_bytes(operation, measured.bytes, ranks);
        let (Some(hash), Some(bytes)) = (hash, bytes) else {
            return Err(LineOutcome::Incomplete);
        };
        let seconds = measured.time_us as f64 / 1e6;
        let bus_bytes = bus_bytes(operation, bytes, ranks);
        let speed = |Gigabytes(reported), bytes: u64| reported.unwrap_or(bytes as f64 / seconds);
        let [algorithm, bus] = measured.gigabytes;
        Ok(Self {
            hash,
            name: header.comm_name.and_then(recorded_name),
            rank: header.rank,
            ranks,
            pid: line.metadata.pid,
            operation,
            sequence: measured.sequence,
            bytes,
            bus_bytes,
            seconds,
            algorithm_bandwidth: speed(algorithm, bytes),
            bus_bandwidth: speed(bus, bus_bytes),
        })
    }
}

impl Collective<'_> {
    fn measured(&self) -> Measured<'_> {
        Measured {
            operation: &self.operation,
            sequence: Some(self.sequence),
            bytes: self.bytes,
            time_us: self.time_us,
            timing: self.timing.as_deref(),
            gigabytes: [self.algorithm_gbs, self.bus_gbs],
        }
    }
}

impl Message<'_> {
    fn measured(&self) -> Measured<'_> {
        Measured {
            operation: &self.operation,
            sequence: None,
            bytes: self.bytes,
            time_us: self.time_us,
            timing: self.timing.as_deref(),
            gigabytes: [self.algorithm_gbs, self.bus_gbs],
        }
    }
}

/// The name set by the program; the Inspector writes `unknown` if there is none.
pub(super) fn recorded_name(name: Cow<'_, str>) -> Option<Cow<'_, str>> {
    printable_name(name).filter(|name| name != "unknown")
}

/// Parses NCCL's name of an operation (`ncclFuncToString`).
pub(super) fn operation(name: &str) -> Option<Operation> {
    Some(match name {
        "AllReduce" => Operation::AllReduce,
        "AllGather" => Operation::AllGather,
        "ReduceScatter" => Operation::ReduceScatter,
        "Broadcast" => Operation::Broadcast,
        "Reduce" => Operation::Reduce,
        "All2All" | "AlltoAll" | "AllToAll" => Operation::AllToAll,
        "Gather" => Operation::Gather,
        "Scatter" => Operation::Scatter,
        "Send" => Operation::Send,
        "Recv" => Operation::Recv,
        _ => return None,
    })
}

/// The size as `nccl.collective.bytes` counts it; the Inspector writes one rank's part.
fn message_bytes(operation: Operation, part: u64, ranks: u32) -> Option<u64> {
    let parts = match operation {
        Operation::AllGather
        | Operation::ReduceScatter
        | Operation::AllToAll
        | Operation::Gather
        | Operation::Scatter => u64::from(ranks),
        _ => 1,
    };
    part.checked_mul(parts).filter(|bytes| *bytes <= MAX_MESSAGE_BYTES)
}

/// Applies the bus bandwidth factors of nccl-tests.
fn bus_bytes(operation: Operation, bytes: u64, ranks: u32) -> u64 {
    let (bytes, ranks) = (u128::from(bytes), u128::from(ranks.max(1)));
    let bus = match operation {
        Operation::AllReduce => bytes * 2 * (ranks - 1) / ranks,
        Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => {
            bytes * (ranks - 1) / ranks
        }
        _ => bytes,
    };
    u64::try_from(bus).unwrap_or(u64::MAX)
}

/// A bandwidth in bytes a second. The Inspector writes it in 10^9 bytes a second, as a number or
/// the text `nan`. An invalid speed is `None`, also the 0 that it writes for operations that it
/// cannot calculate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Gigabytes(Option<f64>);

impl<'de> Deserialize<'de> for Gigabytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrText;
        impl Visitor<'_> for NumberOrText {
            type Value = Gigabytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or \"nan\"")
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Gigabytes, E> {
                Ok(Gigabytes(speed(number)))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Gigabytes, E> {
                Ok(Gigabytes(speed(number as f64)))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Gigabytes, E> {
                Ok(Gigabytes(speed(number as f64)))
            }

            fn visit_str<E: Error>(self, _: &str) -> Result<Gigabytes, E> {
                Ok(Gigabytes(None))
            }
        }
        deserializer.deserialize_any(NumberOrText)
    }
}

/// Converts to bytes a second.
pub(super) fn speed(gigabytes: f64) -> Option<f64> {
    let speed = gigabytes * 1e9;
    (speed > 0.0 && speed <= MAX_SPEED).then_some(speed)
}

#[cfg(test)]
mod tests;
