//! Parsers of fixed-format parts of a line: each takes one part from the start of a text and
//! returns the rest, or `None` if the text does not start with it.
//!
//! Drivers pad their columns by version (`NETIR_LINK_EVT  Fatal   XC0`), and logs that pass through a
//! serial console have `\r` and tabs. So the drivers' own words are compared by [`Words`]: in any
//! case, with any run of blanks where there is one, and with blanks or none at punctuation.

use gpuwho_model::ids::PciAddress;

/// A text that begins with, or is, a driver's words.
pub(super) trait Words {
    /// What follows the words at the start; after punctuation or a blank, without leading blanks.
    fn after(&self, words: &str) -> Option<&str>;

    /// Whether it begins with the words.
    fn begins(&self, words: &str) -> bool {
        self.after(words).is_some()
    }

    /// Whether it is the words, and nothing but blanks follows.
    fn is(&self, words: &str) -> bool {
        self.after(words).is_some_and(|rest| rest.trim().is_empty())
    }
}

impl Words for str {
    fn after(&self, words: &str) -> Option<&str> {
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        let (mut rest, mut before, mut wanted) = (self, None, words.chars().peekable());
        while let Some(c) = wanted.next() {
            let is_blank = c.is_ascii_whitespace();
            let is_punctuation = !is_blank && !is_word(Some(c));
            let len = rest.len();
            if is_blank || is_punctuation {
                rest = rest.trim_start_matches([' ', '\t', '\r']);
            }
            if c == '\n' {
                rest = rest.strip_prefix(c)?;
            } else if is_blank {
                let next = wanted.peek().copied();
                let parts_words = is_word(before) && (next.is_none() || is_word(next));
                if parts_words && rest.len() == len {
                    return None;
                }
            } else {
                let found = rest.chars().next().filter(|found| found.eq_ignore_ascii_case(&c))?;
                rest = rest.get(found.len_utf8()..)?;
            }
            before = Some(c);
        }
        let ends_in_word = is_word(before) || before == Some('\n');
        Some(if ends_in_word { rest } else { rest.trim_start_matches([' ', '\t']) })
    }
}

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
