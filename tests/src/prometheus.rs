//! Runs the real Prometheus, which scrapes an agent or receives what it sends, and asks it by its API.

use crate::collector::{CollectorError, free_port};
use crate::skip::Lack;
use crate::until::until;
use serde_json::Value;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// It opens an empty database within a second or two.
const STARTS_WITHIN: Duration = Duration::from_mins(1);

/// How long it and the agent may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Why there is no Prometheus.
#[derive(Debug, thiserror::Error)]
pub enum PrometheusError {
    /// There is none on this machine.
    #[error("prometheus (Debian's)")]
    Unavailable,
    /// No Prometheus that takes OTLP.
    #[error("Prometheus 3 (cargo xtask collector --prometheus)")]
    NoReceiver,
    /// A file, process or connection.
    #[error("{what}: {source}")]
    Os {
        /// On what.
        what: String,
        /// What happened.
        source: io::Error,
    },
    /// No port.
    #[error(transparent)]
    Port(#[from] CollectorError),
    /// It does not answer.
    #[error("Prometheus does not answer; its log:\n{0}")]
    Deaf(String),
}

impl Lack for PrometheusError {
    fn lack(&self) -> Option<String> {
        matches!(self, Self::Unavailable | Self::NoReceiver).then(|| self.to_string())
    }
}

/// A running Prometheus; ended when dropped.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    port: u16,
}

impl Prometheus {
    /// Starts it with its files in `folder`, and lets it scrape `target` as the job `gpuwho` twice a
    /// second. [`PrometheusError::Unavailable`] where there is no program.
    pub fn start(folder: &Path, target: &str) -> Result<Self, PrometheusError> {
        let text = format!(
            "scrape_configs:\n- job_name: gpuwho\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n  \
             static_configs: [{{targets: ['{target}']}}]\n"
        );
        Self::with(&program(), folder, &text, &[])
    }

    /// Starts it with a configuration.
    pub fn configured(folder: &Path, text: &str) -> Result<Self, PrometheusError> {
        Self::with(&program(), folder, text, &[])
    }

    /// Starts one that scrapes nothing and takes remote write.
    pub fn receiver(folder: &Path) -> Result<Self, PrometheusError> {
        Self::with(&program(), folder, "", &["--web.enable-remote-write-receiver"])
    }

    /// Starts version 3 with a configuration, and lets it take OTLP.
    pub fn otlp(folder: &Path, text: &str) -> Result<Self, PrometheusError> {
        let program = env::var_os("GPUWHO_TEST_PROMETHEUS").ok_or(PrometheusError::NoReceiver)?;
        Self::with(&program, folder, text, &["--web.enable-otlp-receiver"])
    }

    fn with(
        program: &OsStr,
        folder: &Path,
        text: &str,
        options: &[&str],
    ) -> Result<Self, PrometheusError> {
        let os = |what: &Path| {
            let what = what.display().to_string();
            move |source| PrometheusError::Os { what, source }
        };
        fs::create_dir_all(folder).map_err(os(folder))?;
        let config = folder.join("prometheus.yaml");
        fs::write(&config, text).map_err(os(&config))?;
        let log = folder.join("prometheus.log");
        let port = free_port(folder)?;
        let option = |name: &str, value: &Path| {
            let mut option = OsString::from(name);
            option.push(value);
            option
        };
        let mut command = Command::new(program);
        command.arg(option("--config.file=", &config));
        command.arg(option("--storage.tsdb.path=", &folder.join("data")));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command.args(options).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(&log).map_err(os(&log))?);
        let child = match crate::sys::die_with_us(&mut command).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(PrometheusError::Unavailable);
            }
            Err(source) => return Err(os(Path::new(program))(source)),
        };
        let prometheus = Self { child, port };
        let ready = until(STARTS_WITHIN, || {
            let answer = prometheus.get("/-/ready").ok()?;
            answer.contains(" 200 ").then_some(())
        });
        match ready {
            Some(()) => Ok(prometheus),
            None => Err(PrometheusError::Deaf(fs::read_to_string(log).unwrap_or_default())),
        }
    }

    /// Where it takes OTLP over HTTP, as the agent wants it.
    pub fn otlp_url(&self) -> String {
        format!("http://127.0.0.1:{}/api/v1/otlp", self.port)
    }

    /// Where it takes remote write.
    pub fn write_url(&self) -> String {
        format!("http://127.0.0.1:{}/api/v1/write", self.port)
    }

    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The result of a query at this moment: an array of series.
    pub fn query(&self, query: &str) -> Result<Vec<Value>, PrometheusError> {
        let answer = self.ask(query)?;
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    }

    /// The whole answer to a query at this moment, errors included.
    pub fn ask(&self, query: &str) -> Result<Value, PrometheusError> {
        let mut encoded = String::new();
        for byte in query.bytes() {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
        self.api(&format!("/api/v1/query?query={encoded}"))
    }

    /// Its rules, each with its health.
    pub fn rules(&self) -> Result<Vec<Value>, PrometheusError> {
        let answer = self.api("/api/v1/rules")?;
        let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
        let rules = groups.iter().filter_map(|group| group["rules"].as_array().cloned());
        Ok(rules.flatten().collect())
    }

    /// The names of all metrics.
    pub fn names(&self) -> Result<Vec<String>, PrometheusError> {
        let mut answer = self.api("/api/v1/label/__name__/values")?;
        Ok(serde_json::from_value(answer["data"].take()).unwrap_or_default())
    }

    /// The kind of each metric, by its name.
    pub fn metadata(&self) -> Result<Value, PrometheusError> {
        Ok(self.api("/api/v1/metadata")?["data"].take())
    }

    fn api(&self, path: &str) -> Result<Value, PrometheusError> {
        let answer = self.get(path)?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).map_err(|_| PrometheusError::Deaf(answer))
    }

    fn get(&self, path: &str) -> Result<String, PrometheusError> {
        get(&format!("127.0.0.1:{}", self.port), path)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Its data goes with the folder.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The one that scrapes and takes remote write.
fn program() -> OsString {
    env::var_os("GPUWHO_PROMETHEUS").unwrap_or_else(|| "prometheus".into())
}

/// An unused address of this machine.
pub fn free_address(folder: &Path) -> Result<String, PrometheusError> {
    Ok(format!("{}:{}", Ipv4Addr::LOCALHOST, free_port(folder)?))
}

/// What a server answers, with its head.
pub fn get(address: &str, path: &str) -> Result<String, PrometheusError> {
    get_with(address, path, "")
}

/// The same of a request with more lines in its head, each with its end.
pub fn get_with(address: &str, path: &str, more: &str) -> Result<String, PrometheusError> {
    let exchange = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        stream.write_all(
            format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n{more}\r\n").as_bytes(),
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    exchange().map_err(|source| PrometheusError::Os { what: address.to_owned(), source })
}
