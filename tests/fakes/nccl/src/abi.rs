//! The exported functions, as `nccl.h` of 2.29 declares them.

use crate::config::{Config, configured};
use crate::plan;
use gpuwho_common::nccl::Hash;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// `ncclSuccess`.
pub const SUCCESS: u32 = 0;
/// `ncclInvalidArgument`.
pub const INVALID_ARGUMENT: u32 = 4;

/// `ncclUniqueId`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

/// What a handle points to; begins with a mark like the real one since 2.21, and has what one asks
/// for far behind it.
#[derive(Debug)]
#[repr(C)]
pub struct Comm {
    magic: u64,
    channels: [u64; 1700],
    /// Its hash.
    pub hash: u64,
    /// Rank in it.
    pub rank: c_int,
    /// Its ranks.
    pub ranks: c_int,
    /// The device.
    pub device: c_int,
    /// Communicators made from it.
    children: u32,
    /// What its grown children have their hashes from: the first word of its unique id, or its
    /// hash.
    base: u64,
    /// What `ncclCommGetAsyncError` tells.
    pub async_error: u32,
}

/// `ncclComm_t`.
pub type Handle = *mut Comm;

const MAGIC: u64 = 0x0280_0280_0280_0280;

impl Comm {
    fn make((hash, base): (u64, u64), rank: c_int, ranks: c_int) -> Handle {
        let made = Self {
            magic: MAGIC,
            channels: [0; 1700],
            hash,
            rank,
            ranks,
            device: rank % 8,
            children: 0,
            base,
            async_error: 0,
        };
        Box::into_raw(Box::new(made))
    }

    /// What the next communicator grown from this one has its hash from.
    fn next_base(&self) -> u64 {
        Hash::combine(self.base, u64::from(self.children) + 1)
    }

    /// The hash of the next communicator made from this one.
    fn of_child(&mut self, color: u32) -> u64 {
        self.children += 1;
        Hash::of_child(self.hash, self.children, color)
    }
}

/// # Safety
///
/// Null, or a handle that this library gave and that was not destroyed, or readable memory.
unsafe fn checked(comm: Handle) -> Result<Handle, u32> {
    // SAFETY: as promised by the caller.
    if comm.is_null() || unsafe { (*comm).magic } != MAGIC {
        return Err(INVALID_ARGUMENT);
    }
    Ok(comm)
}

/// # Safety
///
/// As for [`checked`].
#[expect(clippy::inline_always, reason = "each operation reads the communicator itself")]
#[inline(always)]
unsafe fn operate(comm: Handle) -> u32 {
    // SAFETY: as promised by the caller.
    match unsafe { checked(comm) } {
        Ok(comm) => {
            // As the library does for those who profile it.
            // SAFETY: checked above.
            std::hint::black_box(unsafe { (*comm).hash });
            plan::carry_out()
        }
        Err(code) => code,
    }
}

/// The beginning of an operation.
///
/// It saves a register, as the functions of the real library do: what a probe there costs depends
/// on the first instruction (12 times as much where an x86-64 processor has to step through it, on
/// a virtual machine). Behind the jump, never reached, stands the load of the hash that the real
/// functions have in them: who reads their code looks for it.
#[cfg(target_arch = "x86_64")]
macro_rules! beginning {
    ($work:path) => {
        std::arch::naked_asm!(
            "push rbx",
            "pop rbx",
            "jmp {}",
            "mov rax, [rdi + {}]",
            sym $work,
            const std::mem::offset_of!(Comm, hash),
        )
    };
}

/// The same.
#[cfg(target_arch = "aarch64")]
macro_rules! beginning {
    ($work:path) => {
        std::arch::naked_asm!(
            "stp x29, x30, [sp, #-16]!",
            "ldp x29, x30, [sp], #16",
            "b {}",
            "ldr x8, [x0, #{}]",
            sym $work,
            const std::mem::offset_of!(Comm, hash),
        )
    };
}

