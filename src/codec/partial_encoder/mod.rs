//! Part of a shard, updated where it is stored.
//!
//! 1. Read the index.
//! 2. Read the subchunks of which a part stays, in one request; decode them, patch them.
//! 3. Encode what changes as one batch, on the engine that the plan names.
//! 4. Read the index again, with the record before it, and the last byte: they say how large the shard
//!    is. If the index has changed since step 1, refuse.
//! 5. Write: usually once, twice where an index is rewritten where it is.
//!
//! What a codec can do to a stored value bounds all of this: read ranges of it, overwrite bytes,
//! make it longer, and erase it. `docs/updates.md` has the protocol and its promises.

mod commit;
mod comparison;
mod delegated;
mod nested;
mod reads;
mod target;
mod turns;
mod update;

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::{ArrayBytes, ArrayBytesRaw, ArraySubset, DataType, FillValue, Indexer};
use zarrs_codec::{
    ArrayPartialDecoderTraits, ArrayPartialEncoderTraits, ArrayToBytesCodecTraits,
    BytesPartialDecoderTraits, BytesPartialEncoderTraits, CodecError, CodecOptions,
};
#[cfg(feature = "async")]
use zarrs_codec::{
    AsyncArrayPartialDecoderTraits, AsyncArrayPartialEncoderTraits, AsyncBytesPartialDecoderTraits,
    AsyncBytesPartialEncoderTraits,
};
use zarrs_storage::StorageError;
use zarrs_storage::byte_range::ByteRange;

use super::CudaShardingCodec;
#[cfg(feature = "async")]
use super::foreign::async_no_panic;
use super::foreign::no_panic;
#[cfg(feature = "async")]
use super::partial_decoder::async_check_long;
use super::partial_decoder::{check_long, check_memory, extents_of, index_byte_range};
use super::shard::dense;
use crate::layout::placement::Rule;
use crate::write_strategy::{CompactionRequest, counters};
use commit::{Outcome, compacted, decide, likely_turn, reads_of_rest, rule, writes};
use comparison::{Comparison, StoredIndex, changed};
use reads::Fetched;
use target::Target;
use turns::Turn;
use update::{Changes, Update};

/// Encodes parts of one shard. `H` is how its bytes are read and written.
pub(super) struct PartialEncoder<H: ?Sized> {
    target: Target,
    handle: Arc<H>,
}

