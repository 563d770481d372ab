//! Part of a shard, without the rest of it: the index, then the bytes of the subchunks that are
//! touched, in one request each.
//!
//! A subchunk is read and decoded whole, on the engine, unless only part of it is wanted and its
//! codecs can read part of it (uncompressed, or nested sharding): then zarrs' own partial decoder
//! of the inner codecs reads just that.

mod interval;
mod request;

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::sync::Arc;

#[cfg(feature = "async")]
use futures_util::future::try_join_all;
use rayon::iter::ParallelIterator;
use rayon::slice::ParallelSlice;
use zarrs::array::{ArrayBytes, ArrayBytesRaw, DataType, Indexer};
use zarrs_codec::{
    ArrayBytesDecodeIntoTarget, ArrayPartialDecoderTraits, ArrayToBytesCodecTraits,
    BytesPartialDecoderTraits, CodecError, CodecOptions, InvalidNumberOfElementsError,
    decode_into_array_bytes_target,
};
#[cfg(feature = "async")]
use zarrs_codec::{AsyncArrayPartialDecoderTraits, AsyncBytesPartialDecoderTraits};
use zarrs_storage::StorageError;
use zarrs_storage::byte_range::ByteRange;

#[cfg(feature = "async")]
use super::foreign::async_no_panic;
use super::foreign::{codec_error, no_panic};
use super::index::ShardIndex;
use super::sharding::Sharding;
use crate::layout::{ENTRY_LEN, Entries};
use interval::Interval;
use request::{InnerReads, Output, Request, Touched};

/// Decodes parts of one shard. `I` is how its bytes are read.
pub(super) struct PartialDecoder<I: ?Sized> {
    shards: Arc<Sharding>,
    input: Arc<I>,
    /// Where each subchunk lies; `None` if there is no shard.
    entries: Option<Entries<'static>>,
}

impl<I: ?Sized> PartialDecoder<I> {
    /// What `indexer` asks for, or the answer if there is nothing to read.
    fn request(
        &self,
        indexer: &dyn Indexer,
    ) -> Result<Result<Request<'_>, ArrayBytes<'static>>, CodecError> {
        let request = Request::new(&self.shards, indexer)?;
        match &self.entries {
            Some(entries) if !indexer.is_empty() => Ok(Ok(request.in_shard(entries)?)),
            _ => Ok(Err(ArrayBytes::new_fill_value(
                &self.shards.data_type,
                indexer.len(),
                &self.shards.fill_value,
            )?)),
        }
    }

    fn size_of_index(&self) -> usize {
        self.entries.as_ref().map_or(0, Entries::len) * ENTRY_LEN
    }
}

/// Longer subchunks than this are looked for before they are read, where nothing bounds them.
const LONG: u64 = 1 << 20;

/// Stores allocate what they are asked to read before they find out that it is not there, so an
/// index that no machine could hold is refused here.
pub(super) fn check_memory(index_len: usize) -> Result<(), CodecError> {
    let mut probe = Vec::<u8>::new();
    probe.try_reserve_exact(index_len).map_err(|_| {
        CodecError::Other(format!(
            "out of memory: {index_len} bytes for the index of a shard"
        ))
    })
}

/// Check and decode an index that was read without the rest of its shard, whose size is not known
/// then: entries may not overflow, and the store refuses to read beyond the end.
pub(super) fn entries_of<'b>(
    index: &ShardIndex,
    encoded: Cow<'b, [u8]>,
    options: &CodecOptions,
) -> Result<Entries<'b>, CodecError> {
    index.decode(encoded, i64::MAX as u64, options)
}

/// The last byte of each long range: if a store has it, then allocating the range is justified by
/// what is stored.
fn last_bytes(ranges: &[ByteRange]) -> Vec<ByteRange> {
    ranges
        .iter()
        .filter_map(|range| match range {
            ByteRange::FromStart(start, Some(len)) if *len > LONG => {
                Some(ByteRange::FromStart(start.checked_add(len - 1)?, Some(1)))
            }
            _ => None,
        })
        .collect()
}

