//! BPF probes.
