//! The fake NVML.
