//! Inference engines: what their metrics pages say, as samples about the engine.

pub mod exposition;
pub mod fuzz;
mod nim;
pub mod page;
mod sglang;
pub mod table;
mod tgi;
mod triton;
mod vllm;

use table::Engine;

/// Every engine that is read. To add one: its file here, its `mod` and its row. Of several on one
/// page the first row is the page's engine: Triton is before the back ends that it serves, and what
/// has no prefix comes last.
pub static ENGINES: &[&Engine] =
    &[&triton::TRITON, &vllm::VLLM, &sglang::SGLANG, &tgi::TGI, &nim::NIM];
