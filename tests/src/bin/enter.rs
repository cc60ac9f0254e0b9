//! Gets mounts of its own and becomes another program in them. Started by `gpuwho_tests::slurm`,
//! which knows the arguments.

use gpuwho_tests::slurm::enter::Enter;
use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let error = match Enter::from_arguments(env::args_os().skip(1)) {
        Ok(enter) => enter.exec(),
        Err(error) => error,
    };
    eprintln!("enter: {error}");
    ExitCode::FAILURE
}
