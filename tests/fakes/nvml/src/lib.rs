//! A `libnvidia-ml.so.1` without NVIDIA: the real symbols and structures, values from a scenario
//! file. Nothing that loads it can tell, and nothing needs to know.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `FAKE_NVML_SCENARIO` | the scenario file; read again when it changes |
//! | `FAKE_NVML_PIDS` | directory of the files that `pid = "file:NAME"` names |
//! | `FAKE_NVML_EPOCH` | time 0 of the scenario, in seconds since the Unix epoch; without it the first `nvmlInit` is time 0 |
//! | `FAKE_NVML_COUNTS` | file with the calls of each function so far and the time inside; see [`counts`] |
//! | `FAKE_NVML_NODES` | folder of the files that are held open like device nodes: `nvidiactl`, `nvidia0`, … |
//! | `FAKE_NVML_LOG` | file that gets one JSON object a call, written when the call begins; of a call for fields also one a field, named `field 186` |
//!
//! [`scenario`] is the model, also for tests that compute what a reading must be; [`install`]
//! makes the library of a scenario, with fewer symbols where it plays an old driver.

pub mod abi;
mod chance;
mod changes;
pub mod counts;
pub mod curve;
pub mod install;
mod nodes;
mod pids;
mod runtime;
pub mod scenario;
