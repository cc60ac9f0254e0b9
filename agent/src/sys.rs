//! The only user-space code allowed `unsafe`.
