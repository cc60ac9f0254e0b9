//! Collective communication: the kernel's probes, the library's status socket and its Inspector.

mod budget;
mod existing;
mod inspector;
