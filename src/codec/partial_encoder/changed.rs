//! A shard with changed subchunks in memory. The stored shard stays unchanged.
//!
//! 1. Read the index, and compare the shard with its last record, as an update of a stored shard does.
//! 2. For each box: read the subchunks that the box covers in part, patch them, and encode the changed
//!    subchunks.
//! 3. Keep the encoded subchunks in memory. The index gives them offsets behind the end of the stored shard.

use std::borrow::Cow;
use std::ops::Range;

use zarrs::array::{ArrayBytes, Indexer};
use zarrs_codec::{CodecError, CodecOptions};

use super::comparison::{Comparison, StoredIndex};
use super::encode::encode;
use super::index_error;
use super::reads::FetchedRanges;
use super::update::{Changes, Update};
use crate::shard::error::{codec_error, no_memory};
use crate::shard::index::ShardIndex;
use crate::shard::reading::check_memory;
use crate::shard::sharding::Sharding;
use crate::store::ranges::within;
use zarrs_cuda_engine::layout::{Entries, Extent, RECORD_LEN};

/// The number of bytes that earlier versions of subchunks may always take. More are allowed until they are
/// half of all changed bytes.
const OLD: usize = 8 << 20;

/// The name of the changed bytes in an error about missing memory.
const CHANGED: &str = "the changed subchunks of a shard";

/// Reads bytes of a stored shard.
pub(crate) type ReadsBytes<'r> = dyn Fn(Range<u64>) -> Result<Vec<u8>, CodecError> + 'r;

/// A stored shard with changed subchunks in memory.
pub(crate) struct ChangedShard<'s> {
    target: &'s Sharding,
    /// The size of the stored shard, in bytes.
    stored: usize,
    /// The changed subchunks, encoded, and earlier versions of these subchunks.
    new: Vec<u8>,
    /// The number of bytes in `new` that belong to earlier versions of subchunks.
    old: usize,
    /// Whether subchunks of the stored shard share bytes.
    overlaps: bool,
    /// The extent of each subchunk. Extents from `stored` on are in `new`.
    entries: Entries<'static>,
}

impl<'s> ChangedShard<'s> {
    /// Returns a shard without subchunks, for which nothing is stored.
    ///
    /// # Errors
    /// A [`CodecError`] if there is no memory for the index, or the backend cannot be used.
    pub(crate) fn empty(target: &'s Sharding) -> Result<Self, CodecError> {
        target.shard_codec().check(target)?;
        // Memory for the index twice: its entries, and its encoded bytes.
        check_memory(2 * target.index.len()).map_err(codec_error)?;
        Ok(Self::with_entries(target, 0, target.index.empty()))
    }

    fn with_entries(target: &'s Sharding, stored: usize, entries: Entries<'static>) -> Self {
        Self {
            target,
            stored,
            new: Vec::new(),
            old: 0,
            overlaps: false,
            entries,
        }
    }

    /// Returns the stored shard of `size` bytes without changes. `read` reads its bytes.
    ///
    /// # Errors
    /// A [`CodecError`] if `read` fails, if the index is invalid, or if an update was interrupted.
    pub(crate) fn new(
        target: &'s Sharding,
        size: u64,
        read: &ReadsBytes<'_>,
        options: &CodecOptions,
    ) -> Result<Self, CodecError> {
        target.shard_codec().check(target)?;
        let index = &target.index;
        check_memory(2 * index.len()).map_err(codec_error)?;
        let encoded = read(within(index.byte_range(), size)?)?;
        let options = options.with_validate_checksums(true);
        let before = StoredIndex::new(index, encoded, &options).map_err(|e| index_error(&e))?;
        let mut comparison = Comparison::new(target, &before);
        let found = loop {
            let ranges = match comparison.next() {
                Err(size) => break size,
                Ok(ranges) => ranges,
            };
            let parts = ranges.into_iter().map(|range| {
                let range = within(range, size)?;
                Ok(Cow::Owned(read(range)?))
            });
            match parts.collect::<Result<Vec<_>, CodecError>>() {
                Ok(parts) => comparison.answer(Some(parts))?,
                Err(error) if !comparison.falls_back() => return Err(index_error(&error)),
                Err(_) => {}
            }
        };
        if found as u64 != size {
            return Err(CodecError::Other(format!(
                "its last update left {found} bytes, and it has {size}: it was changed meanwhile, or bytes of another program are behind it"
            )));
        }
        ShardIndex::check_overlaps(&before.entries, &target.codec.options)?;
        let overlaps = before.space.overlaps();
        Ok(Self {
            overlaps,
            ..Self::with_entries(target, found, before.entries)
        })
    }

