//! An OTLP receiver that takes every request over HTTP, and counts and keeps the last of those of metrics.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Requests that are kept: more than a tick is divided into.
const KEPT: usize = 8;

/// A receiver; its thread waits until the process ends.
#[derive(Debug)]
pub struct Receiver {
    endpoint: String,
    requests: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    last: Arc<Mutex<VecDeque<Vec<u8>>>>,
}

impl Receiver {
    /// Listens on a free port of the loopback interface.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let (requests, bytes) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let counts = (Arc::clone(&requests), Arc::clone(&bytes));
        let last = Arc::<Mutex<VecDeque<Vec<u8>>>>::default();
        let kept = Arc::clone(&last);
        thread::Builder::new().name("receiver".to_owned()).spawn(move || {
            for stream in listener.incoming().flatten() {
                // An agent has a connection for metrics and one for logs.
                let (requests, bytes) = (Arc::clone(&counts.0), Arc::clone(&counts.1));
                let kept = Arc::clone(&kept);
                // A client that goes in the middle of a request is an agent that was ended.
                thread::spawn(move || answer(stream, (&requests, &bytes), &kept));
            }
        })?;
        Ok(Self { endpoint, requests, bytes, last })
    }

    /// Its URL.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Requests of metrics and bytes of their bodies so far.
    pub fn received(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// The bodies of the last requests, as they came, the newest first.
    pub fn last(&self) -> Vec<Vec<u8>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().rev().cloned().collect()
    }
}

/// Answers one connection until it is closed.
fn answer(
    stream: TcpStream,
    (requests, bytes): (&AtomicU64, &AtomicU64),
    last: &Mutex<VecDeque<Vec<u8>>>,
) -> io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    loop {
        let (mut length, mut is_metrics) = (0_u64, false);
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            is_metrics |= line.starts_with("POST /v1/metrics ");
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            if line.trim_end().is_empty() {
                break;
            }
        }
        let mut body = input.by_ref().take(length);
        if is_metrics {
            let mut whole = Vec::new();
            io::copy(&mut body, &mut whole)?;
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.len() == KEPT {
                last.pop_front();
            }
            last.push_back(whole);
            requests.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(length, Ordering::Relaxed);
        } else {
            io::copy(&mut body, &mut io::sink())?;
        }
        out.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n",
        )?;
    }
}