/// What reading the last bytes of long subchunks gave.
fn check_last_bytes(wanted: usize, read: Option<Vec<ArrayBytesRaw<'_>>>) -> Result<(), CodecError> {
    match read {
        Some(bytes) if bytes.len() == wanted && bytes.iter().all(|byte| byte.len() == 1) => Ok(()),
        _ => Err(CodecError::Other(
            "the shard index references out-of-bounds bytes: the shard may be corrupted"
                .to_string(),
        )),
    }
}

/// The shard went away between reading its index and its subchunks.
fn vanished() -> CodecError {
    CodecError::Other("the shard was erased while it was being read".to_string())
}

/// Read the index of a shard of any data type; `None` if there is no shard.
///
/// # Errors
/// A [`CodecError`] if the store fails, or the index is invalid.
pub(super) fn read_index(
    shards: &Sharding,
    input: &dyn BytesPartialDecoderTraits,
    options: &CodecOptions,
) -> Result<Option<Entries<'static>>, CodecError> {
    let index = &shards.index;
    check_memory(index.len())?;
    let encoded = no_panic(|| input.partial_decode(index.byte_range(), options))?;
    encoded
        .map(|encoded| entries_of(index, Cow::Owned(encoded.into_owned()), options))
        .transpose()
}

/// Look for the last byte of each long range of `ranges`.
///
/// # Errors
/// A [`CodecError`] if one is not there.
pub(super) fn check_long(
    input: &dyn BytesPartialDecoderTraits,
    ranges: &[ByteRange],
    options: &CodecOptions,
) -> Result<(), CodecError> {
    let ranges = last_bytes(ranges);
    if ranges.is_empty() {
        return Ok(());
    }
    let wanted = ranges.len();
    let read = input.partial_decode_many(Box::new(ranges.into_iter()), options)?;
    check_last_bytes(wanted, read)
}

impl PartialDecoder<dyn BytesPartialDecoderTraits> {
    /// Read the index of the shard behind `input`.
    ///
    /// # Errors
    /// A [`CodecError`] if the shapes do not fit each other, or the index is invalid.
    pub(super) fn new(
        shards: Arc<Sharding>,
        input: Arc<dyn BytesPartialDecoderTraits>,
        options: &CodecOptions,
    ) -> Result<Self, CodecError> {
        Ok(Self {
            entries: read_index(&shards, &*input, options)?,
            shards,
            input,
        })
    }

    /// Read what `request` wants into `output`: groups of subchunks, in parallel.
    fn read(
        &self,
        request: &Request<'_>,
        output: &Output<'_, '_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        /// A group is worth a request of its own, and little enough that one per thread fits.
        const GROUP: RangeInclusive<usize> = (256 << 10)..=(16 << 20);
        const GROUPS_PER_THREAD: usize = 4;

        let threads = match options.concurrent_target() {
            0 => rayon::current_num_threads(),
            target => target,
        };
        let cost = request.cost() / (threads * GROUPS_PER_THREAD);
        let groups = request.groups(cost.clamp(*GROUP.start(), *GROUP.end()));
        if groups.len() < 2 || threads < 2 {
            return groups
                .into_iter()
                .try_for_each(|group| self.read_group(request, group, output, options));
        }
        let options = options.with_concurrent_target(1);
        groups
            .par_chunks(groups.len().div_ceil(threads))
            .try_for_each(|groups| {
                groups
                    .iter()
                    .try_for_each(|group| self.read_group(request, group, output, &options))
            })
    }

