//! What a worker is to do, as command-line arguments: written by the harness, read by the worker.

use std::fmt;
use std::io;
use std::time::Duration;

/// How long a worker holds its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Until its standard input closes.
    UntilTold,
    /// This long.
    For(Duration),
    /// It holds nothing itself, but forks so many processes one after another that do what the
    /// script says and exit at once.
    Storm {
        /// Processes.
        count: u32,
        /// At most so many a second; 0 for as fast as it goes.
        per_second: u32,
    },
}

/// Which process or thread of a worker opens the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opener {
    /// The worker itself.
    #[default]
    Worker,
    /// A thread of it that is not its first.
    Thread,
    /// A grandchild in a session of its own, whose parent has ended.
    Daemon,
    /// The first process of a PID namespace, where its number is 1.
    PidNamespace,
    /// A child that gets this very number, whoever had it before.
    Number(u32),
}

impl Opener {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "worker" => Some(Self::Worker),
            "thread" => Some(Self::Thread),
            "daemon" => Some(Self::Daemon),
            "pidns" => Some(Self::PidNamespace),
            _ => Some(Self::Number(text.parse().ok()?)),
        }
    }
}

impl fmt::Display for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker => f.write_str("worker"),
            Self::Thread => f.write_str("thread"),
            Self::Daemon => f.write_str("daemon"),
            Self::PidNamespace => f.write_str("pidns"),
            Self::Number(pid) => write!(f, "{pid}"),
        }
    }
}

/// What a worker does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the switches of a command line")]
pub struct Script {
    /// Cgroup directories to join before anything else.
    pub join: Vec<String>,
    /// Takes a cgroup namespace of its own there, and joins directories that it makes itself
    /// below each of its own, at this path.
    pub nest: Option<String>,
    /// Command name.
    pub comm: String,
    /// User to become; root without.
    pub uid: Option<u32>,
    /// GPUs to open, by minor number; none opens nothing at all.
    pub gpus: Vec<u32>,
    /// Who opens them.
    pub opener: Opener,
    /// A unix socket through which it gives its open nodes to whoever connects.
    pub give: Option<String>,
    /// A unix socket from which it gets open nodes instead of opening any.
    pub take: Option<String>,
    /// Children that get the open nodes by a fork alone.
    pub forks: u32,
    /// Only lives: what is left of a worker whose user may not mount, make nodes or join cgroups.
    pub bare: bool,
    /// Runs in a container, where its nodes and its cgroup are there already, and stays until it
    /// is killed.
    pub contained: bool,
    /// Opens `nvidia0` from within `/dev` instead of `/dev/nvidia0`.
    pub relative: bool,
    /// Becomes a program of this name after opening.
    pub exec: Option<String>,
    /// A task of a Slurm job: the nodes and the user are there already, and orders come from this
    /// socket; the text after it is told there first.
    pub task: Option<(String, String)>,
    /// Serves libtpu's metrics of its chips, with the values of this scenario.
    pub libtpu: Option<String>,
    /// How long it holds.
    pub hold: Hold,
    /// This is the program it became.
    pub executed: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            join: Vec::new(),
            nest: None,
            comm: "python3".to_owned(),
            uid: None,
            gpus: Vec::new(),
            opener: Opener::Worker,
            give: None,
            take: None,
            forks: 0,
            bare: false,
            contained: false,
            relative: false,
            exec: None,
            task: None,
            libtpu: None,
            hold: Hold::UntilTold,
            executed: false,
        }
    }
}

