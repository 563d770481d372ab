//! nvCOMP, NVIDIA's library of compressors: loaded at run time, never linked, never required.
//!
//! Requirements (alignments, the largest output, temporary memory) are queried from the library that was
//! loaded. A batch that nvCOMP's documentation forbids is refused here, before anything is enqueued. The
//! device reports for each chunk whether it was compressed: see [`CompressBatch::statuses`].

mod batch;
mod load;
mod process;
mod sys;
#[cfg(test)]
pub mod tests;

pub use batch::{CompressBatch, DecompressBatch};
pub use load::{Nvcomp, Search, VARIABLE, Version};
pub use process::of_process;
#[cfg(test)]
pub use process::while_locked;

use load::{Compress, Decompress, Functions, TempSize, describe};
use std::{fmt, ptr};

/// The format of a compressed chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Each chunk is a Zstandard frame. nvCOMP has no compression levels for this format.
    Zstd,
    /// Each chunk is a raw deflate stream.
    Deflate {
        /// The algorithm of nvCOMP, 0 to 5: a larger number is slower, and gives smaller streams.
        algorithm: i32,
    },
    /// Each chunk is an LZ4 block, without a frame.
    Lz4,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zstd => f.write_str("zstd"),
            Self::Deflate { algorithm } => write!(f, "deflate (algorithm {algorithm})"),
            Self::Lz4 => f.write_str("lz4"),
        }
    }
}

impl Format {
    /// Returns the size of the largest chunk that may be compressed, in bytes.
    ///
    /// nvCOMP's headers have two limits for zstd and deflate: one in the description of a call's chunks, and
    /// a separate larger one. A chunk above the smaller limit is undefined behaviour, so the smaller limit
    /// applies.
    pub(crate) fn largest_chunk(self) -> usize {
        match self {
            Self::Zstd => 16_000_000, // "16 MB"
            Self::Deflate { .. } => 65_536,
            Self::Lz4 => 1 << 24,
        }
    }

    /// Returns the size of the largest chunk that may be decompressed, in bytes. The limit applies to the
    /// chunk before and after decompression.
    pub(crate) fn largest_decompressed(self) -> usize {
        match self {
            Self::Zstd => (1 << 31) - 1,
            Self::Deflate { .. } | Self::Lz4 => u32::MAX as usize,
        }
    }

    fn options(self) -> sys::Options {
        match self {
            // The first option of LZ4 is the data type, and 0 means bytes.
            Self::Zstd | Self::Lz4 => sys::Options::default(),
            Self::Deflate { algorithm } => sys::Options::first(algorithm),
        }
    }
}

/// The alignments that nvCOMP requires of addresses, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignments {
    /// The alignment of each chunk that is read.
    pub input: usize,
    /// The alignment of each chunk that is written.
    pub output: usize,
    /// The alignment of the temporary memory.
    pub(crate) temp: usize,
}

/// The alignment of allocations of device memory, in bytes. A larger alignment is not available.
const LARGEST_ALIGNMENT: usize = 256;

/// The limits of a batch, and the memory that nvCOMP needs for the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// The largest number of chunks in the batch.
    pub(crate) chunks: usize,
    /// The most bytes of an uncompressed chunk.
    pub(crate) max_chunk_bytes: usize,
    /// The most bytes of all uncompressed chunks together.
    pub(crate) total_bytes: usize,
    pub alignments: Alignments,
    /// The number of bytes that each output slot must have. It may be no multiple of the alignment.
    pub max_output: usize,
    /// The number of bytes of temporary memory.
    pub temp: usize,
}

impl Nvcomp {
    /// Returns the compressor of a format.
    ///
    /// # Errors
    /// This library has no usable compressor of the format. The error is the reason.
    pub(crate) fn compressor(&self, format: Format) -> Result<Compressor, String> {
        let functions = *self
            .functions(format)
            .compress
            .as_ref()
            .map_err(Clone::clone)?;
        let library = self.library("compress", format, format.options());
        let alignments = library.alignments(functions.alignments)?;
        Ok(Compressor {
            library,
            functions,
            alignments,
        })
    }

