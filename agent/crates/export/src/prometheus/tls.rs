//! TLS of the endpoint by the keys of Prometheus' `tls_server_config`. The files are read again when
//! they change, so a renewed certificate needs no restart.

use gpuwho_collect::tls::{TlsFileError, Written, certificates, roots, written};
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// The files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Files {
    /// The certificate chain.
    pub(super) cert: PathBuf,
    /// Its key.
    pub(super) key: PathBuf,
    /// The CAs of clients, and whether a client must have a certificate.
    pub(super) clients: Option<(PathBuf, bool)>,
}

/// The TLS side of the listener.
#[derive(Debug)]
pub(super) struct Tls {
    files: Files,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    stamp: Stamp,
}

type Stamp = [Option<Written>; 3];

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stamp.fmt(f)
    }
}

impl Tls {
    /// Reads the files.
    pub(super) fn open(files: Files) -> Result<Self, TlsFileError> {
        let current = Mutex::new(read(&files)?);
        Ok(Self { files, current })
    }

    /// What accepts a connection. Files that are not usable now leave the former ones in use.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock();
        let stamp = stamp(&self.files);
        if stamp != current.stamp {
            match read(&self.files) {
                Ok(new) => *current = new,
                Err(error) => {
                    tracing::warn!(%error, "the metrics endpoint keeps its former certificate");
                    current.stamp = stamp;
                }
            }
        }
        current.acceptor.clone()
    }
}

fn read(files: &Files) -> Result<Current, TlsFileError> {
    let stamp = stamp(files);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |source| TlsFileError::Unusable { path: files.cert.clone(), source };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match &files.clients {
        None => builder.with_no_client_auth(),
        Some((ca, is_required)) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider);
            let verifier = if *is_required { verifier } else { verifier.allow_unauthenticated() };
            let verifier = verifier.build().map_err(|error| TlsFileError::Unusable {
                path: ca.clone(),
                source: rustls::Error::General(error.to_string()),
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|source| TlsFileError::Read { path: files.key.clone(), source })?;
    let config = builder.with_single_cert(certificates(&files.cert)?, key).map_err(unusable)?;
    Ok(Current { acceptor: TlsAcceptor::from(Arc::new(config)), stamp })
}

fn stamp(files: &Files) -> Stamp {
    let ca = files.clients.as_ref().map(|(ca, _)| ca);
    [written(&files.cert), written(&files.key), ca.and_then(|ca| written(ca))]
}
