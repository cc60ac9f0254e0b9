//! GPM: samples hold what the counters had counted at a moment (the areas under the scenario's
//! curves), metrics are the difference of two by the time between them, as the driver makes them.
//!
//! Like the driver's, the metrics are nonsense without an error where two samples do not belong
//! together, and not a number where they are nearer than the counters are renewed. The log tells how
//! many samples there are after each that is made or freed, and each misuse.

use super::{Target, exports, on_device, on_target, put, system};
use crate::curve::Place;
use crate::runtime::{Call, Code, note};
use crate::scenario::Instance;
use crate::scenario::gpm::Gpm;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Mutex, PoisonError};

/// Argument version mismatch.
const ARGUMENT_VERSION: Code = 25;
/// The version of both structures.
const VERSION: c_uint = 1;
/// Address of the first sample's handle; never dereferenced, and never given twice.
const FIRST: usize = 0x10_0000;
/// Counters are renewed so often.
const RENEWED: f64 = 0.1;
/// The greatest number of a metric, and one more.
const METRICS: u32 = 210;

/// Samples there are, by the address of their handles; `None` before they are taken.
static SAMPLES: Mutex<Samples> = Mutex::new(Samples { given: 0, alive: BTreeMap::new() });

struct Samples {
    given: usize,
    alive: BTreeMap<usize, Option<Taken>>,
}

/// What the counters had counted.
#[derive(Clone, Debug)]
struct Taken {
    seconds: f64,
    device: u32,
    streaming: bool,
    /// By the metric's number; one that is not there the device does not have.
    counted: BTreeMap<u32, f64>,
}

fn with_samples<T>(body: impl FnOnce(&mut Samples) -> T) -> T {
    body(&mut SAMPLES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Says how many samples there are.
fn note_alive(samples: &Samples) {
    note(&serde_json::json!({"gpm_samples": samples.alive.len()}));
}

fn misused(how: &str) -> Code {
    note(&serde_json::json!({"gpm_misuse": how}));
    INVALID_ARGUMENT
}

fn count(gpm: &Gpm, from: f64, call: &Call, place: Place) -> Taken {
    let area = |seconds: f64, metric| {
        gpm.curve(metric).map(|curve| curve.integral(seconds, place) - curve.integral(from, place))
    };
    let counted = (0..METRICS).filter_map(|metric| Some((metric, area(call.seconds, metric)?)));
    Taken {
        seconds: call.seconds,
        device: place.device,
        streaming: gpm.streams(call.seconds, place),
        counted: counted.collect(),
    }
}

fn keep(sample: nvmlGpmSample_t, taken: Taken) -> Result<(), Code> {
    with_samples(|samples| match samples.alive.get_mut(&sample.addr()) {
        Some(place) => {
            *place = Some(taken);
            Ok(())
        }
        None => Err(misused("a sample that is not there is taken")),
    })
}

fn allocate(to: *mut nvmlGpmSample_t) -> Result<(), Code> {
    with_samples(|samples| {
        let handle = FIRST + samples.given;
        put(to, std::ptr::without_provenance_mut(handle))?;
        samples.given += 1;
        samples.alive.insert(handle, None);
        note_alive(samples);
        Ok(())
    })
}

fn free(sample: nvmlGpmSample_t) -> Result<(), Code> {
    with_samples(|samples| {
        let freed = samples.alive.remove(&sample.addr());
        note_alive(samples);
        freed.map(drop).ok_or_else(|| misused("a sample that is not there is freed"))
    })
}

/// The curves of a device's GPU instance of a number.
fn of_instance<'a>(call: &Call, target: Target<'a>, id: c_uint) -> Result<&'a Instance, Code> {
    let mut living = target.device.instances(call.seconds);
    living.find(|instance| instance.gpu_instance == id).ok_or(INVALID_ARGUMENT)
}

/// The rate of a metric between two samples.
fn rate(earlier: &Taken, later: &Taken, metric: u32) -> Option<f64> {
    let before = earlier.counted.get(&metric)?;
    let after = later.counted.get(&metric)?;
    // Switching the stream clears the counters.
    let before = if earlier.streaming == later.streaming { before } else { &0.0 };
    let gap = later.seconds - earlier.seconds;
    Some(if gap < RENEWED { f64::NAN } else { (after - before) / gap })
}

