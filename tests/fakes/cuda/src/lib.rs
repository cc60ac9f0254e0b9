//! A `libcuda.so.1` with the real ABI for one device, as much of it as a load asks for. A kernel
//! takes half a microsecond a round; one named `fault` ends with an illegal address, as the real
//! one does. Its users are told to the fake NVML through `FAKE_CUDA_PIDS`, a file with one PID a
//! line: the fake driver's two halves know of each other what the real driver's do.
#![expect(unsafe_code, reason = "a C ABI takes pointers from its caller")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const INVALID_DEVICE: c_int = 101;
const NOT_FOUND: c_int = 500;
const ILLEGAL_ADDRESS: c_int = 700;
/// Errors and the library's names of them.
const NAMES: [(c_int, &CStr); 6] = [
    (SUCCESS, c"CUDA_SUCCESS"),
    (INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE"),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY"),
    (INVALID_DEVICE, c"CUDA_ERROR_INVALID_DEVICE"),
    (NOT_FOUND, c"CUDA_ERROR_NOT_FOUND"),
    (ILLEGAL_ADDRESS, c"CUDA_ERROR_ILLEGAL_ADDRESS"),
];
/// Kernels there are; a handle is the place in this list and one.
const KERNELS: [&CStr; 5] = [c"fma32", c"fma64", c"tensor", c"stream", c"fault"];
/// The first device of the fake NVML's scenario for gpu-check.
const UUID: [u8; 16] = [0xc0, 0xda, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0];
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and `…_COMPUTE_CAPABILITY_MAJOR` with their values.
const ATTRIBUTES: [(c_int, c_int); 2] = [(16, 132), (75, 9)];
/// Device memory.
const MEMORY: usize = 8 << 30;
/// How long a kernel takes for each round.
const ROUND: Duration = Duration::from_nanos(500);

/// When the last kernel is done, and with which result.
static RUNNING: Mutex<Option<(Instant, c_int)>> = Mutex::new(None);

/// Writes an answer; a null pointer is refused as the real library does.
///
/// # Safety
///
/// `to` is null or points to where a `T` may be written.
unsafe fn answer<T>(to: *mut T, value: T) -> c_int {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: it is not null, and the rest is the caller's promise.
    unsafe { to.write(value) };
    SUCCESS
}

/// Declares exported functions.
macro_rules! exports {
    ($($(#[doc = $doc:literal])+ fn $function:ident($($arg:ident: $ty:ty),*) $body:block)+) => {$(
        $(#[doc = $doc])+
        ///
        /// # Safety
        ///
        /// As in `cuda.h`: every pointer is null or points to what its type says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function($($arg: $ty),*) -> c_int $body
    )+};
}

exports! {
    /// Nothing to do.
    fn cuInit(_flags: c_uint) {
        SUCCESS
    }

    /// An error's name.
    fn cuGetErrorName(error: c_int, name: *mut *const c_char) {
        match NAMES.iter().find(|(code, _)| *code == error) {
            // SAFETY: the caller's promise.
            Some((_, text)) => unsafe { answer(name, text.as_ptr()) },
            None => INVALID_VALUE,
        }
    }

    /// There is one.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        if ordinal != 0 {
            return INVALID_DEVICE;
        }
        // SAFETY: the caller's promise.
        unsafe { answer(device, 0) }
    }

    /// Its UUID.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], _device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { answer(uuid, UUID) }
    }

    /// Its size and generation.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        match ATTRIBUTES.iter().find(|(known, _)| *known == attribute) {
            // SAFETY: the caller's promise.
            Some((_, reported)) => unsafe { answer(value, *reported) },
            None => INVALID_VALUE,
        }
    }

    /// A process with a context is known to the fake NVML from then on.
    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _device: c_int) {
        if let Some(file) = std::env::var_os("FAKE_CUDA_PIDS") {
            let file = OpenOptions::new().create(true).append(true).open(file);
            let line = format!("{}\n", std::process::id());
            if file.and_then(|mut file| file.write_all(line.as_bytes())).is_err() {
                return INVALID_DEVICE;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { answer(context, std::ptr::dangling_mut()) }
    }

    /// Nothing to do.
    fn cuCtxSetCurrent(_context: *mut c_void) {
        SUCCESS
    }

    /// Takes as long as what was started.
    fn cuCtxSynchronize() {
        let running = RUNNING.lock().ok().and_then(|mut running| running.take());
        let Some((end, code)) = running else { return SUCCESS };
        thread::sleep(end.saturating_duration_since(Instant::now()));
        code
    }

    /// An address, for nobody reads there.
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        if bytes == 0 || bytes > MEMORY {
            return if bytes == 0 { INVALID_VALUE } else { OUT_OF_MEMORY };
        }
        // SAFETY: the caller's promise.
        unsafe { answer(address, 0x7f00_0000_0000) }
    }

    /// Nothing to do.
    fn cuMemsetD8_v2(_address: u64, _value: u8, _bytes: usize) {
        SUCCESS
    }

    /// Memory of the process itself, never given back.
    fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) {
        let memory = vec![0_u8; bytes].leak().as_mut_ptr();
        // SAFETY: the caller's promise.
        unsafe { answer(address, memory.cast()) }
    }

    /// Takes as long as PCIe of the fifth generation, 50 GB/s.
    fn cuMemcpyHtoD_v2(_to: u64, from: *const c_void, bytes: usize) {
        if from.is_null() {
            return INVALID_VALUE;
        }
        thread::sleep(Duration::from_nanos(bytes as u64 / 50));
        SUCCESS
    }

    /// Takes any text that says it is PTX.
    fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_char) {
        if image.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: it is not null, and a text by the caller's promise.
        let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
        if !text.contains(".version") {
            return INVALID_VALUE;
        }
        // SAFETY: the caller's promise.
        unsafe { answer(module, std::ptr::dangling_mut()) }
    }

    /// Finds a kernel by its name.
    fn cuModuleGetFunction(function: *mut *mut c_void, _module: *mut c_void, name: *const c_char) {
        if name.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: it is not null, and a text by the caller's promise.
        let name = unsafe { CStr::from_ptr(name) };
        match KERNELS.iter().position(|known| *known == name) {
            // SAFETY: the caller's promise.
            Some(at) => unsafe { answer(function, std::ptr::without_provenance_mut(at + 1)) },
            None => NOT_FOUND,
        }
    }

    /// Begins a kernel of `(pointer, rounds)`.
    fn cuLaunchKernel(
        function: *mut c_void, blocks: c_uint, _y: c_uint, _z: c_uint, threads: c_uint,
        _block_y: c_uint, _block_z: c_uint, _shared: c_uint, _stream: *mut c_void,
        arguments: *mut *mut c_void, _extra: *mut *mut c_void
    ) {
        let kernel = function.addr().checked_sub(1).and_then(|at| KERNELS.get(at));
        let Some(kernel) = kernel.filter(|_| blocks > 0 && threads > 0 && !arguments.is_null())
        else {
            return INVALID_VALUE;
        };
        // SAFETY: the kernel takes two arguments, the second an `unsigned int`.
        let rounds = unsafe { (*arguments.add(1)).cast::<c_uint>().read() };
        let code = if *kernel == c"fault" { ILLEGAL_ADDRESS } else { SUCCESS };
        if let Ok(mut running) = RUNNING.lock() {
            *running = Some((Instant::now() + ROUND * rounds, code));
        }
        SUCCESS
    }
}
