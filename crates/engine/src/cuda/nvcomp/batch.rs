//! The calls of nvCOMP, which declare the bytes that they read and write.

use super::{
    Compressor, Decompressor, Format, OneDirection, Requirements, describe,
    sys::{self, Status},
};
use crate::cuda::driver::{Access, DeviceSpan, Driver, DriverError, Fault, Span, StreamId};
use std::ptr;

/// The chunks that one call compresses. All spans are in device memory; tables have an element for each
/// chunk.
#[derive(Clone, Copy, Debug)]
pub struct CompressBatch<'a> {
    /// The requirements of a batch of at least as many chunks.
    pub requirements: &'a Requirements,
    pub chunks: usize,
    /// A table of `u64`s: the address of each chunk.
    pub input_pointers: DeviceSpan,
    /// A table of `u64`s: the number of bytes of each chunk, at least 1.
    pub input_sizes: DeviceSpan,
    /// A table of `u64`s: the address of each output slot, which has [`Requirements::max_output`] bytes.
    pub output_pointers: DeviceSpan,
    /// The spans in which the chunks lie.
    pub inputs: &'a [DeviceSpan],
    /// The spans in which the output slots lie.
    pub outputs: &'a [DeviceSpan],
    pub temp: DeviceSpan,
    /// A table of `u64`s that nvCOMP writes: the number of bytes of each compressed chunk; undefined for a
    /// failed chunk.
    pub output_sizes: DeviceSpan,
    /// A table of `i32`s that nvCOMP writes: 0 for each chunk that was compressed.
    pub statuses: DeviceSpan,
}

/// The chunks that one call decompresses. All spans are in device memory; tables have an element for each
/// chunk.
#[derive(Clone, Copy, Debug)]
pub struct DecompressBatch<'a> {
    /// The requirements of a batch of at least as many chunks.
    pub(crate) requirements: &'a Requirements,
    pub(crate) chunks: usize,
    /// A table of `u64`s: the address of each compressed chunk.
    pub(crate) input_pointers: DeviceSpan,
    /// A table of `u64`s: the number of bytes of each compressed chunk.
    pub(crate) input_sizes: DeviceSpan,
    /// A table of `u64`s: the address of each output slot.
    pub(crate) output_pointers: DeviceSpan,
    /// A table of `u64`s: the number of bytes of each output slot, at most [`Requirements::max_chunk_bytes`].
    pub(crate) output_capacities: DeviceSpan,
    /// The spans in which the compressed chunks lie.
    pub(crate) inputs: &'a [DeviceSpan],
    /// The spans in which the output slots lie.
    pub(crate) outputs: &'a [DeviceSpan],
    pub(crate) temp: DeviceSpan,
    /// A table of `u64`s that nvCOMP writes: the number of bytes of each decompressed chunk; undefined for a
    /// failed chunk.
    pub(crate) output_sizes: DeviceSpan,
    /// A table of `i32`s that nvCOMP writes: 0 for each chunk that was decompressed.
    pub(crate) statuses: DeviceSpan,
}

