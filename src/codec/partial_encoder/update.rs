//! The change of a partial write: the subchunks that it touches, before and after they are encoded.

use std::ops::Range;

use zarrs::array::{ArrayBytes, Indexer};
use zarrs_codec::CodecError;

use super::reads::reads;
use crate::shard::error::codec_error;
use crate::shard::selection::Selection;
use crate::shard::sharding::Sharding;
use crate::store::ranges::Merged;
use zarrs_cuda_engine::contract::EngineError;
use zarrs_cuda_engine::layout::{Entries, Extent, RECORD_LEN, Space, SubchunkGrid, SubchunkPart};

/// A subchunk to which a partial write writes.
pub(super) struct TouchedSubchunk {
    pub(super) number: usize,
    /// Whether all elements of the subchunk are written, so that its old bytes need not be read.
    pub(super) whole: bool,
    /// The extent of the stored subchunk, or `None` if the subchunk is empty.
    pub(super) extent: Extent,
}

/// A write to part of a shard.
pub(super) struct Update<'a> {
    pub(super) target: &'a Sharding,
    pub(super) grid: &'a SubchunkGrid,
    pub(super) selection: Selection,
    /// The elements that are written, in the order of the indexer.
    pub(super) elements: &'a ArrayBytes<'a>,
    /// The subchunks to which elements are written, in C order.
    pub(super) touched: Vec<TouchedSubchunk>,
}

/// The changed subchunks, encoded.
pub(super) struct Changes {
    /// Room for a record, followed by the encoded subchunks.
    pub(super) bytes: Vec<u8>,
    /// The number of each changed subchunk, and its extent in `bytes`, or `None` if the subchunk is empty
    /// now.
    pub(super) subchunks: Vec<(usize, Extent)>,
    /// The numbers, ascending, of the subchunks that must not be overwritten where they are, because an
    /// interruption would also lose elements that are not written.
    pub(super) fragile: Vec<usize>,
}

impl<'a> Update<'a> {
    /// Returns the write of `elements` to the places that `indexer` names, in a shard with the index
    /// `entries`.
    ///
    /// # Errors
    /// A [`CodecError`] if `indexer` does not fit the shard.
    pub(super) fn new(
        target: &'a Sharding,
        entries: Option<&Entries<'_>>,
        indexer: &dyn Indexer,
        elements: &'a ArrayBytes<'a>,
    ) -> Result<Self, CodecError> {
        let grid = &target.grid;
        let selection = Selection::new(grid, indexer)?;
        let touched = selection
            .touched(grid)
            .into_iter()
            .map(|number| TouchedSubchunk {
                number,
                whole: match &selection {
                    Selection::Window { start, shape } => {
                        SubchunkPart::new(grid, number, start, shape).is_whole()
                    }
                    Selection::Points(_) => false,
                },
                extent: entries.and_then(|entries| entries.get(number)),
            })
            .collect();
        Ok(Self {
            target,
            grid,
            selection,
            elements,
            touched,
        })
    }

    /// Returns the ranges of the subchunks that are written in part, which must be read. Also returns whether
    /// the metadata bound the lengths of these subchunks: they do not if the inner codecs name no bound.
    ///
    /// # Errors
    /// A [`CodecError`] if a subchunk is longer, or where its size is fixed also shorter, than its codecs make it.
    pub(super) fn reads(&self) -> Result<(Merged, bool), CodecError> {
        let limit = self.target.subchunk_len()?;
        for touched in self.straddled() {
            if let Some(extent) = &touched.extent {
                limit.check(touched.number, extent.len())?;
            }
        }
        let extents = self.straddled().filter_map(|t| t.extent.as_ref());
        Ok((reads(extents.cloned()), limit.is_bounded()))
    }

    /// Returns whether only some elements of subchunk `number` are written.
    pub(super) fn is_patched(&self, number: usize) -> bool {
        let place = self
            .touched
            .binary_search_by_key(&number, |touched| touched.number);
        place.is_ok_and(|place| !self.touched[place].whole)
    }

    /// Returns the subchunks of which only some elements are written.
    pub(super) fn straddled(&self) -> impl Iterator<Item = &TouchedSubchunk> {
        self.touched.iter().filter(|touched| !touched.whole)
    }
}

impl Changes {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; RECORD_LEN],
            subchunks: Vec::new(),
            fragile: Vec::new(),
        }
    }

    /// Adds subchunk `number` with its encoded bytes, or `None` for an empty subchunk.
    pub(super) fn push(&mut self, number: usize, encoded: Option<&[u8]>) {
        let extent: Extent = encoded.map(|encoded| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(encoded);
            start..self.bytes.len()
        });
        self.subchunks.push((number, extent));
    }

    /// Returns all subchunks of a shard after these changes, encoded. `old` returns the bytes of an unchanged
    /// subchunk by its number.
    pub(super) fn over<'c>(
        &'c self,
        num_subchunks: usize,
        old: impl Fn(usize) -> Result<Option<&'c [u8]>, CodecError>,
    ) -> Result<Vec<Option<&'c [u8]>>, CodecError> {
        let mut changed = self.subchunks.iter().peekable();
        (0..num_subchunks)
            .map(
                |number| match changed.next_if(|(changed, _)| *changed == number) {
                    Some((_, new)) => Ok(new.as_ref().map(|new| self.encoded(new))),
                    None => old(number),
                },
            )
            .collect()
    }

    /// Returns the number of bytes that the subchunks of a shard use after these changes, if they use `used`
    /// bytes before. `old` returns the extent of a subchunk before the changes.
    pub(super) fn used_after(&self, used: usize, old: impl Fn(usize) -> Extent) -> usize {
        let len = |extent: &Extent| extent.as_ref().map_or(0, ExactSizeIterator::len);
        let added: usize = self.subchunks.iter().map(|(_, new)| len(new)).sum();
        let removed = self.subchunks.iter().map(|(number, _)| len(&old(*number)));
        (used + added).saturating_sub(removed.sum())
    }

    /// Returns whether every subchunk of a shard is empty after these changes. `space` and `old` are the used
    /// space and the extent of each subchunk before the changes.
    pub(super) fn erase(&self, space: &Space, old: impl Fn(usize) -> Extent) -> bool {
        let erased = self
            .subchunks
            .iter()
            .filter(|(number, _)| old(*number).is_some());
        self.subchunks.iter().all(|(_, new)| new.is_none()) && erased.count() == space.num_stored()
    }

    /// Returns the encoded bytes at `range`.
    pub(super) fn encoded(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }
}

pub(super) fn not_read() -> CodecError {
    codec_error(EngineError::Internal("a subchunk that was not read"))
}