    /// Returns the decompressor of a format. For deflate, the algorithm in `format` makes no difference.
    pub(crate) fn decompressor(&self, format: Format) -> Result<Decompressor, String> {
        let functions = *self
            .functions(format)
            .decompress
            .as_ref()
            .map_err(Clone::clone)?;
        let options = sys::Options::first(sys::BACKEND_CUDA);
        let library = self.library("decompress", format, options);
        let alignments = library.alignments(functions.alignments)?;
        Ok(Decompressor {
            library,
            functions,
            alignments,
        })
    }

    fn functions(&self, format: Format) -> &Functions {
        match format {
            Format::Zstd => &self.zstd,
            Format::Deflate { .. } => &self.deflate,
            Format::Lz4 => &self.lz4,
        }
    }

    fn library(&self, verb: &'static str, format: Format, options: sys::Options) -> OneDirection {
        OneDirection {
            version: self.version,
            status_string: self.status_string,
            verb,
            format,
            options,
        }
    }
}

#[cfg(test)]
thread_local! {
    /// The number of times that this thread has asked a library for the size of temporary memory.
    pub(crate) static TEMP_SIZE_CALLS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The properties that the compressor and the decompressor of a format have in common.
#[derive(Clone, Copy, Debug)]
struct OneDirection {
    version: Version,
    status_string: Option<sys::GetStatusString>,
    verb: &'static str,
    format: Format,
    options: sys::Options,
}

impl OneDirection {
    /// Returns the error of a query `what` that failed with `status`.
    fn refused(&self, what: &str, status: sys::Status) -> String {
        let Self {
            version,
            verb,
            format,
            ..
        } = self;
        format!(
            "nvCOMP {version} does not tell {what} to {verb} {format}: {}",
            describe(self.status_string, status)
        )
    }

    fn alignments(&self, query: sys::GetRequiredAlignments) -> Result<Alignments, String> {
        let mut to = sys::AlignmentRequirements::default();
        // SAFETY: the options are of this format and direction. The query writes the alignments.
        let status = unsafe { query(self.options, &raw mut to) };
        if status != sys::SUCCESS {
            return Err(self.refused("the alignments that it needs", status));
        }
        for (what, alignment) in [
            ("inputs", to.input),
            ("outputs", to.output),
            ("temporary memory", to.temp),
        ] {
            if !alignment.is_power_of_two() || alignment > LARGEST_ALIGNMENT {
                return Err(format!(
                    "nvCOMP {} needs {what} at multiples of {alignment} bytes to {} {}; device \
                     memory begins at multiples of {LARGEST_ALIGNMENT}",
                    self.version, self.verb, self.format
                ));
            }
        }
        Ok(Alignments {
            input: to.input,
            output: to.output,
            temp: to.temp,
        })
    }

    /// Checks that nvCOMP accepts chunks of `max_chunk_bytes` bytes, and that the sizes are consistent.
    fn check(
        &self,
        chunks: usize,
        max_chunk_bytes: usize,
        total_bytes: usize,
        largest: usize,
    ) -> Result<(), String> {
        let Self { verb, format, .. } = self;
        if max_chunk_bytes > largest {
            return Err(format!(
                "nvCOMP may {verb} {format} chunks of at most {largest} bytes, and not of \
                 {max_chunk_bytes}"
            ));
        }
        let possible = chunks
            .checked_mul(max_chunk_bytes)
            .is_some_and(|most| total_bytes <= most);
        if !possible || (chunks > 0 && max_chunk_bytes == 0) {
            return Err(format!(
                "cannot {verb} {total_bytes} bytes in {chunks} {format} chunks of at most \
                 {max_chunk_bytes} bytes"
            ));
        }
        Ok(())
    }

    fn temp_size(
        &self,
        query: TempSize,
        chunks: usize,
        max_chunk_bytes: usize,
        total_bytes: usize,
    ) -> Result<usize, String> {
        if chunks == 0 {
            return Ok(0);
        }
        #[cfg(test)]
        TEMP_SIZE_CALLS.set(TEMP_SIZE_CALLS.get() + 1);
        let (options, mut bytes) = (self.options, 0);
        let result = &raw mut bytes;
        // SAFETY: the options are of this format and direction. The query writes the number of bytes. It
        // enqueues no work in the stream, which is the default stream.
        let status = unsafe {
            match query {
                TempSize::Five(query) => {
                    query(chunks, max_chunk_bytes, options, result, total_bytes)
                }
                TempSize::Six(query) => query(
                    chunks,
                    max_chunk_bytes,
                    options,
                    result,
                    total_bytes,
                    ptr::null_mut(),
                ),
            }
        };
        let what = "how much temporary memory it needs";
        match status {
            sys::SUCCESS => Ok(bytes),
            sys::CUDA_ERROR => Err(format!(
                "{} (unknown until a device is there)",
                self.refused(what, status)
            )),
            _ => Err(format!(
                "{} ({chunks} chunks of at most {max_chunk_bytes} bytes, {total_bytes} in all)",
                self.refused(what, status)
            )),
        }
    }
}

/// nvCOMP's compressor of a format, which compresses batches of chunks.
#[derive(Clone, Copy, Debug)]
pub struct Compressor {
    library: OneDirection,
    functions: Compress,
    alignments: Alignments,
}

impl Compressor {
    pub(crate) fn alignments(&self) -> Alignments {
        self.alignments
    }

    /// Returns the number of bytes that an output slot must have for a chunk of up to `max_chunk_bytes`
    /// bytes. The query needs no device.
    ///
    /// # Errors
    /// Chunks of this size cannot be compressed.
    pub(crate) fn max_output(&self, max_chunk_bytes: usize) -> Result<usize, String> {
        let largest = self.library.format.largest_chunk();
        self.library.check(0, max_chunk_bytes, 0, largest)?;
        let mut bytes = 0;
        // SAFETY: the options are of this format and direction. The query writes the bytes.
        let status = unsafe {
            (self.functions.max_output)(max_chunk_bytes, self.library.options, &raw mut bytes)
        };
        if status != sys::SUCCESS {
            let what = format!("how large the output of {max_chunk_bytes} bytes can be");
            return Err(self.library.refused(&what, status));
        }
        Ok(bytes)
    }

    /// Returns the requirements of a batch of up to `chunks` chunks. Each chunk has at most `max_chunk_bytes`
    /// bytes, and all chunks together have at most `total_bytes` bytes. The device's context is current on
    /// this thread, because the temporary memory depends on the device.
    ///
    /// # Errors
    /// nvCOMP forbids such a batch, or does not answer. For zstd it does not answer without a device.
    pub(crate) fn requirements(
        &self,
        chunks: usize,
        max_chunk_bytes: usize,
        total_bytes: usize,
    ) -> Result<Requirements, String> {
        let largest = self.library.format.largest_chunk();
        self.library
            .check(chunks, max_chunk_bytes, total_bytes, largest)?;
        Ok(Requirements {
            chunks,
            max_chunk_bytes,
            total_bytes,
            alignments: self.alignments,
            max_output: self.max_output(max_chunk_bytes)?,
            temp: self.library.temp_size(
                self.functions.temp_size,
                chunks,
                max_chunk_bytes,
                total_bytes,
            )?,
        })
    }
}

/// nvCOMP's decompressor of a format, which decompresses batches of chunks. It is only for trusted data: on
/// corrupt input nvCOMP's decompressors hang, fault, or write arbitrary bytes within the outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decompressor {
    library: OneDirection,
    functions: Decompress,
    alignments: Alignments,
}

impl Decompressor {
    pub(crate) fn alignments(&self) -> Alignments {
        self.alignments
    }

    /// Returns the requirements of a batch like [`Compressor::requirements`]. The sizes count decompressed
    /// bytes. Each output slot has at most `max_chunk_bytes` bytes.
    pub(crate) fn requirements(
        &self,
        chunks: usize,
        max_chunk_bytes: usize,
        total_bytes: usize,
    ) -> Result<Requirements, String> {
        let largest = self.library.format.largest_decompressed();
        self.library
            .check(chunks, max_chunk_bytes, total_bytes, largest)?;
        Ok(Requirements {
            chunks,
            max_chunk_bytes,
            total_bytes,
            alignments: self.alignments,
            max_output: max_chunk_bytes,
            temp: self.library.temp_size(
                self.functions.temp_size,
                chunks,
                max_chunk_bytes,
                total_bytes,
            )?,
        })
    }
}
