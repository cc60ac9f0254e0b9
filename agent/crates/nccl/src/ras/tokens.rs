//! Filters the bytes of a JSON document on their way to the parser: inserts the comma that NCCL
//! 2.28.7 and 2.28.9 omit after the device of each missing rank, and bounds everything that makes a
//! parser's memory grow. Buffers one byte.

use std::io::{self, Read};

/// Limit on a string; NCCL's longest are two hashes, 39 bytes.
const MAX_STRING_LEN: usize = 256;
/// Limit on a number or a word; a number has 20 digits.
const MAX_WORD_LEN: usize = 32;
/// Limit on nesting; NCCL has six levels.
const MAX_DEPTH: usize = 16;

/// Passes bytes on. A string starts only after one of `{[,:`; anywhere else a comma is missing.
pub(super) struct Tokens<R> {
    source: R,
    waiting: Option<u8>,
    last: u8,
    in_string: bool,
    escaped: bool,
    /// Bytes of the current string or word.
    length: usize,
    depth: usize,
}

impl<R: Read> Tokens<R> {
    pub(super) fn new(source: R) -> Self {
        let (waiting, in_string, escaped) = (None, false, false);
        Self { source, waiting, last: b'{', in_string, escaped, length: 0, depth: 0 }
    }

    fn next(&mut self) -> io::Result<Option<u8>> {
        let waiting = self.waiting.take();
        let Some(byte) = (if waiting.is_some() { waiting } else { self.read_one()? }) else {
            return Ok(None);
        };
        let begins = !self.in_string && byte == b'"';
        if begins && !matches!(self.last, b'{' | b'[' | b',' | b':') {
            (self.waiting, self.last) = (Some(byte), b',');
            return Ok(Some(b','));
        }
        self.bound(byte)?;
        if self.in_string {
            self.in_string = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
        } else {
            self.in_string = byte == b'"';
        }
        if !byte.is_ascii_whitespace() {
            self.last = byte;
        }
        Ok(Some(byte))
    }

    /// Rejects anything longer or deeper than NCCL's output.
    fn bound(&mut self, byte: u8) -> io::Result<()> {
        let is_word = byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let was_word = self.last.is_ascii_alphanumeric() || matches!(self.last, b'+' | b'-' | b'.');
        self.length = if self.in_string || (is_word && was_word) { self.length + 1 } else { 0 };
        let max = if self.in_string { MAX_STRING_LEN } else { MAX_WORD_LEN };
        match byte {
            b'{' | b'[' if !self.in_string => self.depth += 1,
            b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        if self.length > max || self.depth > MAX_DEPTH {
            let what = "longer or deeper than anything of NCCL's";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(())
    }

    fn read_one(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let read = self.source.read(&mut byte)?;
        Ok((read != 0).then_some(byte[0]))
    }
}

impl<R: Read> Read for Tokens<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        for slot in buffer {
            let Some(byte) = self.next()? else { break };
            *slot = byte;
            filled += 1;
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(text: &str) -> io::Result<String> {
        let mut all = String::new();
        Tokens::new(text.as_bytes()).read_to_string(&mut all)?;
        Ok(all)
    }

    #[test]
    fn a_comma_is_inserted_only_where_one_is_missing() {
        let (broken, wanted) = (r#"{"a": 1 "b": {}"c": "x"}"#, r#"{"a": 1 ,"b": {},"c": "x"}"#);
        assert_eq!(passed(broken).unwrap(), wanted);
        let whole = r#"{"a\\": [1, "2\"", "\\"], "b": {"c": null}}"#;
        assert_eq!(passed(whole).unwrap(), whole);
    }

    #[test]
    fn input_that_would_grow_the_parser_is_rejected() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let string = |length: usize| format!("[\"{}\"]", "x".repeat(length));
        let number = |length: usize| format!("[{}]", "9".repeat(length));
        for fits in [nested(MAX_DEPTH), string(MAX_STRING_LEN - 1), number(MAX_WORD_LEN)] {
            assert_eq!(passed(&fits).unwrap(), fits);
        }
        for more in [nested(MAX_DEPTH + 1), string(MAX_STRING_LEN + 1), number(MAX_WORD_LEN + 2)] {
            assert_eq!(passed(&more).unwrap_err().kind(), io::ErrorKind::InvalidData, "{more}");
        }
    }
}
