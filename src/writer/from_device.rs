//! Appends elements that are on a device, batch by batch.

use std::time::Instant;

use super::appending::Appending;
use super::device::{DeviceEvent, DeviceSlice, failed};
use super::error::WriterError;
use super::handle::Writer;
use super::stream::Stream;
use zarrs_cuda_engine::contract::stream::{DeviceBytes, Reusable};

impl<W: Appending> Writer<W> {
    /// Appends elements that are on a device. Any number of bytes is allowed, not only whole elements. Waits
    /// like [`append`](Self::append).
    ///
    /// If this writer encodes on that device, nothing is copied to the host, unless the host encodes another
    /// level of an image. If it encodes on the host, the elements are copied there through page-locked memory,
    /// 8 MiB of it, before this function returns.
    ///
    /// If the device fails on a batch, the batch is copied to the host if that is still possible.
    /// Under [`Backend::Auto`](crate::Backend::Auto) the host then encodes it. If the device is
    /// lost, the slices that only the device had are lost; the writer stops, and its errors say
    /// which slices are stored.
    ///
    /// # Errors
    /// - [`WriterError::Unsupported`] if this writer encodes on another device, or if the slice's stream is
    ///   being captured into a graph. Nothing was appended.
    /// - [`WriterError::Device`] if the device failed, or did not finish in time
    ///   ([`Options::with_device_timeout`](crate::Options::with_device_timeout)).
    ///   [`progress`](Self::progress) says how much was appended.
    /// - The errors of [`append`](Self::append).
    ///
    /// # Safety
    /// - `slice` names memory of its device that can be read, and a stream of its primary context,
    ///   or 0.
    /// - That memory is neither written nor freed before the returned event has happened or, after
    ///   [`WriterError::Device`], before the device has done all its work. If the device hangs, the error
    ///   names the memory, and it is neither written nor freed before the process ends.
    pub unsafe fn append_device(
        &mut self,
        slice: &DeviceSlice,
    ) -> Result<DeviceEvent, WriterError> {
        // SAFETY: the preconditions are those of this function.
        self.with(|writer| unsafe { append_where_it_encodes(writer, slice) })
    }
}

/// Appends elements that are on a device to a writer on that device, or brings them to a writer on the host.
///
/// # Safety
/// The preconditions of [`Writer::append_device`].
pub(super) unsafe fn append_where_it_encodes<W: Appending>(
    writer: &mut W,
    slice: &DeviceSlice,
) -> Result<DeviceEvent, WriterError> {
    let Some(mut to_host) = writer.top_mut().to_host.take() else {
        // SAFETY: the preconditions are those of this function.
        return unsafe { writer.append_device(slice) };
    };
    let bytes = DeviceBytes {
        device: slice.device,
        pointer: slice.pointer,
        len: slice.len,
        stream: slice.stream,
    };
    let appended = writer.top().check().and_then(|()| {
        let take = |piece: &[u8]| writer.put(piece, true).map(drop);
        // SAFETY: the preconditions are those of this function. All bytes have been read when this returns.
        unsafe { to_host.read(&bytes, failed, take) }
    });
    writer.top_mut().to_host = Some(to_host);
    appended.map(|()| DeviceEvent::of_nothing())
}

/// Appends elements that are on a device: see [`Writer::append_device`].
///
/// # Safety
/// The preconditions of [`Writer::append_device`].
pub(super) unsafe fn append(
    stream: &mut Stream,
    slice: &DeviceSlice,
) -> Result<DeviceEvent, WriterError> {
    let mut event = DeviceEvent(None);
    // SAFETY: the preconditions are those of this function.
    let appended = unsafe { stream.append_parts(slice, &mut event.0) };
    if let Err(error) = appended {
        // When the caller gets the error, the device has read the elements that were appended.
        event.wait()?;
        return Err(error);
    }
    Ok(event)
}

impl Stream {
    /// Appends a slice batch by batch. Sets `last` to an event that happens when all appended elements have
    /// been read.
    ///
    /// # Safety
    /// The preconditions of [`Writer::append_device`].
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
            // SAFETY: the caller promises for the whole slice what this part of it needs.
            let put = unsafe { input.write_from_device(self.filled, &bytes) };
            // All copies are in one stream of the device, so the last copy ends after all others.
            *last = Some(put.map_err(failed)?);
            at += len;
            self.advance(len);
        }
        Ok(())
    }
}
