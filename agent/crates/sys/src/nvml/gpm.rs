//! GPM, the performance counters of Hopper and later: samples, and metrics between two samples.
//!
//! The wrapper's own sample borrows the library for a lifetime that a reader that keeps samples
//! between readings cannot name, and its query panics on too long a list.

use super::handle;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, nvmlEnableState_t, nvmlGpmMetricsGet_t,
    nvmlGpmSample_t, nvmlGpmSupport_t,
};
use std::ffi::c_uint;

/// One sample of a device's or an instance's counters, in an opaque buffer of the library. Dropping
/// it frees the buffer.
pub struct Sample {
    nvml: &'static Nvml,
    sample: nvmlGpmSample_t,
}

// SAFETY: NVML is thread-safe (`nvml.h`), a sample is a buffer bound to no thread, and only its
// owner uses it.
unsafe impl Send for Sample {}

/// A requested metric and its answer.
#[derive(Debug)]
pub struct GpmQuery {
    /// One of `NVML_GPM_METRIC_…`.
    pub id: u32,
    /// The value in the metric's unit, or the error.
    pub answer: Result<f64, NvmlError>,
}

/// Whether a device has the counters, and the library every function to read them: with only some
/// of the functions, samples could not be freed.
pub fn is_supported(device: &Device<'_>) -> Result<bool, NvmlError> {
    let library = device.nvml().lib();
    let call = nvml_sym(library.nvmlGpmQueryDeviceSupport.as_ref())?;
    nvml_sym(library.nvmlGpmSampleAlloc.as_ref())?;
    nvml_sym(library.nvmlGpmSampleFree.as_ref())?;
    nvml_sym(library.nvmlGpmSampleGet.as_ref())?;
    nvml_sym(library.nvmlGpmMetricsGet.as_ref())?;
    let mut support = nvmlGpmSupport_t { version: NVML_GPM_SUPPORT_VERSION, isSupportedDevice: 0 };
    // SAFETY: the handle is the library's own, and `support` is a structure of the version it says.
    nvml_try(unsafe { call(handle(device), &raw mut support) })?;
    Ok(support.isSupportedDevice != 0)
}

/// Whether streaming of the counters is on. The agent never changes it.
pub fn is_streaming(device: &Device<'_>) -> Result<bool, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlGpmQueryIfStreamingEnabled.as_ref())?;
    let mut state: nvmlEnableState_t = 0;
    // SAFETY: the handle is the library's own, and `state` is where the answer goes.
    nvml_try(unsafe { call(handle(device), &raw mut state) })?;
    Ok(state != 0)
}

impl Sample {
    /// An empty sample.
    pub fn new(nvml: &'static Nvml) -> Result<Self, NvmlError> {
        let call = nvml_sym(nvml.lib().nvmlGpmSampleAlloc.as_ref())?;
        let mut sample = std::ptr::null_mut();
        // SAFETY: `sample` is where the answer goes.
        nvml_try(unsafe { call(&raw mut sample) })?;
        if sample.is_null() {
            return Err(NvmlError::Unknown);
        }
        Ok(Self { nvml, sample })
    }

    /// Reads the counters of a device.
    pub fn take(&mut self, device: &Device<'_>) -> Result<(), NvmlError> {
        let call = nvml_sym(self.nvml.lib().nvmlGpmSampleGet.as_ref())?;
        // SAFETY: handle and sample are the library's own.
        nvml_try(unsafe { call(handle(device), self.sample) })
    }

    /// Reads the counters of a GPU instance of a device.
    pub fn take_instance(
        &mut self,
        device: &Device<'_>,
        gpu_instance: u32,
    ) -> Result<(), NvmlError> {
        let call = nvml_sym(self.nvml.lib().nvmlGpmMigSampleGet.as_ref())?;
        // SAFETY: handle and sample are the library's own.
        nvml_try(unsafe { call(handle(device), gpu_instance, self.sample) })
    }

    /// Computes the metrics between an earlier sample and this one, all in one call.
    pub fn since(&self, earlier: &Self, asked: &mut [GpmQuery]) -> Result<(), NvmlError> {
        let call = nvml_sym(self.nvml.lib().nvmlGpmMetricsGet.as_ref())?;
        // SAFETY: integers, numbers and pointers, for all of which zero is a value.
        let mut query: nvmlGpmMetricsGet_t = unsafe { std::mem::zeroed() };
        if asked.len() > query.metrics.len() {
            return Err(NvmlError::InvalidArg);
        }
        query.version = NVML_GPM_METRICS_GET_VERSION;
        query.numMetrics = c_uint::try_from(asked.len()).map_err(|_| NvmlError::InvalidArg)?;
        (query.sample1, query.sample2) = (earlier.sample, self.sample);
        for (to, asked) in query.metrics.iter_mut().zip(&*asked) {
            to.metricId = asked.id;
        }
        // SAFETY: both samples are the library's own, and `query` has room for more metrics than it
        // says it has.
        nvml_try(unsafe { call(&raw mut query) })?;
        for (asked, answered) in asked.iter_mut().zip(&query.metrics) {
            asked.answer = nvml_try(answered.nvmlReturn).map(|()| answered.value);
        }
        Ok(())
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        if let Ok(call) = &self.nvml.lib().nvmlGpmSampleFree {
            // SAFETY: the sample is the library's own and is not used afterwards. One that cannot
            // be freed is freed when the process ends.
            let _ = unsafe { call(self.sample) };
        }
    }
}
