//! The OTLP sink.
