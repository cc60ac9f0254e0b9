//! The attributes of the one OTLP Resource, which describes the agent and its host.

use super::settings::Settings;
use gpuwho_model::catalog::attributes::{AttrSet, AttrValue, SERVICE_NAME, SERVICE_VERSION};

/// The resource's attributes, each key once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource(Vec<(String, AttrValue)>);

impl Resource {
    /// The agent's name and version, the attributes detected on the host, and those that the
    /// operator set; a later one replaces an earlier one.
    pub fn new(detected: &AttrSet, settings: &Settings) -> Self {
        Self::with(detected, &settings.resource_attributes)
    }

    /// The same with the operator's attributes alone.
    pub fn with(detected: &AttrSet, set_by_operator: &[(String, String)]) -> Self {
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
