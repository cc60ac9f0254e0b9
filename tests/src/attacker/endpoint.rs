//! Passwords at the endpoint for Prometheus.

use super::{Attack, become_nobody};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::Duration;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "passwords", run: passwords },
    Attack { name: "silent-clients", run: silent_clients },
];

/// Connections that are open at a time: fewer than the endpoint has for all.
const OPEN: usize = 8;
/// Of connections that say nothing more than the endpoint has for all.
const SILENT: usize = 32;
/// One comes so often; a guess of many addresses, too: it is the checks that are to cost, not the requests.
const PACE: Duration = Duration::from_millis(10);
const GUESS: Duration = Duration::from_millis(2);
/// For the answer of the oldest of them.
const ANSWER: Duration = Duration::from_millis(20);

/// `ADDRESS COUNT [all]`: so many requests with a wrong password each, from one or from all of this host's
/// addresses. Writes a line `busy` for each that is refused with a time to come back, `refused` for each that
/// was checked, and at last `done`.
fn passwords(arguments: &[String]) -> io::Result<()> {
    let [address, count, all @ ..] = arguments else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "passwords ADDRESS COUNT [all]"));
    };
    let from = |number| if all.is_empty() { Ipv4Addr::LOCALHOST } else { loopback(number) };
    let count: u32 = count.parse().map_err(io::Error::other)?;
    become_nobody()?;
    let mut open = VecDeque::new();
    for number in 0..count {
        let mut stream = connect_from(from(number), address)?;
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
        if !all.is_empty() {
            thread::sleep(GUESS);
        }
    }
    open.into_iter().for_each(look);
    line("done")
}

/// `ADDRESS`: connections that say nothing, from all of this host's addresses, always more than the endpoint has.
/// Writes a line `ready` when they are there.
fn silent_clients(arguments: &[String]) -> io::Result<()> {
    let [address] = arguments else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "silent-clients ADDRESS"));
    };
    become_nobody()?;
    let mut open = VecDeque::new();
    for number in 0.. {
        open.push_back(connect_from(loopback(number), address)?);
        if open.len() == SILENT {
            line("ready")?;
        }
        if open.len() > SILENT {
            open.pop_front();
            thread::sleep(PACE);
        }
    }
    Ok(())
}

/// One of some hundred addresses that are all this host's.
fn loopback(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + 1 + number % 199)
}

fn connect_from(from: Ipv4Addr, to: &str) -> io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddrV4::new(from, 0))?;
    connect(&socket, &to.parse::<SocketAddr>().map_err(io::Error::other)?)?;
    Ok(socket.into())
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
