//! Runs the real OpenTelemetry Collector and reads what it received, from its `file` exporter:
//! one export request a line, in OTLP's JSON.

pub mod deployed;
pub mod received;

use crate::skip::Lack;
use crate::until::until;
use received::{ReceivedPoint, ReceivedRecord};
use std::env;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The variable that names the Collector's program.
pub const PROGRAM: &str = "GPUWHO_COLLECTOR";

/// A Go program of some ten components listens well within a second.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// Why there is no Collector.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// There is none on this machine.
    #[error("the OpenTelemetry Collector (cargo xtask collector)")]
    Unavailable,
    /// A file or process operation.
    #[error("{path}: {source}")]
    Os {
        /// On what.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// It does not listen.
    #[error("the Collector does not listen; its log:\n{log}")]
    Deaf {
        /// What it said.
        log: String,
    },
    /// What it wrote is not OTLP JSON.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

impl Lack for CollectorError {
    fn lack(&self) -> Option<String> {
        matches!(self, Self::Unavailable).then(|| self.to_string())
    }
}

/// The process of a Collector; ended when dropped.
#[derive(Debug)]
struct Process(Child);

/// A running Collector; ended when dropped.
#[derive(Debug)]
pub struct Collector {
    _process: Process,
    folder: PathBuf,
    address: Ipv4Addr,
    http: u16,
    grpc: u16,
}

impl Collector {
    /// Starts it with its files in `folder` and waits until it listens.
    /// [`CollectorError::Unavailable`] where [`PROGRAM`] is not set.
    pub fn start(folder: &Path) -> Result<Self, CollectorError> {
        Self::start_on(Ipv4Addr::LOCALHOST, folder)
    }

    /// The same on another address of this network namespace.
    pub fn start_on(address: Ipv4Addr, folder: &Path) -> Result<Self, CollectorError> {
        let program = env::var_os(PROGRAM).ok_or(CollectorError::Unavailable)?;
        let ports = [free_port(folder)?, free_port(folder)?];
        Self::listen(Path::new(&program), folder, address, ports)
    }

    /// Ends it; [`Collector::again`] starts one on the same ports, with the same file.
    pub fn stop(self) -> Stopped {
        Stopped {
            folder: self.folder.clone(),
            address: self.address,
            ports: [self.http, self.grpc],
        }
    }

    /// Starts one where another was.
    pub fn again(stopped: &Stopped) -> Result<Self, CollectorError> {
        let program = env::var_os(PROGRAM).ok_or(CollectorError::Unavailable)?;
        Self::listen(Path::new(&program), &stopped.folder, stopped.address, stopped.ports)
    }

    /// For OTLP/HTTP.
    pub fn http_endpoint(&self) -> String {
        format!("http://{}:{}", self.address, self.http)
    }

    /// For OTLP/gRPC.
    pub fn grpc_endpoint(&self) -> String {
        format!("http://{}:{}", self.address, self.grpc)
    }

    /// Every metric point received so far, in the order of arrival.
    pub fn points(&self) -> Result<Vec<ReceivedPoint>, CollectorError> {
        self.read(received::parse)
    }

    /// Every log record received so far, in the order of arrival.
    pub fn records(&self) -> Result<Vec<ReceivedRecord>, CollectorError> {
        self.read(received::records)
    }

    fn read<T>(
        &self,
        parse: fn(&str) -> Result<Vec<T>, serde_json::Error>,
    ) -> Result<Vec<T>, CollectorError> {
        let path = self.folder.join("received.jsonl");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(CollectorError::Os { path, source }),
        };
        // The last line may be half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        parse(whole).map_err(|source| CollectorError::Json { path, source })
    }

    /// Reads until `look` finds what it looks for; `None` after `within`. Each line is read once, and
    /// `look` called when there was a new one: a test that waits takes no time from what it tests.
    pub fn wait_for<T>(
        &self,
        within: Duration,
        mut look: impl FnMut(&[ReceivedPoint]) -> Option<T>,
    ) -> Result<Option<T>, CollectorError> {
        let path = self.folder.join("received.jsonl");
        let (mut points, mut read) = (Vec::new(), 0);
        until(within, || {
            let text = match rest(&path, read) {
                Ok(text) if text.is_empty() && read > 0 => return None,
                Ok(text) => text,
                Err(source) => return Some(Err(CollectorError::Os { path: path.clone(), source })),
            };
            read += text.len() as u64;
            match received::parse(&text) {
                Ok(new) => points.extend(new),
                Err(source) => {
                    return Some(Err(CollectorError::Json { path: path.clone(), source }));
                }
            }
            look(&points).map(Ok)
        })
        .transpose()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("collector.log")).unwrap_or_default()
    }

    fn listen(
        program: &Path,
        folder: &Path,
        address: Ipv4Addr,
        [http, grpc]: [u16; 2],
    ) -> Result<Self, CollectorError> {
        let os = |path: &Path| {
            let path = path.to_owned();
            move |source| CollectorError::Os { path, source }
        };
        fs::create_dir_all(folder).map_err(os(folder))?;
        let config = folder.join("collector.yaml");
        fs::write(&config, configuration(folder, address, [http, grpc])).map_err(os(&config))?;
        let log = folder.join("collector.log");
        let log = fs::File::create(&log).map_err(os(&log))?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut process =
            Process(crate::sys::die_with_us(&mut command).spawn().map_err(os(program))?);
        let listens = process.listens(address, [http, grpc]);
        let collector = Self { _process: process, folder: folder.to_owned(), address, http, grpc };
        if listens { Ok(collector) } else { Err(CollectorError::Deaf { log: collector.log() }) }
    }
}

