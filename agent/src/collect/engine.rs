//! Inference engines: found among the processes that hold a device, and read by their own pages of
//! metrics.

mod fetch;
