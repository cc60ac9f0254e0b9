//! The webhook sink: what arrives, its signature, what is tried again.

use crate::receiver::{OK, Received, Receiver, Reply};
use crate::{TIMEOUT, log, points, raw};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gpuwho_export::delivery::settings::Backoff;
use gpuwho_export::otlp::settings::{RawOtlp, Settings, Signal};
use gpuwho_export::resource::Resource;
use gpuwho_export::webhook::{Wanted, WebhookSink};
use gpuwho_export::{Report, Sink as _};
use gpuwho_model::catalog::attributes::{AttrSet, GPU_UUID};
use gpuwho_pipeline::event::record::Record;
use ring::hmac;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

const EVENTS: Wanted = Wanted { metrics: false, events: true };
const SECRET: &str = "the key of this test's webhook";

fn sink(receiver: &Receiver, secret: Option<&Path>, wanted: Wanted) -> WebhookSink {
    log::capture();
    let none = RawOtlp::default();
    let raw = raw(&receiver.url());
    let mut settings = Settings::resolve(Signal::Logs, &raw, &none, &|_| None).unwrap();
    settings.receiver.backoff =
        Backoff { first: Duration::from_millis(5), max: Duration::from_millis(20) };
    let resource = Resource::new(&AttrSet::new(), &settings.resource_attributes);
    let secret = secret.map(Path::to_owned);
    WebhookSink::start("export:webhook", (&settings.receiver, secret), &resource, wanted, None)
        .unwrap()
}

fn record(n: u64) -> Record {
    let mut attributes = AttrSet::new();
    attributes.set(&GPU_UUID, "GPU-0");
    Record {
        name: "gpu.xid",
        severity: 21,
        severity_text: "critical",
        time_ns: 1_795_219_200_000_000_000 + n,
        observed_ns: 1_795_219_200_000_000_000 + n,
        body: "NVRM: Xid \"79\"".into(),
        attributes,
    }
}

fn finish(sink: &mut WebhookSink) -> Report {
    sink.flush(Instant::now() + TIMEOUT);
    sink.report()
}

fn body(request: &Received) -> Value {
    serde_json::from_slice(&request.raw).unwrap()
}

fn header<'a>(request: &'a Received, name: &str) -> &'a str {
    request.headers[name].to_str().unwrap()
}

/// Whether one of the request's signatures is by this key, as a receiver checks it.
fn is_signed_by(request: &Received, secret: &str) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let (id, time) = (header(request, "webhook-id"), header(request, "webhook-timestamp"));
    let mut content = format!("{id}.{time}.").into_bytes();
    content.extend_from_slice(&request.raw);
    header(request, "webhook-signature").split(' ').any(|signature| {
        let tag = STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
        hmac::verify(&key, &content, &tag).is_ok()
    })
}

fn secret() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, SECRET).unwrap();
    (folder, path)
}

#[test]
fn events_arrive_as_json_signed_for_now() {
    let (_folder, key) = secret();
    let receiver = Receiver::start(|_| OK);
    let mut sink = sink(&receiver, Some(&key), EVENTS);
    sink.export_events(&[record(1), record(2)]);
    sink.export(&points(1, 3));
    let request = receiver.next();
    assert_eq!(request.headers["content-type"], "application/json");
    let body = body(&request);
    assert_eq!(
        (&body["version"], &body["resource"]["service.name"]),
        (&1.into(), &"gpuwho".into())
    );
    let [first, second] = &body["events"].as_array().unwrap()[..] else { panic!("{body:#}") };
    assert_eq!(first["event"], "gpu.xid");
    assert_eq!(first["body"], "NVRM: Xid \"79\"");
    assert_eq!(first["attributes"]["gpu.uuid"], "GPU-0");
    assert_eq!(second["time"], "2026-11-21T00:00:00.000000002Z");
    assert!(is_signed_by(&request, SECRET) && !is_signed_by(&request, "another key of ours"));
    let sent: u64 = header(&request, "webhook-timestamp").parse().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(sent) < 60, "{sent}");
    let report = finish(&mut sink);
    assert_eq!((report.taken, report.accepted, report.waiting()), (2, 2, 0));
    assert!(receiver.rest().is_empty(), "no metrics were asked for");
}

#[test]
fn a_batch_keeps_its_identifier_in_every_attempt_and_another_has_another() {
    let receiver = Receiver::start(|n| match n {
        0 => Reply::Answer(503, vec![("retry-after", "0")], Vec::new()),
        1 => Reply::Reset,
        _ => OK,
    });
    let mut sink = sink(&receiver, None, EVENTS);
    sink.export_events(&[record(1)]);
    let ids: Vec<_> = (0..3).map(|_| header(&receiver.next(), "webhook-id").to_owned()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    sink.export_events(&[record(2)]);
    let next = receiver.next();
    assert_ne!(header(&next, "webhook-id"), ids[0]);
    assert!(!next.headers.contains_key("webhook-signature"), "no key, no signature");
    assert_eq!(finish(&mut sink).accepted, 2);
}

#[test]
fn metrics_arrive_in_batches_of_bounded_size_and_all_are_counted() {
    let receiver = Receiver::start(|_| OK);
    let mut sink = sink(&receiver, None, Wanted { metrics: true, events: false });
    sink.export(&points(1, 5000));
    sink.export_events(&[record(1)]);
    let report = finish(&mut sink);
    assert_eq!((report.taken, report.accepted), (5000, 5000));
    let all = receiver.rest();
    assert!(all.len() > 2 && all.iter().all(|request| request.raw.len() < 300_000));
    let metrics = all.iter().map(|request| body(request)["metrics"].as_array().unwrap().len());
    assert_eq!(metrics.sum::<usize>(), 5000);
}

#[test]
fn nothing_goes_unsigned_while_the_key_is_missing_and_nothing_is_lost() {
    let (folder, key) = secret();
    let away = folder.path().join("away");
    std::fs::rename(&key, &away).unwrap();
    let receiver = Receiver::start(|_| OK);
    let mut sink = sink(&receiver, Some(&key), EVENTS);
    sink.export_events(&[record(1)]);
    log::wait_for(receiver.address.port(), "cannot read");
    assert!(receiver.rest().is_empty());
    std::fs::rename(&away, &key).unwrap();
    assert!(is_signed_by(&receiver.next(), SECRET));
    assert_eq!(finish(&mut sink).accepted, 1);
}
