//! The webhook sink: posts batches of events, and of metrics where that is asked for, as JSON, with a
//! signature after the Standard Webhooks specification 1.0.0, which other programs' libraries check.
//!
//! | header | holds |
//! |---|---|
//! | `webhook-id` | a number of the batch, the same in each attempt: a receiver drops what it has seen |
//! | `webhook-timestamp` | seconds since the epoch of the attempt: a receiver refuses what is old |
//! | `webhook-signature` | `v1,` and HMAC-SHA256 of `ID.TIMESTAMP.BODY` in base64, for each key of the file |
//!
//! Queue, spool, retries, TLS and proxies are those of `delivery`. A redirect is not followed.

pub mod def;
mod sign;

use super::delivery::body::{Compression, Encoding, Format};
use super::delivery::cause::{Cause, message};
use super::delivery::connection::Answer;
use super::delivery::retry::{Verdict, retry_after};
use super::delivery::settings::Settings;
use super::delivery::{Delivery, Headers, Sentences, StartError, Transport};
use super::resource::Resource;
use super::spool::SpoolFolder;
use super::stdout::{EventLine, Line, attribute};
use super::{Report, Sink};
use bytes::Bytes;
use gpuwho_model::point::EnrichedBatch;
use gpuwho_pipeline::event::record::Record;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::{Map, Value};
use sign::Keys;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

/// The format of what is stored.
const WEBHOOK: Format = Format(5);
const SENTENCES: Sentences = Sentences {
    fails: "the webhook does not take events; they wait in the queue",
    refuses: "the webhook refuses events; they are lost",
    works: "the webhook works again",
    rejects: "the webhook rejected some events",
};
/// 401, 403.
const SIGNATURE: &str = "check webhook.secret_file, its headers and the clocks; ";
/// The body's form.
const VERSION: u32 = 1;
/// Bytes at which a batch is sent and the next begins. One item is far smaller.
const BATCH_BYTES: usize = 256 << 10;
/// How often a batch is tried that the receiver answers with its own failure: it may be the batch.
const MAX_FAILURES: u32 = 10;

/// Posts to one URL.
#[derive(Debug)]
pub struct WebhookSink {
    queue: Delivery,
    /// The beginning of every body: version and resource.
    head: String,
    metrics: bool,
    events: bool,
    not_finite: u64,
}

/// What a webhook gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Points.
    pub metrics: bool,
    /// Events.
    pub events: bool,
}

#[derive(Serialize)]
struct Head<'a> {
    version: u32,
    resource: &'a Map<String, Value>,
}

impl WebhookSink {
    /// Starts the sender. `secret` is the file with the key; without one nothing is signed.
    pub fn start(
        thread: &str,
        (settings, secret): (&Settings, Option<PathBuf>),
        resource: &Resource,
        wanted: Wanted,
        spool: Option<SpoolFolder>,
    ) -> Result<Self, StartError> {
        let transport = Webhook { keys: secret.map(Keys::new), failures: 0 };
        let resource: Map<_, _> =
            resource.iter().map(|(key, value)| (key.to_owned(), attribute(value))).collect();
        // Writing to memory does not fail, and every key is a string.
        let head = serde_json::to_string(&Head { version: VERSION, resource: &resource });
        let mut head = head.unwrap_or_default();
        head.pop();
        Ok(Self {
            queue: Delivery::start(thread, settings, transport, spool)?,
            head,
            metrics: wanted.metrics,
            events: wanted.events,
            not_finite: 0,
        })
    }

    /// Sends items as the list `name`, in as many bodies as they need.
    fn send(&self, name: &str, items: impl Iterator<Item = Vec<u8>>) {
        let encoding = Encoding { format: WEBHOOK, compression: Compression::None };
        let begin = || format!("{},\"{name}\":[", self.head).into_bytes();
        let (mut body, mut count) = (begin(), 0);
        for item in items {
            if count > 0 && body.len() + item.len() > BATCH_BYTES {
                body.extend_from_slice(b"]}");
                self.queue.push(&body, encoding, count);
                (body, count) = (begin(), 0);
            }
            if count > 0 {
                body.push(b',');
            }
            body.extend_from_slice(&item);
            count += 1;
        }
        if count > 0 {
            body.extend_from_slice(b"]}");
            self.queue.push(&body, encoding, count);
        }
    }
}

impl Sink for WebhookSink {
    fn export(&mut self, batch: &EnrichedBatch) {
        if !self.metrics {
            return;
        }
        let lines: Vec<_> = batch.points.iter().filter_map(Line::of).collect();
        self.not_finite += (batch.points.len() - lines.len()) as u64;
        self.send("metrics", lines.iter().filter_map(|line| serde_json::to_vec(line).ok()));
    }

    fn export_events(&mut self, records: &[Record]) {
        if self.events {
            let lines = records.iter().map(EventLine::of);
            self.send("events", lines.filter_map(|line| serde_json::to_vec(&line).ok()));
        }
    }

    fn start_flush(&mut self, deadline: Instant) {
        self.queue.close(deadline);
    }

    fn flush(&mut self, deadline: Instant) {
        self.queue.flush(deadline);
    }

    fn report(&self) -> Report {
        self.queue.report(self.not_finite)
    }
}

/// How batches are posted.
#[derive(Debug)]
struct Webhook {
    /// `None` where nothing is signed.
    keys: Option<Keys>,
    /// How often the receiver has answered this batch with its own failure.
    failures: u32,
}

impl Transport for Webhook {
    fn sentences(&self) -> &'static Sentences {
        &SENTENCES
    }

    fn request(
        &mut self,
        encoding: Encoding,
        body: Bytes,
        now: SystemTime,
    ) -> Result<Option<(Bytes, Headers)>, Cause> {
        if encoding.format != WEBHOOK {
            return Ok(None);
        }
        let id = sign::id(&body);
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let mut put = |name, text: &str| {
            // Hexadecimal digits, decimal digits and base64 are what a header may have.
            headers.extend(HeaderValue::from_str(text).map(|v| (HeaderName::from_static(name), v)));
        };
        put("webhook-id", &id);
        put("webhook-timestamp", &seconds.to_string());
        if let Some(keys) = &mut self.keys {
            put("webhook-signature", &keys.sign(&id, seconds, &body)?);
        }
        Ok(Some((body, headers)))
    }

    fn verdict(&mut self, _encoding: Encoding, answer: &Answer, now: SystemTime) -> Verdict {
        let status = answer.status.to_string();
        if answer.status.is_success() {
            self.failures = 0;
            return Verdict::Accepted { rejected: 0, message: String::new() };
        }
        let message = message(&String::from_utf8_lossy(&answer.body));
        let after = retry_after(&answer.headers, now);
        let is_credentials =
            matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let hint = if is_credentials { SIGNATURE } else { "" };
        let cause = Cause::Answered { status, hint, message };
        match answer.status {
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_EARLY
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Verdict::Retry { cause, after },
            status if status.is_server_error() && self.failures < MAX_FAILURES => {
                self.failures += 1;
                Verdict::Retry { cause, after }
            }
            _ => {
                self.failures = 0;
                Verdict::Refused(cause)
            }
        }
    }
}

#[cfg(test)]
mod tests;