impl<H: ?Sized> PartialEncoder<H> {
    /// # Errors
    /// A [`CodecError`] if the shapes do not fit each other.
    pub(super) fn new(
        codec: Arc<CudaShardingCodec>,
        handle: Arc<H>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Self, CodecError> {
        Ok(Self {
            target: Target::new(codec, shape, data_type, fill_value)?,
            handle,
        })
    }

    /// The index that was read, if there is a shard.
    fn index(
        &self,
        encoded: Option<ArrayBytesRaw<'_>>,
        options: &CodecOptions,
    ) -> Result<Option<StoredIndex>, CodecError> {
        let Some(encoded) = encoded else {
            return Ok(None);
        };
        let target = &self.target;
        let grid = target.grid()?;
        // Whatever the caller does not want to know of data: a new index says that the old one was right.
        let options = options.with_validate_checksums(true);
        let extents = extents_of(&target.codec, (&grid, target.index_len), &encoded, &options)?;
        if encoded.iter().all(|&byte| byte == 0) {
            return Err(CodecError::Other("it is not written yet".to_string()));
        }
        Ok(Some(StoredIndex::new(encoded.into_owned(), extents)))
    }

    /// Where to read the index.
    fn index_range(&self) -> Result<ByteRange, CodecError> {
        check_memory(self.target.index_len)?;
        Ok(index_byte_range(&self.target.codec, self.target.index_len))
    }

    /// The rule by which subchunks are placed.
    fn rule(&self, store_writes_ranges: bool) -> Result<Rule, CodecError> {
        rule(&self.target, store_writes_ranges)
    }

    /// Tell the metrics, and who wants to know, that a write happened.
    fn written(&self, size: usize, dead: Option<usize>) {
        counters::partial_write();
        let Some(dead) = dead else { return };
        counters::compaction_request();
        let request = CompactionRequest {
            size: size as u64,
            dead: dead as u64,
        };
        tracing::debug!(size, dead, "a shard should be compacted");
        if let Some(callback) = self.target.codec.options.compaction_callback() {
            (callback.0)(&request);
        }
    }
}

/// Encode a whole shard of elements that have no fixed size.
///
/// # Errors
/// A [`CodecError`] if a subchunk cannot be encoded.
pub(super) fn encode_delegated(
    codec: &CudaShardingCodec,
    (shape, data_type, fill_value): (&[NonZeroU64], &DataType, &FillValue),
    elements: &ArrayBytes<'_>,
    options: &CodecOptions,
) -> Result<Vec<u8>, CodecError> {
    let target = Target::new(Arc::new(codec.clone()), shape, data_type, fill_value)?;
    let all = ArraySubset::new_with_shape(shape.iter().map(|d| d.get()).collect());
    let update = Update::new(&target, None, &all, elements)?;
    let changes = delegated::encode(&update, &Fetched::default(), options)?;
    let subchunks: Vec<Option<&[u8]>> = changes
        .subchunks
        .iter()
        .map(|(_, new)| new.as_ref().map(|new| changes.encoded(new)))
        .collect();
    let most = usize::MAX;
    dense(
        codec,
        &update.grid,
        target.index_len,
        &subchunks,
        most,
        options,
    )
}

/// What to read again before something moves: subchunks that were patched, where others may have
/// written to them without a change of the index.
fn ranges_to_compare(rule: Rule, fetched: &Fetched<'_>) -> Vec<ByteRange> {
    match rule {
        Rule::InPlace | Rule::Slots { .. } => fetched.byte_ranges(),
        Rule::Append | Rule::Reuse => Vec::new(),
    }
}

/// Say where a partial write of a shard puts what it changes, on a store that writes ranges.
///
/// # Errors
/// A [`CodecError`] if the shapes, data type and codecs do not fit each other.
pub(super) fn explain(
    codec: &CudaShardingCodec,
    shape: &[NonZeroU64],
    data_type: &DataType,
    fill_value: &FillValue,
) -> Result<String, CodecError> {
    let target = Target::new(Arc::new(codec.clone()), shape, data_type, fill_value)?;
    Ok(match rule(&target, true) {
        Err(error) => error.to_string(),
        Ok(Rule::Append) => "behind everything that is there".to_string(),
        Ok(Rule::Reuse) => {
            "into bytes that nothing uses, or behind everything: the old state stays until the new one is whole".to_string()
        }
        Ok(Rule::InPlace) => {
            "where the subchunk was, if it fits; else into bytes that nothing uses, or behind everything".to_string()
        }
        Ok(Rule::Slots { size }) => format!("each subchunk into its own slot of {size} bytes"),
    })
}

/// With what to do about an index that cannot be read.
fn index_error(error: &CodecError) -> CodecError {
    CodecError::Other(format!(
        "the index of a shard that is to be updated cannot be read: {error}. If an earlier update was interrupted, zarrs_cuda::recover restores it"
    ))
}

/// With what to do about a shard that was left in the middle of a write.
fn write_error(error: &CodecError) -> CodecError {
    CodecError::Other(format!(
        "a partial write of a shard failed, and may have stopped in the middle: {error}. Call zarrs_cuda::recover for the shard before reading or writing it"
    ))
}

impl PartialEncoder<dyn BytesPartialEncoderTraits> {
    fn read_index(&self, options: &CodecOptions) -> Result<Option<StoredIndex>, CodecError> {
        let range = self.index_range()?;
        // Stores fail, and some panic, where a range begins before the value does.
        no_panic(|| self.handle.partial_decode(range, options))
            .and_then(|encoded| self.index(encoded, options))
            .map_err(|error| index_error(&error))
    }

