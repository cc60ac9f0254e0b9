//! What a program calls the communicators it makes: `ncclConfig_t.commName`.
//!
//! Read once a birth, at its entry, while the caller keeps the text for the library. Only a
//! configuration that the library itself would take is followed, and never farther than a name is
//! long. Without a configuration a communicator has its parent's, name and all (`copyCommConfig`
//! in NCCL's `src/init.cc`, 2.27 and later).

use super::{COMING, HANDLES, NAMES, count};
use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::generated::bpf_probe_read_user_str;
use core::ffi::c_void;
use gpuwho_common::nccl::{
    CONFIG_MAGIC, CONFIG_NAME_AT, HandleKey, LOST_UNREADABLE, NAME_BYTES, Name,
};
use gpuwho_ebpf::registers::read_user;

const NO_NAME: Name = Name { text: [0; NAME_BYTES] };

/// Keeps what a communicator that is being made will be called. Apart from the entry, so that
/// each of the programs has it once; always 0.
#[inline(never)]
pub(crate) fn coming(config: u64, parent: u64, task: u64) -> u64 {
    // Nothing is kept of an earlier one.
    let _ = COMING.remove(&task);
    if config == 0 {
        if let Some(name) = name_of(parent, task) {
            // There is room for each thread. SAFETY: the entry is not freed while the program runs
            // (RCU).
            let _ = COMING.insert(&task, unsafe { &*name }, u64::from(BPF_ANY));
        }
        return 0;
    }
    let Some(text) = text_of(config) else { return 0 };
    // As above.
    let _ = COMING.insert(&task, &NO_NAME, u64::from(BPF_ANY));
    let Some(name) = COMING.get_ptr_mut(&task) else { return 0 };
    // SAFETY: the helper writes no more than the size into the map's value, and answers an error
    // where there is nothing to read.
    let read = unsafe {
        bpf_probe_read_user_str(name.cast::<c_void>(), NAME_BYTES as u32, text as *const c_void)
    };
    if read < 0 {
        let _ = COMING.remove(&task);
        count(LOST_UNREADABLE);
    }
    0
}

/// What a communicator is called that the process has a handle on.
#[inline(always)]
fn name_of(handle: u64, task: u64) -> Option<*const Name> {
    let key = HandleKey { handle, pid: (task >> 32) as u32, reserved: 0 };
    // SAFETY: entries are not freed while the program runs (RCU).
    let known = unsafe { HANDLES.get(&key) }?;
    NAMES.get_ptr(&known.communicator)
}

/// Where the name is that a configuration gives, if it gives one.
#[inline(always)]
fn text_of(config: u64) -> Option<u64> {
    let Some([size, marks]) = read_user::<[u64; 2]>(config) else {
        count(LOST_UNREADABLE);
        return None;
    };
    if marks as u32 != CONFIG_MAGIC || size < CONFIG_NAME_AT + 8 {
        return None;
    }
    read_user::<u64>(config + CONFIG_NAME_AT).filter(|text| *text != 0)
}

/// The communicator that the thread was making has a number.
#[inline(never)]
pub(crate) fn came(number: u64, task: u64) -> u64 {
    if let Some(name) = COMING.get_ptr(&task) {
        // Full: as for those that have none. SAFETY: as above.
        let _ = NAMES.insert(&number, unsafe { &*name }, u64::from(BPF_ANY));
        let _ = COMING.remove(&task);
    }
    0
}
