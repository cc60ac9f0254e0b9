//! A fake inference engine: serves a recorded page whose counters move as it is told, or something
//! that is no page, and counts who asks. What it does is in `gpuwho_tests::engine::serve`.

use gpuwho_tests::engine::serve;
use std::process::ExitCode;

fn main() -> ExitCode {
    match serve::run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engine: {error}");
            ExitCode::FAILURE
        }
    }
}
