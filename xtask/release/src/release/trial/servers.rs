//! The servers of a trial, on this machine's loopback alone.

use anyhow::{Context as _, Result};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use xtask::{shell, unpacked};

/// The registry's user and password, as a login file has them: `user:password`.
pub(super) const USER: &str = "dXNlcjpwYXNzd29yZA==";
/// The same, as the registry has them.
const HTPASSWD: &str = "user:$2b$05$abcdefghijklmnopqrstuuWG29KuyeAicPCJODk1zjyGvyQUU2awu\n";
/// Debian's release: its libraries must be this machine's.
const SUITE: &str = "bookworm";

/// A web server for a folder, with TLS: folder, certificate, key.
const TLS: &str = r#"
import functools, http.server, ssl, sys
folder, certificate, key = sys.argv[1:]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
print("listening on localhost:%d." % server.server_port, flush=True)
server.serve_forever()
"#;

/// A server that ends with this.
pub(super) struct Server {
    /// `127.0.0.1:PORT`
    pub(super) address: String,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A web server for a folder.
pub(super) fn web(folder: &Path) -> Result<Server> {
    let options = ["-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory"];
    let mut command = shell::program("python3", options);
    command.arg(folder).arg("0").stdout(Stdio::piped()).stderr(Stdio::null());
    // `Serving HTTP on 127.0.0.1 port 40231 (http://127.0.0.1:40231/) ...`
    Server::start(command, |line| line.split("(http://").nth(1)?.split('/').next())
}

/// A web server with TLS for a folder, as `localhost:PORT`, and the certificate in `work` by which it is known.
pub(super) fn tls(folder: &Path, work: &Path) -> Result<(Server, PathBuf)> {
    let (certificate, key) = (work.join("tls.pem"), work.join("tls.key"));
    let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"];
    let mut openssl = shell::program("openssl", request);
    openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"]);
    shell::capture(openssl.arg(&key).arg("-out").arg(&certificate))?;
    let mut command = shell::program("python3", ["-c", TLS]);
    command.arg(folder).arg(&certificate).arg(&key).stdout(Stdio::piped()).stderr(Stdio::null());
    let server =
        Server::start(command, |line| line.strip_prefix("listening on ")?.strip_suffix('.'))?;
    Ok((server, certificate))
}

/// Docker's registry, which lets nobody in without the password.
pub(super) fn registry(work: &Path) -> Result<Server> {
    let program = unpacked::program("docker-registry", SUITE, "usr/bin/docker-registry")?;
    let passwords = work.join("htpasswd");
    fs::write(&passwords, HTPASSWD).context("writing the registry's password")?;
    let config = serde_json::json!({
        "version": "0.1",
        "log": { "accesslog": { "disabled": true } },
        "storage": { "filesystem": { "rootdirectory": work.join("registry") } },
        "auth": { "htpasswd": { "realm": "try", "path": passwords } },
        "http": { "addr": "127.0.0.1:0" },
    });
    // YAML is a superset of JSON.
    let file = work.join("registry.yml");
    fs::write(&file, config.to_string()).context("writing the registry's configuration")?;
    let mut command = shell::program(program, ["serve"]);
    // Its standard error would be lost in what is tried.
    command.arg(&file).stderr(Stdio::piped()).stdout(Stdio::null());
    Server::start(command, |line| line.split("listening on ").nth(1)?.split('"').next())
}

impl Server {
    /// Waits until it says where it listens, and reads on what it says then.
    fn start(mut command: Command, address: fn(&str) -> Option<&str>) -> Result<Self> {
        let line = shell::line(&command);
        let mut child = command.spawn().with_context(|| format!("starting {line}"))?;
        let output: Box<dyn std::io::Read + Send> = match (child.stdout.take(), child.stderr.take())
        {
            (Some(output), _) => Box::new(output),
            (_, Some(output)) => Box::new(output),
            _ => anyhow::bail!("{line} says nothing"),
        };
        let mut server = Self { address: String::new(), child };
        let mut lines = BufReader::new(output).lines();
        let found = lines.by_ref().find_map(|said| address(&said.ok()?).map(str::to_owned));
        server.address = found.with_context(|| format!("{line} ended"))?;
        thread::spawn(move || lines.for_each(drop));
        Ok(server)
    }
}