impl Compressor {
    /// Enqueues the compression of a batch in `stream`. The device's context is current on this thread.
    ///
    /// # Errors
    /// A span is too short or misaligned, or nvCOMP reports an error. A chunk that cannot be compressed
    /// causes no error: see [`CompressBatch::statuses`].
    ///
    /// # Safety
    /// The caller keeps the rules that the module `driver` lists. When the stream executes the call, the
    /// tables hold the values that the batch's fields describe. Chunks and output slots are within `inputs`
    /// and `outputs`, at multiples of nvCOMP's alignments. No two output slots overlap. The chunks are not
    /// larger than the requirements allow.
    pub unsafe fn compress(
        &self,
        driver: &dyn Driver,
        stream: StreamId,
        batch: &CompressBatch<'_>,
    ) -> Result<(), DriverError> {
        let call = CheckedCall::new(&self.library, driver, batch.requirements, batch.chunks);
        if batch.chunks == 0 {
            return Ok(());
        }
        let slots: usize = batch.outputs.iter().map(|span| span.len).sum();
        let each = batch.requirements.max_output;
        let needed = batch.chunks.checked_mul(each);
        call.require(needed.is_some_and(|needed| needed <= slots), || {
            format!("the output slots have {slots} bytes together, and not {each} each")
        })?;
        let tables = [
            call.table("input pointers", batch.input_pointers, 8)?,
            call.table("input sizes", batch.input_sizes, 8)?,
            call.table("output pointers", batch.output_pointers, 8)?,
        ];
        let temp = call.temp(batch.temp)?;
        let results = [
            call.table("output sizes", batch.output_sizes, 8)?,
            call.table("statuses", batch.statuses, 4)?,
        ];
        let reads = tables.iter().chain(batch.inputs);
        let writes = results.iter().chain(batch.outputs).chain([&temp]);
        let accesses: Vec<_> = accesses(reads, writes);

        let (run, options, chunks) = (self.functions.run, self.library.options, batch.chunks);
        let max_chunk_bytes = batch.requirements.max_chunk_bytes;
        let failed = call.failed();
        let function = Box::new(move |stream| {
            let [inputs, input_sizes, outputs] = tables;
            let [sizes, statuses] = results;
            // SAFETY: the arguments have the types, the lengths and the order of this version's
            // declaration. The caller promises that the memory behind the pointers is valid.
            let status = unsafe {
                run(
                    address(inputs),
                    address(input_sizes),
                    max_chunk_bytes,
                    chunks,
                    address(temp),
                    temp.len,
                    address(outputs),
                    address(sizes),
                    options,
                    address(statuses),
                    stream,
                )
            };
            failed(status)
        });
        let name = match self.library.format {
            Format::Zstd => "nvCOMP compresses zstd",
            Format::Deflate { .. } => "nvCOMP compresses deflate",
            Format::Lz4 => "nvCOMP compresses lz4",
        };
        // SAFETY: nvCOMP enqueues kernels, which write its results, its temporary memory and the
        // output slots, and read the chunks and the tables. The caller promises the rest.
        unsafe { driver.call(stream, name, &accesses, function) }
    }
}

impl Decompressor {
    /// Enqueues the decompression of a batch in `stream`. The device's context is current on this thread.
    ///
    /// # Safety
    /// As for [`Compressor::compress`]. Also, a compressor of the same format wrote the chunks.
    pub(crate) unsafe fn decompress(
        &self,
        driver: &dyn Driver,
        stream: StreamId,
        batch: &DecompressBatch<'_>,
    ) -> Result<(), DriverError> {
        let call = CheckedCall::new(&self.library, driver, batch.requirements, batch.chunks);
        if batch.chunks == 0 {
            return Ok(());
        }
        let tables = [
            call.table("input pointers", batch.input_pointers, 8)?,
            call.table("input sizes", batch.input_sizes, 8)?,
            call.table("output pointers", batch.output_pointers, 8)?,
            call.table("output capacities", batch.output_capacities, 8)?,
        ];
        let temp = call.temp(batch.temp)?;
        let results = [
            call.table("output sizes", batch.output_sizes, 8)?,
            call.table("statuses", batch.statuses, 4)?,
        ];
        let reads = tables.iter().chain(batch.inputs);
        let writes = results.iter().chain(batch.outputs).chain([&temp]);
        let accesses: Vec<_> = accesses(reads, writes);

        let (run, options, chunks) = (self.functions.run, self.library.options, batch.chunks);
        let failed = call.failed();
        let function = Box::new(move |stream| {
            let [inputs, input_sizes, outputs, capacities] = tables;
            let [sizes, statuses] = results;
            // SAFETY: as for the call in `compress`.
            let status = unsafe {
                run(
                    address(inputs),
                    address(input_sizes),
                    address(capacities),
                    address(sizes),
                    chunks,
                    address(temp),
                    temp.len,
                    address(outputs),
                    options,
                    address(statuses),
                    stream,
                )
            };
            failed(status)
        });
        let name = match self.library.format {
            Format::Zstd => "nvCOMP decompresses zstd",
            Format::Deflate { .. } => "nvCOMP decompresses deflate",
            Format::Lz4 => "nvCOMP decompresses lz4",
        };
        // SAFETY: as for the call of the driver in `compress`.
        unsafe { driver.call(stream, name, &accesses, function) }
    }
}