    /// Writes the given elements to the places that `indexer` names. `read` reads the stored shard.
    ///
    /// # Errors
    /// A [`CodecError`] if `read` fails, if `indexer` does not fit the shard or the elements, if a subchunk cannot be
    /// decoded or encoded, or if memory cannot be had.
    pub(crate) fn change(
        &mut self,
        (indexer, elements): (&dyn Indexer, &ArrayBytes<'_>),
        read: &ReadsBytes<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        elements.validate(indexer.len(), &self.target.data_type)?;
        if indexer.is_empty() {
            return Ok(());
        }
        let update = Update::new(self.target, Some(&self.entries), indexer, elements)?;
        let (ranges, _) = update.reads()?;
        let parts = ranges.iter().map(|range| self.read(range, read));
        let parts = parts.collect::<Result<Vec<_>, CodecError>>()?;
        let changes = encode(
            &update,
            &FetchedRanges::answered(ranges, Some(parts))?,
            options,
        )?;
        drop(update);
        if changes.subchunks.is_empty() {
            return Ok(());
        }
        let Changes {
            bytes, subchunks, ..
        } = changes;
        for (number, _) in &subchunks {
            let before = self.entries.get(*number);
            let before = before.filter(|extent| extent.start >= self.stored);
            self.old += before.map_or(0, |extent| extent.len());
        }
        // `bytes` begins with room for a record. The room is removed where the encoded subchunks are copied
        // anyway.
        let room = if self.new.is_empty() { 0 } else { RECORD_LEN };
        let begin = self.stored + self.new.len();
        let place = |at: usize| begin + at - room;
        let moved = subchunks
            .into_iter()
            .map(|(number, extent)| (number, extent.map(|e| place(e.start)..place(e.end))));
        self.move_subchunks(moved, options)?;
        if room == 0 {
            self.new = bytes;
        } else {
            let encoded = bytes.get(room..).unwrap_or_default();
            let reserved = self.new.try_reserve(encoded.len());
            reserved.map_err(|_| no_memory(CHANGED, encoded.len()))?;
            self.new.extend_from_slice(encoded);
            drop(bytes);
        }
        if self.old > OLD && 2 * self.old > self.new.len() {
            self.remove_earlier_versions(options)?;
        }
        Ok(())
    }

    /// Sets the extents of the subchunks in `moved`.
    fn move_subchunks(
        &mut self,
        moved: impl IntoIterator<Item = (usize, Extent)>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        let index = &self.target.index;
        let encoded = index.encode_changed(&self.entries, moved, options)?;
        self.entries = index.decode_unchecked(Cow::Owned(encoded), options)?;
        Ok(())
    }

    /// Removes the versions of subchunks that a later version has replaced.
    fn remove_earlier_versions(&mut self, options: &CodecOptions) -> Result<(), CodecError> {
        let mut kept = Vec::new();
        let len = self.new.len().saturating_sub(self.old);
        let reserved = kept.try_reserve_exact(len);
        reserved.map_err(|_| no_memory(CHANGED, len))?;
        let moved = self
            .entries
            .iter()
            .enumerate()
            .filter_map(|(number, extent)| {
                let extent = extent?;
                let from = extent.start.checked_sub(self.stored)?;
                let start = self.stored + kept.len();
                kept.extend_from_slice(self.new.get(from..from + extent.len())?);
                Some((number, Some(start..self.stored + kept.len())))
            });
        let moved: Vec<_> = moved.collect();
        self.move_subchunks(moved, options)?;
        self.old = 0;
        self.new = kept;
        Ok(())
    }

    /// Returns the bytes of `range`, of which some may be in the stored shard and others in `new`.
    fn read(
        &self,
        range: &Range<u64>,
        read: &ReadsBytes<'_>,
    ) -> Result<Cow<'static, [u8]>, CodecError> {
        let stored = self.stored as u64;
        let mut bytes = if range.start < stored {
            read(range.start..range.end.min(stored))?
        } else {
            Vec::new()
        };
        if range.end > stored {
            let within = |at: u64| usize::try_from(at.saturating_sub(stored)).ok();
            let part = within(range.start).zip(within(range.end));
            let part = part.and_then(|(start, end)| self.new.get(start..end));
            bytes.extend_from_slice(part.unwrap_or_default());
        }
        Ok(Cow::Owned(bytes))
    }

    /// Returns whether subchunks of the stored shard share bytes.
    pub(crate) fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// Returns the extent of each subchunk. Extents from `stored` on are in the changed
    /// bytes.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> {
        self.entries.iter()
    }

    /// Returns the size of the stored shard, in bytes.
    pub(crate) fn stored(&self) -> usize {
        self.stored
    }

    /// Returns the changed bytes, whose first byte has the offset `stored`.
    pub(crate) fn into_new(self) -> Vec<u8> {
        self.new
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use zarrs::array::{ArraySubset, data_type};

    use super::*;
    use crate::codec::CudaShardingCodecBuilder;

    #[test]
    fn earlier_versions_do_not_add_up() {
        let shape = |extent| vec![NonZeroU64::new(extent).unwrap()];
        let codec = CudaShardingCodecBuilder::new(shape(1 << 20), &data_type::uint8()).build();
        let target = codec.unwrap();
        let target = target.sharding(&shape(2 << 20), &data_type::uint8(), &0_u8.into());
        let target = target.unwrap();
        let mut shard = ChangedShard::empty(&target).unwrap();
        let read = |_: Range<u64>| unreachable!("nothing is stored");
        let options = CodecOptions::default();
        let mut longest = 0;
        for n in 1..100_u8 {
            let subset = ArraySubset::from(vec![u64::from(n) << 12..(u64::from(n) << 12) + 1]);
            let element = ArrayBytes::new_flen(vec![n]);
            shard.change((&subset, &element), &read, &options).unwrap();
            longest = longest.max(shard.new.len());
        }
        assert!(longest > OLD && longest < 2 * OLD + (4 << 20), "{longest}");
    }
}
