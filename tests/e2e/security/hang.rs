//! Files and memory that never answer a read.
