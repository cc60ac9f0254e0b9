//! The `gpuwho` command; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpuwho::cli::main()
}
