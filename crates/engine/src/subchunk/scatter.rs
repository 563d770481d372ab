//! Copies subchunks out of a shard, with any order of axes and bytes, and compares them with the fill value.

use crate::contract::{Chain, EngineError, KnownChain, ShardJob};
use crate::layout::{StridedBox, SubchunkGrid, strides};
use crate::memory::allocate::at_least;
use crate::memory::disjoint;
use crate::memory::disjoint::{Row, Segment};

/// The description of how the subchunks of a shard are copied out of it, and back.
#[derive(Debug)]
pub(crate) struct ShardScatter<'a> {
    grid: &'a SubchunkGrid,
    /// The box of a subchunk, in the order in which it is encoded.
    boxed: StridedBox,
    /// The same box, in the order in which its elements lie in memory: its pieces are the longest.
    in_memory: StridedBox,
    swap: usize,
    fill: FillTest<'a>,
}

impl<'a> ShardScatter<'a> {
    /// Describes encoded subchunks of a C-order shard: their axes and bytes are in the orders of `chain`.
    pub(crate) fn of_chain(
        grid: &'a SubchunkGrid,
        chain: &KnownChain,
        fill_value: &'a [u8],
    ) -> Self {
        let strides = strides(grid.shard(), grid.element_size());
        Self::new(grid, (&chain.order, chain.swap), fill_value, &strides)
    }

    /// Describes decoded subchunks of a C-order shard, in C order and native byte order.
    pub(crate) fn in_c_order(grid: &'a SubchunkGrid, fill_value: &'a [u8]) -> Self {
        let order: Vec<usize> = (0..grid.shard().len()).collect();
        let strides = strides(grid.shard(), grid.element_size());
        Self::new(grid, (&order, 1), fill_value, &strides)
    }

    /// Describes the subchunks of `job` as its chain takes them, in a shard with these `strides`: in bytes,
    /// and checked by [`ShardElements::strides_in`](crate::contract::ShardElements::strides_in).
    pub(crate) fn of_job(job: &ShardJob<'a>, strides: &[usize]) -> Self {
        let order = job.chain.order(job.grid.shard().len());
        let swap = match job.chain {
            Chain::Known(chain) => chain.swap,
            Chain::Foreign(_) => 1,
        };
        Self::new(job.grid, (&order, swap), job.fill_value, strides)
    }

    fn new(
        grid: &'a SubchunkGrid,
        (order, swap): (&[usize], usize),
        fill_value: &'a [u8],
        strides: &[usize],
    ) -> Self {
        let in_memory = StridedBox::in_memory_order(grid, strides);
        Self {
            grid,
            boxed: StridedBox::with_strides(grid, order, strides),
            swap,
            fill: FillTest::new(fill_value, in_memory.run()),
            in_memory,
        }
    }

    /// Returns whether subchunk `number` of `shard` is bitwise equal to the fill value.
    pub(crate) fn is_empty(&self, shard: &[u8], number: usize) -> bool {
        let start = self.in_memory.offset(number);
        self.in_memory.all_pieces(|offset| {
            shard
                .get(start + offset..start + offset + self.in_memory.run())
                .is_some_and(|piece| self.fill.matches(piece))
        })
    }

    /// Returns whether the bytes of a subchunk in the shard are already in the order in which they are
    /// encoded.
    pub(crate) fn is_identity(&self) -> bool {
        self.boxed.is_contiguous() && self.swap == 1
    }

    /// Returns the number of subchunks from `first` on, at most `count`, that are worth copying together.
    pub(crate) fn row_len(&self, first: usize, count: usize) -> usize {
        Row::len(self.grid, &self.boxed, first, count)
    }

