//! Answers of a false NCCL status service (RAS).
