//! Compression, JSON, headers from files, proxies, the spool, and several receivers.

use crate::receiver::{OK, Receiver, Reply};
use crate::{TIMEOUT, batch, finish, log, points, raw, settings, sink};
use gpuwho_export::delivery::settings::RawProxy;
use gpuwho_export::otlp::OtlpSink;
use gpuwho_export::otlp::settings::RawOtlp;
use gpuwho_export::resource::Resource;
use gpuwho_export::spool::{Limits, SpoolFolder};
use gpuwho_export::{Report, Sink as _};
use gpuwho_model::catalog::attributes::AttrSet;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

fn with(receiver: &Receiver, set: impl FnOnce(&mut RawOtlp)) -> OtlpSink {
    let mut raw = raw(&receiver.url());
    set(&mut raw);
    sink(&raw)
}

#[test]
fn zstd_arrives_and_a_receiver_without_it_gets_the_same_in_gzip() {
    let receiver = Receiver::start(|_| OK);
    let mut zstd = with(&receiver, |raw| raw.compression = Some("zstd".to_owned()));
    zstd.export(&points(1, 50));
    let request = receiver.next();
    assert_eq!(request.headers["content-encoding"], "zstd");
    assert_eq!(request.times(), vec![1; 50]);
    assert_eq!(finish(&mut zstd).accepted, 50);

    let old = Receiver::start(|n| if n == 0 { Reply::Answer(415, vec![], vec![]) } else { OK });
    let mut sink = with(&old, |raw| raw.compression = Some("zstd".to_owned()));
    sink.export(&batch(1));
    assert_eq!(old.next().headers["content-encoding"], "zstd");
    sink.export(&batch(2));
    for time in 1..=2 {
        let request = old.next();
        assert_eq!(
            (request.times(), &request.headers["content-encoding"]),
            (vec![time], &"gzip".parse().unwrap())
        );
    }
    assert_eq!(finish(&mut sink).accepted, 2);
}

#[test]
fn json_is_otlp_s_own() {
    let answer = br#"{"partialSuccess":{"rejectedDataPoints":"1","errorMessage":"too old"}}"#;
    let receiver = Receiver::start(|_| Reply::Answer(200, vec![], answer.to_vec()));
    let mut sink = with(&receiver, |raw| raw.protocol = Some("http/json".to_owned()));
    sink.export(&points(7, 3));
    let request = receiver.next();
    assert_eq!(request.headers["content-type"], "application/json");
    let json: serde_json::Value = serde_json::from_slice(&request.raw).unwrap();
    let point =
        &json["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["gauge"]["dataPoints"][0];
    // A number of 64 bits is a text there.
    assert_eq!((&point["timeUnixNano"], &point["asDouble"]), (&"7".into(), &100.0.into()));
    let read: ExportMetricsServiceRequest = serde_json::from_slice(&request.raw).unwrap();
    assert_eq!(crate::receiver::times(&read), [7, 7, 7]);
    let report = finish(&mut sink);
    assert_eq!((report.accepted, report.refused), (2, 1));
}

#[test]
fn headers_and_token_come_from_files_and_a_rotated_token_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (headers, token) = (folder.path().join("headers"), folder.path().join("token"));
    std::fs::write(&headers, "x-tenant: a\n").unwrap();
    std::fs::write(&token, "first\n").unwrap();
    let receiver = Receiver::start(|_| OK);
    let mut sink = with(&receiver, |raw| {
        (raw.headers_file, raw.token_file) = (Some(headers), Some(token.clone()));
    });
    sink.export(&batch(1));
    let request = receiver.next();
    assert_eq!(
        (&request.headers["x-tenant"], &request.headers["authorization"]),
        (&"a".parse().unwrap(), &"Bearer first".parse().unwrap())
    );
    let new = folder.path().join("new");
    std::fs::write(&new, "second").unwrap();
    std::fs::rename(&new, &token).unwrap();
    sink.export(&batch(2));
    assert_eq!(receiver.next().headers["authorization"], "Bearer second");
    assert_eq!(finish(&mut sink).accepted, 2);
}

/// A proxy that knows CONNECT, once; returns its request.
fn proxy() -> (u16, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let target = head.split(' ').nth(1).unwrap().to_owned();
        let mut receiver = TcpStream::connect(&target).unwrap();
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), receiver.try_clone().unwrap());
        std::thread::spawn(move || {
            // Ends with the agent's side.
            let _ = std::io::copy(&mut from, &mut to);
            to.shutdown(std::net::Shutdown::Both)
        });
        // Ends with either side.
        let _ = std::io::copy(&mut receiver, &mut client);
        head
    });
    (port, thread)
}

