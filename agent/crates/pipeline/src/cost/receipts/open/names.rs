//! An owner's names and labels on its receipt.

use gpuwho_owners::attribute::owner::OwnerFacts;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// OwnerNames and labels of an owner, and the longest one in bytes.
const MAX_NAMES: usize = 64;
const MAX_NAME_LEN: usize = 256;

/// What an owner is and was called; the first value of a name stays. The current ones are read from the
/// owner's facts, which others hold too.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "BTreeMap<String, String>")]
pub(super) struct OwnerNames {
    former: BTreeMap<String, String>,
    facts: Option<Arc<OwnerFacts>>,
}

impl OwnerNames {
    /// Takes the owner's current names.
    pub(super) fn take(&mut self, facts: &Arc<OwnerFacts>) {
        match &self.facts {
            Some(known) if Arc::ptr_eq(known, facts) => return,
            Some(known) if !facts.details.holds(&known.details) => self.former = self.all(),
            _ => {}
        }
        self.facts = Some(Arc::clone(facts));
    }

    /// All of them.
    pub(super) fn all(&self) -> BTreeMap<String, String> {
        let mut all = self.former.clone();
        for (key, value) in self.facts.iter().flat_map(|facts| facts.details.iter()) {
            if all.len() < MAX_NAMES && !all.contains_key(key.name) {
                let text = value.to_string();
                let end = text.floor_char_boundary(MAX_NAME_LEN);
                all.insert(key.name.to_owned(), text.get(..end).unwrap_or_default().to_owned());
            }
        }
        all
    }
}

impl From<BTreeMap<String, String>> for OwnerNames {
    fn from(former: BTreeMap<String, String>) -> Self {
        Self { former, facts: None }
    }
}

impl Serialize for OwnerNames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.all().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::attributes as attr;
    use gpuwho_model::catalog::attributes::AttrSet;
    use gpuwho_owners::attribute::owner::Owner;

    fn facts(names: &[(&'static attr::AttrKey, &str)]) -> Arc<OwnerFacts> {
        let mut details = AttrSet::new();
        for (key, value) in names {
            details.set(key, *value);
        }
        Arc::new(OwnerFacts { owner: Owner::User(7), attributes: AttrSet::new(), details })
    }

    #[test]
    fn a_name_stays_as_it_was_first_known_also_after_the_agent_s_restart() {
        let mut names = OwnerNames::default();
        let pod = (&attr::K8S_POD_NAME, "a");
        names.take(&facts(&[pod]));
        names.take(&facts(&[pod, (&attr::K8S_NAMESPACE_NAME, "ml")]));
        assert!(names.former.is_empty(), "all are in the facts");
        names.take(&facts(&[(&attr::K8S_POD_NAME, "b"), (&attr::PROCESS_OWNER, &"é".repeat(999))]));
        let text = serde_json::to_string(&names).unwrap();
        let mut again: OwnerNames = serde_json::from_str(&text).unwrap();
        again.take(&facts(&[(&attr::K8S_POD_NAME, "c")]));
        let long = "é".repeat(128);
        let expected = [
            ("k8s.namespace.name", "ml"),
            ("k8s.pod.name", "a"),
            (attr::PROCESS_OWNER.name, &long),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!((names.all(), again.all()), (expected.clone().into(), expected.into()));
    }
}
