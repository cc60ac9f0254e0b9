//! Whom a secret may be sent to without TLS: on this host, to a process of root, of the agent's own user or of
//! `receiver_user`. Any user can listen on a port while the receiver restarts, so each new connection is looked at
//! before the first byte is sent: the kernel tells who has accepted it. That costs one read of the table of sockets, on
//! a thread of those that resolve names, and nothing for TLS.

use super::settings::Settings;
use crate::held::Untrusted;
use gpuwho_model::config::{ConfigError, checks};
use gpuwho_model::finding::Finding;
use gpuwho_owners::sockets;
use hyper::Uri;
use hyper::header::{AUTHORIZATION, COOKIE, HeaderName, PROXY_AUTHORIZATION};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustix::process::geteuid;
use serde::Deserialize;
use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tower_service::Service;

/// Parts of the names of headers that hold a secret, beside HTTP's own three.
const SECRET_WORDS: &[&str] =
    &["auth", "key", "token", "secret", "password", "credential", "honeycomb-team"];
/// The waits between looks at who has accepted a connection: a receiver does so within a millisecond, on a machine
/// under load within a second.
const LOOKS: &[Duration] = &[
    Duration::from_millis(5),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_millis(700),
];

/// A user by number or name.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum RawUser {
    /// By number.
    Number(u32),
    /// By name, or by number in a variable.
    Name(String),
}

/// Whom a secret may be sent to without TLS.
#[derive(Clone, Debug)]
pub struct Trust {
    /// What of a request is secret, by its key.
    pub(crate) secret: Option<&'static str>,
    /// `insecure_secrets`.
    insecure: bool,
    /// `receiver_user`, as written.
    receiver: Option<RawUser>,
    user: Option<u32>,
}

impl Trust {
    pub(super) fn new(
        secret: Option<&'static str>,
        insecure: Option<bool>,
        receiver: Option<RawUser>,
    ) -> Self {
        Self { secret, insecure: insecure.unwrap_or(false), receiver, user: None }
    }
}

/// Whether a process of this user is the operator's: root's, or the agent's own.
pub(crate) fn is_ours(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// Whether a header of this name holds a secret.
pub(super) fn is_secret(name: &HeaderName) -> bool {
    [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].contains(name)
        || SECRET_WORDS.iter().any(|word| name.as_str().contains(word))
}

impl Settings {
    /// Finds the user that `receiver_user` names, and refuses a secret that would leave this host without TLS.
    pub(crate) fn with_trust(mut self, key: &str, passwd: &Path) -> Result<Self, ConfigError> {
        let unknown = |name: &str| {
            let problem = format!("there is no user `{name}`; write the number of one");
            ConfigError::at(format!("{key}.receiver_user"), problem)
        };
        self.trust.user = match &self.trust.receiver {
            None => None,
            Some(RawUser::Number(number)) => Some(*number),
            Some(RawUser::Name(name)) => {
                let found = name.parse().ok().or_else(|| number_of(name, passwd));
                Some(found.ok_or_else(|| unknown(name))?)
            }
        };
        let refused = |secret: &str, to: String| {
            let problem = format!(
                "{secret} would go to {to} without TLS; use https, or 127.0.0.1 for a receiver on this host; or set {key}.insecure_secrets = true"
            );
            Err(ConfigError::at(key, problem))
        };
        match (self.trust.secret, self.proxy_secret()) {
            _ if self.trust.insecure => Ok(self),
            (_, Some(false)) => refused("the proxy's password", format!("{:?}", self.proxy)),
            (Some(secret), _) if self.leaves_host() => refused(secret, self.endpoint.to_string()),
            _ => Ok(self),
        }
    }

    /// Whether a request goes to another host, or through a proxy, without TLS.
    fn leaves_host(&self) -> bool {
        !self.endpoint.is_tls() && (self.proxy.is_some() || !self.endpoint.is_loopback())
    }

    /// Whether a proxy that gets a password is on this host; `None` where none gets one.
    fn proxy_secret(&self) -> Option<bool> {
        let proxy = self.proxy.as_ref().filter(|proxy| proxy.authorization.is_some())?;
        Some(super::settings::is_loopback(proxy.uri.host()))
    }

    /// What is looked at before a connection is used.
    fn guard(&self) -> Option<Guard> {
        let is_plain = !self.endpoint.is_tls() && self.proxy.is_none();
        let has_secret = self.proxy_secret().is_some() || (is_plain && self.trust.secret.is_some());
        let guard =
            Guard { must: has_secret, user: self.trust.user, has_warned: AtomicBool::new(false) };
        ((is_plain || has_secret) && !self.trust.insecure).then_some(guard)
    }

    /// Who listens where this host's receiver should, if it is somebody else; `key` is the section.
    pub(crate) fn diagnose_receiver(
        &self,
        subject: &str,
        key: &str,
        passwd: &Path,
    ) -> Option<Finding> {
        let guard = self.guard().filter(|guard| guard.must)?;
        let uri = self.proxy.as_ref().map_or(self.endpoint.uri(), |proxy| &proxy.uri);
        let ip = uri.host()?.trim_matches(['[', ']']).replace("localhost", "127.0.0.1");
        let at = SocketAddr::new(ip.parse().ok()?, uri.port_u16().unwrap_or(80));
        let users = sockets::listening_users(at);
        let user = users.into_iter().find(|user| !guard.trusts(*user))?;
        let name = name_of(user, passwd).map(|name| format!(" ({name})")).unwrap_or_default();
        let secret = self.trust.secret.unwrap_or("the proxy's password");
        let facts = format!("user {user}{name} listens on {at}: what carries {secret} waits");
        let remedy = format!(
            "end that process; if it is the receiver, set {key}.receiver_user = {user}, or use https"
        );
        Some(Finding::new(subject, "degraded", facts, remedy))
    }
}

/// The fields of each line of a `passwd` file.
fn users(passwd: &Path) -> Vec<(String, u32)> {
    let text = checks::read(passwd).unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
    };
    text.lines().filter_map(user).collect()
}

