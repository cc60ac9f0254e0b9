//! `ncclConfig_t`, which callers fill in: public, so its fields stay where they are. Every one
//! begins with its own size (of the header it was compiled with) and a magic number; versions add
//! fields at the end.
//!
//! | since | size | adds |
//! |---|---|---|
//! | 2.14 | 24 | `blocking` |
//! | 2.17 | 48 | thread blocks, `netName` |
//! | 2.18 | 48 | `splitShare`, at 40, where there was nothing |
//! | 2.25 | 48 | `trafficClass`, at 44, likewise |
//! | 2.27 | 72 | `commName`, at 48, and more |
//! | 2.28 to 2.32 | 80 to 112 | more behind it |
//!
//! RCCL has the same. Checked against `nccl.h` of 2.14 to 2.32.3, and RCCL's.

/// `NCCL_API_MAGIC`: without it the library refuses a configuration.
pub const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// Offset of `const char *commName`, where the size says that there is one.
pub const CONFIG_NAME_AT: u64 = 48;
/// Bytes that are read of a name, its zero byte included.
pub const NAME_BYTES: usize = 72;

abi! {
    /// What the program calls a communicator, as it stands in its memory: up to a zero byte.
    /// Longer than what is told, so that it shows what was cut.
    Name {
        /// Of any encoding, or none.
        text: [u8; NAME_BYTES],
    }
}
