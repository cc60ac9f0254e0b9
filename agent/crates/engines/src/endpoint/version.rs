//! The version in a server's answer: one key of its document, all else is passed over and not kept.

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// Bytes of an engine's version.
const MAX_VERSION: usize = 64;

/// The version under this key; `None` if it is no short plain text.
pub(super) fn version(document: &[u8], key: &str) -> Option<String> {
    let mut document = serde_json::Deserializer::from_slice(document);
    let version = document.deserialize_map(ValueOf(key)).ok()??;
    let is_plain = version.bytes().all(|c| c.is_ascii_graphic());
    ((1..=MAX_VERSION).contains(&version.len()) && is_plain).then_some(version)
}

/// The text of a key.
struct ValueOf<'k>(&'k str);

impl<'de> Visitor<'de> for ValueOf<'_> {
    type Value = Option<String>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut version = None;
        while let Some(is_it) = map.next_key_seed(IsKey(self.0))? {
            if is_it && version.is_none() {
                version = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(version)
    }
}

/// Whether a key is this one.
struct IsKey<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for IsKey<'_> {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, key: D) -> Result<bool, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for IsKey<'_> {
    type Value = bool;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(document: &str) -> Option<String> {
        version(document.as_bytes(), "version")
    }

    #[test]
    fn a_version_is_a_short_plain_text_wherever_it_is_in_the_document() {
        assert_eq!(
            read(r#"{"a": {"version": "1"}, "version": "0.32.0", "b": [1]}"#).unwrap(),
            "0.32.0"
        );
        for none in
            ["", "[]", "{}", r#"{"version": 1}"#, r#"{"version": ""}"#, r#"{"version": "a b"}"#]
        {
            assert_eq!(read(none), None, "{none}");
        }
        let long = format!(r#"{{"version": "{}"}}"#, "1".repeat(MAX_VERSION + 1));
        assert_eq!(read(&long), None);
    }

    #[test]
    fn what_is_passed_over_takes_no_memory() {
        let many = "0,".repeat(100_000);
        for document in [
            format!("[{many}0]"),
            format!(r#"{{"a": [{many}0], "version": "1"}}"#),
            format!(r#"{{{}"version": "1"}}"#, r#""a": 0,"#.repeat(100_000)),
        ] {
            let measured = allocation_counter::measure(|| {
                let _ = read(&document);
            });
            assert!(measured.bytes_max < 1 << 10, "{} of {measured:?}", &document[..20]);
        }
    }
}
