//! Finds the windows of the output that want the same subchunks.

use super::ShardToRead;
use zarrs_cuda_engine::contract::{EngineError, NeighbourSink};
use zarrs_cuda_engine::memory::disjoint::Window;

/// A wanted subchunk, and the windows that want it. Each pair has the number of the subchunk, which is the
/// same in all pairs, and the number of a window.
#[derive(Clone, Copy)]
pub(super) struct WantedSubchunk<'p>(pub(super) &'p [(usize, usize)]);

impl WantedSubchunk<'_> {
    pub(super) fn number(self) -> usize {
        // The slice has at least one pair.
        self.0.first().map_or(0, |(number, _)| *number)
    }

    pub(super) fn windows(self) -> impl Iterator<Item = usize> + Clone {
        self.0.iter().map(|(_, window)| *window)
    }
}

/// Several windows that want the same subchunks.
pub(super) struct Several<'a> {
    pub(super) windows: &'a [Window<'a>],
    /// The subchunks and their encoded bytes, by ascending number of the subchunk.
    pub(super) subchunks: &'a [(WantedSubchunk<'a>, &'a [u8])],
}

impl Several<'_> {
    /// Returns the windows that want subchunk `number`.
    pub(super) fn windows(&self, number: usize) -> impl Iterator<Item = &Window<'_>> {
        let found = self
            .subchunks
            .binary_search_by_key(&number, |(touched, _)| touched.number());
        let touched = found.ok().map(|at| self.subchunks[at].0);
        let windows = touched.into_iter().flat_map(WantedSubchunk::windows);
        windows.map(|window| &self.windows[window])
    }
}

impl NeighbourSink for Several<'_> {
    fn row_len(&self, _first: usize, _count: usize) -> usize {
        1
    }

    fn write_neighbours(
        &self,
        first: usize,
        sources: &[&[u8]],
        buffer: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        for (number, source) in (first..).zip(sources) {
            for window in self.windows(number) {
                window.write_neighbours(number, &[source], buffer)?;
            }
        }
        Ok(())
    }

    fn fill_neighbours(
        &self,
        first: usize,
        count: usize,
        element: &[u8],
    ) -> Result<(), EngineError> {
        (first..first + count).try_for_each(|number| {
            self.windows(number)
                .try_for_each(|window| window.fill_neighbours(number, 1, element))
        })
    }
}

/// Returns a pair for each subchunk and each window of `shard` that wants it: their numbers, by ascending
/// number of the subchunk.
pub(super) fn wanted(shard: &ShardToRead<'_>) -> Vec<(usize, usize)> {
    let parts = shard.wanted.parts.iter().enumerate();
    let mut pairs: Vec<(usize, usize)> = parts
        .flat_map(|(window, part)| {
            let numbers = shard.sharding.grid.numbers_in(&part.start, &part.shape);
            numbers.into_iter().map(move |number| (number, window))
        })
        .collect();
    pairs.sort_unstable();
    pairs
}