/// Operations on a communicator: each checks it and does what is planned.
macro_rules! operations {
    ($($name:ident($($arg:ident: $kind:ty),*) on $comm:ident;)+) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            ///
            /// # Safety
            ///
            /// As in `nccl.h`; no buffer is touched.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> u32 {
                beginning!(work::$name)
            }
        )+

        #[allow(non_snake_case, reason = "the library's names")]
        mod work {
            use super::{Buffer, Handle, Stream, c_int, operate};

            $(
                #[inline(never)]
                pub(super) unsafe extern "C" fn $name($($arg: $kind),*) -> u32 {
                    // Also keeps functions that do the same from becoming one.
                    std::hint::black_box((stringify!($name), $($arg),*));
                    // SAFETY: the communicator is as the caller promises.
                    unsafe { operate($comm) }
                }
            )+
        }
    };
}

/// A buffer on the device.
type Buffer = *const c_void;
/// `cudaStream_t`.
type Stream = *mut c_void;

operations! {
    ncclAllReduce(send: Buffer, recv: Buffer, count: usize, datatype: u32, op: u32, comm: Handle, stream: Stream) on comm;
    ncclReduceScatter(send: Buffer, recv: Buffer, count: usize, datatype: u32, op: u32, comm: Handle, stream: Stream) on comm;
    ncclAllGather(send: Buffer, recv: Buffer, count: usize, datatype: u32, comm: Handle, stream: Stream) on comm;
    ncclAlltoAll(send: Buffer, recv: Buffer, count: usize, datatype: u32, comm: Handle, stream: Stream) on comm;
    ncclBroadcast(send: Buffer, recv: Buffer, count: usize, datatype: u32, root: c_int, comm: Handle, stream: Stream) on comm;
    ncclGather(send: Buffer, recv: Buffer, count: usize, datatype: u32, root: c_int, comm: Handle, stream: Stream) on comm;
    ncclScatter(send: Buffer, recv: Buffer, count: usize, datatype: u32, root: c_int, comm: Handle, stream: Stream) on comm;
    ncclReduce(send: Buffer, recv: Buffer, count: usize, datatype: u32, op: u32, root: c_int, comm: Handle, stream: Stream) on comm;
    ncclSend(buffer: Buffer, count: usize, datatype: u32, peer: c_int, comm: Handle, stream: Stream) on comm;
    ncclRecv(buffer: Buffer, count: usize, datatype: u32, peer: c_int, comm: Handle, stream: Stream) on comm;
    ncclAllReduceConfig(send: Buffer, recv: Buffer, count: usize, datatype: u32, op: u32, comm: Handle, stream: Stream, config: Buffer) on comm;
    ncclAllGatherConfig(send: Buffer, recv: Buffer, count: usize, datatype: u32, comm: Handle, stream: Stream, config: Buffer) on comm;
    ncclReduceScatterConfig(send: Buffer, recv: Buffer, count: usize, datatype: u32, op: u32, comm: Handle, stream: Stream, config: Buffer) on comm;
    ncclBroadcastConfig(send: Buffer, recv: Buffer, count: usize, datatype: u32, root: c_int, comm: Handle, stream: Stream, config: Buffer) on comm;
    ncclReduceConfig(send: Buffer, recv: Buffer, count: usize, datatype: u32, op: u32, root: c_int, comm: Handle, stream: Stream, config: Buffer) on comm;
    ncclAlltoAllConfig(send: Buffer, recv: Buffer, count: usize, datatype: u32, comm: Handle, stream: Stream, config: Buffer) on comm;
    ncclGatherConfig(send: Buffer, recv: Buffer, count: usize, datatype: u32, root: c_int, comm: Handle, stream: Stream, config: Buffer) on comm;
    ncclScatterConfig(send: Buffer, recv: Buffer, count: usize, datatype: u32, root: c_int, comm: Handle, stream: Stream, config: Buffer) on comm;
    ncclPutSignal(local: Buffer, count: usize, datatype: u32, peer: c_int, window: Buffer, offset: usize, signal: c_int, context: c_int, flags: u32, comm: Handle, stream: Stream) on comm;
    ncclSignal(peer: c_int, signal: c_int, context: c_int, flags: u32, comm: Handle, stream: Stream) on comm;
    ncclWaitSignal(count: c_int, signals: Buffer, comm: Handle, stream: Stream) on comm;
    ncclCommFinalize(comm: Handle) on comm;
    ncclCommRevoke(comm: Handle, flags: c_int) on comm;
}

