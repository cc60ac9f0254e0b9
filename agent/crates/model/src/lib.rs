//! The vocabulary of gpuwho: what samples, points and findings are, and the catalogue that declares
//! every metric once.
//!
//! Owns ids, subjects, samples, points, the catalogue, the state of sources, the tables of the
//! configuration, and small helpers for text and files. May use `sys`. Knows no source, no owner and no
//! sink.
//!
//! Rooms, from below: `text`, `attributes`, `metric`, `ids`, `subject`, `labels`, `sample`,
//! `catalog`, `paths`, `config`, `finding`, `heartbeat`, `point`, `poller`, `screen`, `state_file`,
//! `status`.

#![forbid(unsafe_code)]

pub mod attributes;
pub mod catalog;
pub mod config;
pub mod finding;
pub mod heartbeat;
pub mod ids;
pub mod labels;
pub mod metric;
pub mod paths;
pub mod point;
pub mod poller;
pub mod sample;
pub mod screen;
pub mod state_file;
pub mod status;
pub mod subject;
pub mod text;

/// The name of the agent, as receivers get it.
pub const NAME: &str = "gpuwho";
