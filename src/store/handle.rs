//! Reads and writes the bytes of one value of a store, as zarrs hands them to a codec, which does not know
//! the key.

use std::borrow::Cow;
use std::future::Future;
use std::io::ErrorKind;
use std::time::Duration;

use zarrs_codec::{
    ArrayBytesRaw, BytesPartialDecoderTraits, BytesPartialEncoderTraits, CodecError, CodecOptions,
};
#[cfg(feature = "async")]
use zarrs_codec::{AsyncBytesPartialDecoderTraits, AsyncBytesPartialEncoderTraits};
use zarrs_storage::StorageError;
use zarrs_storage::byte_range::ByteRange;

use super::codec_queue::{BlockingTurn, NameToTake, NoTurn, take_blocking};
#[cfg(feature = "async")]
use super::codec_queue::{Turn, take_awaited};
#[cfg(feature = "async")]
use crate::panics::async_no_panic;
use crate::panics::no_panic;

type Result<T> = std::result::Result<T, CodecError>;

/// The operations of a codec on the bytes of a value, for one kind of handles: blocking or awaited.
pub(crate) trait Handle {
    /// zarrs' handle to read the bytes.
    type Reader: ?Sized + Send + Sync + 'static;
    /// zarrs' handle to read and write the bytes.
    type Writer: ?Sized + Send + Sync + 'static;
    /// A turn among the encoders of this process, which ends when this value is dropped.
    type Turn;

    /// Returns the reading side of a handle.
    fn reader(writer: &Self::Writer) -> &Self::Reader;

    /// Reads the bytes at `ranges` by one request; `None` if there is no value.
    ///
    /// # Errors
    /// The errors of the store. A panic of the store is an error, too: some stores panic if a range leaves
    /// the value.
    fn read<'a>(
        reader: &'a Self::Reader,
        ranges: Vec<ByteRange>,
        options: &CodecOptions,
    ) -> impl Future<Output = Result<Option<Vec<ArrayBytesRaw<'a>>>>> + Send;

    /// Reads the bytes of one range; `None` if there is no value.
    fn read_one<'a>(
        reader: &'a Self::Reader,
        range: ByteRange,
        options: &CodecOptions,
    ) -> impl Future<Output = Result<Option<ArrayBytesRaw<'a>>>> + Send {
        async move {
            let read = Self::read(reader, vec![range], options).await?;
            let one = read.map(|mut read| {
                read.pop().ok_or_else(|| {
                    let what = "a store was asked for one range of a value, and returned none";
                    CodecError::Other(what.to_owned())
                })
            });
            one.transpose()
        }
    }

    /// Takes a turn, after it has waited for at most `limit`.
    ///
    /// # Errors
    /// [`NoTurn`] if the turn does not come in time, or if this thread has another one.
    fn take(
        names: &[NameToTake],
        limit: Duration,
    ) -> impl Future<Output = std::result::Result<Self::Turn, NoTurn>> + Send;

    /// Writes bytes at their offsets, by one request.
    fn write(
        writer: &Self::Writer,
        pieces: Vec<(u64, Vec<u8>)>,
        options: &CodecOptions,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns whether the store writes bytes without replacing the value.
    fn writes_ranges(writer: &Self::Writer) -> bool;

    /// Erases the value.
    fn erase(writer: &Self::Writer) -> impl Future<Output = Result<()>> + Send;
}

/// Returns the error of a store as codecs report it. It says so if the file of a shard is busy
/// ([`hold`](super::hold)).
fn refused(error: CodecError) -> CodecError {
    match error {
        CodecError::StorageError(StorageError::IOError(error))
            if error.kind() == ErrorKind::ResourceBusy =>
        {
            CodecError::IOError(error)
        }
        error => error,
    }
}

/// Marks handles whose calls return when they are done. Every future is ready when it is first polled.
#[derive(Debug)]
pub(crate) enum BlockingHandle {}

impl Handle for BlockingHandle {
    type Reader = dyn BytesPartialDecoderTraits;
    type Writer = dyn BytesPartialEncoderTraits;
    type Turn = BlockingTurn;

    fn reader(writer: &Self::Writer) -> &Self::Reader {
        writer
    }

    async fn read<'a>(
        reader: &'a Self::Reader,
        ranges: Vec<ByteRange>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<ArrayBytesRaw<'a>>>> {
        no_panic(|| reader.partial_decode_many(Box::new(ranges.into_iter()), options))
            .map_err(refused)
    }

    async fn take(
        names: &[NameToTake],
        limit: Duration,
    ) -> std::result::Result<Self::Turn, NoTurn> {
        take_blocking(names, limit)
    }

    async fn write(
        writer: &Self::Writer,
        pieces: Vec<(u64, Vec<u8>)>,
        options: &CodecOptions,
    ) -> Result<()> {
        let pieces = pieces.into_iter();
        let pieces = pieces.map(|(at, bytes)| (at, Cow::Owned(bytes)));
        writer
            .partial_encode_many(Box::new(pieces), options)
            .map_err(refused)
    }

    fn writes_ranges(writer: &Self::Writer) -> bool {
        writer.supports_partial_encode()
    }

    async fn erase(writer: &Self::Writer) -> Result<()> {
        writer.erase()
    }
}

/// Marks handles whose calls are awaited.
#[cfg(feature = "async")]
#[derive(Debug)]
pub(crate) enum AwaitedHandle {}

#[cfg(feature = "async")]
impl Handle for AwaitedHandle {
    type Reader = dyn AsyncBytesPartialDecoderTraits;
    type Writer = dyn AsyncBytesPartialEncoderTraits;
    type Turn = Turn;

    fn reader(writer: &Self::Writer) -> &Self::Reader {
        writer
    }

    async fn read<'a>(
        reader: &'a Self::Reader,
        ranges: Vec<ByteRange>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<ArrayBytesRaw<'a>>>> {
        let ranges = Box::new(ranges.into_iter());
        async_no_panic(reader.partial_decode_many(ranges, options)).await
    }

    async fn take(
        names: &[NameToTake],
        limit: Duration,
    ) -> std::result::Result<Self::Turn, NoTurn> {
        take_awaited(names, limit).await
    }

    async fn write(
        writer: &Self::Writer,
        pieces: Vec<(u64, Vec<u8>)>,
        options: &CodecOptions,
    ) -> Result<()> {
        let pieces = pieces.into_iter();
        let pieces = pieces.map(|(at, bytes)| (at, Cow::Owned(bytes)));
        writer.partial_encode_many(Box::new(pieces), options).await
    }

    fn writes_ranges(writer: &Self::Writer) -> bool {
        writer.supports_partial_encode()
    }

    async fn erase(writer: &Self::Writer) -> Result<()> {
        writer.erase().await
    }
}