/// `ncclBcast`: as in the library, one call of `ncclBroadcast`.
///
/// # Safety
///
/// As in `nccl.h`; the buffer is not touched.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclBcast(
    buffer: Buffer,
    count: usize,
    datatype: u32,
    root: c_int,
    comm: Handle,
    stream: Stream,
) -> u32 {
    // SAFETY: passed on as they came.
    let result = unsafe { ncclBroadcast(buffer, buffer, count, datatype, root, comm, stream) };
    // Keeps the call from becoming a jump.
    std::hint::black_box(result)
}

/// `ncclGroupStart`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ncclGroupStart() -> u32 {
    std::hint::black_box(SUCCESS)
}

/// `ncclGroupEnd`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ncclGroupEnd() -> u32 {
    std::hint::black_box(plan::carry_out())
}

/// `ncclGroupSimulateEnd`: ends the group and launches nothing.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ncclGroupSimulateEnd(info: Buffer) -> u32 {
    std::hint::black_box(info);
    std::hint::black_box(SUCCESS)
}

/// `ncclGetVersion`.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> u32 {
    // SAFETY: as promised by the caller.
    unsafe { version.write(22_907) };
    SUCCESS
}

/// `ncclGetErrorString`.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: u32) -> *const c_char {
    if code == SUCCESS { c"no error".as_ptr() } else { c"invalid argument".as_ptr() }
}

impl UniqueId {
    /// Its first word, which NCCL calls the magic of its handle.
    fn first(&self) -> u64 {
        self.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn hash(&self) -> u64 {
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(self.0.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Hash::of_unique_id(&words)
    }
}

/// `ncclGetUniqueId`: like the real one, a magic, an address, and zeros.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> u32 {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 128];
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |now| u64::from(now.subsec_nanos()) ^ (now.as_secs() << 30));
    let magic = now ^ (u64::from(std::process::id()) << 32) ^ MADE.fetch_add(1, Ordering::Relaxed);
    let parts = magic.to_le_bytes().into_iter().chain([2, 0, 0xdb, 0xb0, 127, 0, 0, 1]);
    bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    // SAFETY: as promised by the caller.
    unsafe { id.write(UniqueId(bytes)) };
    SUCCESS
}

/// # Safety
///
/// `to` points to a handle.
unsafe fn init(to: *mut Handle, ranks: c_int, id: &UniqueId, rank: c_int) -> u32 {
    if to.is_null() || ranks < 1 || !(0..ranks).contains(&rank) {
        return INVALID_ARGUMENT;
    }
    // SAFETY: as promised by the caller.
    unsafe { to.write(Comm::make((id.hash(), id.first()), rank, ranks)) };
    plan::carry_out()
}

/// `ncclCommInitRank`.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclCommInitRank(
    to: *mut Handle,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
) -> u32 {
    std::hint::black_box(&id);
    // SAFETY: as promised by the caller.
    unsafe { init(to, ranks, &id, rank) }
}

/// `ncclCommInitRankConfig`.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    to: *mut Handle,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> u32 {
    std::hint::black_box(&id);
    // SAFETY: as promised by the caller.
    unsafe {
        match configured(config) {
            Ok(()) => init(to, ranks, &id, rank),
            Err(code) => code,
        }
    }
}

