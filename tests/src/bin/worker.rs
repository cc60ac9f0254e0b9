//! A process that uses GPUs, as far as anybody outside can see: joins its cgroups, gets a `/dev`
//! of its own with NVIDIA's nodes in it, becomes a user, opens the nodes as CUDA does, and holds
//! them until its standard input closes. Started by `gpuwho_tests::worker`, which knows the
//! arguments; says `ready PID CHILD…` on one line when it holds. As a task of a Slurm job it is in
//! place already, and takes its orders from a socket.

use gpuwho_tests::worker::script::{Hold, Script};
use gpuwho_tests::worker::{act, nodes, orders};
use std::path::Path;
use std::process::ExitCode;
use std::{env, io};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let script = Script::from_arguments(env::args().skip(1))?;
    if let Some((socket, tag)) = &script.task {
        // Its parent is slurmstepd, which ends it when the job ends.
        act::take_name(&script.comm)?;
        return orders::obey(Path::new(socket), tag);
    }
    if !script.contained {
        act::die_with_parent()?;
    }
    if script.executed {
        // The image before this one has set everything up; the open nodes came along.
        return act::hold(&script, Vec::new());
    }
    if script.bare {
        act::take_name(&script.comm)?;
        return act::hold(&script, Vec::new());
    }
    if !script.contained {
        act::join(&script.join)?;
        act::nest(&script)?;
        nodes::private_dev()?;
    }
    if let Some(name) = &script.exec {
        act::install_program(name)?;
    }
    act::become_user(script.uid)?;
    if script.contained {
        act::outlive_parent()?;
    }
    act::take_name(&script.comm)?;
    if let Hold::Storm { count, per_second } = script.hold {
        return act::storm(&script, count, per_second);
    }
    if let Some(name) = &script.exec {
        // Kept open until the process ends.
        let _open = nodes::open_gpus(&script)?;
        return Err(act::exec(name, &script));
    }
    act::open_and_hold(&script)
}
