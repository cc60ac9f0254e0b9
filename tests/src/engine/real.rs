//! Real inference engines, installed by `cargo xtask engines`: each starts in a pod's cgroups with a
//! network, mounts and devices of its own, and a client beside it sends requests and counts.

use super::serve::take_place;
use crate::program;
use crate::stage::Group;
use crate::worker::script::Script;
use rustix::mount::MountFlags;
use serde_json::Value;
use std::env;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Where the engines are installed; without it there are none.
pub const VARIABLE: &str = "GPUWHO_TEST_ENGINES";
/// The first argument of the program that becomes an engine.
pub const WORD: &str = "real";

/// Its own scripts, beside this crate.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/engines");
/// What every engine here is started with: no network, no telemetry, few threads.
const ENVIRONMENT: [(&str, &str); 8] = [
    ("HF_HUB_OFFLINE", "1"),
    ("TRANSFORMERS_OFFLINE", "1"),
    ("DO_NOT_TRACK", "1"),
    ("VLLM_NO_USAGE_STATS", "1"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("VLLM_HOST_IP", "127.0.0.1"),
    ("SGLANG_USE_CPU_ENGINE", "1"),
    ("SGLANG_DISABLE_CUDNN_CHECK", "1"),
];

/// A real engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Real {
    /// vLLM's build for CPUs.
    Vllm,
    /// SGLang, on torch's own operators.
    Sglang,
    /// Triton with models in Python.
    Triton,
}

impl Real {
    /// Its name, its folder's, and what the client calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Triton => "triton",
        }
    }

    /// The program and its arguments, the default ports among them.
    fn command(self, folder: &Path) -> Vec<String> {
        let text = |path: PathBuf| path.display().to_string();
        let bin = folder.join(self.name()).join("bin");
        let model = text(folder.join("tiny-llama"));
        let served = ["--served-model-name", "tiny-llama"];
        let (mut command, more): (Vec<String>, &[&str]) = match self {
            Self::Vllm => (
                vec![text(bin.join("vllm")), "serve".into(), model],
                &[
                    "--max-model-len",
                    "2048",
                    "--max-num-seqs",
                    "4",
                    "--enforce-eager",
                    "--dtype",
                    "bfloat16",
                ],
            ),
            Self::Sglang => (
                vec![
                    text(bin.join("python")),
                    "-m".into(),
                    "sglang.launch_server".into(),
                    "--model-path".into(),
                    model,
                ],
                &[
                    "--device",
                    "cpu",
                    "--attention-backend",
                    "torch_native",
                    "--sampling-backend",
                    "pytorch",
                    "--disable-overlap-schedule",
                    "--disable-cuda-graph",
                    "--enable-metrics",
                    "--mem-fraction-static",
                    "0.2",
                    "--max-total-tokens",
                    "8192",
                    "--context-length",
                    "2048",
                    // It would be counted as a request.
                    "--skip-server-warmup",
                ],
            ),
            Self::Triton => {
                (vec![text(bin.join("python")), format!("{SCRIPTS}/serve_triton.py")], &[])
            }
        };
        if self != Self::Triton {
            command.extend(served.map(str::to_owned));
        }
        command.extend(more.iter().map(|word| (*word).to_owned()));
        command
    }
}

/// Where the engines are installed.
pub fn installed() -> Result<PathBuf, &'static str> {
    env::var_os(VARIABLE).map(PathBuf::from).ok_or("real inference engines, of cargo xtask engines")
}

/// A running engine and its client; both end when dropped.
#[derive(Debug)]
pub struct RealEngine {
    engine: Child,
    client: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    log: PathBuf,
}

