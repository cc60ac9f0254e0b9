//! Why a sink holds back what it has until somebody acts; its state says so meanwhile.

use super::file::UnsafeFile;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::status;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The wait between two tries to listen, where another process has the address.
pub(crate) const RETRY_LISTEN: Duration = Duration::from_secs(30);

/// Why a sink does not send or serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It cannot listen.
    Address {
        /// On what.
        address: SocketAddr,
        /// `errno`.
        error: i32,
        /// Who listens there.
        user: Option<u32>,
    },
    /// A secret would go to somebody else than the receiver.
    Secret(Untrusted),
    /// Another user has its file, or can replace it.
    File(UnsafeFile),
}

impl Held {
    /// The state of the sink.
    pub fn status(self) -> status::Report {
        let (reason, remedy) = match self {
            Self::Address { address, error, user } => {
                let error = io::Error::from_raw_os_error(error);
                let who = user.map(|user| format!(": a process of user {user} listens there"));
                let who = who.unwrap_or_default();
                let end = user.map_or("", |_| "end that process, or ");
                (
                    format!("cannot listen on {address} for Prometheus ({error}){who}"),
                    format!(
                        "{end}choose another address with prometheus.listen; it is tried every {RETRY_LISTEN:?}"
                    ),
                )
            }
            Self::Secret(untrusted) => (untrusted.to_string(), untrusted.remedy()),
            Self::File(refusal) => (
                format!("sinks.file: {refusal}; nothing is written"),
                format!("{}; it is tried with each batch", UnsafeFile::REMEDY),
            ),
        };
        status::Report::of(SourceState::Degraded, reason, remedy)
    }
}

/// Why a secret is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// Another user's process has accepted the connection.
    #[error(
        "a process of user {user} accepts connections on {at}: no secret is sent to it without TLS"
    )]
    User {
        /// The receiver's address.
        at: SocketAddr,
        /// Whose process it is.
        user: u32,
    },
    /// Nobody on this host has, as where the address is translated to another one.
    #[error(
        "no process of this host has accepted the connection to {at}: no secret is sent to it without TLS"
    )]
    Unseen {
        /// The receiver's address.
        at: SocketAddr,
    },
    /// It is not on this host.
    #[error("{at} is another host: no secret is sent to it without TLS")]
    OtherHost {
        /// The receiver's address.
        at: SocketAddr,
    },
}

impl Untrusted {
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::User { user, .. } => format!(
                "end that process; if it is the receiver, set receiver_user = {user} beside its endpoint, or use https"
            ),
            Self::Unseen { .. } | Self::OtherHost { .. } => {
                "use https; or set insecure_secrets = true beside its endpoint, if nobody else can have the address"
                    .to_owned()
            }
        }
    }
}