/// `ncclCommInitRankScalable`.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclCommInitRankScalable(
    to: *mut Handle,
    ranks: c_int,
    rank: c_int,
    count: c_int,
    ids: *const UniqueId,
    config: *const Config,
) -> u32 {
    std::hint::black_box((count, ids));
    // SAFETY: as promised by the caller, who gives one id at least.
    unsafe {
        match configured(config) {
            Ok(()) => init(to, ranks, &*ids, rank),
            Err(code) => code,
        }
    }
}

/// `ncclCommInitAll`.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclCommInitAll(to: *mut Handle, count: c_int, devices: Buffer) -> u32 {
    std::hint::black_box(devices);
    let mut id = UniqueId([0; 128]);
    // SAFETY: room for an id, as the library itself asks for one here.
    std::hint::black_box(unsafe { ncclGetUniqueId(&raw mut id) });
    LAST_OWN_ID.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone_from(&id.0);
    for rank in 0..count {
        let made = Comm::make((id.hash(), id.first()), rank, count);
        // SAFETY: the caller promises room for `count` handles.
        unsafe { to.add(rank.unsigned_abs() as usize).write(made) };
    }
    plan::carry_out()
}

/// The id from which the last `ncclCommInitAll` made its communicators.
static LAST_OWN_ID: std::sync::Mutex<[u8; 128]> = std::sync::Mutex::new([0; 128]);

/// The same, for the driver of the process: no real library tells.
///
/// # Safety
///
/// Room for an id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeNcclOwnId(id: *mut UniqueId) -> u32 {
    let last = *LAST_OWN_ID.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // SAFETY: as promised by the caller.
    unsafe { id.write(UniqueId(last)) };
    SUCCESS
}

/// `ncclCommSplit`: rank and size are the driver's business, which knows all colors; here the
/// child has its parent's.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclCommSplit(
    comm: Handle,
    color: c_int,
    key: c_int,
    to: *mut Handle,
    config: *const Config,
) -> u32 {
    std::hint::black_box(key);
    // SAFETY: as promised by the caller.
    unsafe {
        let parent = match checked(comm).and_then(|comm| configured(config).map(|()| comm)) {
            Ok(parent) => parent,
            Err(code) => return code,
        };
        // `NCCL_SPLIT_NOCOLOR` makes none.
        let hash = (*parent).of_child(color.cast_unsigned());
        let child = if color < 0 {
            ptr::null_mut()
        } else {
            Comm::make((hash, hash), (*parent).rank, (*parent).ranks)
        };
        to.write(child);
    }
    plan::carry_out()
}

/// `ncclCommShrink`.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclCommShrink(
    comm: Handle,
    excluded: *const c_int,
    count: c_int,
    to: *mut Handle,
    config: *const Config,
    flags: c_int,
) -> u32 {
    std::hint::black_box(flags);
    // SAFETY: as promised by the caller, who promises `count` ranks at `excluded`.
    unsafe {
        let parent = match checked(comm).and_then(|comm| configured(config).map(|()| comm)) {
            Ok(parent) => parent,
            Err(code) => return code,
        };
        let list = (0..count.unsigned_abs() as usize).map(|at| excluded.add(at).read());
        let before = list.filter(|other| *other < (*parent).rank).count();
        let before = c_int::try_from(before).unwrap_or(0);
        let hash = (*parent).of_child(0);
        let (rank, ranks) = ((*parent).rank - before, (*parent).ranks - count);
        to.write(Comm::make((hash, hash), rank, ranks));
    }
    plan::carry_out()
}

/// `ncclCommGetUniqueId`: for those that will be added to a communicator.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclCommGetUniqueId(comm: Handle, id: *mut UniqueId) -> u32 {
    // SAFETY: as promised by the caller.
    unsafe {
        match checked(comm) {
            Ok(comm) => {
                let mut bytes = [0; 128];
                let base = (*comm).next_base().to_le_bytes();
                bytes.iter_mut().zip(base).for_each(|(to, from)| *to = from);
                id.write(UniqueId(bytes));
                SUCCESS
            }
            Err(code) => code,
        }
    }
}

