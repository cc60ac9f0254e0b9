//! Reading the records that the BPF programs write.

use aya::Pod;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// `BPF_MAP_LOOKUP_BATCH` (`enum bpf_cmd`), 5.6.
const LOOKUP_BATCH: libc::c_int = 24;
/// Entries a call asks for at first; one bucket of the map must fit.
const FIRST_BATCH: u32 = 64;
/// More than a map of the agent's has; a kernel that asks for more is not answering sensibly.
const LARGEST_BATCH: u32 = 1 << 20;

/// The part of `union bpf_attr` that batches use.
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Every entry of a hash map, some hundreds a system call. Entries that come and go meanwhile may
/// be left out.
pub fn entries<K: Pod, V: Pod>(map: BorrowedFd<'_>) -> io::Result<Vec<(K, V)>> {
    let mut found = Vec::new();
    let mut most = FIRST_BATCH;
    let mut position = None;
    loop {
        match batch::<K, V>(map, position, most, &mut found) {
            Ok(Some(next)) => position = Some(next),
            Ok(None) => return Ok(found),
            // One bucket alone is larger than what was asked for.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && most < LARGEST_BATCH => {
                most *= 2;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads the entries from a position on; gives the next one, or `None` at the end.
fn batch<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    from: Option<u64>,
    most: u32,
    found: &mut Vec<(K, V)>,
) -> io::Result<Option<u64>> {
    let room = most as usize;
    let mut keys: Vec<MaybeUninit<K>> = Vec::with_capacity(room);
    let mut values: Vec<MaybeUninit<V>> = Vec::with_capacity(room);
    let mut next = 0_u64;
    let mut attr = BatchAttr {
        in_batch: from.as_ref().map_or(0, |from| std::ptr::from_ref(from).addr() as u64),
        out_batch: (&raw mut next).addr() as u64,
        keys: keys.as_mut_ptr().addr() as u64,
        values: values.as_mut_ptr().addr() as u64,
        count: most,
        map_fd: map.as_raw_fd().cast_unsigned(),
        elem_flags: 0,
        flags: 0,
    };
    // Their addresses travel as numbers.
    keys.as_mut_ptr().expose_provenance();
    values.as_mut_ptr().expose_provenance();
    (&raw mut next).expose_provenance();
    // SAFETY: the attribute has the layout of `union bpf_attr`'s batch part and outlives the call;
    // keys and values have room for `count` entries of the map's own sizes (the caller's types are
    // the map's records), a position is four bytes for a hash map, and nothing else is written.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, LOOKUP_BATCH, &raw mut attr, size_of::<BatchAttr>())
    };
    let error = (result < 0).then(io::Error::last_os_error);
    let ended = error.as_ref().is_some_and(|error| error.raw_os_error() == Some(libc::ENOENT));
    if let Some(error) = error.filter(|_| !ended) {
        return Err(error);
    }
    let count = (attr.count as usize).min(room);
    // SAFETY: the kernel has written `count` keys and values, at most as many as there is room
    // for; every bit pattern is valid (the Pod contract).
    unsafe {
        keys.set_len(count);
        values.set_len(count);
        let pairs = keys.iter().zip(&values);
        found.extend(pairs.map(|(key, value)| (key.assume_init_read(), value.assume_init_read())));
    }
    Ok((!ended).then_some(next))
}

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