impl Process {
    /// Whether it listens in time on both ports, and has not ended.
    fn listens(&mut self, address: Ipv4Addr, ports: [u16; 2]) -> bool {
        let open = |port| TcpStream::connect((address, port)).is_ok();
        let up = until(STARTS_WITHIN, || {
            let ended = self.0.try_wait().is_ok_and(|status| status.is_some());
            (ended || ports.into_iter().all(open)).then_some(!ended)
        });
        up == Some(true)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It writes what it has when asked politely. One that has ended already is fine too.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ended = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let ended = until(Duration::from_secs(5), || self.0.try_wait().ok().flatten());
        if ended.is_none() {
            let _gone = self.0.kill();
        }
        let _reaped = self.0.wait();
    }
}

/// Where a Collector was.
#[derive(Clone, Debug)]
pub struct Stopped {
    folder: PathBuf,
    address: Ipv4Addr,
    ports: [u16; 2],
}

/// The whole lines of a file behind a place; none where there is no file yet.
fn rest(path: &Path, read: u64) -> io::Result<String> {
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    file.seek(SeekFrom::Start(read))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    // The last line may be half written.
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    text.truncate(whole);
    String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The Prometheus names of metrics (name, unit and kind), as Prometheus' own library translates them.
pub fn translate(metrics: &[[&str; 3]]) -> Result<Vec<String>, CollectorError> {
    let program = env::var_os(PROGRAM).ok_or(CollectorError::Unavailable)?;
    let os = |source| CollectorError::Os { path: PathBuf::from(&program), source };
    let mut command = Command::new(&program);
    command.arg("translate").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(os)?;
    let lines: String = metrics.iter().map(|metric| metric.join("\t") + "\n").collect();
    if let Some(mut stdin) = child.stdin.take() {
        // It prints no more than it has read, and less than a pipe holds.
        stdin.write_all(lines.as_bytes()).map_err(os)?;
    }
    let output = child.wait_with_output().map_err(os)?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

pub(crate) fn free_port(folder: &Path) -> Result<u16, CollectorError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|source| CollectorError::Os { path: folder.to_owned(), source })
}

fn configuration(folder: &Path, address: Ipv4Addr, [http, grpc]: [u16; 2]) -> String {
    let file = folder.join("received.jsonl");
    format!(
        "\
receivers:
  otlp:
    protocols:
      http:
        endpoint: {address}:{http}
      grpc:
        endpoint: {address}:{grpc}
exporters:
  file:
    path: {}
    append: true
    flush_interval: 50ms
service:
  telemetry:
    metrics:
      level: none
    logs:
      level: warn
  pipelines:
    metrics:
      receivers: [otlp]
      exporters: [file]
    logs:
      receivers: [otlp]
      exporters: [file]
",
        file.display()
    )
}
