//! Reading the records that the BPF programs write.

use aya::Pod;

/// The record that `bytes` are; `None` if they are not exactly as long.
pub fn record<T: Pod>(bytes: &[u8]) -> Option<T> {
    if bytes.len() != size_of::<T>() {
        return None;
    }
    // SAFETY: the length is that of T, every bit pattern is a valid T (the Pod contract, upheld by
    // the `abi!` macro), and read_unaligned asks for no alignment.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_another_length_is_refused() {
        assert_eq!(record::<u32>(&7_u32.to_ne_bytes()), Some(7));
        assert_eq!(record::<u32>(&[0; 3]), None);
        assert_eq!(record::<u32>(&[0; 5]), None);
    }
}
