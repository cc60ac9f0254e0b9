//! Sizes and times in the classes and buckets that are counted.
#![expect(clippy::inline_always, reason = "a BPF function cannot give more than one word")]
#![expect(clippy::cast_possible_truncation, reason = "meant: counts below 32 bits, folded sizes")]

/// Upper bounds (exclusive) of the size classes, in bytes; then comes one without bound.
pub const CLASS_BOUNDS: [u64; 6] = [1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 32];
/// The size is not known: an unknown element type, an impossible count, a communicator of
/// unknown size.
pub const UNSIZED: u32 = 7;
/// More elements than this are no message but a damaged or hostile argument.
pub const MAX_ELEMENTS: u64 = 1 << 40;
/// More ranks than this are no communicator.
pub const MAX_RANKS: u32 = 1 << 20;

/// Upper bound of the first time bucket in nanoseconds; each next one is four times wider.
pub const FIRST_BUCKET_NS: u64 = 1_000;
/// Time buckets, the last without bound: up to 16.8 s.
pub const BUCKETS: usize = 14;

/// Size of an element of an `ncclDataType_t`; 0 if there is no such type.
#[inline(always)]
pub const fn element_bytes(datatype: u32) -> u64 {
    match datatype {
        // int8, uint8, float8e4m3, float8e5m2.
        0 | 1 | 10 | 11 => 1,
        // float16, bfloat16.
        6 | 9 => 2,
        // int32, uint32, float32.
        2 | 3 | 7 => 4,
        // int64, uint64, float64.
        4 | 5 | 8 => 8,
        _ => 0,
    }
}

/// Size of a message; `None` for what cannot be one.
#[inline(always)]
pub const fn message_bytes(count: u64, datatype: u32, ranks: u32) -> Option<u64> {
    let element = element_bytes(datatype);
    if element == 0 || count > MAX_ELEMENTS || ranks > MAX_RANKS {
        return None;
    }
    // At most 2^40 elements of 8 bytes for each of 2^20 ranks: 2^63.
    Some(count * element * ranks as u64)
}

/// The class a size is in.
#[inline(always)]
pub const fn size_class(bytes: u64) -> u32 {
    let mut class = 0;
    while class < CLASS_BOUNDS.len() as u32 {
        if bytes < 1 << (12 + 4 * class) {
            return class;
        }
        class += 1;
    }
    class
}

/// The bucket a time is in: the first whose upper bound is not below it.
#[inline(always)]
pub const fn bucket(ns: u64) -> usize {
    let mut index = 0;
    while index < BUCKETS - 1 {
        if ns <= FIRST_BUCKET_NS << (2 * index) {
            return index;
        }
        index += 1;
    }
    index
}

/// What tells a collective apart from others, for finding a repeated pattern.
#[inline(always)]
pub const fn signature(operation: u32, bytes: u64) -> u32 {
    let folded = (bytes ^ (bytes >> 32)) as u32;
    folded.wrapping_mul(0x9e37_79b1) ^ (operation << 24)
}

// The bounds are what `size_class` computes.
const _: () = {
    let mut class = 0;
    while class < CLASS_BOUNDS.len() {
        assert!(CLASS_BOUNDS[class] == 1 << (12 + 4 * class));
        class += 1;
    }
};
