//! OTLP/HTTP: what arrives, what is tried again, what is not, and what is said about it.

use crate::receiver::{OK, Receiver, Reply};
use crate::{batch, finish, log, points, raw, sink};
use gpuwho_export::delivery::settings::RawHeaders;
use gpuwho_export::otlp::settings::RawOtlp;
use gpuwho_export::{Report, Sink as _};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use prost::Message as _;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

type Script = fn() -> Reply;

fn status(code: u16) -> Reply {
    Reply::Answer(code, Vec::new(), b"the receiver's words".to_vec())
}

#[test]
fn batch_arrives_once_compressed_with_path_and_headers() {
    let receiver = Receiver::start(|_| OK);
    let headers = RawHeaders(BTreeMap::from([("x-tenant".to_owned(), "a".to_owned())]));
    let mut sink = sink(&RawOtlp { headers: Some(headers), ..raw(&receiver.url()) });
    sink.export(&batch(7));
    let request = receiver.next();
    assert_eq!(request.path, "/v1/metrics");
    assert_eq!(request.headers["content-type"], "application/x-protobuf");
    assert_eq!(request.headers["content-encoding"], "gzip");
    assert_eq!(request.headers["x-tenant"], "a");
    assert_eq!(request.times(), [7]);
    let report = finish(&mut sink);
    assert_eq!((report.accepted, report.requests), (1, 1));
    assert!(receiver.rest().is_empty());
}

#[test]
fn receiver_that_comes_back_gets_everything_once_in_order_with_its_own_times() {
    // The port is free again when this listener is dropped.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut sink = sink(&raw(&format!("http://{address}")));
    for time in 1..=3 {
        sink.export(&batch(time));
    }
    log::wait_for(address.port(), "connection refused");
    let receiver = Receiver::at(&address.to_string(), None, |_| OK);
    let times: Vec<u64> = (0..3).flat_map(|_| receiver.next().times()).collect();
    assert_eq!(times, [1, 2, 3]);
    let lines = log::wait_for(address.port(), "works again");
    assert_eq!(lines.len(), 2, "{lines:#?}");
    let report = finish(&mut sink);
    assert_eq!((report.accepted, report.undelivered, report.queue_full), (3, 0, 0));
    assert!(receiver.rest().is_empty());
}

#[test]
fn memory_is_bounded_while_the_receiver_is_away_and_the_oldest_are_counted() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut sink = sink(&RawOtlp {
        queue_bytes: Some(65_536),
        compression: Some("none".to_owned()),
        ..raw(&format!("http://{address}"))
    });
    // About 7 kB each, so that nine fit.
    for time in 1..=100 {
        sink.export(&points(time, 150));
    }
    log::wait_for(address.port(), "connection refused");
    let receiver = Receiver::at(&address.to_string(), None, |_| OK);
    let report = finish(&mut sink);
    let mut times: Vec<u64> = receiver.rest().iter().map(|request| request.times()[0]).collect();
    assert_eq!(report.accepted + report.queue_full, 100 * 150);
    assert_eq!(report.accepted, 150 * times.len() as u64);
    assert!((8..=10).contains(&times.len()), "{times:?}");
    assert!(times.is_sorted(), "{times:?}");
    // The one that was on its way when the queue overflowed may be older.
    assert_eq!(times.pop(), Some(100));
    assert!(times.iter().skip(1).all(|time| *time > 90), "{times:?}");
}

#[test]
fn busy_receiver_is_tried_again_when_it_said() {
    let busy = |n| match n {
        0 => Reply::Answer(503, vec![("retry-after", "1")], Vec::new()),
        _ => OK,
    };
    let receiver = Receiver::start(busy);
    let mut sink = sink(&raw(&receiver.url()));
    sink.export(&batch(1));
    receiver.next();
    let refused = Instant::now();
    assert_eq!(receiver.next().times(), [1]);
    assert!(refused.elapsed() >= Duration::from_millis(950), "{:?}", refused.elapsed());
    assert_eq!(finish(&mut sink).accepted, 1);
}

