//! NCCL's own hash (`getHash`, `eatHash` and `digestHash` of `src/include/bitops.h`, the same
//! since 2.19): the number by which its log, its profiler plugins and its RAS socket name a
//! communicator.
#![expect(clippy::inline_always, reason = "a BPF function cannot give more than one word")]

/// A unique id is 128 bytes.
pub const UNIQUE_ID_WORDS: usize = 16;

/// The state of the hash.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Hash(u64, u64);

impl Hash {
    /// Nothing eaten yet.
    pub const START: Self = Self(1, 1);

    /// Begins an item of so many bytes.
    #[inline(always)]
    pub const fn item(self, bytes: u64) -> Self {
        Self(self.0 ^ bytes, self.1)
    }

    /// The next eight bytes of the item, or its last ones with zeros behind.
    #[inline(always)]
    pub const fn word(self, word: u64) -> Self {
        let mut a = self.0.wrapping_add(self.1);
        let mut b = self.1 ^ a;
        a ^= a >> 31;
        a = a.wrapping_mul(0x9de6_2bbc_8cef_3ce3);
        b ^= b >> 32;
        b = b.wrapping_mul(0x485c_d631_1b59_9e79);
        Self(a.wrapping_add(word), b)
    }

    /// The hash of what was eaten.
    #[inline(always)]
    pub const fn digest(self) -> u64 {
        let mut hash = self.0;
        hash ^= hash >> 31;
        hash = hash.wrapping_mul(0xbac3_bd56_2846_de6b);
        hash = hash.wrapping_add(self.1);
        hash ^= hash >> 32;
        hash.wrapping_mul(0x995a_187a_14e7_b445)
    }

    /// The hash of a unique id.
    #[inline(always)]
    pub const fn of_unique_id(words: &[u64; UNIQUE_ID_WORDS]) -> u64 {
        let mut hash = Self::START.item(8 * UNIQUE_ID_WORDS as u64);
        let mut at = 0;
        while at < UNIQUE_ID_WORDS {
            hash = hash.word(words[at]);
            at += 1;
        }
        hash.digest()
    }

    /// The hash of two words (`hashCombine` of `src/misc/utils.cc`): of a grown communicator that
    /// of its base and of its size, and its base that of its parent's and of which child it is
    /// (`ncclCommInitRankFunc`, `bootstrapGetUniqueId`, `bootstrapInit`; 2.29 and later).
    pub const fn combine(base: u64, value: u64) -> u64 {
        Self::START.item(8).word(base).item(8).word(value).digest()
    }

    /// The hash of a communicator made from another (`ncclCommInitRankFunc`, 2.27 and later):
    /// which child of its parent, and which color.
    pub const fn of_child(parent: u64, child: u32, color: u32) -> u64 {
        let hash = Self::START.item(8).word(parent);
        hash.item(4).word(child as u64).item(4).word(color as u64).digest()
    }
}
