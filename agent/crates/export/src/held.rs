//! Why a sink holds back what it has until somebody acts; its state says so meanwhile.

use super::file::UnsafeFile;
use super::otlp::trust::Untrusted;
use super::prometheus::RETRY_LISTEN;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::status;
use std::io;
use std::net::SocketAddr;

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
