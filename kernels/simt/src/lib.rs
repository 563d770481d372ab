//! Runs the kernels of `zarrs_cuda` on the host, for tests.
//!
//! `kernels/*.cu` are compiled as host C++, with the language of `kernels/device.h`. The threads of a
//! block take turns; what they may not do is an error with the kernel, the block, the threads, and
//! the line:
//! - a barrier that not all threads of the block reach, or not at the same place;
//! - an operation of a warp in which a lane is missing, or is in another operation;
//! - an access to global memory that is not aligned to its type;
//! - more than 48 KiB of shared memory, a kernel that is not there, another block size than it is
//!   declared with, another number of arguments.
//!
//! A kernel that waits for what another block does waits for ever.
//!
//! # Sanitizers
//!
//! The environment variable `ZARRS_CUDA_SIMT_SANITIZE` chooses how the kernels are compiled:
//! - `address`: with `AddressSanitizer` and `UBSan`, which see accesses out of bounds of global memory
//!   (if each buffer is an allocation of its own) and of shared memory, and undefined behaviour;
//! - `thread`: with `ThreadSanitizer`, which sees what no barrier orders. Blocks whose numbers differ
//!   by an even number are ordered here and not on a GPU. Launches are ordered as they ran.
//!
//! Nothing but this crate is compiled anew for it, by the same compilers; what a sanitizer finds ends
//! the process:
//! ```sh
//! ZARRS_CUDA_SIMT_SANITIZE=address cargo test --package zarrs_cuda --lib
//! ```

use std::ffi::{CStr, CString, c_char, c_void};

/// The sanitizer that the kernels were compiled with: `address`, `thread`, or nothing.
pub const SANITIZER: &str = env!("SIMT_SANITIZER");

/// What the warps of a launch moved at one place in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessCount {
    /// The file, below `kernels/`, and the line.
    pub site: String,
    /// Whether it wrote.
    pub write: bool,
    /// How often warps did: the n-th times of a warp's lanes count as one.
    pub accesses: u64,
    /// The 32-byte sectors that each access touched, added up.
    pub sectors: u64,
    /// The fewest sectors that could hold the bytes that each access touched, added up.
    pub ideal: u64,
}

#[repr(C)]
struct Count {
    file: *const c_char,
    line: u32,
    write: bool,
    accesses: u64,
    sectors: u64,
    ideal: u64,
}

#[derive(Default)]
struct Outcome {
    error: Option<String>,
    counts: Vec<AccessCount>,
}

unsafe extern "C" {
    fn simt_launch(
        kernel: *const c_char,
        grid: u32,
        block: u32,
        arguments: *const *mut c_void,
        count: usize,
        counting: bool,
        sink: *mut c_void,
        failed: unsafe extern "C" fn(*mut c_void, *const c_char),
        counted: unsafe extern "C" fn(*mut c_void, *const Count),
    );
    fn simt_forbid(address: u64, bytes: usize, forbid: bool);
}

unsafe extern "C" fn failed(sink: *mut c_void, message: *const c_char) {
    // SAFETY: `run` passes its outcome as the sink, and the message ends in a zero.
    let (outcome, message) = unsafe { (&mut *sink.cast::<Outcome>(), CStr::from_ptr(message)) };
    outcome.error = Some(message.to_string_lossy().into_owned());
}

unsafe extern "C" fn counted(sink: *mut c_void, count: *const Count) {
    // SAFETY: as above; the file is a name from the source, which ends in a zero.
    let (outcome, count, file) = unsafe {
        let count = &*count;
        let file = CStr::from_ptr(count.file);
        (&mut *sink.cast::<Outcome>(), count, file)
    };
    outcome.counts.push(AccessCount {
        site: format!("{}:{}", file.to_string_lossy(), count.line),
        write: count.write,
        accesses: count.accesses,
        sectors: count.sectors,
        ideal: count.ideal,
    });
}

/// Run `kernel` with `grid` blocks of `block` threads.
///
/// The counts are empty: see [`launch_counted`].
///
/// # Errors
/// A rule of the kernels' language was broken. The message says which, and where. What the kernel
/// wrote before stays written.
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
    // SAFETY: the caller's.
    unsafe { run(kernel, grid, block, args, false) }
}

/// As [`launch`], and count what is moved. Slower, and takes memory for each access of a block.
///
/// # Errors
/// As [`launch`].
///
/// # Safety
/// As [`launch`].
pub unsafe fn launch_counted(
    kernel: &str,
    grid: u32,
    block: u32,
    args: &[*mut c_void],
) -> Result<Vec<AccessCount>, String> {
    // SAFETY: the caller's.
    unsafe { run(kernel, grid, block, args, true) }
}

/// Let `AddressSanitizer`, where the kernels were compiled with it, end the process at an access to
/// these bytes, until [`allow`]: by a kernel, or by `memcpy` and its like anywhere.
///
/// The last up to 7 bytes before a multiple of 8 stay allowed, if what follows them is.
pub fn forbid(address: u64, len: usize) {
    // SAFETY: the address is not followed; what is marked is memory of the sanitizer's own.
    unsafe { simt_forbid(address, len, true) }
}

/// Undo [`forbid`].
pub fn allow(address: u64, len: usize) {
    // SAFETY: as above.
    unsafe { simt_forbid(address, len, false) }
}

/// # Safety
/// As [`launch`].
unsafe fn run(
    kernel: &str,
    grid: u32,
    block: u32,
    args: &[*mut c_void],
    counting: bool,
) -> Result<Vec<AccessCount>, String> {
    let name = CString::new(kernel).map_err(|error| error.to_string())?;
    let mut outcome = Outcome::default();
    // SAFETY: the name ends in a zero, there are as many arguments as is said, and the caller
    // answers for what they point to. The outcome is used by the two functions only, until the call
    // returns.
    unsafe {
        simt_launch(
            name.as_ptr(),
            grid,
            block,
            args.as_ptr(),
            args.len(),
            counting,
            (&raw mut outcome).cast(),
            failed,
            counted,
        );
    }
    match outcome.error {
        Some(error) => Err(error),
        None => Ok(outcome.counts),
    }
}
