//! Launches of the kernels in `language.cu`.

use std::ffi::c_void;
use std::marker::PhantomData;

use zarrs_cuda_simt::AccessCount;

/// A pointer to the value of an argument.
#[derive(Clone, Copy)]
pub(crate) struct Argument<'a>(*mut c_void, PhantomData<&'a ()>);

pub(crate) fn argument<T>(value: &T) -> Argument<'_> {
    Argument(std::ptr::from_ref(value).cast_mut().cast(), PhantomData)
}

fn pointers(args: &[Argument]) -> Vec<*mut c_void> {
    args.iter().map(|argument| argument.0).collect()
}

pub(crate) fn launch(
    kernel: &str,
    grid: u32,
    block: u32,
    args: &[Argument],
) -> Result<Vec<AccessCount>, String> {
    // SAFETY: the tests pass what the kernels take, and buffers that are large enough where they do
    // not test what happens otherwise.
    unsafe { zarrs_cuda_simt::launch(kernel, grid, block, &pointers(args)) }
}

#[allow(dead_code)] // not every test counts
pub(crate) fn launch_counted(
    kernel: &str,
    grid: u32,
    block: u32,
    args: &[Argument],
) -> Result<Vec<AccessCount>, String> {
    // SAFETY: as above.
    unsafe { zarrs_cuda_simt::launch_counted(kernel, grid, block, &pointers(args)) }
}
