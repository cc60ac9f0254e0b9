//! Encoder benchmark.
fn main() {}
