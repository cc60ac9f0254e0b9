//! Device readers.
