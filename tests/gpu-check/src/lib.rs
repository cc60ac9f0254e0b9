//! Proves gpuwho against a real driver, on a machine with a GPU and without a network.
//!
//! [`checks`] are what is proved, one row of the table each; [`watch`] runs the built agent and
//! reads its points; [`load`] drives `gpu-load`, which keeps a GPU busy in known ways through
//! [`cuda`]; `python` runs programs for PyTorch and the vendor's binding; [`smi`] is the vendor's own word to compare with; [`report`] prints the table. What
//! cannot be checked on a machine is a row too, with the reason.

#![deny(unsafe_code)]

pub mod checks;
#[expect(unsafe_code, reason = "CUDA's driver library is C")]
pub mod cuda;
pub mod load;
mod python;
pub mod report;
pub mod smi;
pub mod watch;
pub mod work;
