//! `[resource]`: what every point says of this host beside its name, from the configuration or a
//! cloud's metadata service.

use super::cloud::Cloud;
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use gpuwho_model::config::{ConfigError, Section, Tables};
use gpuwho_model::paths::Paths;
use serde::Deserialize;
use std::sync::OnceLock;

const NAME: &str = "resource";

/// Longest value: what receivers take as a label.
const MAX_VALUE_LEN: usize = 255;

/// The section.
pub const SECTION: Section = Section::of::<RawResource>(
    NAME,
    r#"# What all points say of this host. OTEL_RESOURCE_ATTRIBUTES (KEY=VALUE,KEY=VALUE) adds any other
# attribute, and overrides these and host.name.
#: k8s_cluster_name = "training-eu"
#: cloud_provider = "aws"
#: cloud_region = "eu-west-1"
#: cloud_availability_zone = "eu-west-1b"
#: host_type = "p5.48xlarge"
# Ask the metadata service of this cloud (aws, gcp or azure) at the start for what is not set here; off:
# ask none. A container on AWS needs a hop limit of 2.
#: cloud_metadata = "off"
"#,
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawResource {
    k8s_cluster_name: Option<String>,
    cloud_provider: Option<String>,
    cloud_region: Option<String>,
    cloud_availability_zone: Option<String>,
    host_type: Option<String>,
    cloud_metadata: Option<String>,
}

/// What was configured; the cloud is asked once, at first use.
#[derive(Clone, Debug, Default)]
pub struct ResourceSettings {
    set: AttrSet,
    cloud: Option<Cloud>,
    asked: OnceLock<AttrSet>,
}

impl ResourceSettings {
    /// From the section.
    pub fn resolve(tables: &Tables) -> Result<Self, ConfigError> {
        let raw: RawResource = tables.read(NAME)?;
        let mut set = AttrSet::new();
        for (key, attribute, value) in [
            ("k8s_cluster_name", &attr::K8S_CLUSTER_NAME, raw.k8s_cluster_name),
            ("cloud_provider", &attr::CLOUD_PROVIDER, raw.cloud_provider),
            ("cloud_region", &attr::CLOUD_REGION, raw.cloud_region),
            ("cloud_availability_zone", &attr::CLOUD_ZONE, raw.cloud_availability_zone),
            ("host_type", &attr::HOST_TYPE, raw.host_type),
        ] {
            let Some(value) = value else { continue };
            if value.trim().is_empty() || value.len() > MAX_VALUE_LEN {
                let problem = format!("it is empty, or longer than {MAX_VALUE_LEN} bytes");
                let remedy = "leave the key out where there is no value";
                return Err(wrong(key, problem, remedy));
            }
            set.set(attribute, value.as_str());
        }
        let word = raw.cloud_metadata.as_deref().unwrap_or("off");
        let cloud = Cloud::ALL.into_iter().find(|cloud| cloud.as_str() == word);
        if cloud.is_none() && word != "off" {
            let problem = format!("no metadata service is known of `{word}`");
            return Err(wrong("cloud_metadata", problem, "write aws, gcp, azure or off"));
        }
        Ok(Self { set, cloud, asked: OnceLock::new() })
    }

    /// The attributes of this host: detected, of the cloud, configured; a later one wins. Blocks for
    /// two seconds at most, the first time, where a cloud is to be asked.
    pub fn attributes(&self, paths: &Paths, node: Option<&str>) -> AttrSet {
        let mut all = super::attributes(paths, node);
        all.extend(self.asked.get_or_init(|| self.cloud.map(ask).unwrap_or_default()));
        all.extend(&self.set);
        let host = all.get(&attr::HOST_NAME).map(ToString::to_string).unwrap_or_default();
        // Prometheus makes its `instance` of it: a person should know the host by it.
        let instance = match all.get(&attr::K8S_CLUSTER_NAME) {
            Some(cluster) => format!("{cluster}/{host}"),
            None => host,
        };
        all.set(&attr::SERVICE_INSTANCE_ID, instance.as_str());
        all
    }
}

fn ask(cloud: Cloud) -> AttrSet {
    let mut set = AttrSet::new();
    match cloud.ask() {
        Ok(facts) => {
            set.set(&attr::CLOUD_PROVIDER, cloud.as_str());
            set.set_some(&attr::CLOUD_REGION, facts.region.as_deref());
            set.set_some(&attr::CLOUD_ZONE, facts.zone.as_deref());
            set.set_some(&attr::HOST_TYPE, facts.machine.as_deref());
        }
        Err(error) => {
            let remedy =
                "set cloud_region and the others in [resource], or cloud_metadata = \"off\"";
            tracing::warn!(cloud = cloud.as_str(), %error, remedy, "region and zone stay unknown");
        }
    }
    set
}

fn wrong(key: &str, problem: String, remedy: &str) -> ConfigError {
    ConfigError::Value { key: format!("{NAME}.{key}"), problem, remedy: remedy.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<ResourceSettings, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let tables = Tables::load(Some(file.path()), &[], &[SECTION], &[]);
        let resolved = tables.and_then(|tables| ResourceSettings::resolve(&tables));
        resolved.map_err(|error| error.to_string())
    }

    fn texts(settings: &ResourceSettings, root: &tempfile::TempDir) -> Vec<(String, String)> {
        let all = settings.attributes(&Paths::under(root.path()), Some("node-7"));
        all.iter().map(|(key, value)| (key.name.to_owned(), value.to_string())).collect()
    }

    #[test]
    fn the_instance_is_a_name_that_a_person_knows() {
        let root = tempfile::tempdir().unwrap();
        let has = |settings: &ResourceSettings, key: &str, value: &str| {
            let all = texts(settings, &root);
            let host = all.iter().find(|(key, _)| key == "host.name").unwrap().1.clone();
            let wanted = (key.to_owned(), value.replace("HOST", &host));
            assert!(all.contains(&wanted), "{all:?} {wanted:?}");
        };
        has(&load("").unwrap(), "service.instance.id", "HOST");
        let set = "[resource]\nk8s_cluster_name = \"eu\"\nhost_type = \"p5\"\ncloud_region = \"r\"";
        let set = load(set).unwrap();
        has(&set, "service.instance.id", "eu/HOST");
        has(&set, "k8s.cluster.name", "eu");
        has(&set, "host.type", "p5");
        has(&set, "cloud.region", "r");
    }

    #[test]
    fn a_cloud_that_nobody_knows_is_refused() {
        let error = load("[resource]\ncloud_metadata = \"aws2\"").unwrap_err();
        assert!(error.ends_with("write aws, gcp, azure or off"), "{error}");
        assert!(load("[resource]\nhost_type = \" \"").unwrap_err().contains("resource.host_type"));
    }
}
