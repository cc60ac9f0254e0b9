//! The real OpenTelemetry Collector, as the other tests use it.

use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedKind, ReceivedValue, of};
use gpuwho_tests::or_skip;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

const REQUEST: &str = r#"{"resourceMetrics":[{"resource":{"attributes":[{"key":"host.name","value":{"stringValue":"node1"}}]},"scopeMetrics":[{"scope":{"name":"test"},"metrics":[{"name":"test.energy","unit":"J","sum":{"aggregationTemporality":2,"isMonotonic":true,"dataPoints":[{"startTimeUnixNano":"1700000000000000000","timeUnixNano":"1700000001000000000","asDouble":1.5,"attributes":[{"key":"gpu.index","value":{"stringValue":"3"}}]}]}}]}]}]}"#;

fn post(collector: &Collector) {
    let address = collector.http_endpoint().replace("http://", "");
    let mut stream = TcpStream::connect(address).unwrap();
    let head = "POST /v1/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Type: application/json\r\nContent-Length: ";
    write!(stream, "{head}{}\r\n\r\n{REQUEST}", REQUEST.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn what_the_collector_receives_can_be_asked_for_also_after_it_was_down() {
    let folder = tempfile::tempdir().unwrap();
    let collector = or_skip!(Collector::start(folder.path()));
    let arrive = |collector: &Collector, count: usize| {
        let within = Duration::from_secs(10);
        let enough = collector.wait_for(within, |points| (points.len() >= count).then_some(()));
        assert_eq!(enough.unwrap(), Some(()), "{}", collector.log());
    };
    post(&collector);
    arrive(&collector, 1);
    let stopped = collector.stop();
    let collector = Collector::again(&stopped).unwrap();
    post(&collector);
    arrive(&collector, 2);
    let points = collector.points().unwrap();
    assert_eq!(points[0], points[1]);
    let found = of(&points, "test.energy", &[("gpu.index", "3")]);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].kind, ReceivedKind::Counter);
    assert_eq!(found[0].unit, "J");
    assert_eq!(found[0].value, ReceivedValue::Double(1.5));
    assert_eq!(found[0].resource["host.name"], "node1");
    assert_eq!(
        (found[0].start, found[0].time),
        (1_700_000_000 * 1_000_000_000, 1_700_000_001 * 1_000_000_000)
    );
}
