//! Parsers of fixed-format parts of a line: each takes one part from the start of a text and
//! returns the rest, or `None` if the text does not start with it.

use gpuwho_model::ids::PciAddress;

/// A decimal number (`%d` of a non-negative value).
pub(super) fn number(text: &str) -> Option<(u32, &str)> {
    let (digits, rest) = run(text, |byte| byte.is_ascii_digit());
    Some((digits.parse().ok()?, rest))
}

/// `%04x:%02x:%02x`; a segment above `ffff` has up to eight digits.
pub(super) fn address(text: &str) -> Option<(PciAddress, &str)> {
    let (_, rest) = hex(text, 4..=8)?;
    let (_, rest) = hex(rest.strip_prefix(':')?, 2..=2)?;
    let (_, rest) = hex(rest.strip_prefix(':')?, 2..=2)?;
    let address = text.get(..text.len() - rest.len())?;
    Some((PciAddress::parse(address)?, rest))
}

/// An [`address`] and its function, `%04x:%02x:%02x.%x`.
pub(super) fn device(text: &str) -> Option<(PciAddress, &str)> {
    let (_, rest) = address(text)?;
    let (_, rest) = hex(rest.strip_prefix('.')?, 1..=1)?;
    Some((PciAddress::parse(text.get(..text.len() - rest.len())?)?, rest))
}

/// Hexadecimal digits, as many as `count`.
pub(super) fn hex(text: &str, count: std::ops::RangeInclusive<usize>) -> Option<(&str, &str)> {
    let (digits, rest) = run(text, |byte| byte.is_ascii_hexdigit());
    count.contains(&digits.len()).then_some((digits, rest))
}

/// A C identifier.
pub(super) fn identifier(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = run(text, |byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (!name.is_empty()).then_some((name, rest))
}

fn run(text: &str, of: impl Fn(u8) -> bool) -> (&str, &str) {
    let end = text.bytes().position(|byte| !of(byte)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}
