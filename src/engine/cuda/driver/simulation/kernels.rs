//! Kernels, on the host.

use std::ffi::c_void;

use crate::engine::cuda::driver::{Arg, DeviceSpan, Dims};

pub(crate) use zarrs_cuda_simt::AccessCount;

/// An argument of a kernel, kept until the kernel runs.
pub(super) enum Argument {
    Span(DeviceSpan),
    /// The bytes of a value, padded.
    Value(Vec<u64>),
}

impl Argument {
    pub(super) fn new(argument: &Arg<'_>) -> Self {
        let value = |bytes: &[u8]| {
            let words = bytes.chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_ne_bytes(word)
            });
            Self::Value(words.collect())
        };
        match argument {
            Arg::Span(span, _) => Self::Span(*span),
            Arg::Null => Self::Value(vec![0]),
            Arg::U32(number) => value(&number.to_ne_bytes()),
            Arg::U64(number) => Self::Value(vec![*number]),
            Arg::Struct(bytes) => value(bytes),
        }
    }
}

/// Run a kernel, and count what it moves if `counted`. An error says which rule it broke.
///
/// # Safety
/// `arguments` are what the kernel takes, and their spans are live and nobody else uses them.
pub(super) unsafe fn run(
    name: &str,
    dims: Dims,
    arguments: &[Argument],
    counted: bool,
) -> Result<Vec<AccessCount>, String> {
    let mut values: Vec<Vec<u64>> = arguments
        .iter()
        .map(|argument| match argument {
            Argument::Span(span) => vec![span.memory.0 + span.offset as u64],
            Argument::Value(words) => words.clone(),
        })
        .collect();
    let pointers: Vec<*mut c_void> = values.iter_mut().map(|v| v.as_mut_ptr().cast()).collect();
    // SAFETY: each pointer is to a value, which lives until this returns; the caller answers for
    // their types and for what they point to.
    unsafe {
        if counted {
            zarrs_cuda_simt::launch_counted(name, dims.grid, dims.block, &pointers)
        } else {
            zarrs_cuda_simt::launch(name, dims.grid, dims.block, &pointers)
        }
    }
}