/// `ncclCommGrow`: who is in the communicator keeps its rank and says -1, who is added has none
/// and says which it will be.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclCommGrow(
    comm: Handle,
    ranks: c_int,
    id: *const UniqueId,
    rank: c_int,
    to: *mut Handle,
    config: *const Config,
) -> u32 {
    // SAFETY: as promised by the caller.
    unsafe {
        if let Err(code) = configured(config) {
            return code;
        }
        let (base, rank) = if comm.is_null() {
            if id.is_null() || !(0..ranks).contains(&rank) {
                return INVALID_ARGUMENT;
            }
            ((*id).first(), rank)
        } else {
            match checked(comm) {
                Ok(parent) if rank == -1 && ranks > (*parent).ranks => {
                    let base = (*parent).next_base();
                    (*parent).children += 1;
                    (base, (*parent).rank)
                }
                Ok(_) => return INVALID_ARGUMENT,
                Err(code) => return code,
            }
        };
        let hash = Hash::combine(base, u64::from(ranks.unsigned_abs()));
        to.write(Comm::make((hash, base), rank, ranks));
    }
    plan::carry_out()
}

/// # Safety
///
/// A handle that this library gave, which nobody uses afterwards.
unsafe fn free(comm: Handle) -> u32 {
    // SAFETY: as promised by the caller.
    match unsafe { checked(comm) } {
        Ok(comm) => {
            let result = plan::carry_out();
            // SAFETY: made by `Comm::make`, and nobody's any more.
            drop(unsafe { Box::from_raw(comm) });
            result
        }
        Err(code) => code,
    }
}

/// `ncclCommDestroy`.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclCommDestroy(comm: Handle) -> u32 {
    // SAFETY: as promised by the caller.
    std::hint::black_box(unsafe { free(comm) })
}

/// `ncclCommAbort`.
///
/// # Safety
///
/// As in `nccl.h`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ncclCommAbort(comm: Handle) -> u32 {
    // Not the same code as above, which a linker would make one function.
    std::hint::black_box(ABORTS.fetch_add(1, Ordering::Relaxed));
    // SAFETY: as promised by the caller.
    unsafe { free(comm) }
}

static ABORTS: AtomicU64 = AtomicU64::new(0);

/// Questions about a communicator.
macro_rules! questions {
    ($($name:ident: $field:ident, $kind:ty;)+) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        ///
        /// As in `nccl.h`.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub unsafe extern "C" fn $name(comm: Handle, to: *mut $kind) -> u32 {
            // SAFETY: as promised by the caller.
            unsafe {
                match checked(comm) {
                    Ok(comm) => {
                        to.write((*comm).$field);
                        SUCCESS
                    }
                    Err(code) => code,
                }
            }
        }
    )+};
}

/// What the next calls shall do, for the driver of the process.
///
/// # Safety
///
/// `comm` is null or a living handle of this library; for a gate `value` is the address of its path,
/// which ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeNcclPlan(what: u32, value: u64, comm: Handle) {
    match what {
        0 => {
            let path = ptr::with_exposed_provenance(usize::try_from(value).unwrap_or(0));
            // SAFETY: as promised by the caller.
            let path = unsafe { CStr::from_ptr(path) };
            plan::wait_at(OsStr::from_bytes(path.to_bytes()).into());
        }
        1 => plan::hang(),
        2 => plan::fail(u32::try_from(value).unwrap_or(0)),
        // SAFETY: as promised by the caller.
        _ => unsafe { (*comm).async_error = u32::try_from(value).unwrap_or(0) },
    }
}

questions! {
    ncclCommCount: ranks, c_int;
    ncclCommUserRank: rank, c_int;
    ncclCommCuDevice: device, c_int;
    ncclCommGetAsyncError: async_error, u32;
}
