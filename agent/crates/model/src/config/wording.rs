//! Errors about a value's type, in the user's words and with the key: serde speaks Rust and names
//! neither.

use toml::de::{DeTable, DeValue};

/// The key whose value is at an offset of the text, as `section.key`.
pub(super) fn key_at(text: &str, at: usize) -> Option<String> {
    let table = DeTable::parse(text).ok()?;
    table.get_ref().iter().find_map(|(section, value)| {
        if !value.span().contains(&at) && !matches!(value.get_ref(), DeValue::Table(_)) {
            return None;
        }
        let section = section.get_ref();
        let DeValue::Table(keys) = value.get_ref() else { return Some(section.to_string()) };
        let found = keys.iter().find(|(_, value)| value.span().contains(&at));
        found.map(|(key, _)| format!("{section}.{}", key.get_ref()))
    })
}

/// `is the number 3; write true or false`, of serde's: invalid type: integer `3`, expected a boolean.
pub(super) fn wrong_type(message: &str) -> Option<String> {
    let rest = message.strip_prefix("invalid type: ");
    let rest = rest.or_else(|| message.strip_prefix("invalid value: "))?;
    let (found, expected) = rest.split_once(", expected ")?;
    Some(format!("is {}; write {}", seen(found), wanted(expected)))
}

fn seen(found: &str) -> String {
    let quoted = || found.split('`').nth(1).unwrap_or_default();
    match found.split([' ', '`']).next().unwrap_or_default() {
        "integer" | "floating" => format!("the number {}", quoted()),
        "boolean" => quoted().to_owned(),
        "string" => format!("the text {}", found.trim_start_matches("string ")),
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        _ => found.to_owned(),
    }
}

fn wanted(expected: &str) -> String {
    match expected {
        "a string" | "path string" => "a text in quotes".to_owned(),
        "a boolean" => "true or false, without quotes".to_owned(),
        "a sequence" => "a list, like [\"one\", \"two\"]".to_owned(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a map" => "a table, like { name = \"value\" }".to_owned(),
        other if other.starts_with("struct ") => "a section: [name], and its keys below".to_owned(),
        other => other.to_owned(),
    }
}