    /// The size of the shard, if its index is still `before`.
    fn size_now(
        &self,
        before: Option<&StoredIndex>,
        options: &CodecOptions,
    ) -> Result<usize, CodecError> {
        let Some(before) = before else {
            return if self.handle.exists()? {
                Err(changed())
            } else {
                Ok(0)
            };
        };
        let mut comparison = Comparison::new(&self.target, before);
        loop {
            match comparison.next() {
                Err(size) => return Ok(size),
                Ok(ranges) => {
                    let read = no_panic(|| {
                        self.handle
                            .partial_decode_many(Box::new(ranges.into_iter()), options)
                    });
                    match read {
                        Ok(read) => comparison.answer(read)?,
                        Err(error) if !comparison.falls_back() => return Err(index_error(&error)),
                        Err(_) => {}
                    }
                }
            }
        }
    }

    fn write(
        &self,
        update: &Update<'_>,
        before: Option<&StoredIndex>,
        mut changes: Changes,
        fetched: &Fetched<'_>,
        options: &CodecOptions,
    ) -> Result<(usize, Option<usize>), CodecError> {
        let rule = self.rule(self.handle.supports_partial_encode())?;
        let mut turn = before.map_or(Turn::Alone, |before| likely_turn(rule, before, &changes));
        let (_taken, outcome) = loop {
            let taken = before.map(|before| turns::take(before.fingerprint, turn));
            let size = self.size_now(before, options)?;
            let outcome = decide(update, rule, before, size, &changes, options)?;
            if outcome.turn() == Turn::Shared {
                break (taken, outcome);
            }
            if turn == Turn::Alone {
                let ranges = ranges_to_compare(rule, fetched);
                if !ranges.is_empty() {
                    let read = no_panic(|| {
                        let ranges = Box::new(ranges.into_iter());
                        self.handle.partial_decode_many(ranges, options)
                    })?;
                    fetched.compare(read)?;
                }
                break (taken, outcome);
            }
            turn = Turn::Alone;
        };
        match outcome {
            Outcome::Erase => {
                if before.is_some() {
                    self.handle.erase()?;
                }
                Ok((0, None))
            }
            Outcome::Write(placed) => {
                let (size, dead) = (placed.size(), placed.dead);
                for write in writes(update, placed, &mut changes, fetched) {
                    let pieces = write.into_iter().map(|(at, bytes)| (at, Cow::Owned(bytes)));
                    self.handle
                        .partial_encode_many(Box::new(pieces), options)
                        .map_err(|error| write_error(&error))?;
                }
                Ok((size, dead))
            }
            Outcome::Compact { size, extents } => {
                let reads = reads_of_rest(before, &extents, &changes);
                let ranges = Box::new(reads.byte_ranges().into_iter());
                let rest = if reads.is_empty() {
                    None
                } else {
                    no_panic(|| self.handle.partial_decode_many(ranges, options))?
                };
                let rest = reads.answered(rest)?;
                let shard = compacted(update, (before, size), &changes, &rest, options)?;
                let size = shard.len();
                self.handle.erase()?;
                self.handle
                    .partial_encode(0, Cow::Owned(shard), options)
                    .map_err(|error| write_error(&error))?;
                counters::compaction();
                Ok((size, None))
            }
        }
    }
}

impl ArrayPartialDecoderTraits for PartialEncoder<dyn BytesPartialEncoderTraits> {
    fn data_type(&self) -> &DataType {
        &self.target.data_type
    }

    fn exists(&self) -> Result<bool, StorageError> {
        self.handle.exists()
    }

    fn size_held(&self) -> usize {
        self.handle.size_held()
    }

    fn partial_decode(
        &self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'_>, CodecError> {
        let target = &self.target;
        // The index is read again each time: it changes with every write.
        let decoder = target.codec.clone().partial_decoder(
            self.handle.clone().into_dyn_decoder(),
            &target.shape,
            &target.data_type,
            &target.fill_value,
            options,
        )?;
        Ok(decoder.partial_decode(indexer, options)?.into_owned())
    }

