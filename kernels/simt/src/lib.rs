//! Runs the kernels of `zarrs_cuda` on the host, for tests.

use std::ffi::{CStr, CString, c_char, c_void};

/// How many 32-byte sectors the warps moved at one place in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessCount {
    /// The place: file and line.
    pub site: String,
    /// The sectors that were moved.
    pub sectors: u64,
    /// The fewest sectors that could hold the bytes.
    pub ideal: u64,
}

unsafe extern "C" {
    fn simt_launch(
        kernel: *const c_char,
        grid: u32,
        block: u32,
        args: *const *mut c_void,
        count: usize,
    ) -> *mut c_char;
    fn simt_free(text: *mut c_char);
}

/// Run `kernel` with `grid` blocks of `block` threads.
///
/// # Errors
/// A rule of the kernels' language was broken. The message says which, and where.
///
/// # Safety
/// `args` points to the value of each argument, of the type that the kernel takes, and the kernel
/// keeps within the memory that they point to.
pub unsafe fn launch(
    kernel: &str,
    grid: u32,
    block: u32,
    args: &[*mut c_void],
) -> Result<Vec<AccessCount>, String> {
    let name = CString::new(kernel).map_err(|error| error.to_string())?;
    // SAFETY: the name ends in a zero, there are as many arguments as is said, and the caller
    // answers for what they point to. What comes back is null or text that ends in a zero.
    unsafe {
        let message = simt_launch(name.as_ptr(), grid, block, args.as_ptr(), args.len());
        if message.is_null() {
            return Ok(Vec::new());
        }
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        simt_free(message);
        Err(text)
    }
}
