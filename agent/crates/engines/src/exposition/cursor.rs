//! A place in a line, and what is read from there on.

use std::borrow::Cow;

/// Whether a byte stands between two words.
pub(super) fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// A place in a line.
pub(super) struct Cursor<'a> {
    text: &'a str,
    /// Always between two characters.
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str, at: usize) -> Self {
        Self { text, at }
    }

    /// Bytes before it.
    pub(super) fn place(&self) -> usize {
        self.at
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(super) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(super) fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    pub(super) fn blanks(&mut self) {
        self.while_(is_blank);
    }

    /// Up to the next blank.
    pub(super) fn word(&mut self) -> &'a str {
        self.while_(|byte| !is_blank(byte))
    }

    /// A name without quotes; `:` only in names of series.
    pub(super) fn name(&mut self, with_colon: bool) -> &'a str {
        if self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return "";
        }
        self.while_(|byte| {
            byte.is_ascii_alphanumeric() || byte == b'_' || (with_colon && byte == b':')
        })
    }

    fn while_(&mut self, is_part: impl Fn(u8) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.bytes().position(|byte| !is_part(byte)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    /// Text in quotes, its escapes undone. An escape that there is not stays as it is.
    pub(super) fn quoted(&mut self) -> Option<Cow<'a, str>> {
        if !self.take(b'"') {
            return None;
        }
        let rest = self.rest();
        let end = rest.bytes().position(|byte| byte == b'"' || byte == b'\\')?;
        if rest.as_bytes().get(end) == Some(&b'"') {
            self.at += end + 1;
            return rest.get(..end).map(Cow::Borrowed);
        }
        let mut text = String::new();
        let mut chars = rest.char_indices();
        while let Some((place, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += place + 1;
                    return Some(Cow::Owned(text));
                }
                '\\' => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    escaped @ ('"' | '\\') => text.push(escaped),
                    other => text.extend(['\\', other]),
                },
                c => text.push(c),
            }
        }
        None
    }
}
