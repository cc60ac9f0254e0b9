//! Why there is no page, and what the operator can do.

use super::LARGE_PAGE;
use gpuwho_model::catalog::endpoint::PageOutcome;
use hyper::StatusCode;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The network of the process cannot be entered.
    #[error("cannot enter the network of the process: {0}")]
    Namespace(io::Error),
    /// The host's name has no address.
    #[error("cannot resolve {host}: {source}")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody accepts the connection.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// A certificate, or the server's.
    #[error("no TLS connection: {0}")]
    Tls(String),
    /// The token's file.
    #[error("cannot read the bearer token in {}: {source}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No whole answer in time.
    #[error("no whole answer within {0:?}")]
    Late(Duration),
    /// Another process than the engine's has the connection.
    #[error("another process than the engine's has accepted the connection")]
    UnknownServer,
    /// Who has the connection is not found within what a look may cost.
    #[error(
        "the engine's processes have too many sockets to find out which accepted the connection"
    )]
    TooManySockets,
    /// What answers does not speak HTTP.
    #[error("the answer is no HTTP: {0}")]
    NotHttp(String),
    /// It answers with another address.
    #[error("it redirects (status {status}), which is not followed")]
    Redirect {
        /// The status.
        status: u16,
        /// Whether only a slash at the path's end is missing.
        adds_slash: bool,
    },
    /// It answers with an error.
    #[error("it answers {0}")]
    Status(StatusCode),
    /// The answer is compressed although nobody asked for it.
    #[error("the answer is compressed ({0}), which was not asked for")]
    Compressed(String),
    /// The answer is no page of metrics.
    #[error("the answer is `{0}`, no page of metrics")]
    MediaType(String),
    /// The answer has too many bytes.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    /// There is no memory for another large page.
    #[error("the page has more than {LARGE_PAGE} bytes, and another such is being read")]
    Busy,
}

impl FetchError {
    /// The catalogue's word.
    pub(crate) fn outcome(&self) -> PageOutcome {
        match self {
            Self::Namespace(_)
            | Self::Resolve { .. }
            | Self::Connect(_)
            | Self::Tls(_)
            | Self::Token { .. }
            | Self::UnknownServer
            | Self::TooManySockets => PageOutcome::Unreachable,
            Self::Late(_) => PageOutcome::Late,
            Self::TooLarge(_) | Self::Busy => PageOutcome::TooLarge,
            Self::NotHttp(_)
            | Self::Redirect { .. }
            | Self::Status(_)
            | Self::Compressed(_)
            | Self::MediaType(_) => PageOutcome::Refused,
        }
    }

    /// What the operator can do.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Namespace(_) => "run the agent as root with CAP_SYS_ADMIN",
            Self::Resolve { .. } | Self::Connect(_) => {
                "see whether the engine listens where it is configured to"
            }
            Self::Tls(_) => {
                "name the endpoint in engines.endpoints with its `ca`, `certificate` and `key`"
            }
            Self::Token { .. } => "make the file readable for the agent",
            Self::Late(_) | Self::Busy => "see what keeps the engine; it is asked again",
            Self::TooManySockets => {
                "name the engine in engines.endpoints: then it is not looked for"
            }
            Self::UnknownServer => {
                "see which other process shares the engine's port (SO_REUSEPORT)"
            }
            Self::NotHttp(_) => "name an endpoint that speaks TLS in engines.endpoints",
            Self::Redirect { .. } | Self::MediaType(_) => {
                "name the page's own address in engines.endpoints"
            }
            Self::Status(status) => of_status(*status),
            Self::Compressed(_) => "switch compression of the metrics off in the server or proxy",
            Self::TooLarge(_) => "see why the engine writes so much: real ones write 0.1 MB",
        }
    }
}

/// What can be done where a server answers so.
fn of_status(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 | 422 => {
            "name the page in engines.endpoints with what the server wants to be asked (llama.cpp as a router: \
             /metrics?model=NAME)"
        }
        401 | 403 => {
            "name the endpoint in engines.endpoints by https:// with its `bearer_token_file`"
        }
        404 | 501 => {
            "switch the engine's metrics on (SGLang: --enable-metrics, llama.cpp: --metrics, TensorRT-LLM: \
             return_perf_metrics: true)"
        }
        500.. => {
            "see the engine's log for why its metrics fail (vLLM: PROMETHEUS_MULTIPROC_DIR must be a local folder)"
        }
        _ => "name the page's own address in engines.endpoints",
    }
}
