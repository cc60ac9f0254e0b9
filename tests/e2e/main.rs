//! End-to-end tests.

mod reader;
