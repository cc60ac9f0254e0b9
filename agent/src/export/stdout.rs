//! The stdout sink.
