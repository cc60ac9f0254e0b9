//! The protobuf wire format: the encoder's writing functions, and a reader for the receiver's short
//! answers. Works on byte slices without allocation.

/// Wire type 0.
pub(super) const VARINT: u8 = 0;
/// Wire type 1.
pub(super) const FIXED64: u8 = 1;
/// Wire type 2.
pub(super) const BYTES: u8 = 2;

/// A field's tag. Every field number this agent writes is below 16, so a tag is one byte.
pub(super) const fn tag(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

/// Length of `value` as a varint.
pub(super) const fn varint_len(value: u64) -> usize {
    // ceil(bits / 7), at least one byte.
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Length of a length-delimited field whose content has `len` bytes.
pub(super) const fn framed_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

/// Appends a varint.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(low_byte(value) | 0x80);
        value >>= 7;
    }
    out.push(low_byte(value));
}

/// Appends the head of a length-delimited field; the caller appends `len` bytes.
pub(super) fn put_frame(out: &mut Vec<u8>, field: u8, len: usize) {
    out.push(tag(field, BYTES));
    put_varint(out, len as u64);
}

/// Appends a length-delimited field.
pub(super) fn put_bytes(out: &mut Vec<u8>, field: u8, content: &[u8]) {
    put_frame(out, field, content.len());
    out.extend_from_slice(content);
}

/// Appends a fixed 64-bit field.
pub(super) fn put_fixed64(out: &mut Vec<u8>, field: u8, bits: [u8; 8]) {
    out.push(tag(field, FIXED64));
    out.extend_from_slice(&bits);
}

/// Changes the tag of every field of a message in place; all are length-delimited with a one-byte
/// tag.
pub(super) fn retag(message: &mut [u8], field: u8) {
    let mut rest = message;
    while let Some((first, tail)) = rest.split_first_mut() {
        *first = tag(field, BYTES);
        let mut reader = Reader(tail);
        let skip = match reader.varint().and_then(|len| usize::try_from(len).ok()) {
            Some(len) => (tail.len() - reader.0.len()).saturating_add(len),
            None => return,
        };
        rest = tail.get_mut(skip..).unwrap_or_default();
    }
}

/// A field of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field<'a> {
    /// A varint.
    Varint(u64),
    /// A length-delimited content.
    Bytes(&'a [u8]),
    /// A fixed-width value. No answer of a receiver uses one.
    Fixed,
}

/// Reads a message field by field and ends at the first invalid byte.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Field::Varint(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low byte is what is wanted")]
const fn low_byte(value: u64) -> u8 {
    value as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varint_length_is_what_put_varint_writes() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_len(value), "{value}");
            assert_eq!(Reader(&out).varint(), Some(value));
        }
    }

    #[test]
    fn retag_changes_every_tag_and_nothing_else() {
        let long = [7_u8; 300];
        let (mut seven, mut nine) = (Vec::new(), Vec::new());
        for content in [&b"ab"[..], &long, b""] {
            put_bytes(&mut seven, 7, content);
            put_bytes(&mut nine, 9, content);
        }
        retag(&mut seven, 9);
        assert_eq!(seven, nine);
    }

    #[test]
    fn truncated_message_ends_the_reading() {
        let mut out = Vec::new();
        put_bytes(&mut out, 2, b"hello");
        out.truncate(4);
        assert_eq!(Reader(&out).next(), None);
    }
}