/// Answers one metric in place; each has its own return code.
fn answer(
    call: &Call,
    (earlier, later): (&Taken, &Taken),
    metric: &mut nvml_wrapper_sys::bindings::nvmlGpmMetric_t,
) {
    let failed = call.metric_failure(metric.metricId, later.device);
    let value = rate(earlier, later, metric.metricId).ok_or(NOT_SUPPORTED);
    let value = failed.map_or(value, Err);
    metric.nvmlReturn = value.err().unwrap_or_default();
    metric.value = value.unwrap_or_default();
}

fn metrics(call: &Call, query: *mut nvmlGpmMetricsGet_t) -> Result<(), Code> {
    if query.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by the caller's promise a structure whose version word is set.
    let query = unsafe { &mut *query };
    if query.version != VERSION {
        return Err(ARGUMENT_VERSION);
    }
    let wanted = query.metrics.get_mut(..query.numMetrics as usize).ok_or(INVALID_ARGUMENT)?;
    let known = call.loaded.scenario.gpm_metrics.unwrap_or(METRICS);
    if wanted.iter().any(|metric| metric.metricId >= known) {
        return Err(INVALID_ARGUMENT);
    }
    let taken = |sample: nvmlGpmSample_t| {
        let found = with_samples(|samples| samples.alive.get(&sample.addr()).cloned());
        found.flatten().ok_or_else(|| misused("a sample that was not taken is asked for"))
    };
    let (earlier, later) = (taken(query.sample1)?, taken(query.sample2)?);
    for metric in wanted {
        answer(call, (&earlier, &later), metric);
    }
    Ok(())
}

exports! {
    /// Whether a device has counters.
    fn nvmlGpmQueryDeviceSupport(device: nvmlDevice_t, to: *mut nvmlGpmSupport_t) |name|
        on_target(name, device, |_, target| {
            if to.is_null() {
                return Err(INVALID_ARGUMENT);
            }
            // SAFETY: not null, and by the caller's promise a structure whose version word is set.
            let version = unsafe { (*to).version };
            if version != VERSION {
                return Err(ARGUMENT_VERSION);
            }
            let supported = c_uint::from(target.device.group.gpm.is_some());
            put(to, nvmlGpmSupport_t { version, isSupportedDevice: supported })
        });
    /// Whether somebody has the counters streamed.
    fn nvmlGpmQueryIfStreamingEnabled(device: nvmlDevice_t, to: *mut c_uint) |name|
        on_device(name, device, |call, device| {
            let gpm = device.group.gpm.as_ref().ok_or(NOT_SUPPORTED)?;
            put(to, c_uint::from(gpm.streams(call.seconds, device.place())))
        });
    /// Refused: nobody here may switch it.
    fn nvmlGpmSetStreamingEnabled(device: nvmlDevice_t, _state: c_uint) |name|
        on_device(name, device, |_, _| Err(misused("the stream is switched")));
    /// Makes a sample.
    fn nvmlGpmSampleAlloc(to: *mut nvmlGpmSample_t) |name| {
        system(name)?;
        allocate(to)
    };
    /// Frees a sample.
    fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) |name| {
        system(name)?;
        free(sample)
    };
    /// Reads a device's counters.
    fn nvmlGpmSampleGet(device: nvmlDevice_t, sample: nvmlGpmSample_t) |name|
        on_device(name, device, |call, device| {
            let gpm = device.group.gpm.as_ref().ok_or(NOT_SUPPORTED)?;
            keep(sample, count(gpm, 0.0, call, device.place()))
        });
    /// Reads a GPU instance's counters, which begin when it is made.
    fn nvmlGpmMigSampleGet(device: nvmlDevice_t, gpu_instance: c_uint, sample: nvmlGpmSample_t) |name|
        on_target(name, device, |call, target| {
            let instance = of_instance(call, target, gpu_instance)?;
            let gpm = instance.gpm.as_ref().ok_or(NOT_SUPPORTED)?;
            keep(sample, count(gpm, instance.from, call, target.device.place()))
        });
    /// What lies between two samples.
    fn nvmlGpmMetricsGet(query: *mut nvmlGpmMetricsGet_t) |name| metrics(&system(name)?, query);
}
