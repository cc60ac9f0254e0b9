//! The HTTP proxy in front of a receiver, from the configuration or from `HTTPS_PROXY`, `HTTP_PROXY`,
//! `ALL_PROXY` and `NO_PROXY` as other programs have them. The connection goes through it by CONNECT,
//! so that TLS is with the receiver itself. This host's own addresses have none.

use super::settings::Endpoint;
use gpuwho_model::config::ConfigError;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;
use std::fmt;

/// A proxy. Prints without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Its address.
    pub(super) uri: Uri,
    /// For the CONNECT request.
    pub(super) authorization: Option<HeaderValue>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.uri.authority().map_or("", |authority| authority.as_str()), f)
    }
}

/// The word in the configuration for no proxy, whatever the environment has.
const NONE: &str = "none";

/// The proxy of an endpoint. `configured`, the key of a section, is before the environment.
pub(super) fn proxy(
    section: &str,
    configured: Option<&str>,
    endpoint: &Endpoint,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>, ConfigError> {
    if configured == Some(NONE) || (configured.is_none() && endpoint.is_loopback()) {
        return Ok(None);
    }
    // The value may have a password, so it is not shown.
    let wrong = || {
        let problem = format!(
            "the proxy is not of the form http://HOST:PORT; set {section}.proxy to one, or to `none` to use none"
        );
        ConfigError::Component(problem.into())
    };
    let builder = Matcher::builder();
    let builder = if let Some(url) = configured {
        let has_host = |uri: Uri| uri.host().is_some_and(|host| !host.is_empty());
        if !url.starts_with("http://") || !url.parse().is_ok_and(has_host) {
            return Err(wrong());
        }
        builder.all(url.to_owned())
    } else {
        let of = |names: [&str; 2]| {
            let found = names.into_iter().find_map(env);
            found.filter(|value| !value.trim().is_empty()).unwrap_or_default()
        };
        builder
            .all(of(["ALL_PROXY", "all_proxy"]))
            .http(of(["HTTP_PROXY", "http_proxy"]))
            .https(of(["HTTPS_PROXY", "https_proxy"]))
            .no(of(["NO_PROXY", "no_proxy"]))
    };
    let Some(found) = builder.build().intercept(endpoint.uri()) else { return Ok(None) };
    if found.uri().scheme_str() != Some("http") {
        // SOCKS and TLS to the proxy itself are not spoken.
        return Err(wrong());
    }
    let authorization = found.basic_auth().cloned().map(|mut value| {
        value.set_sensitive(true);
        value
    });
    Ok(Some(Proxy { uri: found.uri().clone(), authorization }))
}