    fn read_group(
        &self,
        request: &Request<'_>,
        group: &[Touched],
        output: &Output<'_, '_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        let ranges = Request::byte_ranges(group);
        if !request.is_bounded() {
            check_long(&*self.input, &ranges, options)?;
        }
        let fetched = if ranges.is_empty() {
            Vec::new()
        } else {
            let ranges = Box::new(ranges.into_iter());
            no_panic(|| self.input.partial_decode_many(ranges, options))?.ok_or_else(vanished)?
        };
        let inner = request
            .inner_reads(group)
            .map(|InnerReads { extent, indexer }| {
                let interval = Interval::new(self.input.clone(), extent);
                no_panic(|| {
                    self.shards
                        .codec
                        .inner_codecs
                        .clone()
                        .partial_decoder(
                            Arc::new(interval),
                            &self.shards.codec.subchunk_shape,
                            &self.shards.data_type,
                            &self.shards.fill_value,
                            options,
                        )?
                        .partial_decode(&*indexer, options)?
                        .into_owned()
                        .into_fixed()
                        .map_err(CodecError::from)
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        request
            .write(group, &fetched, &inner, output, options)
            .map_err(codec_error)
    }
}

impl ArrayPartialDecoderTraits for PartialDecoder<dyn BytesPartialDecoderTraits> {
    fn data_type(&self) -> &DataType {
        &self.shards.data_type
    }

    fn exists(&self) -> Result<bool, StorageError> {
        self.input.exists()
    }

    fn size_held(&self) -> usize {
        self.input.size_held() + self.size_of_index()
    }

    fn partial_decode(
        &self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'_>, CodecError> {
        match self.request(indexer)? {
            Err(fill) => Ok(fill),
            Ok(request) => {
                let output = request.output()?;
                self.read(&request, &output, options)?;
                Ok(ArrayBytes::from(output.finish().map_err(codec_error)?))
            }
        }
    }

    fn partial_decode_into(
        &self,
        indexer: &dyn Indexer,
        output_target: ArrayBytesDecodeIntoTarget<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        check_target(indexer, &output_target)?;
        match self.request(indexer)? {
            Err(fill) => decode_into_array_bytes_target(&fill, output_target),
            Ok(request) => {
                if let Some(output) = request.output_into(&output_target) {
                    return self.read(&request, &output, options);
                }
                let output = request.output()?;
                self.read(&request, &output, options)?;
                let elements = ArrayBytes::from(output.finish().map_err(codec_error)?);
                decode_into_array_bytes_target(&elements, output_target)
            }
        }
    }

    fn supports_partial_decode(&self) -> bool {
        self.input.supports_partial_decode()
    }
}

/// # Errors
/// If the target does not have as many elements as are asked for.
fn check_target(
    indexer: &dyn Indexer,
    target: &ArrayBytesDecodeIntoTarget<'_>,
) -> Result<(), CodecError> {
    if indexer.len() == target.num_elements() {
        Ok(())
    } else {
        Err(InvalidNumberOfElementsError::new(indexer.len(), target.num_elements()).into())
    }
}

/// [`read_index`], awaited.
#[cfg(feature = "async")]
pub(super) async fn async_read_index(
    shards: &Sharding,
    input: &dyn AsyncBytesPartialDecoderTraits,
    options: &CodecOptions,
) -> Result<Option<Entries<'static>>, CodecError> {
    let index = &shards.index;
    check_memory(index.len())?;
    let encoded = async_no_panic(input.partial_decode(index.byte_range(), options)).await?;
    encoded
        .map(|encoded| entries_of(index, Cow::Owned(encoded.into_owned()), options))
        .transpose()
}

/// Look for the last byte of each long range of `ranges`.
///
/// # Errors
/// A [`CodecError`] if one is not there.
#[cfg(feature = "async")]
pub(super) async fn async_check_long(
    input: &dyn AsyncBytesPartialDecoderTraits,
    ranges: &[ByteRange],
    options: &CodecOptions,
) -> Result<(), CodecError> {
    let ranges = last_bytes(ranges);
    if ranges.is_empty() {
        return Ok(());
    }
    let wanted = ranges.len();
    let read = input
        .partial_decode_many(Box::new(ranges.into_iter()), options)
        .await?;
    check_last_bytes(wanted, read)
}

#[cfg(feature = "async")]
impl PartialDecoder<dyn AsyncBytesPartialDecoderTraits> {
    /// Read the index of the shard behind `input`.
    ///
    /// # Errors
    /// A [`CodecError`] if the shapes do not fit each other, or the index is invalid.
    pub(super) async fn new_async(
        shards: Arc<Sharding>,
        input: Arc<dyn AsyncBytesPartialDecoderTraits>,
        options: &CodecOptions,
    ) -> Result<Self, CodecError> {
        Ok(Self {
            entries: async_read_index(&shards, &*input, options).await?,
            shards,
            input,
        })
    }

    /// Read what `request` wants into `output`: groups of subchunks, one after the other, and the
    /// subchunks of a group at once.
    async fn read(
        &self,
        request: &Request<'_>,
        output: &Output<'_, '_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        /// Much at once, because a request takes long; but not everything.
        const GROUP: usize = 64 << 20;
        for group in request.groups(GROUP) {
            let ranges = Request::byte_ranges(group);
            if !request.is_bounded() {
                async_check_long(&*self.input, &ranges, options).await?;
            }
            let fetched = if ranges.is_empty() {
                Vec::new()
            } else {
                let ranges = Box::new(ranges.into_iter());
                async_no_panic(self.input.partial_decode_many(ranges, options))
                    .await?
                    .ok_or_else(vanished)?
            };
            let inner = request
                .inner_reads(group)
                .map(|read| self.read_inner(read, options));
            let inner = try_join_all(inner).await?;
            request
                .write(group, &fetched, &inner, output, options)
                .map_err(codec_error)?;
        }
        Ok(())
    }

    async fn read_inner(
        &self,
        InnerReads { extent, indexer }: InnerReads<'_>,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'static>, CodecError> {
        let interval = Interval::new(self.input.clone(), extent);
        async_no_panic(async {
            let decoder = self
                .shards
                .codec
                .inner_codecs
                .clone()
                .async_partial_decoder(
                    Arc::new(interval),
                    &self.shards.codec.subchunk_shape,
                    &self.shards.data_type,
                    &self.shards.fill_value,
                    options,
                )
                .await?;
            let elements = decoder.partial_decode(&*indexer, options).await?;
            Ok(elements.into_owned().into_fixed()?)
        })
        .await
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl AsyncArrayPartialDecoderTraits for PartialDecoder<dyn AsyncBytesPartialDecoderTraits> {
    fn data_type(&self) -> &DataType {
        &self.shards.data_type
    }

    async fn exists(&self) -> Result<bool, StorageError> {
        self.input.exists().await
    }

    fn size_held(&self) -> usize {
        self.input.size_held() + self.size_of_index()
    }

    async fn partial_decode<'a>(
        &'a self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        match self.request(indexer)? {
            Err(fill) => Ok(fill),
            Ok(request) => {
                let output = request.output()?;
                self.read(&request, &output, options).await?;
                Ok(ArrayBytes::from(output.finish().map_err(codec_error)?))
            }
        }
    }

    async fn partial_decode_into(
        &self,
        indexer: &dyn Indexer,
        output_target: ArrayBytesDecodeIntoTarget<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        check_target(indexer, &output_target)?;
        match self.request(indexer)? {
            Err(fill) => decode_into_array_bytes_target(&fill, output_target),
            Ok(request) => {
                if let Some(output) = request.output_into(&output_target) {
                    return self.read(&request, &output, options).await;
                }
                let output = request.output()?;
                self.read(&request, &output, options).await?;
                let elements = ArrayBytes::from(output.finish().map_err(codec_error)?);
                decode_into_array_bytes_target(&elements, output_target)
            }
        }
    }

    fn supports_partial_decode(&self) -> bool {
        self.input.supports_partial_decode()
    }
}
