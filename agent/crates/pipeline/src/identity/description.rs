//! A subject's attributes under construction, in parts.

use gpuwho_model::catalog::attributes::{AttrKey, AttrSet, AttrValue};

/// Attributes in the order they are written, each key once. Those that other subjects have too (a
/// device's, an owner's) are parts of their own, so that they can be stored once.
#[derive(Debug, Default)]
pub struct Description {
    parts: Vec<AttrSet>,
    /// Whether the next attribute belongs to the last part.
    is_open: bool,
}

impl Description {
    /// Sets an attribute; a key already there keeps its place and takes the new value.
    pub fn set(&mut self, key: &'static AttrKey, value: impl Into<AttrValue>) {
        if let Some(part) = self.parts.iter_mut().find(|part| part.get(key).is_some()) {
            return part.set(key, value);
        }
        if !self.is_open {
            self.parts.push(AttrSet::new());
            self.is_open = true;
        }
        if let Some(part) = self.parts.last_mut() {
            part.set(key, value);
        }
    }

    /// Sets an attribute if there is a value.
    pub fn set_some<V: Into<AttrValue>>(&mut self, key: &'static AttrKey, value: Option<V>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// Adds every attribute of `other`, as a part.
    pub fn extend(&mut self, other: &AttrSet) {
        self.close();
        other.iter().for_each(|(key, value)| self.set(key, value.clone()));
        self.close();
    }

    /// The next attribute begins a part.
    pub fn close(&mut self) {
        self.is_open = false;
    }

    /// The parts in order; none is empty.
    pub fn into_parts(self) -> Vec<AttrSet> {
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::attributes as attr;

    #[test]
    fn a_set_is_a_part_and_a_known_key_keeps_its_place() {
        let mut device = AttrSet::new();
        device.set(&attr::GPU_UUID, "GPU-1");
        device.set(&attr::GPU_MODEL, "old");
        let mut all = Description::default();
        all.set(&attr::OWNER_KIND, "pod");
        all.extend(&device);
        all.extend(&AttrSet::new());
        all.set(&attr::GPU_MODEL, "new");
        all.set(&attr::GPU_INDEX, "0");
        all.set_some(&attr::GPU_SERIAL, None::<&str>);
        let named = |set: AttrSet| {
            set.iter().map(|(key, value)| format!("{}={value}", key.name)).collect::<Vec<_>>()
        };
        let parts: Vec<_> = all.into_parts().into_iter().map(named).collect();
        let kind = attr::OWNER_KIND.name;
        assert_eq!(
            parts,
            [
                vec![format!("{kind}=pod")],
                vec!["gpu.uuid=GPU-1".into(), "gpu.model=new".into()],
                vec!["gpu.index=0".into()],
            ]
        );
    }
}
