//! The kernels of a device. The driver compiles a module once, at the first launch of any of the
//! module's kernels.

use super::handles::{Handle, Kernels, lock};
use super::{CudaDriver, DriverError, Fault};
use cudarc::driver::sys::{CUfunc_st, CUjit_option, CUmod_st};
use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, c_void},
    ptr,
    sync::atomic::Ordering,
};
use zarrs_cuda_kernels::{KERNELS, Module};

impl CudaDriver {
    /// Returns the kernel `name`. Compiles the kernel's module if necessary.
    pub(super) fn kernel(&self, name: &'static str) -> Result<Handle<CUfunc_st>, DriverError> {
        // The lock is held while the driver compiles, so that other threads wait for the result.
        let mut loaded = lock(&self.kernels.loaded);
        if let Some(kernel) = loaded.kernels.get(name) {
            return Ok(*kernel);
        }
        let operation = || format!("load the kernel {name}");
        let Some((_, module)) = KERNELS.iter().find(|(kernel, _)| *kernel == name) else {
            return Err(self.refused(operation(), "there is no such kernel"));
        };
        let module = if let Some(module) = loaded.modules.get(module.name) {
            module.clone()?
        } else {
            let new = self.load(name, module);
            // The error of a module is kept, unless memory ran out: there may be enough memory later.
            if !new
                .as_ref()
                .is_err_and(|error| error.fault == Fault::OutOfMemory)
            {
                loaded.modules.insert(module.name, new.clone());
                let count = loaded.modules.len();
                self.kernels.modules.store(count, Ordering::Relaxed);
            }
            new?
        };
        let symbol = c_string(name).map_err(|reason| self.refused(operation(), &reason))?;
        let mut kernel = ptr::null_mut();
        self.run(operation, |functions| {
            let symbol = symbol.as_ptr();
            // SAFETY: the module is never unloaded, and the name is NUL-terminated.
            unsafe { (functions.cuModuleGetFunction)(&raw mut kernel, module.0, symbol) }
        })?;
        let kernel = Handle(kernel);
        loaded.kernels.insert(name, kernel);
        Ok(kernel)
    }

    /// Compiles the module of the kernel `name`, and checks that the module contains the kernel.
    #[cfg(any(test, feature = "fakes"))]
    pub fn check_kernel(&self, name: &'static str) -> Result<(), DriverError> {
        use crate::cuda::driver::Driver;
        self.enter()?;
        let kernel = self.kernel(name);
        self.leave()?;
        kernel.map(drop)
    }

    /// Compiles a module because the kernel `name` is needed.
    fn load(&self, name: &str, module: &Module) -> Result<Handle<CUmod_st>, DriverError> {
        let operation = || format!("compile the module {} for the kernel {name}", module.name);
        let text = c_string(module.text).map_err(|reason| self.refused(operation(), &reason))?;
        let mut log = [0_u8; 4096];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // An option's value is a pointer, or a number of that size. The log's last byte stays NUL.
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            ptr::without_provenance_mut(log.len() - 1),
        ];
        let mut handle = ptr::null_mut();
        let result = self.run(operation, |functions| {
            // SAFETY: the text is NUL-terminated. There are two options and two values. These and
            // the log, whose size is as given, live until the function returns.
            unsafe {
                (functions.cuModuleLoadDataEx)(
                    &raw mut handle,
                    text.as_ptr().cast(),
                    2,
                    options.as_mut_ptr(),
                    values.as_mut_ptr(),
                )
            }
        });
        result.map(|()| Handle(handle)).map_err(|mut error| {
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
            if !log.is_empty() {
                error.reason = format!("{}\n{}", error.reason, log.to_string_lossy());
            }
            error
        })
    }
}

impl Kernels {
    /// Returns the number of modules that the driver has not tried to compile. The function takes no lock.
    pub(super) fn uncompiled(&self) -> usize {
        let names: BTreeSet<_> = KERNELS.iter().map(|(_, module)| module.name).collect();
        let tried = self.modules.load(Ordering::Relaxed);
        names.len().saturating_sub(tried)
    }
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_kernel_in_the_ptx_is_listed_once() {
        let mut listed: Vec<_> = KERNELS.iter().map(|(kernel, _)| *kernel).collect();
        listed.sort_unstable();
        let texts: HashSet<_> = KERNELS.iter().map(|(_, module)| module.text).collect();
        let mut entries: Vec<_> = texts
            .iter()
            .flat_map(|text| text.split(".entry ").skip(1))
            .filter_map(|entry| entry.split('(').next())
            .collect();
        entries.sort_unstable();
        assert_eq!(listed, entries);
    }
}