    fn row(&self, first: usize, count: usize) -> Result<Row<'_>, EngineError> {
        Row::new(self.grid, &self.boxed, first, count)
            .ok_or(EngineError::Internal("subchunks are no neighbours"))
    }

    /// Returns the elements of the neighbouring subchunks `first..first + count` of `shard`, in the order in
    /// which they are encoded. Borrows them from `shard` if they have this order there, and otherwise copies
    /// them to `buffer`, which becomes long enough.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a subchunk is not in the shard, and
    /// [`EngineError::OutOfMemory`].
    pub(crate) fn subchunks<'b>(
        &self,
        shard: &'b [u8],
        first: usize,
        count: usize,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], EngineError> {
        let len = self.boxed.len();
        if self.boxed.is_contiguous() && self.swap == 1 && count == 1 {
            let offset = self.boxed.offset(first);
            return shard
                .get(offset..offset + len)
                .ok_or(EngineError::Internal("a subchunk leaves the shard"));
        }
        let buffer = at_least(buffer, len * count)?;
        disjoint::scatter(shard, self.row(first, count)?, buffer)?;
        swap_bytes(buffer, self.swap);
        Ok(buffer)
    }

    /// Appends the neighbouring subchunks `first..first + count` of `shard` to `segment`, in the order in
    /// which they are encoded. A trailer of `trailer` bytes follows each, and `finish` may change both.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a subchunk is not in the shard, or does not fit the segment.
    pub(crate) fn append(
        &self,
        shard: &[u8],
        (first, count): (usize, usize),
        segment: &mut Segment<'_>,
        trailer: usize,
        finish: impl Fn(&mut [u8]),
    ) -> Result<(), EngineError> {
        let row = self.row(first, count)?;
        segment.append_row(shard, row, trailer, |bytes| {
            swap_bytes(&mut bytes[..self.boxed.len()], self.swap);
            finish(bytes);
        })
    }
}

/// Reverses the bytes of each group of `unit` bytes.
pub(crate) fn swap_bytes(bytes: &mut [u8], unit: usize) {
    fn swap<const N: usize>(bytes: &mut [u8]) {
        for unit in bytes.as_chunks_mut::<N>().0 {
            unit.reverse();
        }
    }
    match unit {
        0 | 1 => {}
        2 => swap::<2>(bytes),
        4 => swap::<4>(bytes),
        8 => swap::<8>(bytes),
        16 => swap::<16>(bytes),
        _ => bytes.chunks_exact_mut(unit).for_each(<[u8]>::reverse),
    }
}

/// Compares pieces of subchunks with the fill value bit by bit, so that −0.0 is not 0.0, and NaNs with
/// different payloads differ.
#[derive(Debug)]
struct FillTest<'a> {
    element: &'a [u8],
    /// The fill value, repeated for at most the length of a piece, as whole elements.
    pattern: Vec<u8>,
}

impl<'a> FillTest<'a> {
    /// The most bytes of the pattern: enough to compare most pieces at once, and few enough to stay in cache.
    const PATTERN: usize = 512;

    fn new(element: &'a [u8], piece: usize) -> Self {
        let elements = piece.min(Self::PATTERN) / element.len().max(1);
        Self {
            element,
            pattern: element.repeat(elements.max(1)),
        }
    }

    fn matches(&self, piece: &[u8]) -> bool {
        // Compare the first element first: most subchunks are not empty, and most of these differ there.
        piece.starts_with(self.element)
            && piece
                .chunks(self.pattern.len().max(1))
                .all(|chunk| *chunk == self.pattern[..chunk.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapping_reverses_units() {
        for unit in [1_usize, 2, 3, 4, 8, 16] {
            let bytes: Vec<u8> = (0..48).collect();
            let mut swapped = bytes.clone();
            swap_bytes(&mut swapped, unit);
            let expected: Vec<u8> = bytes
                .chunks(unit)
                .flat_map(|chunk| chunk.iter().rev().copied())
                .collect();
            assert_eq!(swapped, expected, "unit {unit}");
        }
    }

    #[test]
    fn empty_means_bitwise_equal() {
        let grid = SubchunkGrid::new(&[2, 300], &[1, 150], 8).expect("divides");
        let zero = 0.0_f64.to_ne_bytes();
        let scatter = ShardScatter::in_c_order(&grid, &zero);
        let mut shard = zero.repeat(600);
        for number in 0..4 {
            assert!(scatter.is_empty(&shard, number));
        }
        shard[8 * 299..8 * 300].copy_from_slice(&(-0.0_f64).to_ne_bytes());
        shard[8 * 450..8 * 451].copy_from_slice(&f64::NAN.to_ne_bytes());
        let empty: Vec<bool> = (0..4).map(|n| scatter.is_empty(&shard, n)).collect();
        assert_eq!(empty, [true, false, true, false]);
    }
}
