//! The ABI between gpuwho's BPF programs and its user space: fixed-width records, map sizes,
//! nothing else.
#![no_std]

/// Declares a record that the kernel and user space both read: `repr(C)`, and refused by the
/// compiler when it has padding, whose bytes the verifier would call uninitialised.
macro_rules! abi {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $kind:ty,)+ }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $kind,)+ }

        const _: () = assert!(
            0 $(+ size_of::<$kind>())+ == size_of::<$name>(),
            concat!(stringify!($name), " has padding"),
        );

        // SAFETY: the record is repr(C), Copy, without padding (asserted above), and its fields
        // are integers, arrays of integers and other such records: every bit pattern is valid.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $name {}
    };
}

pub mod device_users;
pub mod nccl;