impl RealEngine {
    /// Starts one with these devices in a group, with a client for so many requests, and waits until
    /// it answers the client: minutes.
    pub fn start(
        which: Real,
        (group, gpus): (&Group, &[u32]),
        log: &Path,
        requests: u32,
    ) -> io::Result<Self> {
        let folder = installed().map_err(io::Error::other)?;
        let home = folder.join("home");
        fs::create_dir_all(&home)?;
        let script = Script {
            join: group.directories.iter().map(|path| path.display().to_string()).collect(),
            gpus: gpus.to_vec(),
            ..Script::default()
        };
        let venv = folder.join(which.name());
        let path =
            format!("{}:{}", venv.join("bin").display(), env::var("PATH").unwrap_or_default());
        let mut engine = Command::new(program::engine().map_err(io::Error::other)?)
            .arg(WORD)
            .args(script.to_arguments())
            .arg("--")
            .args(which.command(&folder))
            .current_dir(&home)
            .envs(ENVIRONMENT)
            .env("HOME", &home)
            .env("PATH", path)
            .env("LD_LIBRARY_PATH", fs::read_to_string(folder.join("library"))?.trim())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(File::create(log)?)
            .stderr(File::options().append(true).open(log)?)
            .spawn()?;
        let mut client = match client(which, &engine, &venv, requests) {
            Ok(client) => client,
            Err(error) => {
                let _ended = engine.kill();
                return Err(error);
            }
        };
        let missing = || io::Error::other("no pipe");
        let orders = client.stdin.take().ok_or_else(missing)?;
        let answers = BufReader::new(client.stdout.take().ok_or_else(missing)?);
        let mut started = Self { engine, client, orders, answers, log: log.to_owned() };
        match started.answer()?.as_str() {
            "ready" => Ok(started),
            other => Err(io::Error::other(format!("the client said {other:?}"))),
        }
    }

    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.engine.id()
    }

    /// Sends the requests and waits for all answers; what the client has counted.
    pub fn drive(&mut self) -> io::Result<Value> {
        writeln!(self.orders)?;
        Ok(serde_json::from_str(&self.answer()?)?)
    }

    fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let log = || fs::read_to_string(&self.log).unwrap_or_default();
        if line.is_empty() { Err(io::Error::other(log())) } else { Ok(line.trim_end().to_owned()) }
    }
}

impl Drop for RealEngine {
    fn drop(&mut self) {
        // The engine's children are in its process group.
        let _ended = self.client.kill();
        let group = rustix::process::Pid::from_child(&self.engine);
        let _ended = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _reaped = (self.client.wait(), self.engine.wait());
    }
}

/// Sends requests from inside the engine's network; ends when the engine does.
fn client(which: Real, engine: &Child, venv: &Path, requests: u32) -> io::Result<Child> {
    let script = format!("{SCRIPTS}/drive.py");
    let network = format!("--net=/proc/{}/ns/net", engine.id());
    // The engine's network is there a moment after its process.
    let wait = "until [ \"$(readlink /proc/$1/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do \
                [ -d /proc/$1 ] || exit 1; sleep 0.1; done; shift; exec \"$@\"";
    Command::new("sh")
        .args(["-c", wait, "sh", &engine.id().to_string(), "nsenter", &network])
        .arg(venv.join("bin/python"))
        .args([&script, which.name(), &requests.to_string(), &engine.id().to_string()])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

/// Gets into the place that the first arguments say, and becomes the program behind `--`, which keeps the devices open.
pub fn become_program(mut arguments: impl Iterator<Item = String>) -> io::Result<()> {
    let script: Vec<String> = arguments.by_ref().take_while(|word| word != "--").collect();
    let _open = take_place(&Script::from_arguments(script.into_iter())?, true)?;
    // What a container has besides: shared memory, and terminals, by which Triton's log comes.
    fs::create_dir("/dev/shm")?;
    fs::create_dir("/dev/pts")?;
    let options = c"newinstance,ptmxmode=0666" as &CStr;
    rustix::mount::mount("devpts", "/dev/pts", "devpts", MountFlags::NOSUID, options)?;
    symlink("pts/ptmx", "/dev/ptmx")?;
    let program = arguments.next().ok_or_else(|| io::Error::other("no program"))?;
    Err(Command::new(program).args(arguments).exec())
}
