//! Certificates: right, wrong, missing, rotated.

use crate::receiver::{OK, Receiver};
use crate::{batch, finish, log, raw, sink};
use gpuwho_export::Sink as _;
use gpuwho_export::otlp::settings::RawOtlp;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

type Ca = CertifiedIssuer<'static, KeyPair>;

fn ca() -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn issue(ca: &Ca, name: &str) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, ca).unwrap(), key)
}

/// A server for `localhost`; it asks for a certificate of `clients` if given.
fn server(ca: &Ca, clients: Option<&Ca>) -> ServerConfig {
    let (certificate, key) = issue(ca, "localhost");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(clients.der().clone()).unwrap();
            let roots = Arc::new(roots);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        }
    };
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    builder.with_single_cert(vec![certificate.der().clone()], key).unwrap()
}

fn file(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn over_tls(receiver: &Receiver, ca: &Path) -> RawOtlp {
    RawOtlp {
        certificate: Some(ca.to_owned()),
        ..raw(&format!("https://localhost:{}", receiver.address.port()))
    }
}

#[test]
fn receiver_of_the_given_ca_is_trusted() {
    let (directory, ca) = (tempfile::tempdir().unwrap(), ca());
    let receiver = Receiver::at("127.0.0.1:0", Some(server(&ca, None)), |_| OK);
    let mut sink = sink(&over_tls(&receiver, &file(directory.path(), "ca.pem", &ca.pem())));
    sink.export(&batch(1));
    assert_eq!(receiver.next().times(), [1]);
    assert_eq!(finish(&mut sink).accepted, 1);
}

#[test]
fn unknown_ca_is_logged_once_and_its_file_is_read_again_when_it_changes() {
    let (directory, ca, other) = (tempfile::tempdir().unwrap(), ca(), ca());
    let receiver = Receiver::at("127.0.0.1:0", Some(server(&ca, None)), |_| OK);
    let path = file(directory.path(), "ca.pem", &other.pem());
    let mut sink = sink(&over_tls(&receiver, &path));
    sink.export(&batch(1));
    sink.export(&batch(2));
    let lines = log::wait_for(receiver.address.port(), "unknown CA; set `certificate`");
    assert_eq!(lines.len(), 1, "{lines:#?}");
    // Replaced as a rotation does it: never half written.
    std::fs::rename(file(directory.path(), "new.pem", &ca.pem()), &path).unwrap();
    assert_eq!((receiver.next().times(), receiver.next().times()), (vec![1], vec![2]));
    let lines = log::wait_for(receiver.address.port(), "works again");
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert_eq!(finish(&mut sink).accepted, 2);
}

#[test]
fn receiver_that_asks_for_a_certificate_gets_ours() {
    let (directory, ca, clients) = (tempfile::tempdir().unwrap(), ca(), ca());
    let receiver = Receiver::at("127.0.0.1:0", Some(server(&ca, Some(&clients))), |_| OK);
    let (certificate, key) = issue(&clients, "agent");
    let directory = directory.path();
    let without = over_tls(&receiver, &file(directory, "ca.pem", &ca.pem()));
    let mut stranger = sink(&without);
    stranger.export(&batch(1));
    log::wait_for(receiver.address.port(), "check `client_certificate`");
    stranger.flush(Instant::now());
    assert_eq!(stranger.report().accepted, 0);
    let mut known = sink(&RawOtlp {
        client_certificate: Some(file(directory, "agent.pem", &certificate.pem())),
        client_key: Some(file(directory, "agent.key", &key.serialize_pem())),
        ..without
    });
    known.export(&batch(2));
    assert_eq!(receiver.next().times(), [2]);
    assert_eq!(finish(&mut known).accepted, 1);
}

#[test]
fn tls_spoken_to_a_plain_port_says_so() {
    let (directory, ca) = (tempfile::tempdir().unwrap(), ca());
    let receiver = Receiver::start(|_| OK);
    let mut sink = sink(&over_tls(&receiver, &file(directory.path(), "ca.pem", &ca.pem())));
    sink.export(&batch(1));
    log::wait_for(receiver.address.port(), "does not speak TLS on this port");
    sink.flush(Instant::now());
}

#[test]
fn unreadable_ca_file_is_named() {
    let receiver = Receiver::start(|_| OK);
    let mut sink = sink(&over_tls(&receiver, Path::new("/nonexistent/ca.pem")));
    sink.export(&batch(1));
    log::wait_for(receiver.address.port(), "cannot read /nonexistent/ca.pem");
    sink.flush(Instant::now());
}
