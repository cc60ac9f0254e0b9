//! Every metric the agent can send, declared once.
//!
//! A declaration gives the name, unit, kind, subject, closed dimensions, source and (as its doc
//! comment) the description. From it come the OTLP and Prometheus names, `METRICS.md`,
//! `gpuwho metrics --json`, and the types that stop a collector from sending a process reading as
//! a device reading. Only `metric` makes a [`MetricDef`] (`cargo xtask tidy` checks it).

pub mod agent;
pub mod board;
pub mod cgroup;
pub mod cost;
pub mod dcgm;
pub mod device;
pub mod document;
pub mod endpoint;
pub mod engine;
pub mod event;
pub mod gpm;
pub mod health;
pub mod host;
pub mod inspector;
pub mod instance;
pub mod interconnect;
mod l9gpu;
pub mod level;
pub mod link;
pub mod nccl;
pub mod process;
pub mod profile;
pub mod selection;
mod semconv;
pub mod share;
mod throttle;
pub mod wear;

pub use crate::attributes;
pub use crate::metric::{Dim, DimIndexes, Kind, MetricDef, NO_DIM};

use crate::sample::{Histogram, Sample, Value};
use crate::subject::Subject;
use std::marker::PhantomData;
use std::sync::LazyLock;

/// A set of closed dimensions known at compile time.
pub trait Dims: Copy {
    /// The dimensions, in order.
    const DIMS: &'static [&'static Dim];
    /// This combination of values.
    fn indexes(self) -> DimIndexes;
}

impl Dims for () {
    const DIMS: &'static [&'static Dim] = &[];
    fn indexes(self) -> DimIndexes {
        [NO_DIM; 2]
    }
}

/// One closed dimension as an enum; made by `dims!`.
pub trait OneDim: Copy {
    /// The dimension.
    const DIM: &'static Dim;
    /// Index of this value in [`Dim::values`].
    fn index(self) -> u8;
}

impl<A: OneDim> Dims for A {
    const DIMS: &'static [&'static Dim] = &[A::DIM];
    fn indexes(self) -> DimIndexes {
        [self.index(), NO_DIM]
    }
}

impl<A: OneDim, B: OneDim> Dims for (A, B) {
    const DIMS: &'static [&'static Dim] = &[A::DIM, B::DIM];
    fn indexes(self) -> DimIndexes {
        [self.0.index(), self.1.index()]
    }
}

/// A number type a metric's values have.
pub trait Number {
    /// Whether they are whole numbers.
    const WHOLE: bool = false;

    /// Wraps the value.
    fn value(self) -> Value;
}

impl Number for f64 {
    fn value(self) -> Value {
        Value::Double(self)
    }
}

impl Number for i64 {
    const WHOLE: bool = true;

    fn value(self) -> Value {
        Value::Int(self)
    }
}

impl Number for Histogram {
    fn value(self) -> Value {
        Value::Histogram(Box::new(self))
    }
}

/// A typed handle of a declared metric: `S` is the subject, `D` the dimensions, `N` the number
/// type.
#[derive(Debug)]
pub struct Metric<S, D, N> {
    def: MetricDef,
    types: PhantomData<fn(S, D, N)>,
}

impl<S: Into<Subject>, D: Dims, N: Number> Metric<S, D, N> {
    /// The declaration.
    pub const fn def(&'static self) -> &'static MetricDef {
        &self.def
    }

    /// A reading of this metric.
    pub fn sample(&'static self, subject: S, dims: D, value: N) -> Sample {
        Sample {
            metric: &self.def,
            subject: subject.into(),
            dims: dims.indexes(),
            labels: None,
            value: value.value(),
        }
    }
}

/// Declares closed dimensions as enums.
macro_rules! dims {
    ($($(#[doc = $doc:literal])+ $name:ident: $key:path { $($(#[doc = $vdoc:literal])+ $variant:ident = $value:literal,)+ })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[doc = $vdoc])+ $variant,)+ }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The attribute's value.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $value),+ }
            }
        }

        impl $crate::catalog::OneDim for $name {
            const DIM: &'static $crate::metric::Dim =
                &$crate::metric::Dim { key: &$key, values: &[$($value),+] };
            fn index(self) -> u8 {
                self as u8
            }
        }
    )+};
}

/// The numbers that index dimensions have as values.
pub const NUMBERS: [&str; 64] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
    "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32",
    "33", "34", "35", "36", "37", "38", "39", "40", "41", "42", "43", "44", "45", "46", "47", "48",
    "49", "50", "51", "52", "53", "54", "55", "56", "57", "58", "59", "60", "61", "62", "63",
];

