//! nvCOMP, NVIDIA's library of compressors: loaded at run time, never linked, never required.
//!
//! What it asks for (alignments, the largest output, temporary memory) is asked of the library that
//! was loaded; what its documentation forbids is refused here, before anything is enqueued. Whether
//! a chunk could be compressed is told on the device, per chunk: see [`CompressBatch::statuses`].

mod batch;
mod load;
mod process;
mod sys;
#[cfg(test)]
pub(crate) mod tests;

pub use batch::{CompressBatch, DecompressBatch};
#[cfg(any(test, feature = "internals"))]
pub use load::VARIABLE;
pub(crate) use load::{Nvcomp, Search, Version};
pub use process::of_process;
#[cfg(test)]
pub(crate) use process::while_locked;

use load::{Compress, Decompress, Functions, TempSize, describe};
use std::{fmt, ptr};

/// What a chunk is compressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Frames. nvCOMP has no levels for them.
    Zstd,
    /// Raw streams.
    Deflate {
        /// 0 to 5: the larger, the slower and smaller.
        algorithm: i32,
    },
    /// Blocks, without a frame.
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
    /// The largest chunk that may be compressed, in bytes.
    ///
    /// For zstd and deflate nvCOMP's headers have two numbers, one where the chunks of a call are
    /// described and a larger one by itself. To exceed the former is undefined there, so it counts.
    pub(crate) fn largest_chunk(self) -> usize {
        match self {
            Self::Zstd => 16_000_000, // "16 MB"
            Self::Deflate { .. } => 65_536,
            Self::Lz4 => 1 << 24,
        }
    }

    /// The largest chunk that may be decompressed, in bytes; also of its compressed form.
    pub(crate) fn largest_decompressed(self) -> usize {
        match self {
            Self::Zstd => (1 << 31) - 1,
            Self::Deflate { .. } | Self::Lz4 => u32::MAX as usize,
        }
    }

    fn options(self) -> sys::Options {
        match self {
            // The data type of LZ4 is bytes, which is 0.
            Self::Zstd | Self::Lz4 => sys::Options::default(),
            Self::Deflate { algorithm } => sys::Options::first(algorithm),
        }
    }
}

/// What addresses must be multiples of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignments {
    /// Of each chunk that is read.
    pub(crate) input: usize,
    /// Of each chunk that is written.
    pub output: usize,
    /// Of the temporary memory.
    pub(crate) temp: usize,
}

/// What device memory is aligned to: more cannot be had.
const LARGEST_ALIGNMENT: usize = 256;

/// What a batch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// The most chunks.
    pub(crate) chunks: usize,
    /// Bytes of the largest chunk, uncompressed.
    pub(crate) max_chunk_bytes: usize,
    /// Bytes of all chunks, uncompressed.
    pub(crate) total_bytes: usize,
    pub alignments: Alignments,
    /// Bytes that each output slot has to have. Not always a multiple of the alignment.
    pub max_output: usize,
    /// Bytes of temporary memory.
    pub temp: usize,
}

impl Nvcomp {
    /// The compressor of a format.
    ///
    /// # Errors
    /// Why this library has none.
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

    /// The decompressor of a format. The algorithm of deflate makes no difference.
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

/// What both directions of a format have.
#[derive(Clone, Copy, Debug)]
struct OneDirection {
    version: Version,
    status_string: Option<sys::GetStatusString>,
    verb: &'static str,
    format: Format,
    options: sys::Options,
}

impl OneDirection {
    /// An error of a query.
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
        // SAFETY: the options are of this format and direction, and it writes the requirements.
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

    /// Whether there can be such a batch.
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
        let (options, mut bytes) = (self.options, 0);
        let result = &raw mut bytes;
        // SAFETY: the options are of this format and direction, and it writes the bytes. No work is
        // put into the stream, which is the default one.
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

/// Compresses batches of chunks of a format.
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

    /// Bytes that an output slot has to have for a chunk of up to `max_chunk_bytes`. No device is
    /// needed.
    ///
    /// # Errors
    /// Chunks of this size cannot be compressed.
    pub(crate) fn max_output(&self, max_chunk_bytes: usize) -> Result<usize, String> {
        let largest = self.library.format.largest_chunk();
        self.library.check(0, max_chunk_bytes, 0, largest)?;
        let mut bytes = 0;
        // SAFETY: the options are of this format and direction, and it writes the bytes.
        let status = unsafe {
            (self.functions.max_output)(max_chunk_bytes, self.library.options, &raw mut bytes)
        };
        if status != sys::SUCCESS {
            let what = format!("how large the output of {max_chunk_bytes} bytes can be");
            return Err(self.library.refused(&what, status));
        }
        Ok(bytes)
    }

    /// What a batch of up to `chunks` chunks takes, of which none has more than `max_chunk_bytes`
    /// bytes and all together have up to `total_bytes`. With the device's context current: the
    /// temporary memory depends on the device.
    ///
    /// # Errors
    /// There can be no such batch; or nvCOMP does not say, as for zstd where there is no device.
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

/// Decompresses batches of chunks of a format. For trusted data only: on corrupt input nvCOMP's
/// decompressors hang, fault, or write anything within the outputs.
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

    /// As [`Compressor::requirements`]; sizes are of what is decompressed, and each output slot is
    /// of `max_chunk_bytes` bytes at most.
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
