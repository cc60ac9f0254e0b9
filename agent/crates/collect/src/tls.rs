//! The TLS configuration of a connection: trusted CAs and the agent's own certificate. The system's
//! CAs are read only when an `https` endpoint needs them (about half a megabyte resident).

use hyper_rustls::ConfigBuilderExt as _;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Certificate files. The agent reads them again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The only trusted CAs; the system's where absent.
    pub ca: Option<PathBuf>,
    /// The agent's own certificate chain and key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A certificate file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// Not readable, or not PEM.
    #[error("cannot read {path} as PEM ({source})")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// The file has no certificate.
    #[error("{path} holds no certificate")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// rustls does not take it.
    #[error("{path} is not usable ({source})")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The host has no CA certificates.
    #[error("no system CA certificates ({0}); install ca-certificates or set `certificate`")]
    NoSystemRoots(io::Error),
}

/// Which files they are and when they were last written: a change means reading them again.
pub type Stamp = [Option<Written>; 3];

/// The identity of a file. The inode number distinguishes two files that were written within one
/// tick of the file system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    inode: u64,
    at: (i64, i64),
}

/// The present stamp of the files.
pub fn stamp(files: &TlsFiles) -> Stamp {
    let (certificate, key) = match &files.client {
        Some((certificate, key)) => (written(certificate), written(key)),
        None => (None, None),
    };
    [files.ca.as_deref().and_then(written), certificate, key]
}

/// The identity of a file; `None` where there is none.
pub fn written(path: &Path) -> Option<Written> {
    let meta = path.metadata().ok()?;
    Some(Written { inode: meta.ino(), at: (meta.mtime(), meta.mtime_nsec()) })
}

/// A configuration without trusted CAs, for plain-text endpoints.
pub fn none() -> Result<ClientConfig, TlsFileError> {
    Ok(builder(Path::new(""))?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Checks that each file holds what it should. The system's own CAs are not looked for: the check may
/// run on another host.
pub fn check(files: &TlsFiles) -> Result<(), TlsFileError> {
    if let Some(path) = &files.ca {
        roots(path)?;
        return config(files).map(drop);
    }
    let Some((certificate, key)) = &files.client else { return Ok(()) };
    certificates(certificate)?;
    let read = PrivateKeyDer::from_pem_file(key);
    read.map(drop).map_err(|source| TlsFileError::Read { path: key.clone(), source })
}

/// Reads the files.
pub fn config(files: &TlsFiles) -> Result<ClientConfig, TlsFileError> {
    let builder = builder(files.ca.as_deref().unwrap_or(Path::new("")))?;
    let builder = match &files.ca {
        Some(path) => builder.with_root_certificates(roots(path)?),
        None => builder.with_native_roots().map_err(TlsFileError::NoSystemRoots)?,
    };
    let Some((certificate, key)) = &files.client else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|source| TlsFileError::Read { path: key.clone(), source })?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|source| TlsFileError::Unusable { path: certificate.clone(), source })
}

fn builder(
    path: &Path,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, TlsFileError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|source| TlsFileError::Unusable { path: path.to_owned(), source })
}

/// The certificates of a file, as the only ones that are trusted.
pub fn roots(path: &Path) -> Result<RootCertStore, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|source| TlsFileError::Unusable { path: path.to_owned(), source })?;
    }
    Ok(roots)
}

/// The certificates of a file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let read = |source| TlsFileError::Read { path: path.to_owned(), source };
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(read)?
        .collect::<Result<_, _>>()
        .map_err(read)?;
    if certificates.is_empty() {
        return Err(TlsFileError::Empty { path: path.to_owned() });
    }
    Ok(certificates)
}
