//! A Collector with files of `deploy/collector`, started as their users do.

use super::{CollectorError, PROGRAM, Process, free_port};
use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// No port for the Collector's own metrics: several may run at once.
const NO_PORT: &str = "yaml:service::telemetry::metrics::level: none";

/// What tests change: no waiting for a full batch.
const NO_WAITING: &str = "yaml:processors::batch: {send_batch_size: 1, timeout: 50ms}";

/// A file of `deploy/collector`.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/collector").join(name)
}

/// A running Collector; ended when dropped.
#[derive(Debug)]
pub struct Deployed {
    process: Process,
    log: PathBuf,
    http: u16,
    grpc: u16,
}

impl Deployed {
    /// Starts it with files of `deploy/collector` and whatever else is named like `yaml:…`, the
    /// variables that they need, and its log in `folder`.
    pub fn start(
        folder: &Path,
        configuration: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self, CollectorError> {
        Self::unchanged(folder, &[configuration, &[NO_WAITING]].concat(), variables)
    }

    /// The same with batches as they are deployed: what is measured.
    pub fn unchanged(
        folder: &Path,
        configuration: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self, CollectorError> {
        let os = |source| CollectorError::Os { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(os)?;
        let log = folder.join("collector.log");
        let [http, grpc] = [free_port(folder)?, free_port(folder)?];
        let mut command = command(&[configuration, &[NO_PORT]].concat(), variables)?;
        command.env("HTTP_PORT", http.to_string()).env("GRPC_PORT", grpc.to_string());
        command.env("OTLP_LISTEN", "127.0.0.1");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(&log).map_err(os)?);
        let mut process = Process(crate::sys::die_with_us(&mut command).spawn().map_err(os)?);
        let listens = process.listens(Ipv4Addr::LOCALHOST, [http, grpc]);
        let deployed = Self { process, log, http, grpc };
        if listens { Ok(deployed) } else { Err(CollectorError::Deaf { log: deployed.log() }) }
    }

    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// For OTLP/HTTP.
    pub fn http_endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// For OTLP/gRPC, as the Collector's exporter wants it.
    pub fn grpc_address(&self) -> String {
        format!("127.0.0.1:{}", self.grpc)
    }

    /// What it logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// What `validate` says of a configuration; nothing where it is valid.
pub fn objections(
    configuration: &[&str],
    variables: &[(&str, &str)],
) -> Result<Option<String>, CollectorError> {
    let mut command = command(configuration, variables)?;
    command.arg("validate");
    let output = command
        .output()
        .map_err(|source| CollectorError::Os { path: command.get_program().into(), source })?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((!output.status.success()).then_some(said))
}

fn command(configuration: &[&str], variables: &[(&str, &str)]) -> Result<Command, CollectorError> {
    let program = env::var_os(PROGRAM).ok_or(CollectorError::Unavailable)?;
    let mut command = Command::new(program);
    for name in configuration {
        let is_file = !name.starts_with("yaml:");
        command.arg("--config").arg(if is_file { path(name) } else { PathBuf::from(name) });
    }
    command.envs(variables.iter().copied());
    Ok(command)
}
