//! The functions of the CUDA driver's library.
//!
//! The functions are looked up once, here and not in cudarc, for three reasons. First, cudarc panics if the
//! library lacks a function. Second, cudarc returns codes as an enumeration of the codes that its version of
//! CUDA knows. A further code of a newer driver would be undefined behaviour. Here a code is a number. Third,
//! an application may have cudarc for another version of CUDA, whose bindings rename some functions;
//! libraries keep the old names. The types come from cudarc. Its bindings for CUDA 12.0, generated from
//! NVIDIA's header, check the types below when tests are compiled.

use super::hints::{self, UPDATE};
use crate::cuda::library::Library;
#[cfg(test)]
use cudarc::driver::sys;
use cudarc::driver::sys::{
    CUDA_MEMCPY3D, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUjit_option, CUmodule, CUpointer_attribute, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus,
};
use std::env;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
use std::path::{Path, PathBuf};

/// The result code of a function: 0, or the reason for a failure.
pub(super) type Code = u32;

macro_rules! functions {
    (
        { $($name:ident($($argument:ty),*);)* }
        of a code { $($of_code:ident($($of_code_argument:ty),*);)* }
    ) => {
        #[allow(non_snake_case)] // NVIDIA's names
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
            $(pub(super) $of_code: unsafe extern "C" fn(Code, $($of_code_argument),*) -> Code,)*
        }

        impl Functions {
            /// Looks up the functions of the library. The error is the name of a missing function.
            fn look_up(library: &Library) -> Result<Self, &'static str> {
                macro_rules! symbol {
                    ($symbol:ident) => {
                        // SAFETY: the constants below check the type against the header's. A
                        // `CUresult` has 32 bits.
                        unsafe { library.get(stringify!($symbol)) }.ok_or(stringify!($symbol))?
                    };
                }
                Ok(Self {
                    $($name: symbol!($name),)*
                    $($of_code: symbol!($of_code),)*
                })
            }
        }

        #[cfg(any(test, feature = "fakes"))]
        impl Functions {
            /// Returns the functions of the emulated driver of this process.
            pub(super) fn emulated() -> Self {
                use zarrs_cuda_emulator::driver;
                Self {
                    $($name: driver::$name,)*
                    $($of_code: driver::$of_code,)*
                }
            }
        }

        $(
            #[cfg(test)]
            const _: unsafe fn($($argument),*) -> CUresult = sys::$name;
        )*
        $(
            #[cfg(test)]
            const _: unsafe fn(CUresult, $($of_code_argument),*) -> CUresult = sys::$of_code;
        )*
    };
}

const _: () = assert!(size_of::<CUresult>() == size_of::<Code>());

// All functions below are older than CUDA 12.0, which is the oldest supported version.
functions! {
    {
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuCtxPushCurrent_v2(CUcontext);
        cuCtxSynchronize();
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDriverGetVersion(*mut c_int);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventElapsedTime(*mut f32, CUevent, CUevent);
        cuEventQuery(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuInit(c_uint);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
            *mut *mut c_void, *mut *mut c_void
        );
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFreeHost(*mut c_void);
        cuMemFree_v2(CUdeviceptr);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemcpy3DAsync_v2(*const CUDA_MEMCPY3D, CUstream);
        cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
        cuPointerGetAttributes(c_uint, *mut CUpointer_attribute, *mut *mut c_void, CUdeviceptr);
        cuStreamCreate(*mut CUstream, c_uint);
        cuStreamDestroy_v2(CUstream);
        cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
        cuStreamQuery(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
    }
    of a code {
        cuGetErrorName(*mut *const c_char);
        cuGetErrorString(*mut *const c_char);
    }
}

/// The functions that report the current context of a thread.
#[allow(non_snake_case)] // NVIDIA's names
pub(super) struct ContextFunctions {
    pub(super) cuCtxGetCurrent: unsafe extern "C" fn(*mut CUcontext) -> Code,
    pub(super) cuCtxGetDevice: unsafe extern "C" fn(*mut CUdevice) -> Code,
    pub(super) cuDeviceGet: unsafe extern "C" fn(*mut CUdevice, c_int) -> Code,
    pub(super) cuDeviceGetCount: unsafe extern "C" fn(*mut c_int) -> Code,
}

#[cfg(test)]
const _: [unsafe fn(*mut CUcontext) -> CUresult; 1] = [sys::cuCtxGetCurrent];
#[cfg(test)]
const _: [unsafe fn(*mut CUdevice) -> CUresult; 1] = [sys::cuCtxGetDevice];

impl ContextFunctions {
    /// Looks up the functions in the driver's library, if this process has loaded the library. Does not load
    /// it.
    pub(super) fn of_loaded() -> Option<Self> {
        let library = NAMES.into_iter().find_map(Library::loaded)?;
        // SAFETY: the constants above, and those of `Functions`, check the types against the header's. A
        // `CUresult` has 32 bits.
        unsafe {
            Some(Self {
                cuCtxGetCurrent: library.get("cuCtxGetCurrent")?,
                cuCtxGetDevice: library.get("cuCtxGetDevice")?,
                cuDeviceGet: library.get("cuDeviceGet")?,
                cuDeviceGetCount: library.get("cuDeviceGetCount")?,
            })
        }
    }
}

/// The names of the driver's library. A toolkit has a stub library under the name that linkers use, so the
/// loader's name comes first.
#[cfg(not(windows))]
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const NAMES: [&str; 1] = ["nvcuda.dll"];

impl Functions {
    /// Loads the library, and looks up its functions.
    pub(super) fn load() -> Result<Self, String> {
        let library = NAMES.into_iter().find_map(|name| {
            // SAFETY: the driver's initialisers may run in any process.
            match unsafe { Library::load(Path::new(name)) } {
                Err(reason) if is_absent(name, &reason) => None,
                loaded => Some(loaded),
            }
        });
        let Some(library) = library else {
            return Err(match passed_over() {
                Some(file) => format!(
                    "the CUDA driver's library {} is there and cannot be loaded: the loader passes over it, because it is for another kind of processor, or cannot be read",
                    file.display()
                ),
                None => format!(
                    "no CUDA driver is installed: the loader found no {}; {}",
                    NAMES.join(", no "),
                    hints::without_driver()
                ),
            });
        };
        let library = library.map_err(|reason| {
            format!("the CUDA driver's library is there and cannot be loaded: {reason}")
        })?;
        Self::look_up(&library)
            .map_err(|name| format!("the CUDA driver's library has no {name}: {UPDATE}"))
    }
}

/// Returns a file of the driver's library where loaders look. A loader says of a library for another kind of
/// processor that it is absent.
fn passed_over() -> Option<PathBuf> {
    let searched = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let of_system = [
        format!("/usr/lib/{}-linux-gnu", env::consts::ARCH),
        "/usr/lib64".to_string(),
        "/usr/lib".to_string(),
    ];
    let folders = env::split_paths(&searched).chain(of_system.map(PathBuf::from));
    let mut files = folders.flat_map(|folder| NAMES.map(|name| folder.join(name)));
    files.find(|file| file.is_file())
}

/// Returns whether the loader's `reason` says that there is no library `name`. A library that is there may be for
/// another machine, or need a library that is absent.
fn is_absent(name: &str, reason: &str) -> bool {
    let is_of_name = reason.strip_prefix(name).is_some_and(|rest| rest.starts_with(": cannot open"))
        // The words of musl.
        || reason.contains(&format!("loading shared library {name}:"));
    // Windows has the same words for a library that is absent and for one that needs an absent library.
    cfg!(windows) || (is_of_name && reason.ends_with("No such file or directory"))
}
