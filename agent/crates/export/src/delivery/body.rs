//! What a request's body is: the message, and how it is compressed. A stored request carries both, so
//! that it can be sent after the configuration has changed.

use flate2::{Compress, FlushCompress, Status};
use std::cell::RefCell;
use std::io;

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    pub(crate) format: Format,
    pub(crate) compression: Compression,
}

/// The message, by its number in stored requests: 1 to 4 are OTLP's, 5 is the webhook's. A number is never
/// used again for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format(pub(crate) u8);

/// Compression of request bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// gzip, level 1.
    Gzip,
    /// zstd, level 1; gzip for a receiver that does not know it.
    Zstd,
}

const COMPRESSIONS: [(Compression, u8); 3] =
    [(Compression::None, 0), (Compression::Gzip, 1), (Compression::Zstd, 2)];

impl Encoding {
    /// The number in a stored request.
    pub(super) fn number(self) -> u16 {
        let compression = COMPRESSIONS.iter().find(|(known, _)| *known == self.compression);
        u16::from_le_bytes([self.format.0, compression.map_or(0, |found| found.1)])
    }

    /// The reverse of [`Self::number`].
    pub(super) fn of_number(number: u16) -> Option<Self> {
        let [format, compression] = number.to_le_bytes();
        let compression = COMPRESSIONS.iter().find(|(_, known)| *known == compression)?.0;
        Some(Self { format: Format(format), compression })
    }
}

impl Compression {
    /// Its name in HTTP and gRPC; `None` for a body that is not compressed.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }

    /// Compresses a message.
    pub fn compress(self, raw: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(raw.to_vec()),
            Self::Gzip => GZIP.with_borrow_mut(|gzip| gzipped(gzip, raw)),
            // Level 1 is smaller and faster than gzip's level 1.
            Self::Zstd => zstd::bulk::compress(raw, 1),
        }
    }
}

thread_local! {
    /// Its state is 380 KB: made for each message, that costs as much as compressing one.
    static GZIP: RefCell<Compress> =
        RefCell::new(Compress::new_gzip(flate2::Compression::fast(), WINDOW_BITS));
}

/// The largest window of gzip: 32 KiB.
const WINDOW_BITS: u8 = 15;

fn gzipped(gzip: &mut Compress, raw: &[u8]) -> io::Result<Vec<u8>> {
    gzip.reset();
    let mut out = Vec::new();
    let mut done = 0;
    loop {
        out.reserve(raw.len() / 8 + 64);
        let rest = raw.get(done..).unwrap_or_default();
        if gzip.compress_vec(rest, &mut out, FlushCompress::Finish)? == Status::StreamEnd {
            out.shrink_to_fit();
            return Ok(out);
        }
        done = usize::try_from(gzip.total_in()).unwrap_or(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read as _;

    #[test]
    fn what_is_stored_is_read_as_the_same_and_nothing_else_is() {
        let mut numbers = 0;
        for number in 0..=u16::MAX {
            if let Some(encoding) = Encoding::of_number(number) {
                assert_eq!(encoding.number(), number);
                numbers += 1;
            }
        }
        assert_eq!(numbers, 256 * COMPRESSIONS.len());
    }

    #[test]
    fn compressed_bodies_are_what_others_decompress() {
        let raw = b"some bytes, some bytes, some bytes";
        let noise: Vec<u8> =
            (0..50_000_u32).flat_map(|n| n.wrapping_mul(n).to_be_bytes()).collect();
        for raw in [raw, &*noise, &[], raw] {
            let gzip = Compression::Gzip.compress(raw).unwrap();
            let mut read = Vec::new();
            GzDecoder::new(&*gzip).read_to_end(&mut read).unwrap();
            assert_eq!(read, raw);
        }
        let zstd = Compression::Zstd.compress(raw).unwrap();
        assert_eq!(zstd::decode_all(&*zstd).unwrap(), raw);
        assert_eq!(Compression::None.compress(raw).unwrap(), raw);
    }
}
