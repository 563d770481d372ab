//! The steps of an update, for stores that are not waited for. `sync` is the same for those that are.

use std::borrow::Cow;
use std::sync::Arc;

use zarrs::array::{ArrayBytes, ArrayBytesRaw, DataType, Indexer};
use zarrs_codec::{
    ArrayToBytesCodecTraits, AsyncArrayPartialDecoderTraits, AsyncArrayPartialEncoderTraits,
    AsyncBytesPartialEncoderTraits, CodecError, CodecOptions,
};
use zarrs_storage::StorageError;
use zarrs_storage::byte_range::ByteRange;

use super::commit::{Outcome, compacted, decide, likely_turn, reads_of_rest, rule};
use super::comparison::{Comparison, StoredIndex, changed};
use super::reads::Fetched;
use super::turns::{self, Turn};
use super::update::{Changes, Update};
use super::writes::writes;
use super::{PartialEncoder, index_error, to_compare, write_error};
use crate::codec::foreign::async_no_panic;
use crate::codec::partial_decoder::async_check_long;
use crate::write_strategy::counters;

impl PartialEncoder<dyn AsyncBytesPartialEncoderTraits> {
    async fn read_index(&self, options: &CodecOptions) -> Result<Option<StoredIndex>, CodecError> {
        let range = self.index_range()?;
        async_no_panic(self.handle.partial_decode(range, options))
            .await
            .and_then(|encoded| self.index(encoded, options))
            .map_err(|error| index_error(&error))
    }

    /// The bytes at `ranges`, in one request; `None` if there are none, or no shard.
    async fn read(
        &self,
        ranges: Vec<ByteRange>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<ArrayBytesRaw<'_>>>, CodecError> {
        if ranges.is_empty() {
            return Ok(None);
        }
        let ranges = Box::new(ranges.into_iter());
        async_no_panic(self.handle.partial_decode_many(ranges, options)).await
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
                Ok(ranges) => match self.read(ranges, options).await {
                    Ok(read) => comparison.answer(read)?,
                    Err(error) if !comparison.falls_back() => return Err(index_error(&error)),
                    Err(_) => {}
                },
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
        let rule = rule(&self.target, self.handle.supports_partial_encode())?;
        let mut turn = before.map_or(Turn::Alone, |before| likely_turn(rule, before, &changes));
        let (_taken, outcome) = loop {
            let taken = match before {
                Some(before) => {
                    let share = changes.subchunks.first().map_or(0, |(number, _)| *number);
                    Some(turns::take_async(before.turn_key, turn, share).await)
                }
                None => None,
            };
            let size = self.size_now(before, options).await?;
            let outcome = decide(update, rule, before, size, &changes, options)?;
            if outcome.turn() == Turn::Shared {
                break (taken, outcome);
            }
            if turn == Turn::Alone {
                if let Some(fetched) = to_compare(rule, fetched) {
                    fetched.compare(self.read(fetched.byte_ranges(), options).await?)?;
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
                let (size, dead) = (placed.size, placed.dead);
                for write in writes(update, placed, &mut changes, fetched) {
                    let pieces = write.into_iter().map(|(at, bytes)| (at, Cow::Owned(bytes)));
                    self.handle
                        .partial_encode_many(Box::new(pieces), options)
                        .await
                        .map_err(|error| write_error(&error))?;
                }
                Ok((size, dead))
            }
            Outcome::Compact { size } => {
                let reads = reads_of_rest(before, &changes);
                let rest = self.read(reads.byte_ranges(), options).await?;
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
        let entries = before.as_ref().map(|before| &before.entries);
        let update = Update::new(&self.target, entries, indexer, bytes)?;
        let (reads, is_bounded) = update.reads()?;
        let ranges = reads.byte_ranges();
        if !is_bounded {
            async_check_long(&*self.handle, &ranges, options).await?;
        }
        let fetched = reads.answered(self.read(ranges, options).await?)?;
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
