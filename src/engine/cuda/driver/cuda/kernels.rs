//! The kernels of a device: compiled by its driver, once, at the first launch of any in their
//! module.

use super::{CudaDriver, DriverError, Fault, Handle, address, handles::lock};
use crate::engine::cuda::{
    driver::Arg,
    kernels::ptx::{KERNELS, Module},
};
use cudarc::driver::sys::{CUfunc_st, CUjit_option, CUmod_st};
use std::{
    collections::HashMap,
    ffi::{CStr, CString, c_void},
    ptr,
    sync::Mutex,
};

#[derive(Debug, Default)]
pub(super) struct Kernels(Mutex<Loaded>);

/// With the errors, because what does not compile now never will, and trying takes long.
#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<&'static str, Result<Handle<CUmod_st>, DriverError>>,
    kernels: HashMap<&'static str, Handle<CUfunc_st>>,
}

impl CudaDriver {
    /// The kernel of this name.
    pub(super) fn kernel(&self, name: &'static str) -> Result<Handle<CUfunc_st>, DriverError> {
        // Held while the driver compiles: the others wait for the same.
        let mut loaded = lock(&self.kernels.0);
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
            // Memory may be there later.
            if !new
                .as_ref()
                .is_err_and(|error| error.fault == Fault::OutOfMemory)
            {
                loaded.modules.insert(module.name, new.clone());
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

    /// Compile what the kernel `name` is in, and find it there.
    #[cfg(test)]
    pub(crate) fn check_kernel(&self, name: &'static str) -> Result<(), DriverError> {
        use crate::engine::cuda::driver::Driver;
        self.enter()?;
        let kernel = self.kernel(name);
        self.leave()?;
        kernel.map(drop)
    }

    /// Let the driver compile a module, for the kernel `name`.
    fn load(&self, name: &str, module: &Module) -> Result<Handle<CUmod_st>, DriverError> {
        let operation = || format!("compile the module {} for the kernel {name}", module.name);
        let text = c_string(module.text).map_err(|reason| self.refused(operation(), &reason))?;
        let mut log = [0_u8; 4096];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // An option's value is as large as a pointer, or is one. One byte stays a NUL.
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            ptr::without_provenance_mut(log.len() - 1),
        ];
        let mut handle = ptr::null_mut();
        let result = self.run(operation, |functions| {
            // SAFETY: the text is NUL-terminated. There are two options and two values, and they
            // and the buffer, of the size that is given, live until the function returns.
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

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}

/// The arguments of a launch, each where the driver may read it with its alignment.
pub(super) struct Arguments {
    words: Vec<u64>,
    /// The first word of each.
    starts: Vec<usize>,
}

impl Arguments {
    pub(super) fn new(args: &[Arg<'_>]) -> Self {
        let (mut words, mut starts) = (Vec::new(), Vec::new());
        for arg in args {
            starts.push(words.len());
            match *arg {
                Arg::Span(span, _) => words.push(address(span)),
                Arg::Null => words.push(0),
                // The driver reads four bytes of it: the first, in native order.
                Arg::U32(value) => words.push(first_bytes(&value.to_ne_bytes())),
                Arg::U64(value) => words.push(value),
                Arg::Struct(bytes) => words.extend(bytes.chunks(8).map(first_bytes)),
            }
        }
        Self { words, starts }
    }

    /// A pointer to each. They hold until `self` is used again.
    pub(super) fn pointers(&mut self) -> Vec<*mut c_void> {
        let words = self.words.as_mut_ptr();
        let pointers = self
            .starts
            .iter()
            .map(|&start| words.wrapping_add(start).cast());
        pointers.collect()
    }
}

/// At most 8 bytes, in native order, and zeros.
fn first_bytes(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cuda::driver::{Access, DeviceMemory, DeviceSpan};
    use std::collections::HashSet;

    #[test]
    fn arguments_are_read_where_the_pointers_point() {
        let span = DeviceSpan {
            memory: DeviceMemory(0x7000),
            offset: 0x34,
            len: 1,
        };
        let bytes: Vec<u8> = (1..=20).collect();
        let mut arguments = Arguments::new(&[
            Arg::Struct(&bytes),
            Arg::U32(0xDEAD_BEEF),
            Arg::Span(span, Access::Read),
            Arg::Null,
            Arg::U64(u64::MAX - 1),
        ]);
        let pointers = arguments.pointers();
        assert!(pointers.iter().all(|p| p.addr() % 8 == 0));
        // SAFETY: each points to a value of at least this size.
        unsafe {
            assert_eq!(pointers[0].cast::<[u8; 20]>().read(), bytes[..]);
            assert_eq!(pointers[1].cast::<u32>().read(), 0xDEAD_BEEF);
            assert_eq!(pointers[2].cast::<u64>().read(), 0x7034);
            assert_eq!(pointers[3].cast::<u64>().read(), 0);
            assert_eq!(pointers[4].cast::<u64>().read(), u64::MAX - 1);
        }
        assert_eq!(pointers.len(), 5);
    }

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
