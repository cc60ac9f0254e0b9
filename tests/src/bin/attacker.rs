//! Plays a tenant that attacks the agent. `nccl-attacker NAME ARGUMENT…`; the attacks are in
//! `gpuwho_tests::attacker`.

use gpuwho_tests::attacker;
use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some(attack) = attacker::find(&name) else {
        eprintln!("attacker: no attack `{name}`");
        return ExitCode::FAILURE;
    };
    match (attack.run)(&arguments.collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attacker {name}: {error}");
            ExitCode::FAILURE
        }
    }
}