#[test]
fn broken_connection_is_tried_again() {
    let receiver = Receiver::start(|n| if n == 1 { Reply::Reset } else { OK });
    let mut sink = sink(&raw(&receiver.url()));
    sink.export(&batch(1));
    assert_eq!(receiver.next().times(), [1]);
    sink.export(&batch(2));
    assert_eq!((receiver.next().times(), receiver.next().times()), (vec![2], vec![2]));
    assert_eq!(finish(&mut sink).accepted, 2);
    log::wait_for(receiver.address.port(), "connection lost");
}

#[test]
fn silent_receiver_is_tried_again_after_the_timeout() {
    let receiver = Receiver::start(|n| if n == 0 { Reply::Hang } else { OK });
    let mut sink = sink(&RawOtlp { timeout_ms: Some(200), ..raw(&receiver.url()) });
    sink.export(&batch(1));
    assert_eq!((receiver.next().times(), receiver.next().times()), (vec![1], vec![1]));
    assert_eq!(finish(&mut sink).accepted, 1);
    log::wait_for(receiver.address.port(), "no answer within 200ms");
}

/// Sends three batches to a receiver that always answers `reply`, and returns the report and the
/// log.
fn refused_by(reply: Script, words: &str) -> (Report, Vec<String>) {
    let receiver = Receiver::start(move |_| reply());
    let headers = BTreeMap::from([("authorization".to_owned(), "Bearer s3cret".to_owned())]);
    let headers = Some(RawHeaders(headers));
    let mut sink = sink(&RawOtlp { headers, ..raw(&receiver.url()) });
    for time in 1..=3 {
        sink.export(&batch(time));
    }
    let report = finish(&mut sink);
    assert_eq!(receiver.rest().len(), 3);
    log::wait_for(receiver.address.port(), words);
    (report, log::lines(receiver.address.port()))
}

#[test]
fn refusals_are_not_tried_again_and_are_logged_once_with_the_remedy() {
    let cases: [(Script, &str); 4] = [
        (|| status(401), "check the headers (token, tenant); the receiver's words"),
        (|| status(404), "is this an OTLP metrics endpoint?"),
        (|| status(413), "too large"),
        (|| status(400), "400 Bad Request: the receiver's words"),
    ];
    for (reply, words) in cases {
        let (report, lines) = refused_by(reply, words);
        assert_eq!((report.refused, report.accepted, report.requests), (3, 0, 3), "{words}");
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(!lines[0].contains("s3cret"), "{lines:#?}");
    }
}

#[test]
fn partly_rejected_batch_is_counted_logged_once_and_not_sent_again() {
    let reply = || {
        let partial = ExportMetricsPartialSuccess {
            rejected_data_points: 2,
            error_message: "too old".to_owned(),
        };
        let response = ExportMetricsServiceResponse { partial_success: Some(partial) };
        Reply::Answer(200, Vec::new(), response.encode_to_vec())
    };
    let receiver = Receiver::start(move |_| reply());
    let mut sink = sink(&raw(&receiver.url()));
    sink.export(&points(1, 5));
    sink.export(&points(2, 5));
    let report = finish(&mut sink);
    assert_eq!((report.accepted, report.refused, report.requests), (6, 4, 2));
    let lines = log::wait_for(receiver.address.port(), "too old");
    assert_eq!(lines.len(), 1, "{lines:#?}");
}

#[test]
fn what_cannot_be_sent_before_the_deadline_is_counted() {
    let receiver = Receiver::start(|_| Reply::Hang);
    let mut sink = sink(&raw(&receiver.url()));
    sink.export(&points(1, 5));
    sink.export(&points(2, 5));
    receiver.next();
    sink.flush(Instant::now());
    assert_eq!(sink.report().undelivered, 10);
    sink.export(&points(3, 5));
    assert_eq!(sink.report().undelivered, 15);
}

#[test]
fn unknown_host_is_named_in_the_log() {
    let mut sink = sink(&raw("http://collector.invalid:48211"));
    sink.export(&batch(1));
    let lines = log::wait_for(48_211, "no address found");
    sink.flush(Instant::now());
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert_eq!(sink.report().undelivered, 1);
}
