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

pub mod accounting;
pub mod advisories;
pub mod agent;
pub mod attribute;
pub mod catalog;
pub mod cli;
pub mod collect;
pub mod communicators;
pub mod config;
pub mod control;
pub mod cost;
pub mod engines;
pub mod event;
pub mod export;
pub mod finding;
pub mod health;
pub mod heartbeat;
pub mod host;
pub mod identity;
pub mod ids;
pub mod inventory;
pub mod labels;
mod local;
pub mod log_limit;
pub mod paths;
pub mod point;
pub mod poller;
pub mod privilege;
pub mod sample;
pub mod screen;
pub mod series;
pub mod settings;
pub mod state_file;
pub mod status;
pub mod subject;
#[expect(
    unsafe_code,
    reason = "the one user-space module that may call what the compiler cannot check"
)]
pub mod sys;
pub mod telemetry;
pub mod tenant_files;
pub mod text;
pub mod who;
