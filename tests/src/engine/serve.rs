//! What the fake engine does: gets into its place, opens its devices, listens, and answers.

use crate::sys;
use crate::worker::script::Script;
use crate::worker::{act, nodes};
use rustix::thread::UnshareFlags;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Tokens of a request's prompt.
pub const PROMPT: u64 = 10;
/// Tokens generated for a request.
pub const GENERATED: u64 = 25;

/// A page of the real engine.
pub(crate) const PAGE: &str = include_str!("../../fixtures/engines/vllm-0.32.0-busy.prom");
/// The counters that move, each with what a request adds.
const MOVING: [(&str, u64); 3] = [
    ("vllm:prompt_tokens_total{", PROMPT),
    ("vllm:generation_tokens_total{", GENERATED),
    ("vllm:request_success_total{engine=\"0\",finished_reason=\"stop\"", 1),
];
/// Ports that are nobody's business: a store, a rendezvous, messages.
const STRANGE_PORTS: usize = 3;

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Its page.
    Page,
    /// Nothing, for ever.
    Hang,
    /// The page without end.
    Endless,
    /// A redirect to another host.
    Redirect,
    /// Zeros that inflate to 100 times as much.
    Gzip,
    /// A page for people.
    Html,
    /// Another protocol.
    Other,
}

impl Mode {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::Page,
        Self::Hang,
        Self::Endless,
        Self::Redirect,
        Self::Gzip,
        Self::Html,
        Self::Other,
    ];

    /// As an argument.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Hang => "hang",
            Self::Endless => "endless",
            Self::Redirect => "redirect",
            Self::Gzip => "gzip",
            Self::Html => "html",
            Self::Other => "other",
        }
    }
}

/// What it is told on its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It has served so many requests more.
    Work(u64),
    /// Who has asked.
    Asked,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(requests) => write!(f, "work {requests}"),
            Self::Asked => f.write_str("asked"),
        }
    }
}

impl Order {
    fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            Some(("work", requests)) => Some(Self::Work(requests.parse().ok()?)),
            _ => (line == "asked").then_some(Self::Asked),
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    served: AtomicU64,
    pages: AtomicU64,
    others: AtomicU64,
    strange_connections: AtomicU64,
    strange_bytes: AtomicU64,
}

/// Serves until its standard input closes: `MODE PORT OWN_NETWORK`, then the worker's arguments.
pub fn run(mut arguments: impl Iterator<Item = String>) -> io::Result<()> {
    let bad = || io::Error::other("engine MODE PORT OWN_NETWORK ARGUMENT…");
    let mode = arguments.next().ok_or_else(bad)?;
    let mode = Mode::ALL.into_iter().find(|one| one.as_str() == mode).ok_or_else(bad)?;
    let port: u16 = arguments.next().and_then(|port| port.parse().ok()).ok_or_else(bad)?;
    let own_network = arguments.next().is_some_and(|word| word == "true");
    // Held until the process ends.
    let _open = take_place(&Script::from_arguments(arguments)?, own_network)?;
    let counts = Arc::new(Counts::default());
    let page = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let port = page.local_addr()?.port();
    listen(page, &counts, move |stream, counts| answer(stream, mode, counts));
    for _ in 0..STRANGE_PORTS {
        let other = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        listen(other, &counts, |mut stream, counts| {
            counts.strange_connections.fetch_add(1, Ordering::SeqCst);
            let bytes = io::copy(&mut stream, &mut io::sink())?;
            counts.strange_bytes.fetch_add(bytes, Ordering::SeqCst);
            Ok(())
        });
    }
    print_line(&format!("ready {port}"))?;
    obey(&counts)
}

/// Gets into the cgroups, namespaces and user of a script; gives its devices, opened.
pub(super) fn take_place(script: &Script, own_network: bool) -> io::Result<Vec<OwnedFd>> {
    act::die_with_parent()?;
    act::join(&script.join)?;
    if own_network {
        sys::own_namespaces(UnshareFlags::NEWNET)?;
        sys::loopback_up()?;
    }
    if !script.join.is_empty() {
        nodes::private_dev()?;
    }
    act::become_user(script.uid)?;
    act::take_name(&script.comm)?;
    if script.gpus.is_empty() { Ok(Vec::new()) } else { nodes::open_gpus(script) }
}

