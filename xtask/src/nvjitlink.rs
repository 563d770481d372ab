//! nvJitLink links PTX to machine code, with the compiler of the drivers of its version of CUDA.

use crate::Result;
use libloading::Library;
use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    fs,
    mem::ManuallyDrop,
    path::Path,
    ptr,
};

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle, c_uint, *const *const c_char) -> c_int;
type AddData = unsafe extern "C" fn(Handle, c_int, *const c_void, usize, *const c_char) -> c_int;
type Complete = unsafe extern "C" fn(Handle) -> c_int;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;

/// `NVJITLINK_INPUT_PTX` of the header.
const PTX: c_int = 2;

/// The architectures of the generations that drivers of CUDA 13 run on.
pub(crate) const ARCHITECTURES: [u32; 5] = [75, 80, 90, 100, 120];

/// The library, with the functions that this program uses.
pub(crate) struct NvJitLink {
    create: Create,
    add_data: AddData,
    complete: Complete,
    cubin_size: Size,
    log_sizes: [Size; 2],
    logs: [Text; 2],
    destroy: Destroy,
    /// The library is never unloaded: its code may run until the process ends.
    _library: ManuallyDrop<Library>,
}

impl NvJitLink {
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let error = |e: libloading::Error| format!("{}: {e}", path.display());
        // SAFETY: the file comes from a package that is pinned by its hash. Loading it only runs
        // its own initialisers, and its header declares the functions with these types. Every release
        // of a major version has the functions of its first release.
        unsafe {
            let library = Library::new(path).map_err(error)?;
            Ok(Self {
                create: *library.get(b"__nvJitLinkCreate_13_0\0").map_err(error)?,
                add_data: *library.get(b"__nvJitLinkAddData_13_0\0").map_err(error)?,
                complete: *library.get(b"__nvJitLinkComplete_13_0\0").map_err(error)?,
                cubin_size: *library
                    .get(b"__nvJitLinkGetLinkedCubinSize_13_0\0")
                    .map_err(error)?,
                log_sizes: [
                    *library
                        .get(b"__nvJitLinkGetErrorLogSize_13_0\0")
                        .map_err(error)?,
                    *library
                        .get(b"__nvJitLinkGetInfoLogSize_13_0\0")
                        .map_err(error)?,
                ],
                logs: [
                    *library
                        .get(b"__nvJitLinkGetErrorLog_13_0\0")
                        .map_err(error)?,
                    *library
                        .get(b"__nvJitLinkGetInfoLog_13_0\0")
                        .map_err(error)?,
                ],
                destroy: *library.get(b"__nvJitLinkDestroy_13_0\0").map_err(error)?,
                _library: ManuallyDrop::new(library),
            })
        }
    }

    /// Links each module on each of [`ARCHITECTURES`]. Fails if the library refuses one, or warns.
    pub(crate) fn check(&self, modules: &[impl AsRef<Path>]) -> Result<()> {
        for module in modules {
            let module = module.as_ref();
            let text = fs::read(module).map_err(|e| format!("{}: {e}", module.display()))?;
            for sm in ARCHITECTURES {
                self.link(&text, sm)
                    .map_err(|reason| format!("{} on sm_{sm}: {reason}", module.display()))?;
            }
        }
        println!(
            "nvJitLink links {} modules on {ARCHITECTURES:?}",
            modules.len()
        );
        Ok(())
    }

    /// Links the module `text`. Warnings are errors.
    fn link(&self, text: &[u8], sm: u32) -> Result<()> {
        let option = CString::new(format!("-arch=sm_{sm}")).map_err(|e| e.to_string())?;
        let text = CString::new(text).map_err(|e| e.to_string())?;
        let options = [option.as_ptr()];
        let mut handle = ptr::null_mut();
        // SAFETY: the option is NUL-terminated and live.
        let mut code = unsafe { (self.create)(&raw mut handle, 1, options.as_ptr()) };
        if code != 0 {
            return Err(format!("nvJitLinkCreate failed with {code}"));
        }
        let bytes = text.as_bytes_with_nul();
        // SAFETY: the handle was created above; the text and its name are NUL-terminated and live.
        unsafe {
            code = (self.add_data)(
                handle,
                PTX,
                bytes.as_ptr().cast(),
                bytes.len(),
                c"module".as_ptr(),
            );
            if code == 0 {
                code = (self.complete)(handle);
            }
        }
        let mut size = 0;
        if code == 0 {
            // SAFETY: the handle was completed above.
            code = unsafe { (self.cubin_size)(handle, &raw mut size) };
        }
        let said: String = (0..2).map(|log| self.log(handle, log)).collect();
        // SAFETY: the handle was created above, and this is its last use.
        unsafe { (self.destroy)(&raw mut handle) };
        if code != 0 || size == 0 || !said.trim().is_empty() {
            return Err(format!(
                "nvJitLink says (result {code}, {size} bytes):\n{said}"
            ));
        }
        Ok(())
    }

    /// Returns the log of errors, which has number 0, or the log of remarks.
    fn log(&self, handle: Handle, number: usize) -> String {
        let mut len = 0;
        // SAFETY: `link` passes a handle that was created and not destroyed.
        if unsafe { (self.log_sizes[number])(handle, &raw mut len) } != 0 || len == 0 {
            return String::new();
        }
        let mut text = vec![0_u8; len + 1];
        // SAFETY: as above; `text` is longer than the size that the library asks for.
        unsafe { (self.logs[number])(handle, text.as_mut_ptr().cast()) };
        text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(len));
        String::from_utf8_lossy(&text).into_owned()
    }
}
