//! The attributes of the one Resource of OpenTelemetry, which describes the agent and its host.

use gpuwho_model::catalog::attributes::{AttrSet, AttrValue, SERVICE_NAME, SERVICE_VERSION};
use gpuwho_model::config::ConfigError;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// The resource's attributes, each key once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource(Vec<(String, AttrValue)>);

impl Resource {
    /// The agent's name and version, the attributes detected on the host, and those that the
    /// operator set; a later one replaces an earlier one.
    pub fn new(detected: &AttrSet, set_by_operator: &[(String, String)]) -> Self {
        let mut resource = Self::default();
        resource.set(SERVICE_NAME.name, gpuwho_model::NAME.into());
        resource.set(SERVICE_VERSION.name, env!("CARGO_PKG_VERSION").into());
        for (key, value) in detected.iter() {
            resource.set(key.name, value.clone());
        }
        for (key, value) in set_by_operator {
            resource.set(key, value.as_str().into());
        }
        resource
    }

    /// The attributes in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &AttrValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    fn set(&mut self, key: &str, value: AttrValue) {
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }
}

/// `OTEL_RESOURCE_ATTRIBUTES`, then `OTEL_SERVICE_NAME`, which wins.
pub(crate) fn attributes(
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, ConfigError> {
    let origin = "OTEL_RESOURCE_ATTRIBUTES";
    let text = env(origin).unwrap_or_default();
    let mut attributes = Vec::new();
    for (entry, pair) in (1..).zip(pairs(&text)) {
        let wrong = || {
            let problem = format!(
                "entry {entry} is not an attribute; write KEY=VALUE,KEY=VALUE with values percent-encoded"
            );
            ConfigError::at(origin, problem)
        };
        attributes.push(pair.ok_or_else(wrong)?);
    }
    if let Some(name) = env("OTEL_SERVICE_NAME").filter(|name| !name.trim().is_empty()) {
        attributes.push((SERVICE_NAME.name.to_owned(), name.trim().to_owned()));
    }
    Ok(attributes)
}

/// Splits `key=value,key=value` and decodes the values; `None` for an entry that is neither a pair
/// nor empty.
pub(crate) fn pairs(list: &str) -> impl Iterator<Item = Option<(String, String)>> {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(|entry| {
        let (key, value) = entry.split_once('=')?;
        let key = key.trim();
        if key.is_empty() {
            return None;
        }
        Some((key.to_owned(), percent_decoded(value.trim())?))
    })
}

/// `None` for a `%` that begins no escape, which the crate takes for itself.
fn percent_decoded(text: &str) -> Option<String> {
    let is_escape = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let escapes = text.split('%').skip(1).all(is_escape);
    let decoded = percent_decode_str(text).decode_utf8().ok().filter(|_| escapes);
    decoded.map(Cow::into_owned)
}
