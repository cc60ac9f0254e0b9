//! A fake inference engine: serves a recorded page whose counters move as it is told, or something
//! that is no page, and counts who asks. What it does is in `gpuwho_tests::engine::serve`. As
//! `engine real …` it becomes a real one in a pod's place (`gpuwho_tests::engine::real`).

use gpuwho_tests::engine::{real, serve};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let ran = match arguments.next_if(|argument| argument == real::WORD) {
        Some(_) => real::become_program(arguments),
        None => serve::run(arguments),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engine: {error}");
            ExitCode::FAILURE
        }
    }
}
