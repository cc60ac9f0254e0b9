//! One tenant that takes series, files, log lines or events from the others.
