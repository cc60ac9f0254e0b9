use super::super::access::Users;
use super::super::fixture::start;
use super::super::tls::{Files, Tls};
use super::*;
use crate::prometheus::MAX_CHECKS;
use crate::prometheus::fixture::{labels, point, power};
use crate::{Report, Sink};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::device;
use gpuwho_model::point::EnrichedBatch;
use gpuwho_model::sample::Value;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream as Client};
use std::time::Instant;

/// A test that waits this long has failed, on a slow machine too.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Bounds that no client here reaches by being slow.
const WIDE: Bounds = Bounds { head: TIMEOUT, whole: TIMEOUT, ..BOUNDS };

fn connect(address: SocketAddr) -> Client {
    let client = Client::connect(address).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client
}

/// Everything until the server closes, even if it does not wait for the client.
fn rest(client: &mut impl Read) -> String {
    let mut all = Vec::new();
    // A reset after the answer ends it as well.
    let _ = client.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

fn request(address: SocketAddr, head: &str) -> String {
    let mut client = connect(address);
    client.write_all(format!("{head}\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    rest(&mut client)
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

/// Waits until the sink's report is as wanted.
fn wait(sink: &impl Sink, wanted: impl Fn(&Report) -> bool) -> Report {
    let end = Instant::now() + TIMEOUT;
    loop {
        let report = sink.report();
        if wanted(&report) || Instant::now() > end {
            return report;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn each_path_and_method_has_its_answer() {
    let (sink, address) = start(Users::default(), None, WIDE);
    let page = request(address, "GET /metrics HTTP/1.1");
    assert!(
        page.contains(
            "gpu_power_watts{gpu_uuid=\"GPU-1\",gpu_index=\"0\",host_name=\"node\"} 250.5\n"
        ),
        "{page}"
    );
    assert!(page.contains("content-type: text/plain; version=0.0.4"), "{page}");
    let head = request(address, "HEAD /metrics HTTP/1.1");
    assert!(status(&head) == "200" && !head.contains("gpu_power"), "{head}");
    let answers = [
        ("GET / HTTP/1.1", "200"),
        ("GET /healthz HTTP/1.1", "200"),
        ("GET /readyz HTTP/1.1", "503"),
        ("GET /metrics/../etc HTTP/1.1", "404"),
        ("POST /metrics HTTP/1.1", "405"),
        ("PRI * HTTP/2.0", "400"),
        ("nonsense", "400"),
    ];
    for (head, expected) in answers {
        assert_eq!(status(&request(address, head)), expected, "{head}");
    }
    sink.endpoint.heartbeat.beat();
    assert_eq!(status(&request(address, "GET /readyz HTTP/1.1")), "200");
    let report = wait(&sink, |report| report.accepted == 1);
    assert_eq!((report.accepted, report.requests, report.undelivered), (1, 1, 0));
}

#[test]
fn a_head_without_end_or_of_too_many_lines_is_refused() {
    let (_sink, address) = start(Users::default(), None, WIDE);
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}", "a".repeat(BOUNDS.head_bytes));
    assert_eq!(status(&request(address, &long)), "431");
    let lines = "\r\nx: a".repeat(BOUNDS.headers);
    assert_eq!(status(&request(address, &format!("GET /metrics HTTP/1.1{lines}"))), "431");
    assert_eq!(status(&request(address, "GET /metrics HTTP/1.1")), "200");
}

#[test]
fn a_client_that_sends_no_head_is_closed() {
    let bounds = Bounds { head: Duration::from_millis(50), ..WIDE };
    let (_sink, address) = start(Users::default(), None, bounds);
    let mut client = connect(address);
    client.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let answer = rest(&mut client);
    assert!(matches!(status(&answer), "none" | "408"), "{answer}");
}

#[test]
fn silent_clients_hold_neither_a_scrape_nor_the_tick() {
    let bounds = Bounds { connections: 4, ..WIDE };
    let (mut sink, address) = start(Users::default(), None, bounds);
    let mut silent: Vec<Client> = (0..20).map(|_| connect(address)).collect();
    sink.export(&power(7.0));
    assert!(request(address, "GET /metrics HTTP/1.1").contains("} 7\n"));
    assert_eq!(rest(&mut silent[0]), "", "the oldest is closed");
}

#[test]
fn a_client_that_does_not_read_is_closed_and_its_points_are_counted() {
    let bounds = Bounds { whole: Duration::from_millis(200), ..WIDE };
    let (mut sink, address) = start(Users::default(), None, bounds);
    // More than the kernel takes for a client that reads nothing.
    let long = "x".repeat(1 << 20);
    let points = (0..16).map(|_| {
        let labels = labels(Some((&attr::GPU_MODEL, long.as_str())));
        point(device::POWER.def(), &labels, Some(Value::Double(1.0)))
    });
    sink.export(&EnrichedBatch { points: points.collect() });
    let mut client = connect(address);
    set_socket_recv_buffer_size(&client, 4096).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let report = wait(&sink, |report| report.undelivered > 0);
    assert_eq!((report.undelivered, report.accepted, report.requests), (17, 0, 1));
}

#[test]
fn the_address_with_the_most_connections_loses_its_oldest() {
    let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
    assert_eq!(to_close(&[a, b, c, b]), Some(1));
    assert_eq!(to_close(&[a, b]), Some(0));
    assert_eq!(to_close(&[]), None);
}

#[test]
fn metrics_need_the_password_and_health_does_not() {
    let users = [("alice".to_owned(), bcrypt::hash("secret", 4).unwrap())].into();
    let (_sink, address) = start(Users::new(users).unwrap(), None, WIDE);
    let with = |credentials: &str| {
        let header = STANDARD.encode(credentials);
        request(address, &format!("GET /metrics HTTP/1.1\r\nAuthorization: Basic {header}"))
    };
    let refused = request(address, "GET /metrics HTTP/1.1");
    assert!(refused.contains("www-authenticate: Basic") && !refused.contains("gpu_power"));
    assert_eq!(status(&with("alice:wrong")), "401");
    assert_eq!(status(&with("alice:secret")), "200");
    assert_eq!(status(&with("alice:secret")), "200");
    assert_eq!(status(&request(address, "GET /healthz HTTP/1.1")), "200");
}

#[test]
fn password_checks_that_wait_are_bounded_and_the_rest_is_refused_at_once() {
    let users = [("alice".to_owned(), bcrypt::hash("secret", 4).unwrap())].into();
    let (sink, address) = start(Users::new(users).unwrap(), None, WIDE);
    let with = |credentials: &str| {
        let header = STANDARD.encode(credentials);
        request(address, &format!("GET /metrics HTTP/1.1\r\nAuthorization: Basic {header}"))
    };
    let checks = Arc::clone(&sink.endpoint.checks);
    let places = checks.try_acquire_many(u32::try_from(MAX_CHECKS).unwrap()).unwrap();
    let refused = with("alice:secret");
    assert_eq!(status(&refused), "503");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    assert_eq!(status(&with(&format!("alice:{}", "x".repeat(200)))), "401", "needs no check");
    drop(places);
    assert_eq!(status(&with("alice:secret")), "200");
    assert_eq!(sink.endpoint.checks.available_permits(), MAX_CHECKS, "each gives its place back");
}

#[test]
fn a_renewed_certificate_is_served_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files {
        cert: folder.path().join("tls.crt"),
        key: folder.path().join("tls.key"),
        clients: None,
    };
    let renew = || {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        // Renamed, as tools that renew certificates do.
        for (path, pem) in
            [(&files.cert, made.cert.pem()), (&files.key, made.signing_key.serialize_pem())]
        {
            let new = path.with_extension("new");
            std::fs::write(&new, pem).unwrap();
            std::fs::rename(new, path).unwrap();
        }
        made.cert.der().clone()
    };
    let first = renew();
    let (_sink, address) = start(Users::default(), Some(Tls::open(files.clone()).unwrap()), WIDE);
    let scrape = |trusted: &rustls::pki_types::CertificateDer<'static>| {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        let name = ServerName::try_from("localhost").unwrap();
        let tls = ClientConnection::new(config, name).unwrap();
        let mut stream = StreamOwned::new(tls, connect(address));
        let sent = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        sent.map_or_else(|error| error.to_string(), |()| rest(&mut stream))
    };
    assert!(scrape(&first).contains("gpu_power_watts"));
    let second = renew();
    assert!(scrape(&second).contains("gpu_power_watts"));
    assert!(scrape(&first).contains("invalid peer certificate"));
    assert!(!request(address, "GET /metrics HTTP/1.1").contains("gpu_power"), "plain text");
}

#[test]
fn one_hosts_addresses_are_one_client() {
    let client = |address: &str| client_of(address.parse().unwrap()).to_string();
    for loopback in ["127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.5"] {
        assert_eq!(client(loopback), "127.0.0.1");
    }
    assert_eq!(client("2001:db8:1:2:3:4:5:6"), client("2001:db8:1:2::9"));
    assert_ne!(client("2001:db8:1:3::9"), client("2001:db8:1:2::9"));
    assert_eq!(client("::ffff:10.0.0.7"), "10.0.0.7");
}
