//! The `gpuwho` command.
fn main() {}
