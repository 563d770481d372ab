//! The part of nvCOMP's C interface that this crate uses, as of versions 5 and 6.
//!
//! The stand-in for tests (`crates/fakes/nvcomp-stand-in`) has the same functions in C.
//! `cargo xtask nvcomp-check` compares the stand-in's functions with NVIDIA's headers.

use std::ffi::{c_char, c_void};

/// The status that a function of nvCOMP returns; 0 is success.
pub(super) type Status = i32;

pub(super) const SUCCESS: Status = 0;

/// The status after a failure of the CUDA runtime, for example because there is no device.
pub(super) const CUDA_ERROR: Status = 1000;

/// The handle of a stream, which is the same for the CUDA driver and the CUDA runtime.
pub(super) type Stream = *mut c_void;

/// The options of any format and direction. In C, each format and direction has a separate type of 64 bytes.
/// If a type has any options, the first one is an `int`. Unset options are zero. The options are passed by
/// value. At this size they are passed in memory, where the alignment of the C type (1 or 4) makes no
/// difference.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Options([i32; 16]);

const _: () = assert!(size_of::<Options>() == 64 && align_of::<Options>() == 4);

impl Options {
    pub(super) fn first(number: i32) -> Self {
        let mut options = Self::default();
        options.0[0] = number;
        options
    }
}

/// The value of the first option of every decompressor that selects kernels, and not the decompression engine
/// of the hardware. The engine needs memory that is allocated for it, and reports no errors.
pub(super) const BACKEND_CUDA: i32 = 2;

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Properties {
    /// The version as 1000 × major + 100 × minor + patch.
    pub(super) version: u32,
    pub(super) cudart_version: u32,
}

const _: () = assert!(size_of::<Properties>() == 8);

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct AlignmentRequirements {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) temp: usize,
}

const _: () = assert!(size_of::<AlignmentRequirements>() == 3 * size_of::<usize>());

pub(super) type GetProperties = unsafe extern "C" fn(*mut Properties) -> Status;

pub(super) type GetStatusString = unsafe extern "C" fn(Status) -> *const c_char;

pub(super) type GetRequiredAlignments =
    unsafe extern "C" fn(Options, *mut AlignmentRequirements) -> Status;

/// A query of the temporary memory, in version 5. The arguments are the number of chunks, the bytes of the
/// largest chunk, the options, the result, and the bytes of all chunks.
pub(super) type GetTempSize5 =
    unsafe extern "C" fn(usize, usize, Options, *mut usize, usize) -> Status;

/// The query of [`GetTempSize5`] in version 6 of nvCOMP. It has the same arguments, and a stream behind them.
pub(super) type GetTempSize6 =
    unsafe extern "C" fn(usize, usize, Options, *mut usize, usize, Stream) -> Status;

pub(super) type GetMaxOutputChunkSize = unsafe extern "C" fn(usize, Options, *mut usize) -> Status;

pub(super) type CompressAsync = unsafe extern "C" fn(
    inputs: *const *const c_void,
    input_sizes: *const usize,
    max_input_size: usize,
    chunks: usize,
    temp: *mut c_void,
    temp_bytes: usize,
    outputs: *const *mut c_void,
    output_sizes: *mut usize,
    Options,
    statuses: *mut Status,
    Stream,
) -> Status;

pub(super) type DecompressAsync = unsafe extern "C" fn(
    inputs: *const *const c_void,
    input_sizes: *const usize,
    output_capacities: *const usize,
    output_sizes: *mut usize,
    chunks: usize,
    temp: *mut c_void,
    temp_bytes: usize,
    outputs: *const *mut c_void,
    Options,
    statuses: *mut Status,
    Stream,
) -> Status;