fn number_of(name: &str, passwd: &Path) -> Option<u32> {
    users(passwd).into_iter().find(|(known, _)| known == name).map(|(_, number)| number)
}

fn name_of(number: u32, passwd: &Path) -> Option<String> {
    users(passwd).into_iter().find(|(_, known)| *known == number).map(|(name, _)| name)
}

/// What is looked at when a connection is made.
#[derive(Debug)]
struct Guard {
    /// Whether a secret goes over it; without one a stranger is only told of.
    must: bool,
    user: Option<u32>,
    has_warned: AtomicBool,
}

impl Guard {
    fn trusts(&self, user: u32) -> bool {
        is_ours(user) || self.user == Some(user)
    }

    async fn admit(&self, stream: &TcpStream) -> Result<(), Box<dyn Error + Send + Sync>> {
        if !self.must && self.has_warned.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.classify(stream.peer_addr()?, stream.local_addr()?).await {
            Err(untrusted) if self.must => Err(untrusted.into()),
            Err(untrusted @ Untrusted::User { .. }) => {
                self.has_warned.store(true, Ordering::Relaxed);
                tracing::warn!(
                    remedy = untrusted.remedy(),
                    "{}; points without a secret are",
                    untrusted
                );
                Ok(())
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    async fn classify(&self, at: SocketAddr, client: SocketAddr) -> Result<(), Untrusted> {
        if !at.ip().to_canonical().is_loopback() && at.ip() != client.ip() {
            return Err(Untrusted::OtherHost { at });
        }
        let mut waits = LOOKS.iter();
        loop {
            let look = tokio::task::spawn_blocking(move || sockets::accepting_user((at, client)));
            match look.await.ok().flatten() {
                Some(user) if self.trusts(user) => return Ok(()),
                Some(user) => return Err(Untrusted::User { at, user }),
                None => {}
            }
            match waits.next() {
                Some(wait) => tokio::time::sleep(*wait).await,
                None => return Err(Untrusted::Unseen { at }),
            }
        }
    }
}

/// Connects, and gives no connection over which a secret would go to a stranger.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    tcp: HttpConnector,
    guard: Option<Arc<Guard>>,
}

impl Connector {
    pub(super) fn new(tcp: HttpConnector, settings: &Settings) -> Self {
        Self { tcp, guard: settings.guard().map(Arc::new) }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, guard) = (self.tcp.call(uri), self.guard.clone());
        Box::pin(async move {
            let stream = connecting.await?;
            if let Some(guard) = guard {
                guard.admit(stream.inner()).await?;
            }
            Ok(stream)
        })
    }
}

#[cfg(test)]
mod tests;
