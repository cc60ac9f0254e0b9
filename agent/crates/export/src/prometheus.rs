//! The endpoint that Prometheus scrapes: the last point of every live series as text, in Prometheus'
//! own format or OpenMetrics, under the names that the same OTLP points get at a receiver. The same
//! listener answers `/healthz` and `/readyz`.
//!
//! The tick's thread only replaces the points of the store; the thread `export:prometheus` renders,
//! compresses and sends. A series without a new point for five minutes is left out, as Prometheus
//! does with pushed points. Costs nothing until configured, then the live points' memory and the
//! pages of the last tick.

mod access;
mod answer;
mod dcgm;
pub mod def;
#[cfg(test)]
mod fixture;
mod names;
mod server;
mod store;
mod text;
mod tls;

use crate::held::RETRY_LISTEN;
use crate::naming::Profile;
use crate::{Held, Report, Sink};
use access::{Access, Users};
use bytes::Bytes;
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::heartbeat::Heartbeat;
use gpuwho_model::point::EnrichedBatch;
use gpuwho_owners::sockets;
use parking_lot::{Mutex, MutexGuard};
use server::Bounds;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use store::{Options, Store};
use text::Format;
use tls::Tls;
use tokio::sync::{Semaphore, oneshot};

/// The thread's name.
const THREAD: &str = "export:prometheus";

/// Password checks that run or wait: each takes tens of milliseconds, and goes on when its client is
/// gone.
const MAX_CHECKS: usize = 4;

/// The sink and its listener.
#[derive(Debug)]
struct PrometheusSink {
    endpoint: Arc<Endpoint>,
    /// Ends the thread when dropped.
    closing: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the tick's thread and the connections share.
#[derive(Debug)]
struct Endpoint {
    store: Mutex<Store>,
    access: Access,
    /// The places of password checks.
    checks: Arc<Semaphore>,
    tls: Option<Tls>,
    heartbeat: Arc<Heartbeat>,
    counts: Counts,
    /// Why it does not listen.
    held: Mutex<Option<Held>>,
}

/// The outcome of scrapes.
#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    undelivered: AtomicU64,
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// The names of the catalogue's metrics on the endpoint, in its order.
pub fn names() -> impl Iterator<Item = String> {
    names::FAMILIES.iter().take(*names::OWN).map(|family| family.name.clone())
}

/// The pages of native names that the endpoint serves, without a listener.
#[derive(Debug)]
pub struct Pages(Store);

impl Pages {
    /// With no series.
    pub fn new(host: &AttrSet) -> Self {
        let options = Options {
            profiles: vec![Profile::Native],
            owner_in_dcgm: false,
            scope_labels: false,
            target: text::labels(&mut host.iter()),
            host: Box::default(),
            of_host: text::of_host(host.iter().map(|(key, value)| (key.name, value))),
            stale: def::LOOKBACK,
        };
        Self(Store::new(options))
    }

    /// Takes the points of a tick.
    pub fn update(&mut self, batch: &EnrichedBatch) {
        self.0.update(batch, Instant::now());
    }

    /// The page of the last tick, rendered at first use; `None` where it cannot be made.
    pub fn page(&mut self, open_metrics: bool, is_gzip: bool) -> Option<Bytes> {
        let format = if open_metrics { Format::OpenMetrics } else { Format::Text };
        self.0.page(format, is_gzip, Instant::now()).ok().map(|page| page.body)
    }
}

impl Endpoint {
    fn new(options: Options, users: Users, tls: Option<Tls>, heartbeat: Arc<Heartbeat>) -> Self {
        let (store, access) = (Mutex::new(Store::new(options)), Access::new(users));
        let checks = Arc::new(Semaphore::new(MAX_CHECKS));
        Self {
            store,
            access,
            checks,
            tls,
            heartbeat,
            counts: Counts::default(),
            held: Mutex::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock()
    }

    /// Listens, or says why not and who does.
    fn listen(&self, address: SocketAddr) -> Option<(TcpListener, SocketAddr)> {
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok::<_, io::Error>((listener, address))
        };
        let (found, held) = match listen() {
            Ok((listener, address)) => {
                tracing::info!(%address, "metrics for Prometheus");
                (Some((listener, address)), None)
            }
            Err(error) => {
                let user = sockets::listening_users(address).pop_last();
                let error = error.raw_os_error().unwrap_or_default();
                (None, Some(Held::Address { address, error, user }))
            }
        };
        *self.held() = held;
        found
    }

    /// Listens as soon as the address is free.
    async fn listen_later(&self, address: SocketAddr) -> TcpListener {
        loop {
            tokio::time::sleep(RETRY_LISTEN).await;
            if let Some((listener, _)) = self.listen(address) {
                return listener;
            }
        }
    }
}

impl PrometheusSink {
    /// Listens and starts the thread; returns the address as well, whose port the kernel may have
    /// chosen. Where the address is another's, the thread tries again.
    fn start(
        address: SocketAddr,
        endpoint: Endpoint,
        bounds: Bounds,
    ) -> io::Result<(Self, SocketAddr)> {
        let listening = endpoint.listen(address);
        let at = listening.as_ref().map_or(address, |(_, at)| *at);
        // The one blocking thread checks passwords.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(1)
            .thread_name(format!("{THREAD}-auth"))
            .build()?;
        let endpoint = Arc::new(endpoint);
        let (closing, closed) = oneshot::channel::<()>();
        let served = Arc::clone(&endpoint);
        let thread = std::thread::Builder::new().name(THREAD.into()).spawn(move || {
            runtime.block_on(async move {
                let serve = async {
                    let listener = match listening {
                        Some((listener, _)) => listener,
                        None => served.listen_later(address).await,
                    };
                    match tokio::net::TcpListener::from_std(listener) {
                        Ok(listener) => server::serve(listener, Arc::clone(&served), bounds).await,
                        Err(error) => tracing::error!(%error, "no metrics endpoint"),
                    }
                };
                tokio::select! {
                    () = serve => {}
                    // The sink was dropped.
                    _ = closed => {}
                }
            });
            runtime.shutdown_background();
        })?;
        let (closing, thread) = (Some(closing), Some(thread));
        Ok((Self { endpoint, closing, thread }, at))
    }
}

impl Drop for PrometheusSink {
    /// Closes the listener, so that its address is free; clients that still read lose their page.
    fn drop(&mut self) {
        drop(self.closing.take());
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the metrics endpoint's thread has panicked");
        }
    }
}

impl Sink for PrometheusSink {
    fn export(&mut self, batch: &EnrichedBatch) {
        self.endpoint.store.lock().update(batch, Instant::now());
    }

    /// Nothing waits here: the points of the last tick are scraped or not.
    fn flush(&mut self, _: Instant) {}

    fn report(&self) -> Report {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { accepted, undelivered, requests, bytes } = &self.endpoint.counts;
        let store = self.endpoint.store.lock();
        Report {
            accepted: read(accepted),
            undelivered: read(undelivered) + store.left_out,
            not_finite: store.not_finite,
            requests: read(requests),
            bytes: read(bytes),
            held: *self.endpoint.held(),
            ..Report::default()
        }
    }
}
