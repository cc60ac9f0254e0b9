//! The only user-space code allowed `unsafe`.

pub(crate) mod handle;
