//! Separates errors that are states of the counters from failed calls.

use gpuwho_model::catalog::gpm::CounterState;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlReturn_t;

/// `NVML_ERROR_INSUFFICIENT_RESOURCES`: all hardware counters are in use.
const INSUFFICIENT_RESOURCES: nvmlReturn_t = 23;
/// Argument version mismatch: the driver has another version of a structure.
const ARGUMENT_VERSION: nvmlReturn_t = 25;

/// Turns the errors that are states into a [`CounterState`].
pub(super) fn classify(
    taken: Result<(), NvmlError>,
) -> Result<Result<(), CounterState>, NvmlError> {
    match taken {
        Ok(()) => Ok(Ok(())),
        Err(error) if is_lack(&error) => Ok(Err(CounterState::Unsupported)),
        Err(NvmlError::InUse | NvmlError::UnexpectedVariant(INSUFFICIENT_RESOURCES)) => {
            Ok(Err(CounterState::Busy))
        }
        Err(NvmlError::NoPermission) => Ok(Err(CounterState::Forbidden)),
        Err(error) => Err(error),
    }
}

/// Whether an error means that there are no counters, now or later.
pub(super) fn is_lack(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::UnexpectedVariant(ARGUMENT_VERSION)
    )
}
