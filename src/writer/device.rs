//! Slices that are on a device already.

use std::fmt;
use std::time::Instant;

use super::ArrayWriter;
use super::error::WriterError;
use crate::engine::EngineError;
use crate::engine::stream::{DeviceBytes, Reusable};

/// Elements on a CUDA device, in C order, each in the byte order of the device (little-endian).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    /// The number that the driver gives the device in this process.
    pub device: usize,
    /// Where the first byte is: an address of the device, in its primary context (what
    /// `cudaMalloc` returns, and `cuMemAlloc` there).
    pub pointer: u64,
    /// How many bytes there are.
    pub len: usize,
    /// The stream that makes them (a `CUstream`, or a `cudaStream_t`; 0 for the default stream): what
    /// is in it now is waited for, on the device.
    pub stream: u64,
}

/// Says when a [`DeviceSlice`] that was appended can be written again, or freed. It can be dropped
/// before.
pub struct DeviceEvent(Option<Box<dyn Reusable>>);

impl fmt::Debug for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceEvent").field(&self.0).finish()
    }
}

impl DeviceEvent {
    /// Wait until it can be.
    ///
    /// # Errors
    /// [`WriterError::Device`] if the device failed.
    pub fn wait(&self) -> Result<(), WriterError> {
        let event = self.0.as_ref();
        event.map_or(Ok(()), |event| event.wait().map_err(failed))
    }

    /// Whether it can be.
    ///
    /// # Errors
    /// [`WriterError::Device`] if the device failed.
    pub fn is_done(&self) -> Result<bool, WriterError> {
        let event = self.0.as_ref();
        event.map_or(Ok(true), |event| event.query().map_err(failed))
    }

    /// The event (a `CUevent`) that a stream of the application can wait for, as long as this is not
    /// dropped; 0 if there is nothing to wait for.
    #[must_use]
    pub fn as_raw(&self) -> u64 {
        self.0.as_ref().map_or(0, |event| event.event())
    }
}

fn failed(error: EngineError) -> WriterError {
    match error {
        EngineError::Unsuitable(reason) => WriterError::Unsupported { reason },
        error => WriterError::Device {
            reason: error.to_string(),
        },
    }
}

impl ArrayWriter {
    /// Append elements that are on the device that this writer encodes on: any number of bytes of
    /// them. Nothing is copied to the host. Waits as [`append`](Self::append) does.
    ///
    /// A batch that the device fails on is brought to the host if it still can be, and encoded there
    /// under [`Backend::Auto`](crate::Backend::Auto). If the device is lost, so are the slices that
    /// only it had: the writer goes on no more, and says which are stored.
    ///
    /// # Errors
    /// - [`WriterError::Unsupported`] if this writer encodes on the host, or on another device.
    /// - [`WriterError::Device`] if the device failed. [`progress`](Self::progress) says what was
    ///   appended.
    /// - As for [`append`](Self::append).
    ///
    /// # Safety
    /// - `slice` names memory of its device that can be read, and a stream of its primary context, or
    ///   0.
    /// - That memory is neither written nor freed before the event that is returned has happened, or,
    ///   after [`WriterError::Device`], before the device has done all its work.
    pub unsafe fn append_device(
        &mut self,
        slice: &DeviceSlice,
    ) -> Result<DeviceEvent, WriterError> {
        let mut event = DeviceEvent(None);
        // SAFETY: what the caller promises.
        let appended = unsafe { self.append_parts(slice, &mut event.0) };
        if let Err(error) = appended {
            // What was appended has been read when the caller hears of the error.
            event.wait()?;
            return Err(error);
        }
        Ok(event)
    }

    /// Append a slice batch by batch: `last` says when all that was appended has been read.
    ///
    /// # Safety
    /// That of [`append_device`](Self::append_device).
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
