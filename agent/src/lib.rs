//! gpuwho reports whose work is on the accelerators of a host, what it costs, and whether the
//! hardware is healthy.
//!
//! The binary: it puts the crates below `agent/crates` together. [`agent`] has the tables of sources, probes
//! and sinks, the tick and the reload; [`settings`] the configuration; [`cli`], [`control`] and [`who`] what
//! people and scripts ask. Each crate's `lib.rs` says what it owns and may use;
//! `agent/docs/architecture.md` has the floors, threads and channels, `agent/docs/glossary.md` the words.

#![forbid(unsafe_code)]

pub mod advisories;
pub mod agent;
pub mod cli;
pub mod control;
pub mod log_filter;
pub mod log_limit;
pub mod privilege;
pub mod settings;
pub mod top;
pub mod who;
