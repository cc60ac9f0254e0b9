//! The cause of a failed request, in terms of what the operator can change.

use super::secrets::SecretError;
use crate::held::Untrusted;
use gpuwho_collect::tls::TlsFileError;
use gpuwho_model::text::printable;
use std::error::Error;
use std::io;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

/// Longest part of a receiver's message that is logged.
const MESSAGE_CHARS: usize = 200;

/// The cause of a failed request.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The name has no address.
    #[error("no address found for the receiver's name ({0}); check the endpoint's host")]
    Name(String),
    /// No process listens on the port.
    #[error("connection refused; check that the receiver runs and the endpoint's port")]
    Refused,
    /// The network has no route to the receiver.
    #[error("cannot connect ({0})")]
    Unreachable(String),
    /// No answer.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The certificate's issuer is not trusted.
    #[error(
        "the receiver's certificate is signed by an unknown CA; set `certificate` to the CA's file"
    )]
    UnknownCa,
    /// The certificate is for another host, or expired.
    #[error("the receiver's certificate is not valid ({0})")]
    Certificate(String),
    /// The agent used TLS on a plain-text port.
    #[error(
        "the receiver does not speak TLS on this port; use an http:// endpoint or `insecure = true`"
    )]
    PlainText,
    /// Any other failure of the handshake.
    #[error("TLS handshake failed ({0}); check `client_certificate` and `client_key`")]
    Tls(String),
    /// The agent's own certificate files.
    #[error(transparent)]
    TlsFiles(#[from] TlsFileError),
    /// The receiver closed the connection before it ever answered a request.
    #[error("the receiver closed the connection ({detail}){hint}")]
    ClosedByReceiver {
        /// The error of the connection.
        detail: String,
        /// What it may mean.
        hint: &'static str,
    },
    /// 415, or UNIMPLEMENTED, for a body in zstd.
    #[error("the receiver does not take zstd; gzip is used instead")]
    NoZstd,
    /// A file with headers, a token or a secret.
    #[error(transparent)]
    SecretFile(#[from] SecretError),
    /// A secret would go to somebody else than the receiver.
    #[error("{untrusted}; {}", .untrusted.remedy())]
    Untrusted {
        /// Why.
        untrusted: Untrusted,
    },
    /// The connection broke.
    #[error("connection lost ({0})")]
    Lost(String),
    /// It answered, and did not take the request.
    #[error("the receiver answered {status}: {hint}{message}")]
    Answered {
        /// Status or code.
        status: String,
        /// What to look at, with the space behind it.
        hint: &'static str,
        /// The receiver's message.
        message: String,
    },
}

impl Cause {
    /// Finds the cause of a failed connection or exchange.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut current = Some(error);
        while let Some(error) = current {
            text = error.to_string();
            if let Some(cause) = known(error) {
                return cause;
            }
            current = error.source();
        }
        Self::Lost(text)
    }

    /// What makes two of them the same for the log.
    pub(super) fn kind(&self) -> (Discriminant<Self>, &'static str) {
        let hint = if let Self::Answered { hint, .. } = self { *hint } else { "" };
        (discriminant(self), hint)
    }
}

/// The receiver's message in one line, with a bounded length.
pub(crate) fn message(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS).collect();
    if text.is_empty() { "no reason given".to_owned() } else { printable(&text).into_owned() }
}

fn known(error: &(dyn Error + 'static)) -> Option<Cause> {
    if let Some(untrusted) = error.downcast_ref::<Untrusted>() {
        return Some(Cause::Untrusted { untrusted: *untrusted });
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return of_io(error);
    }
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(of_tls(error));
    }
    // hyper-util's connector names a failed look-up only in its text.
    let is_lookup = error.to_string() == "dns error";
    is_lookup.then(|| Cause::Name(error.source().map_or_else(String::new, ToString::to_string)))
}

fn of_io(error: &io::Error) -> Option<Cause> {
    if let Some(inner) = error.get_ref() {
        return known(inner);
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some(Cause::Refused),
        io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::AddrNotAvailable
        | io::ErrorKind::TimedOut => Some(Cause::Unreachable(error.to_string())),
        _ => None,
    }
}

fn of_tls(error: &rustls::Error) -> Cause {
    use rustls::CertificateError::{BadSignature, UnknownIssuer};
    match error {
        // A bad signature means another CA of the same name, as after a rotation.
        rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature) => Cause::UnknownCa,
        rustls::Error::InvalidCertificate(reason) => Cause::Certificate(reason.to_string()),
        rustls::Error::InvalidMessage(_) => Cause::PlainText,
        other => Cause::Tls(other.to_string()),
    }
}

#[cfg(test)]
mod message_tests {
    use super::message;

    #[test]
    fn a_receivers_message_is_one_line_of_printable_characters() {
        let text = "no\u{202e}quota\n\u{1b}[31mleft\u{200b}";
        assert_eq!(message(text), "no\u{fffd}quota[31mleft\u{fffd}");
        assert_eq!(message("\n"), "no reason given");
    }
}
