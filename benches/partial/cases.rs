//! The updates: random writes to a part of a shard.

use std::ops::Range;

use zarrs_cuda_benches::microscopy::Microscopy;

/// uint16 elements of the shard, along each axis.
pub(crate) const SHARD: u64 = 256;
/// Elements of a subchunk, along each axis.
pub(crate) const SUBCHUNK: u64 = 32;

/// A kind of update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// One whole subchunk.
    OneSubchunk,
    /// A slice across z, one element thick: a part of each of the 64 subchunks that it crosses.
    Slice,
    /// A quarter of the shard along z: 128 whole subchunks.
    Quarter,
}

impl Case {
    pub(crate) const ALL: [Self; 3] = [Self::OneSubchunk, Self::Slice, Self::Quarter];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneSubchunk => "one_subchunk",
            Self::Slice => "slice",
            Self::Quarter => "quarter",
        }
    }

    /// An update at a random place, with random data.
    pub(crate) fn update(self, source: &mut Microscopy) -> Update {
        let shape = match self {
            Self::OneSubchunk => [SUBCHUNK; 3],
            Self::Slice => [1, SHARD, SHARD],
            Self::Quarter => [SHARD / 4, SHARD, SHARD],
        };
        // A random multiple of the shape within the shard.
        let start = shape.map(|size| source.random() % (SHARD / size) * size);
        // The field has moved, and the noise differs, so that encoded sizes differ.
        let moved = start.map(|position| position + source.random() % 1000);
        let noise = 4 + (source.random() % 3) as u32;
        Update {
            data: source.volume(moved, shape, noise),
            start,
            shape,
        }
    }
}

/// A box of a shard, and its new elements.
pub(crate) struct Update {
    start: [u64; 3],
    shape: [u64; 3],
    /// The elements in C order.
    pub(crate) data: Vec<u8>,
}

impl Update {
    /// The box of `shape` (elements) that starts at `start`.
    pub(crate) fn new(start: [u64; 3], shape: [u64; 3], data: Vec<u8>) -> Self {
        Self { start, shape, data }
    }

    /// The range of the written elements along each axis.
    pub(crate) fn ranges(&self) -> [Range<u64>; 3] {
        std::array::from_fn(|axis| self.start[axis]..self.start[axis] + self.shape[axis])
    }

    /// The numbers of the subchunks that are written in whole or in part.
    pub(crate) fn subchunks(&self) -> Vec<usize> {
        let [z, y, x] = self
            .ranges()
            .map(|range| range.start / SUBCHUNK..range.end.div_ceil(SUBCHUNK));
        let across = SHARD / SUBCHUNK;
        let mut subchunks = Vec::new();
        for z in z {
            for y in y.clone() {
                subchunks.extend(x.clone().map(|x| ((z * across + y) * across + x) as usize));
            }
        }
        subchunks
    }

    /// Applies the update to the decoded `shard`.
    pub(crate) fn apply(&self, shard: &mut [u8]) {
        let [z, y, x] = self.ranges();
        let row = (self.shape[2] * 2) as usize;
        let rows = z.flat_map(|z| y.clone().map(move |y| z * SHARD + y));
        for (row_of_shard, data) in rows.zip(self.data.chunks_exact(row)) {
            let at = ((row_of_shard * SHARD + x.start) * 2) as usize;
            shard[at..at + row].copy_from_slice(data);
        }
    }
}
