//! CUDA's driver library, as much of it as a load needs: no toolkit, no framework, only
//! `libcuda.so.1`, which every machine with the driver has, and kernels in PTX, which it compiles.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::ptr;

/// `CUresult`.
type Code = c_int;
/// `CUdeviceptr`.
type Address = u64;
/// `CUcontext`, `CUmodule` and `CUfunction`.
type Handle = *mut c_void;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSORS: c_int = 16;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
const CAPABILITY_MAJOR: c_int = 75;

/// Why CUDA did not do something.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is none.
    #[error("no libcuda.so.1: {0}")]
    NoLibrary(#[source] libloading::Error),
    /// A function is missing.
    #[error("libcuda.so.1 lacks a function: {0}")]
    NoFunction(#[source] libloading::Error),
    /// A call failed.
    #[error("{call}: {name} ({code})")]
    Call {
        /// Which.
        call: &'static str,
        /// The library's name of the error.
        name: String,
        /// And its number.
        code: c_int,
    },
    /// A name or a program with a zero byte in it.
    #[error("a text for the library has a zero byte in it")]
    Text,
}

/// The functions, with the names by which the library has exported them since CUDA 4 or 7.
macro_rules! functions {
    ($($function:ident($($arg:ty),*);)+) => {
        /// The loaded library.
        #[expect(non_snake_case, reason = "the library's own names")]
        struct Functions {
            $($function: unsafe extern "C" fn($($arg),*) -> Code,)+
            _library: Library,
        }

        impl Functions {
            fn load() -> Result<Self, CudaError> {
                // SAFETY: the driver's library may be loaded by any program; its constructors ask
                // nothing of the caller.
                let library = unsafe { Library::new("libcuda.so.1") };
                let library = library.map_err(CudaError::NoLibrary)?;
                Ok(Self {
                    $($function: {
                        let name = concat!(stringify!($function), "\0").as_bytes();
                        // SAFETY: the signatures below are those of `cuda.h`; the library stays
                        // loaded as long as this lives.
                        *unsafe { library.get(name) }.map_err(CudaError::NoFunction)?
                    },)+
                    _library: library,
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuGetErrorName(Code, *mut *const c_char);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetUuid(*mut [u8; 16], c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuCtxSetCurrent(Handle);
    cuCtxSynchronize();
    cuMemAlloc_v2(*mut Address, usize);
    cuMemsetD8_v2(Address, u8, usize);
    cuMemAllocHost_v2(*mut *mut c_void, usize);
    cuMemcpyHtoD_v2(Address, *const c_void, usize);
    cuModuleLoadData(*mut Handle, *const c_char);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void
    );
}

impl Functions {
    fn attribute(&self, device: c_int, attribute: c_int) -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: `value` is where the answer goes.
        let code = unsafe { (self.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value.max(0).unsigned_abs())
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: `name` is where the answer goes.
        let known = unsafe { (self.cuGetErrorName)(code, &raw mut name) } == 0;
        let name = if known && !name.is_null() {
            // SAFETY: the library's names are constants.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "unknown error".to_owned()
        };
        Err(CudaError::Call { call, name, code })
    }
}

/// A device with its primary context current on this thread.
pub struct Device {
    functions: Functions,
    /// As NVML names it.
    pub uuid: String,
    /// How many streaming multiprocessors it has.
    pub multiprocessors: u32,
    /// The first number of its compute capability.
    pub capability: u32,
}

/// Memory of a device; given back when the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    address: Address,
    /// How much.
    pub bytes: usize,
}

/// Memory of the host, locked; given back when the process ends.
#[derive(Debug)]
pub struct HostMemory {
    address: *mut c_void,
    bytes: usize,
}

/// A kernel of `(pointer, rounds)`.
#[derive(Clone, Copy, Debug)]
pub struct Kernel(Handle);

impl Device {
    /// Takes the device of that number in CUDA's order.
    pub fn open(ordinal: u32) -> Result<Self, CudaError> {
        let functions = Functions::load()?;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let (mut device, mut context, mut uuid) = (0, ptr::null_mut(), [0; 16]);
        // SAFETY: it takes no pointer.
        functions.check("cuInit", unsafe { (functions.cuInit)(0) })?;
        // SAFETY: `device` is where the answer goes.
        let code = unsafe { (functions.cuDeviceGet)(&raw mut device, ordinal) };
        functions.check("cuDeviceGet", code)?;
        // SAFETY: `uuid` is where the answer goes, and as long as a `CUuuid`.
        let code = unsafe { (functions.cuDeviceGetUuid)(&raw mut uuid, device) };
        functions.check("cuDeviceGetUuid", code)?;
        let multiprocessors = functions.attribute(device, MULTIPROCESSORS)?;
        let capability = functions.attribute(device, CAPABILITY_MAJOR)?;
        // SAFETY: `context` is where the answer goes.
        let code = unsafe { (functions.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
        functions.check("cuDevicePrimaryCtxRetain", code)?;
        // SAFETY: the context is the library's own and is kept as long as the process lives.
        functions.check("cuCtxSetCurrent", unsafe { (functions.cuCtxSetCurrent)(context) })?;
        Ok(Self { functions, uuid: uuid_text(uuid), multiprocessors, capability })
    }

    /// Takes memory and writes to all of it, so that it is really there.
    pub fn allocate(&self, bytes: usize) -> Result<Memory, CudaError> {
        let mut address = 0;
        // SAFETY: `address` is where the answer goes.
        let code = unsafe { (self.functions.cuMemAlloc_v2)(&raw mut address, bytes) };
        self.check("cuMemAlloc", code)?;
        // SAFETY: the memory was just given and is that long.
        let code = unsafe { (self.functions.cuMemsetD8_v2)(address, 0, bytes) };
        self.check("cuMemsetD8", code)?;
        self.wait()?;
        Ok(Memory { address, bytes })
    }

    /// Takes memory of the host that the device can read by itself.
    pub fn host_memory(&self, bytes: usize) -> Result<HostMemory, CudaError> {
        let mut address = ptr::null_mut();
        // SAFETY: `address` is where the answer goes.
        let code = unsafe { (self.functions.cuMemAllocHost_v2)(&raw mut address, bytes) };
        self.check("cuMemAllocHost", code)?;
        Ok(HostMemory { address, bytes })
    }

    /// Copies all of it to the device; returns when it is there.
    pub fn copy(&self, from: &HostMemory, to: Memory) -> Result<(), CudaError> {
        let bytes = from.bytes.min(to.bytes);
        // SAFETY: both are memory of the library's that is that long and never given back.
        let code = unsafe { (self.functions.cuMemcpyHtoD_v2)(to.address, from.address, bytes) };
        self.check("cuMemcpyHtoD", code)
    }

    /// Compiles a program in PTX and finds a kernel in it.
    pub fn kernel(&self, program: &str, name: &str) -> Result<Kernel, CudaError> {
        let program = CString::new(program).map_err(|_| CudaError::Text)?;
        let name = CString::new(name).map_err(|_| CudaError::Text)?;
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the program is a text that ends with a zero byte, as PTX must.
        let code = unsafe { (self.functions.cuModuleLoadData)(&raw mut module, program.as_ptr()) };
        self.check("cuModuleLoadData", code)?;
        // SAFETY: the module was just loaded, and is never unloaded.
        let code = unsafe {
            (self.functions.cuModuleGetFunction)(&raw mut function, module, name.as_ptr())
        };
        self.check("cuModuleGetFunction", code)?;
        Ok(Kernel(function))
    }

    /// Starts a kernel.
    pub fn launch(
        &self,
        kernel: Kernel,
        (blocks, threads): (u32, u32),
        memory: Memory,
        rounds: u32,
    ) -> Result<(), CudaError> {
        let (mut address, mut rounds) = (memory.address, rounds);
        let mut arguments = [(&raw mut address).cast::<c_void>(), (&raw mut rounds).cast()];
        // SAFETY: the kernel takes these two arguments, which the call copies.
        let code = unsafe {
            (self.functions.cuLaunchKernel)(
                kernel.0,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                ptr::null_mut(),
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.check("cuLaunchKernel", code)
    }

    /// Waits for all that was started.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: it takes nothing.
        self.check("cuCtxSynchronize", unsafe { (self.functions.cuCtxSynchronize)() })
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), CudaError> {
        self.functions.check(call, code)
    }
}

/// `GPU-` and the bytes in hexadecimal, as NVML writes them.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::uuid_text;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let bytes = [0x4f, 0x6b, 0x1c, 0x1e, 0x8f, 0x0a, 0x4c, 0x55, 0x9d, 0x10, 0, 0, 0, 0, 0, 7];
        assert_eq!(uuid_text(bytes), "GPU-4f6b1c1e-8f0a-4c55-9d10-000000000007");
    }
}