    fn supports_partial_decode(&self) -> bool {
        self.handle.supports_partial_decode()
    }
}

impl ArrayPartialEncoderTraits for PartialEncoder<dyn BytesPartialEncoderTraits> {
    fn into_dyn_decoder(self: Arc<Self>) -> Arc<dyn ArrayPartialDecoderTraits> {
        self
    }

    fn erase(&self) -> Result<(), CodecError> {
        self.handle.erase()
    }

    fn partial_encode(
        &self,
        indexer: &dyn Indexer,
        bytes: &ArrayBytes<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        bytes.validate(indexer.len(), &self.target.data_type)?;
        if indexer.is_empty() {
            return Ok(());
        }
        let before = self.read_index(options)?;
        let extents = before.as_ref().map(|before| before.extents.as_slice());
        let update = Update::new(&self.target, extents, indexer, bytes)?;
        let (reads, is_bounded) = update.reads()?;
        let ranges = reads.byte_ranges();
        let read = if ranges.is_empty() {
            None
        } else {
            let input: &dyn BytesPartialDecoderTraits = &*self.handle;
            if !is_bounded {
                check_long(input, &ranges, options)?;
            }
            no_panic(|| input.partial_decode_many(Box::new(ranges.into_iter()), options))?
        };
        let fetched = reads.answered(read)?;
        let changes = update.encode(&fetched, options)?;
        if changes.subchunks.is_empty() {
            return Ok(());
        }
        let (size, dead) = self.write(&update, before.as_ref(), changes, &fetched, options)?;
        self.written(size, dead);
        Ok(())
    }

    /// Always: a handle that cannot write ranges rewrites the object for each.
    fn supports_partial_encode(&self) -> bool {
        true
    }
}

#[cfg(feature = "async")]
impl PartialEncoder<dyn AsyncBytesPartialEncoderTraits> {
    async fn read_index(&self, options: &CodecOptions) -> Result<Option<StoredIndex>, CodecError> {
        let range = self.index_range()?;
        async_no_panic(self.handle.partial_decode(range, options))
            .await
            .and_then(|encoded| self.index(encoded, options))
            .map_err(|error| index_error(&error))
    }

    /// The size of the shard, if its index is still `before`.
    async fn size_now(
        &self,
        before: Option<&StoredIndex>,
        options: &CodecOptions,
    ) -> Result<usize, CodecError> {
        let Some(before) = before else {
            return if self.handle.exists().await? {
                Err(changed())
            } else {
                Ok(0)
            };
        };
        let mut comparison = Comparison::new(&self.target, before);
        loop {
            match comparison.next() {
                Err(size) => return Ok(size),
                Ok(ranges) => {
                    let read = async_no_panic(
                        self.handle
                            .partial_decode_many(Box::new(ranges.into_iter()), options),
                    )
                    .await;
                    match read {
                        Ok(read) => comparison.answer(read)?,
                        Err(error) if !comparison.falls_back() => return Err(index_error(&error)),
                        Err(_) => {}
                    }
                }
            }
        }
    }

