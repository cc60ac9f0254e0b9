//! gpuwho reports whose work is on the accelerators of a host, what it costs, and whether the
//! hardware is well.
//!
//! In reading order: [`catalog`] declares every metric; [`collect`] reads the sources into
//! [`sample`]s; [`attribute`] finds the owner of each process; [`accounting`] divides each device's
//! use over its owners; [`series`] turns samples into points with attributes; [`event`] turns
//! observations into events; [`export`] sends both; [`agent`] is the one place that wires them
//! together. `agent/docs/architecture.md` has threads and channels, `agent/docs/glossary.md` the
//! words.

#![deny(unsafe_code)]

pub mod advisories;
pub mod agent;
pub mod cli;
pub mod control;
pub mod log_filter;
pub mod log_limit;
pub mod privilege;
pub mod settings;
pub mod who;
