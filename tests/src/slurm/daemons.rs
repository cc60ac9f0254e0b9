//! Starts slurmctld, slurmd and the clients, each in the mounts of its cluster.

use super::enter::Enter;
use super::{Node, Plugin, Slurm, SlurmError, User, conf};
use crate::program;
use crate::until::until;
use std::ffi::OsString;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A node is idle within a second; this is for a machine under load.
const READY_WITHIN: Duration = Duration::from_secs(30);

impl Slurm {
    pub(super) fn launch(&mut self) -> Result<(), SlurmError> {
        let mut controller = Some(self.daemon("slurmctld", &["-D".into()])?);
        let up = until(READY_WITHIN, || conf::answers(self.port, &mut controller));
        self.controller = controller;
        if up != Some(true) {
            return Err(self.not_seen("slurmctld to listen", ""));
        }
        self.start_nodes()
    }

    pub(super) fn start_nodes(&mut self) -> Result<(), SlurmError> {
        let mut nodes = std::mem::take(&mut self.nodes);
        let started = nodes.iter_mut().try_for_each(|node| {
            let arguments = ["-D".into(), "-N".into(), OsString::from(&node.name)];
            node.slurmd = Some(self.daemon("slurmd", &arguments)?);
            Ok(())
        });
        let up = started.and_then(|()| self.wait_ready(&mut nodes));
        self.nodes = nodes;
        up
    }

    fn wait_ready(&self, nodes: &mut [Node]) -> Result<(), SlurmError> {
        for node in nodes.iter_mut() {
            let up = until(READY_WITHIN, || conf::answers(node.port, &mut node.slurmd));
            if up != Some(true) {
                return Err(self.not_seen("slurmd to listen", ""));
            }
        }
        let mut states = String::new();
        let ready = until(READY_WITHIN, || {
            let ask = ["-h", "-N", "-p", "gpu", "-o", "%T"];
            states = self.client(None, "sinfo", &ask).unwrap_or_else(|error| error.to_string());
            let fine = |state: &&str| ["idle", "mixed", "allocated"].contains(state);
            (states.lines().filter(fine).count() == nodes.len()).then_some(())
        });
        ready.ok_or_else(|| self.not_seen("the nodes to be idle", &states))
    }

    fn daemon(&self, program: &'static str, arguments: &[OsString]) -> Result<Child, SlurmError> {
        let mut command = self.entered(None, program, arguments)?;
        if self.setup.plugin == Plugin::V2 && program == "slurmd" {
            command.envs(conf::unified(self.folder())?.map(|library| ("LD_PRELOAD", library)));
        }
        let output = self.folder().join("log").join(format!("{program}.err"));
        let output = fs::File::create(&output).map_err(SlurmError::os(&output))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        crate::sys::die_with_us(&mut command).spawn().map_err(SlurmError::os(program))
    }

    /// A client's answer, asked by a user of the cluster or by root.
    pub fn client(
        &self,
        user: Option<User>,
        program: &'static str,
        arguments: &[&str],
    ) -> Result<String, SlurmError> {
        let words: Vec<_> = arguments.iter().map(OsString::from).collect();
        let mut command = self.entered(user, program, &words)?;
        let output = command.stdin(Stdio::null()).output().map_err(SlurmError::os(program))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(SlurmError::Refused { command: format!("{program} {}", arguments.join(" ")), said })
    }

    /// A program of Slurm's with this cluster's mounts and configuration.
    pub(super) fn entered(
        &self,
        user: Option<User>,
        program: &'static str,
        arguments: &[OsString],
    ) -> Result<Command, SlurmError> {
        let file = |name: &str| self.folder().join(name);
        let program = conf::installed(program).ok_or(SlurmError::Unavailable(conf::PACKAGES))?;
        let enter = Enter {
            binds: vec![
                (file("passwd"), "/etc/passwd".into()),
                (file("group"), "/etc/group".into()),
                // Jobs' users may not look into the folder that the worker was built in.
                (program::worker()?, file("worker")),
            ],
            unified: self.setup.plugin == Plugin::V2,
            uid: user.map(|user| user.uid),
            words: [program.into_os_string()].iter().chain(arguments).cloned().collect(),
        };
        let mut command = Command::new(program::enter()?);
        // Nothing of a job or a cluster that the tests themselves may run in.
        let inherited = std::env::vars_os().map(|(name, _)| name);
        let of_slurm = |name: &OsString| name.to_string_lossy().starts_with("SLURM");
        inherited.filter(of_slurm).for_each(|name| {
            command.env_remove(name);
        });
        command.args(enter.to_arguments()).env("SLURM_CONF", file("slurm.conf"));
        command.current_dir("/");
        Ok(command)
    }
}
