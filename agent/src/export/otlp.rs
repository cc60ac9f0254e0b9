//! The OTLP sink: encodes on the tick's thread, queues within bounds, and sends from one thread of
//! its own (`export:otlp`) over HTTP or gRPC.
//!
//! While the receiver is unavailable, requests wait in order and keep their own timestamps. A full
//! queue drops the oldest and counts them. Costs about 0.1 µs a point for
//! encoding and 0.3 µs for gzip, no allocation a point, and at most `queue_bytes` plus two
//! requests of memory.

mod cause;
pub(crate) mod connection;
mod counts;
pub mod def;
pub mod encode;
mod grpc;
mod health;
mod http;
mod logs;
mod queue;
pub mod resource;
mod retry;
mod sender;
pub mod settings;
pub(crate) mod tls;
mod wire;

use crate::export::{EnrichedBatch, Report, Sink};
use bytes::Bytes;
use counts::SinkCounters;
use encode::{Encoder, Limits};
use flate2::write::GzEncoder;
use grpc::PREFIX;
use queue::{Queue, Request};
use sender::Sender;
use settings::{Compression, Protocol, Settings};
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::watch;

pub use logs::LogsSink;
pub use resource::Resource;

/// Time for the sender to count the remaining points after its deadline.
const GRACE: Duration = Duration::from_millis(500);

/// The sender's thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the OTLP sender ({0})")]
pub struct StartError(#[from] io::Error);

/// Sends batches to one OTLP receiver.
#[derive(Debug)]
pub struct OtlpSink {
    encoder: Encoder,
    queue: OtlpQueue,
}

impl OtlpSink {
    /// Starts the sender. Nothing is connected, resolved or read from disk before the first batch.
    pub fn start(settings: &Settings, resource: &Resource) -> Result<Self, StartError> {
        let queue = OtlpQueue::start("export:otlp", settings)?;
        Ok(Self { encoder: Encoder::new(resource, Limits::default()), queue })
    }
}

impl Sink for OtlpSink {
    fn export(&mut self, batch: &EnrichedBatch) {
        let Self { encoder, queue } = self;
        encoder.encode(batch, &mut |raw, points| queue.push(raw, points as u64));
    }

    fn flush(&mut self, deadline: Instant) {
        self.queue.flush(deadline);
    }

    fn report(&self) -> Report {
        self.queue.report(self.encoder.not_finite())
    }
}

/// The queue of one signal and the thread that sends from it.
#[derive(Debug)]
struct OtlpQueue {
    protocol: Protocol,
    compression: Compression,
    queue: Arc<Queue>,
    counts: Arc<SinkCounters>,
    closing: watch::Sender<Option<Instant>>,
    done: Receiver<()>,
}

impl OtlpQueue {
    fn start(thread: &str, settings: &Settings) -> Result<Self, StartError> {
        let queue = Arc::new(Queue::new(settings.queue_bytes));
        let counts = Arc::new(SinkCounters::default());
        let (closing, closed) = watch::channel(None);
        let (ended, done) = sync_channel(1);
        // The one blocking thread resolves host names. It ends after ten idle seconds.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(1)
            .thread_name(format!("{thread}-dns"))
            .build()?;
        let sender = Sender::new(settings, Arc::clone(&queue), Arc::clone(&counts), closed);
        std::thread::Builder::new().name(thread.to_owned()).spawn(move || {
            runtime.block_on(sender.run());
            // A look-up that hangs must not delay the agent's end.
            runtime.shutdown_background();
            // The receiving end is gone when the sink was dropped without a flush.
            let _ = ended.send(());
        })?;
        let Settings { protocol, compression, .. } = *settings;
        Ok(Self { protocol, compression, queue, counts, closing, done })
    }

    /// Queues an encoded request with `points` points or records.
    fn push(&self, raw: &[u8], points: u64) {
        let closed = self.closing.borrow().is_some();
        match pack(raw, self.protocol, self.compression) {
            Ok(body) if !closed => {
                let lost = self.queue.push(Request { body, points });
                SinkCounters::add(&self.counts.queue_full, lost);
            }
            // The sender has ended after the flush. Compression into memory does not fail.
            Ok(_) | Err(_) => SinkCounters::add(&self.counts.undelivered, points),
        }
    }

    fn flush(&self, deadline: Instant) {
        self.closing.send_replace(Some(deadline));
        let left = deadline.saturating_duration_since(Instant::now());
        // An error means that the sender has already ended.
        let _ = self.done.recv_timeout(left + GRACE);
    }

    fn report(&self, not_finite: u64) -> Report {
        self.counts.report(not_finite)
    }
}

impl Drop for OtlpQueue {
    /// Ends the sender's thread at once; [`Sink::flush`] before this sends the queued requests.
    fn drop(&mut self) {
        self.closing.send_replace(Some(Instant::now()));
    }
}

/// The body as sent: compressed once for all attempts, and for gRPC after its prefix.
fn pack(raw: &[u8], protocol: Protocol, compression: Compression) -> io::Result<Bytes> {
    let prefix = match protocol {
        Protocol::Http => 0,
        Protocol::Grpc => PREFIX,
    };
    let mut out = vec![0; prefix];
    match compression {
        Compression::None => out.extend_from_slice(raw),
        Compression::Gzip => {
            let mut gzip = GzEncoder::new(out, flate2::Compression::fast());
            gzip.write_all(raw)?;
            out = gzip.finish()?;
        }
    }
    let len = u32::try_from(out.len() - prefix).map_err(io::Error::other)?;
    if let Some((flag, size)) = out.get_mut(..prefix).and_then(<[u8]>::split_first_mut) {
        *flag = u8::from(compression == Compression::Gzip);
        size.copy_from_slice(&len.to_be_bytes());
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read as _;

    #[test]
    fn grpc_body_is_flag_length_and_gzip() {
        let body = pack(b"some bytes", Protocol::Grpc, Compression::Gzip).unwrap();
        let (prefix, gzip) = body.split_at(PREFIX);
        assert_eq!(prefix[0], 1);
        assert_eq!(prefix[1..], u32::try_from(gzip.len()).unwrap().to_be_bytes());
        let mut raw = Vec::new();
        GzDecoder::new(gzip).read_to_end(&mut raw).unwrap();
        assert_eq!(raw, b"some bytes");
    }

    #[test]
    fn http_body_without_compression_is_the_message() {
        let body = pack(b"some bytes", Protocol::Http, Compression::None).unwrap();
        assert_eq!(&body[..], b"some bytes");
    }
}
