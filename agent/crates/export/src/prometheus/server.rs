//! Serves the endpoint's connections on one thread (`export:prometheus`), each within bounds.
//!
//! A connection carries one request and lives [`Bounds::whole`] at most. Above
//! [`Bounds::connections`] the oldest connection of the address with the most is closed, so that a
//! client that holds many takes no place from another address, and one that is slow none from those
//! that come after it.

use super::answer::{Answer, answer};
use super::{Counts, Endpoint};
use hyper::body::Body as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// What one client can take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Open connections, and so requests and pages in flight.
    pub(super) connections: usize,
    /// Time until the request's head is complete, which includes the TLS handshake.
    pub(super) head: Duration,
    /// Time for the whole connection.
    pub(super) whole: Duration,
    /// Bytes of the request's head, and its lines.
    pub(super) head_bytes: usize,
    pub(super) headers: usize,
}

/// A few servers scrape, each for some milliseconds. A head of 8 KiB is hyper's smallest limit.
pub(super) const BOUNDS: Bounds = Bounds {
    connections: 16,
    head: Duration::from_secs(5),
    whole: Duration::from_secs(30),
    head_bytes: 8 << 10,
    headers: 64,
};

/// The wait after a failure to accept, which is most often a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// An open connection.
#[derive(Debug)]
struct Open {
    peer: IpAddr,
    task: JoinHandle<()>,
}

/// Accepts connections until dropped.
pub(super) async fn serve(listener: TcpListener, endpoint: Arc<Endpoint>, bounds: Bounds) {
    // The oldest first.
    let mut open: Vec<Open> = Vec::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok((stream, peer)) => (stream, client_of(peer.ip())),
            Err(error) => {
                tracing::warn!(%error, "the metrics endpoint cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.task.is_finished());
        if open.len() >= bounds.connections
            && let Some(at) = to_close(&open.iter().map(|open| open.peer).collect::<Vec<_>>())
        {
            open.remove(at).task.abort();
        }
        let task = tokio::spawn(connection((stream, peer), Arc::clone(&endpoint), bounds));
        open.push(Open { peer, task });
    }
}

/// What counts as one client: an address, all of this host's loopback addresses, or the 2^64 addresses of
/// an IPv6 network, which one host may use as it likes.
fn client_of(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    if address.is_loopback() {
        return Ipv4Addr::LOCALHOST.into();
    }
    let IpAddr::V6(address) = address else { return address };
    let [a, b, c, d, ..] = address.segments();
    Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
}

/// The place of the oldest connection of the address with the most.
fn to_close(peers: &[IpAddr]) -> Option<usize> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for peer in peers {
        *counts.entry(*peer).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    peers.iter().position(|peer| counts.get(peer) == Some(&most))
}

/// Serves one connection; what cannot be read or written ends it, and nobody else notices.
async fn connection(
    (stream, client): (TcpStream, IpAddr),
    endpoint: Arc<Endpoint>,
    bounds: Bounds,
) {
    // The page is written at once; an error is that of a connection that is gone.
    let _ = stream.set_nodelay(true);
    let served = async {
        match &endpoint.tls {
            None => exchange((stream, client), &endpoint, bounds).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = timeout(bounds.head, tls.acceptor().accept(stream)).await {
                    exchange((stream, client), &endpoint, bounds).await;
                }
            }
        }
    };
    // Too late is counted where the answer is.
    let _ = timeout(bounds.whole, served).await;
}

async fn exchange<S>((stream, client): (S, IpAddr), endpoint: &Arc<Endpoint>, bounds: Bounds)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let delivery = Delivery { counts: &endpoint.counts, points: AtomicU64::new(0) };
    let service = service_fn(|request| {
        let delivery = &delivery;
        async move {
            let answer = answer(endpoint, client, &request).await;
            delivery.begin(&answer);
            Ok::<_, Infallible>(answer.response)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_buf_size(bounds.head_bytes)
        .max_headers(bounds.headers)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if served.is_ok() {
        delivery.complete();
    }
}

/// The points of an answer on their way. What is dropped before it is complete is lost.
struct Delivery<'a> {
    counts: &'a Counts,
    points: AtomicU64,
}

impl Delivery<'_> {
    fn begin(&self, answer: &Answer) {
        self.points.store(answer.points, Ordering::Relaxed);
        if answer.points > 0 {
            let bytes = answer.response.body().size_hint().exact().unwrap_or(0);
            self.counts.requests.fetch_add(1, Ordering::Relaxed);
            self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn complete(&self) {
        let points = self.points.swap(0, Ordering::Relaxed);
        self.counts.accepted.fetch_add(points, Ordering::Relaxed);
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        let points = self.points.load(Ordering::Relaxed);
        self.counts.undelivered.fetch_add(points, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
