//! Which team an owner belongs to: the first rule of `[cost] teams` whose conditions all hold.

use super::settings::{matches, wrong};
use gpuwho_model::catalog::attributes::{self as attr, AttrKey, K8S_POD_LABEL};
use gpuwho_model::config::ConfigError;
use gpuwho_model::labels::OTHER;
use gpuwho_owners::attribute::owner::OwnerFacts;
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Teams named by pods' labels, which whoever makes a pod writes. Beyond it a team is `other`.
const MAX_TEAMS: usize = 256;
/// Of these the ones that the pods of a namespace named first.
const MAX_TEAMS_PER_NAMESPACE: usize = 32;
/// Longest name of a team in bytes.
pub(super) const MAX_TEAM_LEN: usize = 128;

/// What a job's environment may claim.
static OF_JOB: [&AttrKey; 3] =
    [&attr::SLURM_JOB_ACCOUNT, &attr::SLURM_JOB_PARTITION, &attr::PROCESS_OWNER];

/// Whether only the environment of a job, which its user can change, has the job's names. They decide
/// neither team nor price: they could charge somebody else.
pub(super) fn is_claimed(owner: &OwnerFacts) -> bool {
    let source = owner.attributes.get(&attr::SLURM_FACTS_SOURCE);
    source.and_then(|source| source.as_text()) == Some("environment")
}

/// A rule as configured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawTeam {
    team: Option<String>,
    namespace: Option<String>,
    account: Option<String>,
    partition: Option<String>,
    unit: Option<String>,
    user: Option<String>,
    pod_label: Option<String>,
}

#[derive(Clone, Debug)]
struct Rule {
    /// `None`: the value of the label.
    team: Option<Arc<str>>,
    conditions: Vec<(&'static AttrKey, String)>,
    label: Option<&'static AttrKey>,
}

/// All rules.
#[derive(Debug, Default)]
pub(super) struct Teams {
    rules: Vec<Rule>,
    /// Teams by label, in their order of appearance up to the bounds, each with the namespace of the first
    /// pod that named it.
    named: Mutex<BTreeMap<Arc<str>, Arc<str>>>,
}

impl Teams {
    pub(super) fn resolve(raw: Vec<RawTeam>) -> Result<Self, ConfigError> {
        let rules = raw.into_iter().enumerate().map(|(place, raw)| Rule::resolve(raw, place));
        Ok(Self { rules: rules.collect::<Result<_, _>>()?, named: Mutex::default() })
    }

    /// The team of an owner with these attributes.
    pub(super) fn of(&self, owner: &OwnerFacts) -> Option<Arc<str>> {
        let is_claimed = is_claimed(owner);
        self.rules.iter().find_map(|rule| {
            let text = |key: &AttrKey| {
                let is_trusted =
                    !(is_claimed && OF_JOB.iter().any(|of_job| of_job.name == key.name));
                owner.details.get(key).filter(|_| is_trusted).and_then(|value| value.as_text())
            };
            let holds = |(key, wanted): &(&AttrKey, String)| {
                text(key).is_some_and(|value| matches(wanted, value))
            };
            if !rule.conditions.iter().all(holds) {
                return None;
            }
            let label = rule.label.map(|key| text(key).filter(|value| !value.is_empty()));
            match (&rule.team, label) {
                (_, Some(None)) => None,
                (Some(team), _) => Some(Arc::clone(team)),
                (None, label) => {
                    let namespace = text(&attr::K8S_NAMESPACE_NAME).unwrap_or_default();
                    label.flatten().map(|name| self.named(name, namespace))
                }
            }
        })
    }

    fn named(&self, name: &str, namespace: &str) -> Arc<str> {
        let name = name.get(..name.floor_char_boundary(MAX_TEAM_LEN)).unwrap_or(OTHER);
        let mut known = self.named.lock();
        if let Some((known, _)) = known.get_key_value(name) {
            return Arc::clone(known);
        }
        let of_namespace = known.values().filter(|first| &***first == namespace).count();
        if known.len() >= MAX_TEAMS || of_namespace >= MAX_TEAMS_PER_NAMESPACE {
            return OTHER.into();
        }
        let name: Arc<str> = name.into();
        known.insert(Arc::clone(&name), namespace.into());
        name
    }
}

impl Rule {
    fn resolve(raw: RawTeam, place: usize) -> Result<Self, ConfigError> {
        let key = |name: &str| format!("teams[{place}].{name}");
        let mut conditions: Vec<(&'static AttrKey, String)> = Vec::new();
        for (attribute, value) in [
            (&attr::K8S_NAMESPACE_NAME, raw.namespace),
            (&attr::SLURM_JOB_ACCOUNT, raw.account),
            (&attr::SLURM_JOB_PARTITION, raw.partition),
            (&attr::SYSTEMD_UNIT, raw.unit),
            (&attr::PROCESS_OWNER, raw.user),
        ] {
            conditions.extend(value.map(|value| (attribute, value)));
        }
        let label = raw.pod_label.map(|label| match label.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (label, None),
        });
        let full = || {
            let problem = "there are too many keys of labels".to_owned();
            wrong(&key("pod_label"), problem, "use fewer keys")
        };
        let mut named_by = None;
        if let Some((name, value)) = label {
            let attribute = K8S_POD_LABEL.key(&name).ok_or_else(full)?;
            named_by = Some(attribute);
            conditions.extend(value.map(|value| (attribute, value)));
        }
        if conditions.is_empty() && named_by.is_none() {
            let problem = "the rule has no condition".to_owned();
            let remedy = "write namespace, account, partition, unit, user or pod_label";
            return Err(wrong(&key("team"), problem, remedy));
        }
        if raw.team.is_none() && named_by.is_none() {
            let problem = "the rule names no team".to_owned();
            let remedy = "write team, or pod_label = \"KEY\" to take the label's value";
            return Err(wrong(&key("team"), problem, remedy));
        }
        if raw.team.as_ref().is_some_and(|team| team.is_empty() || team.len() > MAX_TEAM_LEN) {
            let problem = format!("the name is empty, or longer than {MAX_TEAM_LEN} bytes");
            return Err(wrong(&key("team"), problem, "write a shorter name"));
        }
        Ok(Self { team: raw.team.map(Arc::from), conditions, label: named_by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_one_namespace_leave_room_for_the_teams_of_others() {
        let teams = Teams::default();
        let first: Vec<_> =
            (0..300).map(|number| teams.named(&format!("team-{number}"), "alice")).collect();
        assert_eq!(&*first[MAX_TEAMS_PER_NAMESPACE - 1], "team-31");
        assert!(first[MAX_TEAMS_PER_NAMESPACE..].iter().all(|team| &**team == OTHER));
        assert_eq!(&*teams.named("vision", "bob"), "vision");
        assert_eq!(&*teams.named("team-7", "bob"), "team-7");
        for (namespace, number) in
            (0..20).flat_map(|namespace| (0..40).map(move |n| (namespace, n)))
        {
            teams.named(&format!("{namespace}-{number}"), &format!("n{namespace}"));
        }
        assert_eq!(teams.named.lock().len(), MAX_TEAMS);
    }
}