fn accesses<'a>(
    reads: impl Iterator<Item = &'a DeviceSpan>,
    writes: impl Iterator<Item = &'a DeviceSpan>,
) -> Vec<(Span, Access)> {
    let read = |span: &DeviceSpan| (Span::Device(*span), Access::Read);
    let written = |span: &DeviceSpan| (Span::Device(*span), Access::Write);
    reads.map(read).chain(writes.map(written)).collect()
}

/// Returns the pointer to a span that nvCOMP takes: null for an empty span.
fn address<T>(span: DeviceSpan) -> *mut T {
    if span.len == 0 {
        return ptr::null_mut();
    }
    // `usize` has 64 bits; otherwise, the library would not have been loaded.
    #[allow(clippy::cast_possible_truncation)]
    ptr::with_exposed_provenance_mut(span.memory.0 as usize + span.offset)
}

/// The data with which the arguments of a call are checked.
struct CheckedCall<'a> {
    library: &'a OneDirection,
    driver: &'a dyn Driver,
    requirements: &'a Requirements,
    chunks: usize,
}

impl<'a> CheckedCall<'a> {
    fn new(
        library: &'a OneDirection,
        driver: &'a dyn Driver,
        requirements: &'a Requirements,
        chunks: usize,
    ) -> Self {
        Self {
            library,
            driver,
            requirements,
            chunks,
        }
    }

    /// Returns a description of the call, for error messages.
    fn operation(&self) -> String {
        let Requirements {
            max_chunk_bytes,
            temp,
            ..
        } = self.requirements;
        let OneDirection {
            version,
            verb,
            format,
            ..
        } = self.library;
        let chunks = self.chunks;
        format!(
            "{verb} {chunks} {format} chunks of at most {max_chunk_bytes} bytes with nvCOMP \
             {version} and {temp} bytes of temporary memory"
        )
    }

    /// Returns an error with `reason` unless `condition` holds.
    fn require(&self, condition: bool, reason: impl FnOnce() -> String) -> Result<(), DriverError> {
        if condition {
            return Ok(());
        }
        Err(DriverError {
            operation: self.operation(),
            device: Some(self.driver.device().ordinal),
            fault: Fault::Refused,
            reason: reason(),
        })
    }

    /// Checks that `span` has room for a table with elements of `size` bytes, and returns the part that the
    /// batch uses.
    fn table(&self, what: &str, span: DeviceSpan, size: usize) -> Result<DeviceSpan, DriverError> {
        let most = self.requirements.chunks;
        self.require(self.chunks <= most, || {
            format!("the requirements are those of {most} chunks")
        })?;
        let needed = self.chunks.checked_mul(size);
        let needed = needed.filter(|&len| len <= span.len);
        self.require(needed.is_some(), || {
            format!("the table of {what} has {} bytes", span.len)
        })?;
        self.require(span.offset.is_multiple_of(size), || {
            format!("the table of {what} begins at byte {}", span.offset)
        })?;
        let len = needed.unwrap_or(0);
        Ok(DeviceSpan { len, ..span })
    }

    fn temp(&self, span: DeviceSpan) -> Result<DeviceSpan, DriverError> {
        let Requirements {
            temp, alignments, ..
        } = self.requirements;
        self.require(span.len >= *temp, || {
            format!("there are {} bytes of temporary memory", span.len)
        })?;
        self.require(span.offset.is_multiple_of(alignments.temp), || {
            format!(
                "the temporary memory begins at byte {}, and not at a multiple of {}",
                span.offset, alignments.temp
            )
        })?;
        Ok(DeviceSpan { len: *temp, ..span })
    }

    /// Returns a function that turns the status of the call into a result.
    fn failed(&self) -> impl FnOnce(Status) -> Result<(), String> + Send + use<> {
        let (operation, strings) = (self.operation(), self.library.status_string);
        move |status| match status {
            sys::SUCCESS => Ok(()),
            _ => Err(format!("{operation}: {}", describe(strings, status))),
        }
    }
}