#[test]
fn a_proxy_is_asked_to_connect_with_its_password() {
    let receiver = Receiver::start(|_| OK);
    let (port, thread) = proxy();
    let mut sink = with(&receiver, |raw| {
        raw.proxy = Some(RawProxy(format!("http://user:s3cret@127.0.0.1:{port}")));
    });
    sink.export(&batch(1));
    assert_eq!(receiver.next().times(), [1]);
    assert_eq!(finish(&mut sink).accepted, 1);
    drop(sink);
    let head = thread.join().unwrap();
    assert!(head.starts_with(&format!("CONNECT {} HTTP/1.1", receiver.address)), "{head}");
    assert!(head.to_lowercase().contains("proxy-authorization: basic dxnlcjpzm2nyzxq="), "{head}");
    assert!(log::lines(port).iter().all(|line| !line.contains("s3cret")));
}

fn spooled(url: &str, folder: &Path) -> OtlpSink {
    log::capture();
    let settings = settings(&raw(url));
    let limits = Limits { bytes: 1 << 20, age: Duration::from_hours(1) };
    let spool = SpoolFolder::new(folder.to_owned(), limits, 1 << 30);
    let resource = Resource::new(&AttrSet::new(), &settings.resource_attributes);
    OtlpSink::with_spool("export:otlp", &settings, &resource, Some(spool)).unwrap()
}

fn balance(report: &Report) -> u64 {
    let lost: u64 = report.dropped().iter().map(|(_, lost)| lost).sum();
    report.accepted + lost + report.waiting()
}

#[test]
fn what_waited_in_the_spool_arrives_after_a_restart_in_order_with_its_own_times() {
    let folder = tempfile::tempdir().unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let mut first = spooled(&url, folder.path());
    for time in 1..=4 {
        first.export(&batch(time));
    }
    // The port is closed: the end of the sink's time leaves all of it on disk.
    first.flush(Instant::now() + Duration::from_millis(100));
    let report = first.report();
    assert_eq!((report.taken, report.waiting(), report.undelivered), (4, 4, 0));
    drop(first);
    let receiver = Receiver::at(&address.to_string(), None, |_| OK);
    let mut second = spooled(&url, folder.path());
    second.export(&batch(5));
    let times: Vec<u64> = (0..5).flat_map(|_| receiver.next().times()).collect();
    assert_eq!(times, [1, 2, 3, 4, 5]);
    let report = finish(&mut second);
    assert_eq!((report.restored, report.taken, report.accepted, report.waiting()), (4, 5, 5, 0));
    assert!(receiver.rest().is_empty());
}

#[test]
fn every_kind_of_bad_answer_leaves_the_balance_right() {
    for (code, refused) in [(400, 3), (413, 3), (500, 3), (429, 0), (503, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(move |n| match n {
            0..3 => Reply::Answer(code, vec![("retry-after", "0")], Vec::new()),
            3 => Reply::Reset,
            _ => OK,
        });
        let mut sink = spooled(&receiver.url(), folder.path());
        for time in 1..=6 {
            sink.export(&batch(time));
        }
        let report = finish(&mut sink);
        assert_eq!((report.refused, report.accepted), (refused, 6 - refused), "{code}: {report:?}");
        assert_eq!((balance(&report), report.waiting()), (6, 0), "{code}: {report:?}");
        let all = receiver.rest().into_iter().skip(4).flat_map(|request| request.times());
        let (times, distinct): (Vec<u64>, BTreeSet<u64>) = all.map(|time| (time, time)).unzip();
        assert!(times.is_sorted() && times.len() == distinct.len(), "{code}: {times:?}");
    }
}

#[test]
fn a_second_agent_does_not_touch_the_spool_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(|_| Reply::Hang);
    let mut first = spooled(&receiver.url(), folder.path());
    first.export(&batch(1));
    receiver.next();
    let other = Receiver::start(|_| OK);
    let mut second = spooled(&other.url(), folder.path());
    second.export(&batch(2));
    // From memory: it has no spool.
    assert_eq!(other.next().times(), [2]);
    let report = finish(&mut second);
    assert_eq!((report.accepted, report.restored), (1, 0));
    assert!(report.trouble.is_some());
}

#[test]
fn a_dead_receiver_does_not_slow_another() {
    let dead = Receiver::start(|_| Reply::Hang);
    let alive = Receiver::start(|_| OK);
    let (mut one, mut two) = (with(&dead, |_| {}), with(&alive, |_| {}));
    let began = Instant::now();
    for time in 1..=20 {
        one.export(&batch(time));
        two.export(&batch(time));
        assert_eq!(alive.next().times(), [time]);
    }
    assert!(began.elapsed() < TIMEOUT / 2, "{:?}", began.elapsed());
    one.flush(Instant::now());
    assert_eq!((one.report().undelivered, finish(&mut two).accepted), (20, 20));
}
