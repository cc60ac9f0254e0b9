//! What is wrong with a setting.

use super::MAX_ALSO;
use gpuwho_model::config::ConfigError;

/// A wrong setting: where it is, what is wrong, and what to write instead. It never has header
/// values.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    /// Not an address.
    #[error(
        "{origin}: not an OTLP endpoint ({reason}); write http://HOST:4318, or https://HOST:4317"
    )]
    Endpoint {
        /// Variable or key.
        origin: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Not one of the accepted values.
    #[error("{origin}: unknown value `{value}`; use {expected}")]
    Word {
        /// Variable or key.
        origin: String,
        /// As written.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },
    /// Not a time.
    #[error("{origin}: `{value}` is not a number of milliseconds above 0; the default is 10000")]
    Timeout {
        /// Variable or key.
        origin: String,
        /// As written.
        value: String,
    },
    /// Not a list of headers.
    #[error(
        "{origin}: entry {entry} is not a header; write NAME=VALUE,NAME=VALUE with values percent-encoded"
    )]
    Headers {
        /// Variable or key.
        origin: String,
        /// Position in the list, from 1.
        entry: usize,
    },
    /// Not a list of attributes.
    #[error(
        "{origin}: entry {entry} is not an attribute; write KEY=VALUE,KEY=VALUE with values percent-encoded"
    )]
    ResourceAttributes {
        /// Variable.
        origin: String,
        /// Position in the list, from 1.
        entry: usize,
    },
    /// A certificate without its key, or the reverse.
    #[error("{origin}: set together with {missing}, or neither")]
    ClientPair {
        /// The one that is set.
        origin: String,
        /// The one that is not.
        missing: &'static str,
    },
    /// Not a proxy. The value may have a password, so it is not shown.
    #[error(
        "the proxy is not of the form http://HOST:PORT; set otlp.proxy to one, or to `none` to use none"
    )]
    Proxy,
    /// A secret that everybody on the way could read.
    #[error(
        "{key}: {secret} would go to {to} without TLS; use https, or 127.0.0.1 for a receiver on this host; or set {key}.insecure_secrets = true"
    )]
    PlainSecret {
        /// The section.
        key: String,
        /// What is secret.
        secret: &'static str,
        /// Where it would go.
        to: String,
    },
    /// A user that is not there.
    #[error("{key}.receiver_user: there is no user `{name}`; write the number of one")]
    ReceiverUser {
        /// The section.
        key: String,
        /// As written.
        name: String,
    },
    /// A further receiver's name.
    #[error("otlp.also: `{name}` is no name; use up to 32 of a-z, 0-9 and -")]
    Name {
        /// As written.
        name: String,
    },
    /// A further receiver without an address, or with receivers of its own.
    #[error("otlp.also.{name}: {problem}")]
    Also {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// Too many receivers.
    #[error("otlp.also: {count} receivers are too many; the most are {MAX_ALSO}")]
    TooMany {
        /// As written.
        count: usize,
    },
    /// The queue is too small.
    #[error(
        "otlp.queue_bytes: {value} is too small for a request; the default is 8388608, the minimum 65536"
    )]
    QueueBytes {
        /// As written.
        value: usize,
    },
}

impl From<SettingsError> for ConfigError {
    fn from(error: SettingsError) -> Self {
        Self::Component(Box::new(error))
    }
}
