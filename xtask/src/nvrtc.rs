//! NVRTC compiles CUDA C++ to PTX.

use crate::Result;
use libloading::Library;
use std::{
    ffi::{CString, c_char, c_int, c_void},
    path::Path,
    ptr,
};

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// The library, with the functions that this program uses.
pub(crate) struct Nvrtc {
    create: Create,
    compile: Compile,
    log_size: Size,
    log: Text,
    ptx_size: Size,
    ptx: Text,
    destroy: Destroy,
    /// The last field, so that it is dropped after the functions, which are in it.
    _library: Library,
}

impl Nvrtc {
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let error = |e: libloading::Error| format!("{}: {e}", path.display());
        // SAFETY: the file comes from a package that is pinned by its hash. Loading it only runs
        // its own initialisers, and its header declares the functions with these types.
        unsafe {
            let library = Library::new(path).map_err(error)?;
            Ok(Self {
                create: *library.get(b"nvrtcCreateProgram\0").map_err(error)?,
                compile: *library.get(b"nvrtcCompileProgram\0").map_err(error)?,
                log_size: *library.get(b"nvrtcGetProgramLogSize\0").map_err(error)?,
                log: *library.get(b"nvrtcGetProgramLog\0").map_err(error)?,
                ptx_size: *library.get(b"nvrtcGetPTXSize\0").map_err(error)?,
                ptx: *library.get(b"nvrtcGetPTX\0").map_err(error)?,
                destroy: *library.get(b"nvrtcDestroyProgram\0").map_err(error)?,
                _library: library,
            })
        }
    }

    /// Compiles `source` to PTX. Messages call it `name`. Warnings are errors.
    pub(crate) fn compile(&self, name: &str, source: &str, options: &[&str]) -> Result<String> {
        let c_string = |text: &str| CString::new(text).map_err(|e| format!("{name}: {e}"));
        let (source, name_) = (c_string(source)?, c_string(name)?);
        let options: Vec<CString> = options.iter().map(|o| c_string(o)).collect::<Result<_>>()?;
        let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let count = c_int::try_from(options.len()).map_err(|e| e.to_string())?;

        let mut program = ptr::null_mut();
        let (none, source, name_) = (ptr::null(), source.as_ptr(), name_.as_ptr());
        // SAFETY: `source` and `name_` are NUL-terminated and live; no headers are given.
        let code = unsafe { (self.create)(&raw mut program, source, name_, 0, none, none) };
        if code != 0 {
            return Err(format!("{name}: nvrtcCreateProgram failed with {code}"));
        }
        // SAFETY: the program was created above; the `count` options are NUL-terminated and live.
        let code = unsafe { (self.compile)(program, count, options.as_ptr()) };
        let log = text(program, self.log_size, self.log);
        let ptx = text(program, self.ptx_size, self.ptx);
        // SAFETY: the program was created above, and this is its last use.
        unsafe { (self.destroy)(&raw mut program) };

        let log = log.map_err(|code| format!("{name}: the log cannot be read: {code}"))?;
        if code != 0 || !log.is_empty() {
            return Err(format!("{name}: NVRTC says (result {code}):\n{log}"));
        }
        ptx.map_err(|code| format!("{name}: the PTX cannot be read: {code}"))
    }
}

/// Returns the text that `get` writes for the program: `size` bytes with a NUL at the end.
fn text(program: Program, size: Size, get: Text) -> std::result::Result<String, c_int> {
    let mut len = 0;
    // SAFETY: the callers pass a program that was created and not destroyed, and two functions that
    // belong together.
    let code = unsafe { size(program, &raw mut len) };
    if code != 0 {
        return Err(code);
    }
    let mut text = vec![0_u8; len];
    // SAFETY: as above; `text` is as long as `size` requires.
    let code = unsafe { get(program, text.as_mut_ptr().cast()) };
    if code != 0 {
        return Err(code);
    }
    text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(len));
    Ok(String::from_utf8_lossy(&text).into_owned())
}