    async fn write(
        &self,
        update: &Update<'_>,
        before: Option<&StoredIndex>,
        mut changes: Changes,
        fetched: &Fetched<'_>,
        options: &CodecOptions,
    ) -> Result<(usize, Option<usize>), CodecError> {
        let rule = self.rule(self.handle.supports_partial_encode())?;
        let mut turn = before.map_or(Turn::Alone, |before| likely_turn(rule, before, &changes));
        let (_taken, outcome) = loop {
            let taken = match before {
                Some(before) => {
                    let share = changes.subchunks.first().map_or(0, |(number, _)| *number);
                    Some(turns::take_async(before.fingerprint, turn, share).await)
                }
                None => None,
            };
            let size = self.size_now(before, options).await?;
            let outcome = decide(update, rule, before, size, &changes, options)?;
            if outcome.turn() == Turn::Shared {
                break (taken, outcome);
            }
            if turn == Turn::Alone {
                let ranges = ranges_to_compare(rule, fetched);
                if !ranges.is_empty() {
                    let ranges = Box::new(ranges.into_iter());
                    let read = self.handle.partial_decode_many(ranges, options);
                    fetched.compare(async_no_panic(read).await?)?;
                }
                break (taken, outcome);
            }
            turn = Turn::Alone;
        };
        match outcome {
            Outcome::Erase => {
                if before.is_some() {
                    self.handle.erase().await?;
                }
                Ok((0, None))
            }
            Outcome::Write(placed) => {
                let (size, dead) = (placed.size(), placed.dead);
                for write in writes(update, placed, &mut changes, fetched) {
                    let pieces = write.into_iter().map(|(at, bytes)| (at, Cow::Owned(bytes)));
                    self.handle
                        .partial_encode_many(Box::new(pieces), options)
                        .await
                        .map_err(|error| write_error(&error))?;
                }
                Ok((size, dead))
            }
            Outcome::Compact { size, extents } => {
                let reads = reads_of_rest(before, &extents, &changes);
                let ranges = Box::new(reads.byte_ranges().into_iter());
                let rest = if reads.is_empty() {
                    None
                } else {
                    async_no_panic(self.handle.partial_decode_many(ranges, options)).await?
                };
                let rest = reads.answered(rest)?;
                let shard = compacted(update, (before, size), &changes, &rest, options)?;
                let size = shard.len();
                self.handle.erase().await?;
                self.handle
                    .partial_encode(0, Cow::Owned(shard), options)
                    .await
                    .map_err(|error| write_error(&error))?;
                counters::compaction();
                Ok((size, None))
            }
        }
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl AsyncArrayPartialDecoderTraits for PartialEncoder<dyn AsyncBytesPartialEncoderTraits> {
    fn data_type(&self) -> &DataType {
        &self.target.data_type
    }

    async fn exists(&self) -> Result<bool, StorageError> {
        self.handle.exists().await
    }

    fn size_held(&self) -> usize {
        self.handle.size_held()
    }

    async fn partial_decode<'a>(
        &'a self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        let target = &self.target;
        let decoder = target
            .codec
            .clone()
            .async_partial_decoder(
                self.handle.clone().into_dyn_decoder(),
                &target.shape,
                &target.data_type,
                &target.fill_value,
                options,
            )
            .await?;
        Ok(decoder.partial_decode(indexer, options).await?.into_owned())
    }

    fn supports_partial_decode(&self) -> bool {
        self.handle.supports_partial_decode()
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl AsyncArrayPartialEncoderTraits for PartialEncoder<dyn AsyncBytesPartialEncoderTraits> {
    fn into_dyn_decoder(self: Arc<Self>) -> Arc<dyn AsyncArrayPartialDecoderTraits> {
        self
    }

    async fn erase(&self) -> Result<(), CodecError> {
        self.handle.erase().await
    }

    async fn partial_encode(
        &self,
        indexer: &dyn Indexer,
        bytes: &ArrayBytes<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        bytes.validate(indexer.len(), &self.target.data_type)?;
        if indexer.is_empty() {
            return Ok(());
        }
        let before = self.read_index(options).await?;
        let extents = before.as_ref().map(|before| before.extents.as_slice());
        let update = Update::new(&self.target, extents, indexer, bytes)?;
        let (reads, is_bounded) = update.reads()?;
        let ranges = reads.byte_ranges();
        let read = if ranges.is_empty() {
            None
        } else {
            let input: &dyn AsyncBytesPartialDecoderTraits = &*self.handle;
            if !is_bounded {
                async_check_long(input, &ranges, options).await?;
            }
            async_no_panic(input.partial_decode_many(Box::new(ranges.into_iter()), options)).await?
        };
        let fetched = reads.answered(read)?;
        let changes = update.encode(&fetched, options)?;
        if changes.subchunks.is_empty() {
            return Ok(());
        }
        let written = self.write(&update, before.as_ref(), changes, &fetched, options);
        let (size, dead) = written.await?;
        self.written(size, dead);
        Ok(())
    }

    fn supports_partial_encode(&self) -> bool {
        true
    }
}