impl Script {
    /// The arguments that say this.
    pub fn to_arguments(&self) -> Vec<String> {
        let mut all = vec![format!("--comm={}", self.comm), format!("--forks={}", self.forks)];
        all.extend(self.join.iter().map(|directory| format!("--join={directory}")));
        all.extend(self.gpus.iter().map(|gpu| format!("--gpu={gpu}")));
        all.extend(self.nest.iter().map(|path| format!("--nest={path}")));
        all.push(format!("--opener={}", self.opener));
        all.extend(self.give.iter().map(|socket| format!("--give={socket}")));
        all.extend(self.take.iter().map(|socket| format!("--take={socket}")));
        all.extend(self.uid.map(|uid| format!("--uid={uid}")));
        all.extend(self.exec.iter().map(|name| format!("--exec={name}")));
        let task = |(socket, tag): &(String, String)| format!("--task={socket}:{tag}");
        all.extend(self.task.as_ref().map(task));
        all.extend(self.libtpu.iter().map(|scenario| format!("--libtpu={scenario}")));
        all.extend(self.bare.then(|| "--bare".to_owned()));
        all.extend(self.contained.then(|| "--contained".to_owned()));
        all.extend(self.relative.then(|| "--relative".to_owned()));
        all.extend(self.executed.then(|| "--executed".to_owned()));
        match self.hold {
            Hold::UntilTold => {}
            Hold::For(time) => all.push(format!("--for={}ms", time.as_millis())),
            Hold::Storm { count, per_second } => all.push(format!("--storm={count}/{per_second}")),
        }
        all
    }

    /// Reads the arguments.
    pub fn from_arguments(arguments: impl Iterator<Item = String>) -> io::Result<Self> {
        let mut script = Self::default();
        for argument in arguments {
            let (key, value) = argument.split_once('=').unwrap_or((&argument, ""));
            script.set(key, value).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("bad argument {argument}"))
            })?;
        }
        Ok(script)
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "--comm" => value.clone_into(&mut self.comm),
            "--join" => self.join.push(value.to_owned()),
            "--gpu" => self.gpus.push(value.parse().ok()?),
            "--nest" => self.nest = Some(value.to_owned()),
            "--opener" => self.opener = Opener::parse(value)?,
            "--give" => self.give = Some(value.to_owned()),
            "--take" => self.take = Some(value.to_owned()),
            "--forks" => self.forks = value.parse().ok()?,
            "--uid" => self.uid = Some(value.parse().ok()?),
            "--exec" => self.exec = Some(value.to_owned()),
            "--task" => {
                let (socket, tag) = value.rsplit_once(':')?;
                self.task = Some((socket.to_owned(), tag.to_owned()));
            }
            "--libtpu" => self.libtpu = Some(value.to_owned()),
            "--bare" => self.bare = true,
            "--contained" => self.contained = true,
            "--relative" => self.relative = true,
            "--executed" => self.executed = true,
            "--for" => {
                let millis = value.strip_suffix("ms")?.parse().ok()?;
                self.hold = Hold::For(Duration::from_millis(millis));
            }
            "--storm" => {
                let (count, per_second) = value.split_once('/')?;
                let (count, per_second) = (count.parse().ok()?, per_second.parse().ok()?);
                self.hold = Hold::Storm { count, per_second };
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_survives_the_command_line() {
        let script = Script {
            join: vec!["/sys/fs/cgroup/a".to_owned(), "/sys/fs/cgroup/b".to_owned()],
            nest: Some("kubepods/podx".to_owned()),
            comm: "vllm".to_owned(),
            uid: Some(1001),
            gpus: vec![0, 7],
            opener: Opener::Number(4711),
            give: Some("/run/give".to_owned()),
            take: Some("/run/take".to_owned()),
            forks: 3,
            bare: true,
            contained: true,
            relative: true,
            exec: Some("trainer".to_owned()),
            task: Some(("/tmp/bed/tasks".to_owned(), "7".to_owned())),
            libtpu: Some("tpu-v5e4".to_owned()),
            hold: Hold::Storm { count: 500, per_second: 2000 },
            executed: true,
        };
        let read = Script::from_arguments(script.to_arguments().into_iter()).unwrap();
        assert_eq!(read, script);
    }

    #[test]
    fn an_unknown_argument_is_named() {
        let error = Script::from_arguments(["--jion=/x".to_owned()].into_iter()).unwrap_err();
        assert_eq!(error.to_string(), "bad argument --jion=/x");
    }
}
