//! Whose a process is, from what the node itself knows.
//!
//! Owns attribution (evidence, the table, names of pods, containers and jobs), the inventory of devices,
//! communicators and engines by number, device nodes, and the reading of what tenants own: their files
//! and sockets. May use `kubernetes`, `model` and `sys`. Knows no vendor: their nodes are passed in
//! ([`nodes::VendorNodes`]).
//!
//! Rooms, from below: `inventory`, `partitions`, `process`, `tenant_files`, `nodes`, `local`,
//! `host`, `attribute`, `communicators`, `engines`, `proc_scan`, `sockets`.

#![forbid(unsafe_code)]

pub mod attribute;
pub mod communicators;
pub mod engines;
pub mod host;
pub mod inventory;
pub mod local;
pub mod nodes;
pub mod partitions;
pub mod proc_scan;
pub mod process;
pub mod sockets;
pub mod tenant_files;