fn obey(counts: &Counts) -> io::Result<()> {
    for line in io::stdin().lines() {
        match Order::parse(&line?) {
            Some(Order::Work(requests)) => {
                counts.served.fetch_add(requests, Ordering::SeqCst);
                print_line("done")?;
            }
            Some(Order::Asked) => {
                let all = [
                    &counts.pages,
                    &counts.others,
                    &counts.strange_connections,
                    &counts.strange_bytes,
                ];
                let all = all.map(|count| count.load(Ordering::SeqCst).to_string());
                print_line(&all.join(" "))?;
            }
            None => return Err(io::Error::other("an order that is none")),
        }
    }
    Ok(())
}

fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Answers each connection in a thread of its own, as long as the process lives.
fn listen(
    listener: TcpListener,
    counts: &Arc<Counts>,
    serve: impl Fn(TcpStream, &Counts) -> io::Result<()> + Send + Sync + 'static,
) {
    let (counts, serve) = (Arc::clone(counts), Arc::new(serve));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (counts, serve) = (Arc::clone(&counts), Arc::clone(&serve));
            // A client that goes away is what is tried.
            thread::spawn(move || serve(stream, &counts).ok());
        }
    });
}

fn answer(mut stream: TcpStream, mode: Mode, counts: &Counts) -> io::Result<()> {
    if mode == Mode::Other {
        counts.pages.fetch_add(1, Ordering::SeqCst);
        return stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
    }
    let lines = BufReader::new(stream.try_clone()?).lines();
    let head: Vec<String> =
        lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let is_page = head.first().is_some_and(|line| line.starts_with("GET /metrics "));
    let count = if is_page { &counts.pages } else { &counts.others };
    count.fetch_add(1, Ordering::SeqCst);
    let first = head.first().map_or("", String::as_str);
    if first.starts_with("GET /version ") {
        let version = "{\"version\":\"0.32.0\"}";
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
        return stream.write_all(format!("{head}{version}").as_bytes());
    }
    if !is_page {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\n\r\n");
    }
    let ok = |media: &str| format!("HTTP/1.1 200 OK\r\ncontent-type: {media}\r\n");
    let text = ok("text/plain; version=0.0.4; charset=utf-8");
    match mode {
        Mode::Page | Mode::Other => {
            let page = page(counts.served.load(Ordering::SeqCst));
            stream.write_all(format!("{text}\r\n{page}").as_bytes())
        }
        Mode::Hang => stream.read(&mut [0]).map(drop),
        Mode::Endless => {
            stream.write_all(format!("{text}\r\n").as_bytes())?;
            loop {
                stream.write_all(PAGE.as_bytes())?;
            }
        }
        Mode::Redirect => stream.write_all(
            b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.2:8000/other\r\n\r\n",
        ),
        Mode::Gzip => {
            stream.write_all(format!("{text}content-encoding: gzip\r\n\r\n").as_bytes())?;
            stream.write_all(&vec![0; 1 << 16])
        }
        Mode::Html => stream.write_all(format!("{}\r\n<html></html>", ok("text/html")).as_bytes()),
    }
}

/// The recorded page, after so many requests more.
fn page(served: u64) -> String {
    let mut page = String::with_capacity(PAGE.len() + 64);
    for line in PAGE.lines() {
        let moving = MOVING.iter().find(|(name, _)| line.starts_with(name));
        let moved = moving.and_then(|(_, each)| {
            let (name, value) = line.rsplit_once(' ')?;
            let value: f64 = value.parse().ok()?;
            Some(format!("{name} {}", value + (served * each) as f64))
        });
        page.push_str(moved.as_deref().unwrap_or(line));
        page.push('\n');
    }
    page
}

/// The value of a moving counter on the recorded page, before any work.
pub fn recorded(name: &str) -> Option<f64> {
    let line = PAGE.lines().find(|line| line.starts_with(name))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_moving_counters_move() {
        let (before, after) = (page(0), page(4));
        let moved: Vec<_> = before.lines().zip(after.lines()).filter(|(a, b)| a != b).collect();
        assert_eq!(moved.len(), MOVING.len(), "{moved:#?}");
        assert_eq!(
            recorded("vllm:generation_tokens_total{").map(|before| {
                let line =
                    after.lines().find(|line| line.starts_with("vllm:generation_tokens_total{"));
                let value: f64 = line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap();
                value - before
            }),
            Some(4.0 * GENERATED as f64)
        );
    }
}
