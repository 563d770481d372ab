//! Describes slices that are on a device already.

use std::fmt;

use super::error::WriterError;
use zarrs_cuda_engine::contract::EngineError;
use zarrs_cuda_engine::contract::stream::Reusable;

/// Elements on a CUDA device, in C order, each in the byte order of the device (little-endian).
///
/// ```
/// use zarrs_cuda::writer::{ArrayWriter, DeviceEvent, DeviceSlice, WriterError};
///
/// /// Appends the `len` bytes of a frame that kernels in `stream` make at `pointer` on device 0.
/// ///
/// /// # Safety
/// /// The memory is neither written nor freed before the event has happened. `stream` exists.
/// unsafe fn append(
///     writer: &mut ArrayWriter,
///     pointer: u64,
///     len: usize,
///     stream: u64,
/// ) -> Result<DeviceEvent, WriterError> {
///     let frame = DeviceSlice { device: 0, pointer, len, stream };
///     // SAFETY: the caller keeps the conditions.
///     unsafe { writer.append_device(&frame) }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    /// The number of the device, as the driver counts in this process.
    pub device: usize,
    /// The address of the first byte, in the primary context of the device: what `cudaMalloc`
    /// returns, and `cuMemAlloc` in that context.
    pub pointer: u64,
    /// The number of bytes of the elements.
    pub len: usize,
    /// The stream that produces the elements: a `CUstream` or `cudaStream_t`; 0 for the default
    /// stream. The device waits for the work that is in the stream now.
    pub stream: u64,
}

/// Tells when the memory of an appended [`DeviceSlice`] may be reused or freed. The event itself
/// may be dropped before.
///
/// ```
/// use zarrs_cuda::writer::{DeviceEvent, WriterError};
///
/// /// Returns the number of a buffer that may be written again. Each was appended with its event.
/// fn free_buffer(events: &[DeviceEvent; 2]) -> Result<usize, WriterError> {
///     for (number, event) in events.iter().enumerate() {
///         if event.is_done()? {
///             return Ok(number);
///         }
///     }
///     events[0].wait()?; // it was appended first
///     Ok(0)
/// }
/// ```
pub struct DeviceEvent(pub(super) Option<Box<dyn Reusable>>);

impl fmt::Debug for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceEvent").field(&self.0).finish()
    }
}

impl DeviceEvent {
    /// Returns an event for an append of nothing. The event has happened already.
    pub(crate) fn of_nothing() -> Self {
        Self(None)
    }

    /// Blocks until the slice's memory may be reused or freed. The time for which the stream that makes the
    /// elements is at work has no limit. The time for which the device then reads them has one:
    /// [`Options::with_device_timeout`](crate::Options::with_device_timeout).
    ///
    /// # Errors
    /// [`WriterError::Device`] if the device failed, or did not finish in time. After this error, the memory
    /// must not be reused or freed before the process ends.
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
    /// is nothing to wait for. The event is valid until this object is dropped.
    #[must_use]
    pub fn as_raw(&self) -> u64 {
        self.0.as_ref().map_or(0, |event| event.event())
    }
}

pub(super) fn failed(error: EngineError) -> WriterError {
    match error {
        EngineError::Unsuitable(reason) => WriterError::Unsupported { reason },
        error => WriterError::Device {
            source: Box::new(error),
        },
    }
}
