//! Inference engines: what their metrics pages say, as samples about the engine.

pub mod exposition;
mod fetch;
mod find;
mod nim;
pub mod page;
mod recognize;
mod settings;
mod sglang;
pub mod table;
mod tgi;
mod triton;
mod vllm;

use table::Engine;

/// Every engine that is read. To add one: its file here, its `mod` and its row. One whose names
/// have no prefix comes last.
pub static ENGINES: &[&Engine] =
    &[&vllm::VLLM, &sglang::SGLANG, &tgi::TGI, &triton::TRITON, &nim::NIM];
