//! Finds a usable driver and usable devices, and never panics.

use super::functions::{Code, ContextFunctions};
use super::{
    CudaDriver, DeviceInfo, Driver, DriverError, Fault, Found, Functions, Handles, Kernels, codes,
    hints,
};
use crate::cuda::driver::PciAddress;
use crate::cuda::driver::cuda::handles::lock;
use cudarc::driver::sys::{CUdevice, CUdevice_attribute};
use std::{
    collections::BTreeMap,
    ffi::CStr,
    process, ptr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicI32, AtomicU32, Ordering},
    },
};

/// The oldest version of CUDA whose drivers compile the kernels, which are PTX of ISA 8.0.
const VERSION: i32 = 12_000;

/// The version of CUDA that the loaded driver supports; 0 until the driver reports its version.
static FOUND: AtomicI32 = AtomicI32::new(0);

/// The oldest compute capability that the kernels run on.
const COMPUTE_CAPABILITY: (u32, u32) = (7, 0);

/// Opens all usable devices of this process, without creating a context.
///
/// # Errors
/// No device is usable. The error says why the first device is not usable, or that there is no device.
pub fn open_all() -> Result<Found, DriverError> {
    let (mut drivers, mut refused) = (Vec::<Arc<dyn Driver>>::new(), Vec::new());
    for ordinal in 0..CudaDriver::count()? {
        match CudaDriver::open(ordinal) {
            Ok(driver) => drivers.push(driver),
            Err(error) => {
                tracing::debug!(%error, "a CUDA device that cannot be used");
                refused.push(error);
            }
        }
    }
    if drivers.is_empty() {
        let none = || unavailable("look for CUDA devices", None, hints::without_device());
        return Err(refused.into_iter().next().unwrap_or_else(none));
    }
    Ok(Found { drivers, refused })
}

/// Returns the number of devices that are visible to this process.
///
/// # Errors
/// There is no driver, or it does not report the number.
pub(crate) fn count() -> Result<usize, DriverError> {
    CudaDriver::count()
}

/// Returns the number of the device whose context is current on this thread. Returns `None` if there is no
/// such context, if the driver does not report it, or if no library of this process has loaded the driver. The
/// call loads and initialises nothing.
pub(crate) fn current_device() -> Option<usize> {
    let functions = ContextFunctions::of_loaded()?;
    let (mut context, mut current) = (ptr::null_mut(), 0);
    // SAFETY: the function writes a context, also in a process that has not initialised CUDA.
    let code = unsafe { (functions.cuCtxGetCurrent)(&raw mut context) };
    if code != codes::SUCCESS || context.is_null() {
        return None;
    }
    // SAFETY: the function writes the device of the current context.
    let code = unsafe { (functions.cuCtxGetDevice)(&raw mut current) };
    if code != codes::SUCCESS {
        return None;
    }
    let mut count = 0;
    // SAFETY: the function writes a number.
    let code = unsafe { (functions.cuDeviceGetCount)(&raw mut count) };
    let is_current = |number: &i32| {
        let mut device: CUdevice = 0;
        // SAFETY: the function writes the device with this number.
        let code = unsafe { (functions.cuDeviceGet)(&raw mut device, *number) };
        code == codes::SUCCESS && device == current
    };
    let number = (0..count).find(is_current)?;
    (code == codes::SUCCESS).then_some(number)?.try_into().ok()
}

/// Returns the major and the minor version of CUDA that the driver supports. `None` if no driver was loaded
/// yet, or if the driver does not report its version.
pub(crate) fn version() -> Option<(u32, u32)> {
    let version = u32::try_from(FOUND.load(Ordering::Relaxed)).ok()?;
    (version > 0).then(|| parts(version))
}

/// Splits the number `version`, which is 1000 × major + 10 × minor, into the major and the minor version.
fn parts(version: u32) -> (u32, u32) {
    (version / 1000, version % 1000 / 10)
}

