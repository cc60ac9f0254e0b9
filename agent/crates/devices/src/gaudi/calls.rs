//! Calls the library, and distinguishes what it lacks (remembered) from what failed (counted and
//! tried again).

use crate::files::Files;
use crate::in_flight;
use crate::wire::Outcome;
use gpuwho_sys::hlml::HlmlError;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

/// A function of the library, and the number that it was given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Function(pub(super) &'static str, pub(super) u32);

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The calls about one device.
#[derive(Debug, Default)]
pub(super) struct Calls {
    unsupported: BTreeSet<Function>,
    end: Option<Outcome>,
    answered: bool,
    failure: Option<String>,
}

impl Calls {
    /// Begins a reading.
    pub(super) fn begin(&mut self) {
        (self.end, self.answered, self.failure) = (None, false, None);
    }

    /// Makes a call, unless the library lacks it or the device is gone.
    pub(super) fn call<T>(
        &mut self,
        function: Function,
        files: &mut Files,
        body: impl FnOnce() -> Result<T, HlmlError>,
    ) -> Option<T> {
        if self.end.is_some() || self.unsupported.contains(&function) {
            return None;
        }
        let begun = Instant::now();
        let answer = in_flight::call(function, body);
        let has_failed = matches!(answer, Err(HlmlError::Failed(_)));
        files.count_call(begun.elapsed(), has_failed);
        match answer {
            Ok(value) => {
                self.answered = true;
                return Some(value);
            }
            Err(HlmlError::Unsupported) => {
                self.unsupported.insert(function);
            }
            Err(HlmlError::Absent) => {}
            Err(error @ HlmlError::Lost) => self.end = Some(Outcome::Lost(error.to_string())),
            Err(error @ HlmlError::DriverGone) => {
                self.end = Some(Outcome::DriverGone(error.to_string()));
            }
            Err(error @ HlmlError::Failed(_)) => {
                self.failure = Some(format!("{function:?}: {error}"));
            }
        }
        None
    }

    /// How the reading ended, unless it is good.
    pub(super) fn end(&mut self) -> Option<Outcome> {
        let failed = || self.failure.clone().filter(|_| !self.answered).map(Outcome::Failing);
        self.end.take().or_else(failed)
    }
}
