//! The state of a writer between two calls of the application: one stream, or the streams of all levels of an image.

use std::time::Duration;

use super::device::{DeviceEvent, DeviceSlice};
use super::error::WriterError;
use super::stream::Stream;

/// The state of a [`Writer`](super::Writer), which says of which kind the writer is. Applications name this trait in
/// functions that take either kind, and cannot implement it:
///
/// ```
/// use zarrs_cuda::writer::{Appending, Writer, WriterError};
///
/// fn record<W: Appending>(writer: &mut Writer<W>, frames: &[Vec<u16>]) -> Result<(), WriterError> {
///     for frame in frames {
///         writer.append(frame)?;
///     }
///     writer.flush()
/// }
/// ```
pub trait Appending: Send + 'static {
    #[doc(hidden)]
    /// Returns the stream of the array to which slices are appended: of level 0, if this is an image.
    fn top(&self) -> &Stream;

    #[doc(hidden)]
    /// Returns the stream of the array to which slices are appended, to change it.
    fn top_mut(&mut self) -> &mut Stream;

    #[doc(hidden)]
    /// Returns the streams of all levels, from level 0 on.
    fn streams(&self) -> Vec<&Stream>;

    #[doc(hidden)]
    /// Appends `bytes`, and returns how many of them were not appended, for lack of room: none if the call
    /// may `wait` for room.
    ///
    /// # Errors
    /// The errors of [`append`](super::Writer::append).
    fn put(&mut self, bytes: &[u8], wait: bool) -> Result<usize, WriterError>;

    #[doc(hidden)]
    /// Appends elements that are on a device.
    ///
    /// # Errors
    /// The errors of [`append_device`](super::Writer::append_device).
    ///
    /// # Safety
    /// The preconditions of [`append_device`](super::Writer::append_device).
    #[allow(unsafe_code)]
    unsafe fn append_device(&mut self, slice: &DeviceSlice) -> Result<DeviceEvent, WriterError>;

    #[doc(hidden)]
    /// Waits until every complete shard is stored.
    ///
    /// # Errors
    /// The errors of [`flush`](super::Writer::flush).
    fn flush(&mut self) -> Result<(), WriterError>;

    #[doc(hidden)]
    /// Ends the writer without storing more. Returns the first slice that is not stored.
    ///
    /// # Errors
    /// The errors of [`abort`](super::Writer::abort).
    fn give_up(&mut self) -> Result<u64, WriterError>;

    #[doc(hidden)]
    /// Hands complete shards that have waited long enough to the threads of the writer, without waiting.
    /// Returns the time until the next call; `None` if no later call has anything to do.
    fn look(&mut self) -> Option<Duration>;

    #[doc(hidden)]
    /// Returns whether the work of all streams has ended.
    fn is_done(&self) -> bool {
        let mut streams = self.streams().into_iter();
        streams.all(|stream| stream.shared.is_closed())
    }

    #[doc(hidden)]
    /// Ends the writer, and before that `stores` its complete shards. Returns the first slice that is not
    /// stored. The time to wait for the store is [limited](super::waiting::Waiting::limit).
    ///
    /// # Errors
    /// The errors of [`stop`](super::Writer::stop).
    fn stop(&mut self, stores: bool) -> Result<u64, WriterError> {
        if stores && let Err(error) = self.flush() {
            let path = self.top().shared.setup.array.path();
            tracing::warn!(%error, %path, "complete shards could not all be stored at the end of a writer");
        }
        let result = self.give_up();
        self.top().tell_lost();
        result
    }
}