impl CudaDriver {
    /// Returns the number of devices that are visible to this process.
    pub(crate) fn count() -> Result<usize, DriverError> {
        let functions = initialized()?;
        let mut count = 0;
        // SAFETY: the function writes a number.
        let code = unsafe { (functions.cuDeviceGetCount)(&raw mut count) };
        succeed(functions, code, "count the CUDA devices", None)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Returns the driver of the device `ordinal`. Every call returns the same driver.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, DriverError> {
        static DEVICES: Mutex<BTreeMap<usize, Arc<CudaDriver>>> = Mutex::new(BTreeMap::new());
        // This call comes first, because in a forked child the lock may be taken for ever.
        let functions = initialized()?;
        let mut devices = lock(&DEVICES);
        if let Some(device) = devices.get(&ordinal) {
            return Ok(Arc::clone(device));
        }
        let device = Arc::new(Self::new(functions, ordinal)?);
        devices.insert(ordinal, Arc::clone(&device));
        Ok(device)
    }

    pub(super) fn new(functions: &'static Functions, ordinal: usize) -> Result<Self, DriverError> {
        let check = |code, what: &str| succeed(functions, code, what, Some(ordinal));

        let mut device: CUdevice = 0;
        // The driver refuses a number that is out of range.
        let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
        // SAFETY: the function writes the device.
        let code = unsafe { (functions.cuDeviceGet)(&raw mut device, number) };
        check(code, "find the device")?;

        let attribute = |attribute, what: &str| {
            let mut value = 0;
            // SAFETY: the function writes a number.
            let code =
                unsafe { (functions.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
            check(code, &format!("ask for {what}"))?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let major = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        let minor = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        let multiprocessors = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let compute_capability = (
            attribute(major, "the compute capability")?,
            attribute(minor, "the minor compute capability")?,
        );
        let multiprocessors = attribute(multiprocessors, "the number of multiprocessors")?;
        let pitch = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH;
        let largest_pitch = attribute(pitch, "the largest pitch")?;
        if compute_capability < COMPUTE_CAPABILITY {
            return Err(unavailable(
                "use the device",
                Some(ordinal),
                format!(
                    "its compute capability is {}.{}; the kernels need {}.{} or newer",
                    compute_capability.0,
                    compute_capability.1,
                    COMPUTE_CAPABILITY.0,
                    COMPUTE_CAPABILITY.1
                ),
            ));
        }

        let mut name = [0_u8; 256];
        // SAFETY: the function writes at most 255 characters and a NUL.
        let code = unsafe { (functions.cuDeviceGetName)(name.as_mut_ptr().cast(), 255, device) };
        check(code, "ask for the name")?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        let name = name.to_string_lossy().into_owned();

        let mut total_memory = 0;
        // SAFETY: the function writes a number.
        let code = unsafe { (functions.cuDeviceTotalMem_v2)(&raw mut total_memory, device) };
        check(code, "ask for the size of the memory")?;

        let pci = pci_address(functions, device);
        if pci.is_none() {
            tracing::debug!(ordinal, "the driver does not say where the device is");
        }

        Ok(Self {
            functions,
            info: DeviceInfo {
                ordinal,
                name,
                compute_capability,
                total_memory,
                multiprocessors,
                largest_pitch: largest_pitch as usize,
                pci,
            },
            device,
            context: OnceLock::new(),
            process: process::id(),
            broken: OnceLock::new(),
            streams: Handles::new(),
            events: Handles::new(),
            kernels: Kernels::default(),
        })
    }
}

/// Returns the device's address on the PCI bus; `None` after any error, because only speed depends on the
/// address.
fn pci_address(functions: &Functions, device: CUdevice) -> Option<PciAddress> {
    let number = |attribute| {
        let mut value = 0;
        // SAFETY: the function writes a number.
        let code = unsafe { (functions.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
        (code == codes::SUCCESS).then_some(value)?.try_into().ok()
    };
    Some(PciAddress {
        domain: number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        bus: number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        device: number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
    })
}

/// Returns the driver's functions, after `cuInit`. The first result is kept: later calls return the same
/// functions, or the same error.
fn initialized() -> Result<&'static Functions, DriverError> {
    static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
    /// The first process that called this function; 0 if there is none.
    static PROCESS: AtomicU32 = AtomicU32::new(0);

    let what = "initialize CUDA";
    let this = process::id();
    let first = PROCESS.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err_and(|process| process != this) {
        // CUDA does not work in a forked child. Also, `FUNCTIONS` may be locked for ever, if
        // another thread of the parent was initializing it.
        let reason = "the process was forked after it looked for CUDA devices".into();
        return Err(unavailable(what, None, reason));
    }
    match FUNCTIONS.get_or_init(initialize) {
        Ok(functions) => Ok(functions),
        Err(reason) => Err(unavailable(what, None, reason.clone())),
    }
}

fn initialize() -> Result<Functions, String> {
    let functions = Functions::load()?;
    let mut version = 0;
    // SAFETY: the function writes a number; may be called before `cuInit`.
    let code = unsafe { (functions.cuDriverGetVersion)(&raw mut version) };
    if code != codes::SUCCESS {
        let reason = codes::describe(&functions, code);
        return Err(format!("the driver does not tell its version: {reason}"));
    }
    FOUND.store(version, Ordering::Relaxed);
    check_version(version)?;
    // SAFETY: may be called any number of times.
    match unsafe { (functions.cuInit)(0) } {
        codes::SUCCESS => Ok(functions),
        code => Err(codes::describe(&functions, code)),
    }
}

/// Checks that the driver is new enough. `version` is the driver's version of CUDA as 1000 × major + 10 ×
/// minor.
fn check_version(version: i32) -> Result<(), String> {
    if version >= VERSION {
        return Ok(());
    }
    let text = |version: i32| {
        let (major, minor) = parts(version.unsigned_abs());
        format!("{major}.{minor}")
    };
    Err(format!(
        "the driver is for CUDA {}, and the kernels need one for CUDA {}: {}",
        text(version),
        text(VERSION),
        hints::UPDATE
    ))
}

fn succeed(
    functions: &Functions,
    code: Code,
    operation: &str,
    device: Option<usize>,
) -> Result<(), DriverError> {
    match code {
        codes::SUCCESS => Ok(()),
        // All other codes mean the same: there is no context, so nothing is broken, and nothing can be used.
        code => Err(unavailable(
            operation,
            device,
            codes::describe(functions, code),
        )),
    }
}

fn unavailable(operation: &str, device: Option<usize>, reason: String) -> DriverError {
    DriverError {
        operation: operation.into(),
        device,
        fault: Fault::Unavailable,
        reason,
    }
}

/// Returns the first device, for a test that needs a device. Without a device, prints that the test is
/// skipped, or panics if `ZARRS_CUDA_REQUIRE_GPU` is 1.
#[cfg(any(test, feature = "fakes"))]
pub fn gpu_or_skip(test: &str) -> Option<Arc<CudaDriver>> {
    match CudaDriver::open(0) {
        Ok(driver) => Some(driver),
        Err(error) if std::env::var("ZARRS_CUDA_REQUIRE_GPU").is_ok_and(|v| v == "1") => {
            panic!("{test} needs a GPU, and ZARRS_CUDA_REQUIRE_GPU is 1: {error}")
        }
        Err(error) => {
            eprintln!("{test} is skipped: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_driver_is_named_with_what_to_do() {
        assert_eq!(check_version(12_000), Ok(()));
        assert_eq!(check_version(13_000), Ok(()));
        assert_eq!(
            check_version(11_040).as_ref().map_err(String::as_str),
            Err(
                "the driver is for CUDA 11.4, and the kernels need one for CUDA 12.0: \
                 install an NVIDIA driver of version 525 or newer"
            )
        );
    }

    #[test]
    fn asking_never_panics() {
        let devices = CudaDriver::count();
        let missing = devices.as_ref().map_or(0, |&count| count);
        let error = CudaDriver::open(missing).map(drop);
        let fault = error.as_ref().map_err(|error| error.fault);
        assert_eq!(fault, Err(Fault::Unavailable), "{error:?}");
        if let Err(error) = devices {
            assert_eq!(error.fault, Fault::Unavailable);
            assert!(
                error.to_string().starts_with("initialize CUDA: "),
                "{error}"
            );
        }
    }
}