/// Declares closed dimensions whose values are the numbers from 0 on.
macro_rules! index_dims {
    ($($(#[doc = $doc:literal])+ $name:ident: $key:path [$count:literal];)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(u8);

        impl $name {
            /// Number of values.
            pub const COUNT: u8 = $count;

            /// Every value, in order.
            pub fn all() -> impl Iterator<Item = Self> {
                (0..Self::COUNT).map(Self)
            }
        }

        impl $crate::catalog::OneDim for $name {
            const DIM: &'static $crate::metric::Dim = &$crate::metric::Dim {
                key: &$key,
                values: $crate::catalog::NUMBERS.split_at($count).0,
            };
            fn index(self) -> u8 {
                self.0
            }
        }
    )+};
}

/// Declares metrics and the domain's table `ALL`.
macro_rules! metrics {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $kind:ident<$number:ty> of $subject:ty $(, by $dims:ty)? =
            $metric:literal [$unit:literal] from $source:literal;
    )+) => {
        $(
            $(#[doc = $doc])+
            pub static $name: $crate::catalog::Metric<$subject, metrics!(@dims $($dims)?), $number> =
                $crate::catalog::declare(
                    $metric,
                    $unit,
                    $crate::metric::Kind::$kind,
                    <$subject as $crate::subject::SubjectKind>::WORD,
                    <metrics!(@dims $($dims)?) as $crate::catalog::Dims>::DIMS,
                    [concat!($($doc, "\n"),+), $source],
                );
        )+

        /// Every metric of this domain, in the order of declaration.
        pub static ALL: &[&$crate::metric::MetricDef] = &[$($name.def()),+];
    };
    (@dims) => { () };
    (@dims $dims:ty) => { $dims };
}

pub(crate) use {dims, index_dims, metrics};

/// Makes a metric. Only the `metrics!` macro calls it, so that no other file can declare one.
#[expect(clippy::too_many_arguments, reason = "a declaration's columns, called by one macro")]
const fn declare<S, D, N: Number>(
    name: &'static str,
    unit: &'static str,
    kind: Kind,
    subject: &'static str,
    dims: &'static [&'static Dim],
    [description, source]: [&'static str; 2],
) -> Metric<S, D, N> {
    assert!(
        !(N::WHOLE && matches!(kind, Kind::Gauge) && matches!(unit.as_bytes(), b"1")),
        "Prometheus calls a gauge of the unit 1 a ratio: write state, flag or info in braces"
    );
    Metric {
        def: MetricDef::declared([name, unit, subject, description, source], kind, dims),
        types: PhantomData,
    }
}

/// The domains, each with its page below `agent/docs/metrics` and its heading there.
pub const DOMAINS: &[(&str, &str, &[&MetricDef])] = &[
    ("devices", "Devices", device::ALL),
    ("devices", "Memory errors, wear and PCIe", wear::ALL),
    ("devices", "Boards", board::ALL),
    ("devices", "Health", health::ALL),
    ("links", "NVLink", link::ALL),
    ("links", "Links other than NVLink", interconnect::ALL),
    ("counters", "MIG instances", instance::ALL),
    ("counters", "Performance counters of devices and MIG instances", gpm::ALL),
    ("owners", "Processes on devices", process::ALL),
    ("owners", "Owners", share::ALL),
    ("owners", "Time and cost of owners", cost::ALL),
    ("owners", "Owners' cgroups", cgroup::ALL),
    ("agent", "The host", host::ALL),
    ("nccl", "Collective communication", nccl::ALL),
    ("nccl", "Completed collectives (NCCL Inspector)", inspector::ALL),
    ("engines", "Inference engines", engine::ALL),
    ("engines", "Reading of inference engines", endpoint::ALL),
    ("events", "Counters of events", event::ALL),
    ("agent", "The agent itself", agent::ALL),
];

/// Every metric, in the order of `METRICS.md`.
pub fn all() -> impl Iterator<Item = &'static MetricDef> {
    DOMAINS.iter().flat_map(|(_, _, domain)| domain.iter().copied())
}

/// Every metric, and behind them those of the naming profiles.
pub fn with_profiles() -> impl Iterator<Item = &'static MetricDef> {
    all().chain(profile::metrics())
}

/// Position of a metric in [`with_profiles`]: the same in every process of one build, so the device
/// readers' frames carry it instead of the name.
pub fn index_of(metric: &'static MetricDef) -> u16 {
    *metric.index.get_or_init(|| {
        let place = with_profiles().zip(0..).find(|(known, _)| *known == metric);
        place.map_or(u16::MAX, |(_, index)| index)
    })
}

/// The metric at a position of [`all`].
pub fn by_index(index: u16) -> Option<&'static MetricDef> {
    static TABLE: LazyLock<Vec<&'static MetricDef>> = LazyLock::new(|| all().collect());
    TABLE.get(usize::from(index)).copied()
}
