//! Passwords at the endpoint for Prometheus.

use super::{Attack, become_nobody};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[Attack { name: "passwords", run: passwords }];

/// Connections that are open at a time: fewer than the endpoint has for all.
const OPEN: usize = 8;
/// For the answer of the oldest of them.
const ANSWER: Duration = Duration::from_millis(20);

/// `ADDRESS COUNT`: so many requests with a wrong password each. Writes a line `busy` for each that is
/// refused with a time to come back, `refused` for each that was checked, and at last `done`.
fn passwords(arguments: &[String]) -> io::Result<()> {
    let [address, count] = arguments else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "passwords ADDRESS COUNT"));
    };
    let count: u32 = count.parse().map_err(io::Error::other)?;
    become_nobody()?;
    let mut open = VecDeque::new();
    for number in 0..count {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {}\r\n\r\n",
            STANDARD.encode(format!("alice:wrong{number}"))
        );
        // One that was closed before is as good.
        let _ = stream.write_all(request.as_bytes());
        open.push_back(stream);
        if open.len() > OPEN {
            open.pop_front().into_iter().for_each(look);
        }
    }
    open.into_iter().for_each(look);
    line("done")
}

/// Says what a request was answered, if anything, and goes away.
fn look(mut stream: TcpStream) {
    let mut answer = [0; 512];
    let read = stream.read(&mut answer).unwrap_or(0);
    let answer =
        String::from_utf8_lossy(answer.get(..read).unwrap_or_default()).to_ascii_lowercase();
    let said = match answer.split(' ').nth(1) {
        Some("503") if answer.contains("\r\nretry-after: ") => "busy",
        Some("401") => "refused",
        _ => return,
    };
    // Nobody is left to hear it.
    let _ = line(said);
}

fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}
