//! What goes wrong.

use serde::Deserialize;

/// Something that goes wrong in one function or all, on one device or all.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "keys of a scenario file, each on its own")]
pub struct Failure {
    /// The function, or `*` for every function that takes a device.
    pub call: String,
    /// Of `nvmlDeviceGetFieldValues` this field only, by its number in this driver: it has a code
    /// of its own, and the call goes well.
    pub field: Option<u32>,
    /// Of `nvmlGpmMetricsGet` this metric only, by its number; as with a field.
    pub metric: Option<u32>,
    /// The device's index; without it every device.
    pub device: Option<u32>,
    /// It concerns calls about the device itself only, not about its MIG instances.
    #[serde(default)]
    pub whole_device: bool,
    /// What the function returns; without it, what it would have returned.
    pub code: Option<u32>,
    /// Calls that still go well.
    #[serde(default)]
    pub after_calls: u64,
    /// Second it begins.
    #[serde(default)]
    pub from: f64,
    /// Second it ends.
    pub until: Option<f64>,
    /// How likely it is at each call, by the scenario's `seed`.
    #[serde(default = "always")]
    pub probability: f64,
    /// Milliseconds the call takes longer.
    #[serde(default)]
    pub delay_ms: u64,
    /// The call does not return before the failure's end: never, without one.
    #[serde(default)]
    pub hang: bool,
    /// The call never returns, and its thread cannot be interrupted meanwhile.
    #[serde(default)]
    pub uninterruptible: bool,
    /// The call ends the process.
    #[serde(default)]
    pub crash: bool,
    /// The call reads where nothing is.
    #[serde(default)]
    pub segfault: bool,
    /// The call answers random bytes.
    #[serde(default)]
    pub garbage: bool,
    /// What the call prints to standard output.
    #[serde(default)]
    pub prints: String,
}

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The device's index.
    pub device: u32,
    /// A MIG instance of it.
    pub instance: bool,
}

impl Failure {
    /// Whether it concerns a call at a time; a field's or a metric's does not concern the call.
    pub fn concerns(&self, call: &str, about: Option<About>, seconds: f64) -> bool {
        let named = self.call == call || (self.call == "*" && about.is_some());
        let part = self.field.or(self.metric);
        named && part.is_none() && self.in_time(about, seconds)
    }

    /// Whether it concerns a device at a time.
    pub fn in_time(&self, about: Option<About>, seconds: f64) -> bool {
        let device = about.map(|about| about.device);
        (self.device.is_none() || self.device == device)
            && !(self.whole_device && about.is_some_and(|about| about.instance))
            && seconds >= self.from
            && self.until.is_none_or(|until| seconds < until)
    }
}

/// How long a call takes on a real driver, where that is known.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// The function, or `*` for every other.
    pub call: String,
    /// Microseconds.
    pub us: u64,
}

const fn always() -> f64 {
    1.0
}
