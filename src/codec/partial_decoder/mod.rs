//! Decodes part of a shard without the rest: reads the index, then the bytes of the subchunks that the part
//! touches.
//!
//! A subchunk is read and decoded whole, on the engine, unless only part of it is wanted. Of a subchunk without
//! compression and checksums, the wanted rows are read, if this takes less time (`store/parts.rs`). Where the
//! elements are in another order, and in nested shards, zarrs' own partial decoder of the inner codecs reads
//! just the wanted part.

#[cfg(feature = "async")]
mod awaited;
mod blocking;
mod interval;
mod request;

use std::borrow::Cow;
use std::sync::Arc;

use zarrs::array::{ArrayBytes, ArrayBytesRaw, Indexer};
use zarrs_codec::{
    ArrayBytesDecodeIntoTarget, CodecError, CodecOptions, InvalidNumberOfElementsError,
    decode_into_array_bytes_target,
};
use zarrs_storage::byte_range::ByteRange;

use crate::shard::error::codec_error;
use crate::shard::reading::{check_last_bytes, check_memory, entries_of, last_bytes};
use crate::shard::sharding::Sharding;
use crate::store::Handle;
use crate::store::parts::RangeCost;
use request::{InnerReads, PartialReadOutput, PartialReadRequest, SubchunkRead};
use zarrs_cuda_engine::layout::{ENTRY_LEN, Entries};

/// Decodes parts of one shard, whose bytes a handle of the kind `H` reads.
pub(super) struct PartialDecoder<H: Handle> {
    shards: Arc<Sharding>,
    input: Arc<H::Reader>,
    /// The extent of each subchunk; `None` if the store has no shard.
    entries: Option<Entries<'static>>,
}

impl<H: ReadsParts> PartialDecoder<H> {
    /// Reads the index of the shard behind `input`.
    ///
    /// # Errors
    /// A [`CodecError`] if the store fails, or the index is invalid.
    pub(super) async fn new(
        shards: Arc<Sharding>,
        input: Arc<H::Reader>,
        options: &CodecOptions,
    ) -> Result<Self, CodecError> {
        Ok(Self {
            entries: read_index::<H>(&shards, &*input, options).await?,
            shards,
            input,
        })
    }

    /// Returns the request for the elements that `indexer` names, or `Err` with the elements if the store
    /// need not be read.
    fn request(
        &self,
        indexer: &dyn Indexer,
    ) -> Result<Result<PartialReadRequest<'_>, ArrayBytes<'static>>, CodecError> {
        let request = PartialReadRequest::new(&self.shards, indexer)?;
        match &self.entries {
            Some(entries) if !indexer.is_empty() => {
                Ok(Ok(request.in_shard(entries, H::RANGE_COST)?))
            }
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

/// Returns the error for a shard that was erased after its index was read and before its subchunks were.
fn vanished() -> CodecError {
    CodecError::Other("the shard was erased while it was being read".to_string())
}

/// Reads the index of a shard of any data type. Returns `None` if the store has no shard.
///
/// # Errors
/// A [`CodecError`] if the store fails, or the index is invalid.
pub(super) async fn read_index<H: Handle>(
    shards: &Sharding,
    input: &H::Reader,
    options: &CodecOptions,
) -> Result<Option<Entries<'static>>, CodecError> {
    let index = &shards.index;
    check_memory(index.len()).map_err(codec_error)?;
    let encoded = H::read_one(input, index.byte_range(), options).await?;
    encoded
        .map(|encoded| entries_of(index, Cow::Owned(encoded.into_owned()), options))
        .transpose()
}

/// Checks that each long range of `ranges` exists: reads the last byte of the range.
pub(super) async fn check_long<H: Handle>(
    input: &H::Reader,
    ranges: &[ByteRange],
    options: &CodecOptions,
) -> Result<(), CodecError> {
    let ranges = last_bytes(ranges);
    if ranges.is_empty() {
        return Ok(());
    }
    let wanted = ranges.len();
    check_last_bytes(wanted, H::read(input, ranges, options).await?)
}

/// Reads several parts of a shard. Stores that block and stores that are awaited do this in different ways.
pub(super) trait ReadsParts: Handle + Sized {
    /// The time that one more range of a request takes.
    const RANGE_COST: RangeCost;

    /// Reads the elements that `request` asks for into `output`, one group of subchunks after the other.
    fn read_groups(
        decoder: &PartialDecoder<Self>,
        request: &PartialReadRequest<'_>,
        output: &PartialReadOutput<'_, '_>,
        options: &CodecOptions,
    ) -> impl Future<Output = Result<(), CodecError>> + Send;

    /// Returns the elements of each of `reads`, decoded by the partial decoder of the inner codecs.
    fn read_inner(
        decoder: &PartialDecoder<Self>,
        reads: Vec<InnerReads<'_>>,
        options: &CodecOptions,
    ) -> impl Future<Output = Result<Vec<ArrayBytesRaw<'static>>, CodecError>> + Send;
}

impl<H: ReadsParts> PartialDecoder<H> {
    async fn read_group(
        &self,
        request: &PartialReadRequest<'_>,
        group: &[SubchunkRead],
        output: &PartialReadOutput<'_, '_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        if !request.is_bounded() {
            let extents = PartialReadRequest::extents(group);
            check_long::<H>(&*self.input, &extents, options).await?;
        }
        let parts = PartialReadRequest::parts(group, H::RANGE_COST);
        let fetched = if parts.merged().is_empty() {
            Vec::new()
        } else {
            let fetched = H::read(&*self.input, parts.byte_ranges(), options).await?;
            fetched.ok_or_else(vanished)?
        };
        let inner = request.inner_reads(group).collect();
        let inner = H::read_inner(self, inner, options).await?;
        request
            .write(group, (&parts, &fetched), &inner, output, options)
            .map_err(codec_error)
    }

    /// Returns the elements that `indexer` names.
    async fn decode(
        &self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'static>, CodecError> {
        match self.request(indexer)? {
            Err(fill) => Ok(fill),
            Ok(request) => self.decode_request(&request, options).await,
        }
    }

    /// Decodes the elements that `indexer` names into `target`.
    async fn decode_into(
        &self,
        indexer: &dyn Indexer,
        target: ArrayBytesDecodeIntoTarget<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        if indexer.len() != target.num_elements() {
            let error = InvalidNumberOfElementsError::new(indexer.len(), target.num_elements());
            return Err(error.into());
        }
        let elements = match self.request(indexer)? {
            Err(fill) => fill,
            Ok(request) => {
                if let Some(output) = request.output_into(&target)? {
                    return H::read_groups(self, &request, &output, options).await;
                }
                self.decode_request(&request, options).await?
            }
        };
        decode_into_array_bytes_target(&elements, target)
    }

    async fn decode_request(
        &self,
        request: &PartialReadRequest<'_>,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'static>, CodecError> {
        let output = request.output()?;
        H::read_groups(self, request, &output, options).await?;
        Ok(ArrayBytes::from(output.finish().map_err(codec_error)?))
    }
}
