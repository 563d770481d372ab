//! Slices that are on a device already.

use std::fmt;
use std::time::Instant;

use super::error::WriterError;
use super::{ArrayWriter, Stream};
use zarrs_cuda_engine::contract::EngineError;
use zarrs_cuda_engine::contract::stream::{DeviceBytes, Reusable};

/// Elements on a CUDA device, in C order, each in the byte order of the device (little-endian).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    /// The number of the device, as the driver counts in this process.
    pub device: usize,
    /// The address of the first byte, in the primary context of the device: what `cudaMalloc`
    /// returns, and `cuMemAlloc` in that context.
    pub pointer: u64,
    /// The number of bytes.
    pub len: usize,
    /// The stream that produces the elements: a `CUstream` or `cudaStream_t`; 0 for the default
    /// stream. The device waits for the work that is in the stream now.
    pub stream: u64,
}

/// Tells when the memory of an appended [`DeviceSlice`] may be reused or freed. The event itself
/// may be dropped before.
pub struct DeviceEvent(Option<Box<dyn Reusable>>);

impl fmt::Debug for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceEvent").field(&self.0).finish()
    }
}

impl DeviceEvent {
    /// An event of nothing that was appended, which has happened.
    pub(super) fn of_nothing() -> Self {
        Self(None)
    }

    /// Blocks until the slice's memory may be reused or freed.
    ///
    /// # Errors
    /// [`WriterError::Device`] if the device failed.
    pub fn wait(&self) -> Result<(), WriterError> {
        let event = self.0.as_ref();
        event.map_or(Ok(()), |event| event.wait().map_err(failed))
    }

    /// Returns whether the slice's memory may be reused or freed.
    ///
    /// # Errors
    /// [`WriterError::Device`] if the device failed.
    pub fn is_done(&self) -> Result<bool, WriterError> {
        let event = self.0.as_ref();
        event.map_or(Ok(true), |event| event.query().map_err(failed))
    }

    /// Returns the event (a `CUevent`) for a stream of the application to wait for, or 0 if there
    /// is nothing to wait for. It is valid until this object is dropped.
    #[must_use]
    pub fn as_raw(&self) -> u64 {
        self.0.as_ref().map_or(0, |event| event.event())
    }
}

fn failed(error: EngineError) -> WriterError {
    match error {
        EngineError::Unsuitable(reason) => WriterError::Unsupported { reason },
        error => WriterError::Device {
            source: Box::new(error),
        },
    }
}

impl ArrayWriter {
    /// Appends elements that are on the device on which this writer encodes: any number of bytes,
    /// not only whole elements. Nothing is copied to the host. Waits like [`append`](Self::append).
    ///
    /// If the device fails on a batch, the batch is copied to the host if that is still possible.
    /// Under [`Backend::Auto`](crate::Backend::Auto) the host then encodes it. If the device is
    /// lost, the slices that only the device had are lost; the writer stops, and its errors say
    /// which slices are stored.
    ///
    /// # Errors
    /// - [`WriterError::Unsupported`] if this writer encodes on the host, or on another device, or if
    ///   the slice's stream is being captured into a graph. Nothing was appended.
    /// - [`WriterError::Device`] if the device failed. [`progress`](Self::progress) says how much
    ///   was appended.
    /// - Otherwise as for [`append`](Self::append).
    ///
    /// # Safety
    /// - `slice` names memory of its device that can be read, and a stream of its primary context,
    ///   or 0.
    /// - That memory is neither written nor freed before the returned event has happened or, after
    ///   [`WriterError::Device`], before the device has done all its work.
    pub unsafe fn append_device(
        &mut self,
        slice: &DeviceSlice,
    ) -> Result<DeviceEvent, WriterError> {
        // SAFETY: what the caller promises.
        self.with(|stream| unsafe { stream.append_device(slice) })
    }
}

impl Stream {
    /// Appends elements that are on a device: see [`ArrayWriter::append_device`].
    ///
    /// # Safety
    /// As for [`ArrayWriter::append_device`].
    pub(super) unsafe fn append_device(
        &mut self,
        slice: &DeviceSlice,
    ) -> Result<DeviceEvent, WriterError> {
        let mut event = DeviceEvent(None);
        // SAFETY: what the caller promises.
        let appended = unsafe { self.append_parts(slice, &mut event.0) };
        if let Err(error) = appended {
            // The elements that were appended have been read when the caller hears of the error.
            event.wait()?;
            return Err(error);
        }
        Ok(event)
    }

    /// Appends a slice batch by batch. `last` tells when all that was appended has been read.
    ///
    /// # Safety
    /// As for [`ArrayWriter::append_device`].
    unsafe fn append_parts(
        &mut self,
        slice: &DeviceSlice,
        last: &mut Option<Box<dyn Reusable>>,
    ) -> Result<(), WriterError> {
        let mut at = 0;
        while at < slice.len {
            self.check()?;
            self.first_append.get_or_insert_with(Instant::now);
            if self.input.is_none() {
                self.input = self.next_input(true)?;
            }
            let Some(input) = &mut self.input else {
                continue;
            };
            let len = (slice.len - at).min(self.batch_bytes - self.filled);
            let bytes = DeviceBytes {
                device: slice.device,
                pointer: slice.pointer.saturating_add(at as u64),
                len,
                stream: slice.stream,
            };
            // SAFETY: a part of what the caller promises.
            let put = unsafe { input.write_from_device(self.filled, &bytes) };
            // All copies are in one stream of the device, so that the last one stands for all.
            *last = Some(put.map_err(failed)?);
            at += len;
            self.advance(len);
        }
        Ok(())
    }
}
