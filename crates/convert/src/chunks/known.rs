//! The chunks that a listing has found. If a later read finds no value for such a chunk, the read returns an
//! error, and not the fill value: another process has deleted the chunk, or its file system was unmounted.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::{Array, ChunkKeyEncoding};
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    Bytes, MaybeBytes, MaybeBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix,
};

use crate::failure::Failure;
use crate::grid::Grid;
use crate::open::{Place, Store, forward_listing, forward_writes};
use crate::stored::Keys;

/// A set of chunks of a grid. Chunks that follow one another in C order take few bytes.
#[derive(Debug)]
pub(super) struct Known {
    place: Place,
    encoding: ChunkKeyEncoding,
    grid: Grid,
    /// For each 64 positions in the grid, 64 bits that say which of these chunks are in the set. The key is
    /// the position divided by 64.
    bits: BTreeMap<u128, u64>,
}

impl Known {
    /// Returns an empty set of chunks of the array at `place`.
    ///
    /// # Errors
    /// The grid has more chunks than can be numbered.
    pub(super) fn none_of(place: &Place, array: &Array<Store>) -> Result<Self, Failure> {
        Ok(Self {
            place: place.clone(),
            encoding: array.chunk_key_encoding().clone(),
            grid: Grid::of(array)?,
            bits: BTreeMap::new(),
        })
    }

    /// Adds the chunk with these indices.
    pub(super) fn add(&mut self, chunk: &[u64]) {
        if let Some(position) = self.grid.position(chunk) {
            *self.bits.entry(position / 64).or_default() |= 1 << (position % 64);
        }
    }

    fn has(&self, chunk: &[u64]) -> bool {
        self.grid.position(chunk).is_some_and(|position| {
            let bits = self.bits.get(&(position / 64));
            bits.is_some_and(|bits| bits >> (position % 64) & 1 == 1)
        })
    }

    fn keys(&self) -> Keys<'_> {
        Keys::new(&self.encoding, self.grid.counts())
    }

    /// Returns the number of chunks in the set.
    pub(super) fn len(&self) -> u64 {
        let counts = self.bits.values().map(|bits| u64::from(bits.count_ones()));
        counts.sum()
    }

    /// Returns the indices of each chunk in the set, in C order.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Vec<u64>> {
        self.bits.iter().flat_map(move |(block, bits)| {
            let set = (0..64).filter(move |bit| bits >> bit & 1 == 1);
            set.map(move |bit| self.grid.indices(block * 64 + bit))
        })
    }

    /// Returns the chunks in the set that lie in a box of the grid, in C order. Chunks outside of the box
    /// cost no time.
    pub(super) fn within(&self, bounds: &[Range<u64>]) -> impl Iterator<Item = Vec<u64>> {
        let first: Vec<u64> = bounds.iter().map(|range| range.start).collect();
        let is_empty = bounds.iter().any(Range::is_empty);
        let mut next = self.grid.position(&first).filter(|_| !is_empty);
        std::iter::from_fn(move || {
            loop {
                let position = self.first_from(next?)?;
                let chunk = self.grid.indices(position);
                let in_box = first_in_box(&chunk, bounds)?;
                if in_box == chunk {
                    next = position.checked_add(1);
                    return Some(chunk);
                }
                next = self.grid.position(&in_box);
            }
        })
    }

    /// Returns the position of the first chunk in the set at or behind `position`.
    fn first_from(&self, position: u128) -> Option<u128> {
        let block = position / 64;
        let later = self.bits.range(block..).map(|(&at, &bits)| match at {
            at if at == block => (at, bits & (u64::MAX << (position % 64))),
            at => (at, bits),
        });
        let mut later = later.filter(|(_, bits)| *bits != 0);
        let (block, bits) = later.next()?;
        Some(block * 64 + u128::from(bits.trailing_zeros()))
    }

    /// Returns `store`, in which the keys of the array begin with `prefix`, as a store that returns an error
    /// where a chunk of the set is missing.
    pub(super) fn watched(self: Arc<Self>, store: Arc<Store>, prefix: String) -> Arc<Store> {
        let known = self;
        Arc::new(Watched {
            store,
            prefix,
            known,
        })
    }
}

/// Returns the first chunk of a box, in C order, at or behind `chunk`. The box is not empty.
fn first_in_box(chunk: &[u64], bounds: &[Range<u64>]) -> Option<Vec<u64>> {
    let mut first = chunk.to_vec();
    let outside = first
        .iter()
        .zip(bounds)
        .position(|(index, range)| !range.contains(index));
    let Some(mut axis) = outside else {
        return Some(first);
    };
    if first[axis] >= bounds[axis].end {
        // The next chunk in the box has a larger index along an earlier axis.
        axis = (0..axis)
            .rev()
            .find(|&axis| first[axis] + 1 < bounds[axis].end)?;
        first[axis] += 1;
        axis += 1;
    }
    for (index, range) in first.iter_mut().zip(bounds).skip(axis) {
        *index = range.start;
    }
    Some(first)
}

/// A store that returns an error if a chunk of the set is missing.
struct Watched {
    store: Arc<Store>,
    prefix: String,
    known: Arc<Known>,
}

impl Watched {
    /// Returns `found`, the value that the store has for `key`, or an error if `key` is a chunk of the set
    /// and has no value.
    fn checked<T>(&self, key: &StoreKey, found: Option<T>) -> Result<Option<T>, StorageError> {
        if found.is_none()
            && let Some(of_array) = key.as_str().strip_prefix(&self.prefix)
            && let Some(chunk) = self.known.keys().in_grid(of_array)
            && self.known.has(&chunk)
        {
            return Err(StorageError::Other(format!(
                "{} was stored when the chunks of {} were counted, and is gone: another process has deleted it, or \
                 what was mounted there is gone",
                self.known.place.join(of_array),
                self.known.place
            )));
        }
        Ok(found)
    }
}

impl ReadableStorageTraits for Watched {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.checked(key, self.store.get(key)?)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.checked(key, self.store.get_partial_many(key, byte_ranges)?)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.checked(key, self.store.size_key(key)?)
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}

forward_writes!(Watched, store);
forward_listing!(Watched, store);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zarrs::array::{ArrayBuilder, ArraySubset, data_type};
    use zarrs_cuda_testing::Rng;
    use zarrs_storage::store::MemoryStore;
    use zarrs_storage::{ReadableStorageTraits, StoreKey, StorePrefix, WritableStorageTraits};

    use super::Known;
    use crate::open::{Place, Store};

    #[test]
    fn chunks_in_a_box() {
        let mut rng = Rng(5);
        let place: Place = "somewhere".parse().unwrap();
        for _ in 0..300 {
            let rank = rng.below(4);
            let shape: Vec<u64> = (0..rank).map(|_| 1 + rng.below(12)).collect();
            let ones = vec![1; shape.len()];
            let store: Arc<Store> = Arc::new(MemoryStore::new());
            let array = ArrayBuilder::new(shape.clone(), ones, data_type::uint8(), 0_u8);
            let array = array.build(store, "/").unwrap();
            let mut known = Known::none_of(&place, &array).unwrap();
            let grid = ArraySubset::new_with_shape(shape.clone());
            let one_in = 1 + rng.below(9);
            let chunks: Vec<Vec<u64>> = grid.indices().into_iter().map(|i| i.to_vec()).collect();
            let chunks: Vec<_> = chunks.into_iter().filter(|_| rng.one_in(one_in)).collect();
            for chunk in &chunks {
                known.add(chunk);
            }
            let bounds: Vec<_> = shape
                .iter()
                .map(|&extent| {
                    let start = rng.below(extent);
                    start..start + rng.below(extent - start + 1)
                })
                .collect();
            let is_in = |chunk: &&Vec<u64>| chunk.iter().zip(&bounds).all(|(i, b)| b.contains(i));
            let naive: Vec<_> = chunks.iter().filter(is_in).cloned().collect();
            assert_eq!(
                known.within(&bounds).collect::<Vec<_>>(),
                naive,
                "{bounds:?}"
            );
        }
    }

    #[test]
    fn chunks_that_are_gone() {
        let store: Arc<Store> = Arc::new(MemoryStore::new());
        for shape in [vec![], vec![7], vec![3, 200], vec![1 << 62, 1 << 40]] {
            let rank = shape.len();
            let array = ArrayBuilder::new(shape, vec![1; rank], data_type::uint8(), 0_u8)
                .build(store.clone(), "/array")
                .unwrap();
            let place: Place = "somewhere".parse().unwrap();
            let mut known = Known::none_of(&place, &array).unwrap();
            let chunks: Vec<Vec<u64>> = match rank {
                0 => vec![vec![]],
                1 => vec![vec![0], vec![6]],
                _ => vec![vec![0, 1], vec![0, 63], vec![0, 64], vec![2, 199]],
            };
            for chunk in &chunks {
                known.add(chunk);
            }
            assert_eq!(known.len(), chunks.len() as u64);
            assert_eq!(known.chunks().collect::<Vec<_>>(), chunks);
            let watched = Arc::new(known).watched(store.clone(), "array/".to_string());
            for chunk in &chunks {
                let key = array.chunk_key(chunk);
                let gone = [
                    watched.get(&key).map(drop),
                    watched.size_key(&key).map(drop),
                    watched
                        .get_partial_many(&key, Box::new([].into_iter()))
                        .map(drop),
                ];
                for gone in gone {
                    assert!(gone.unwrap_err().to_string().contains("is gone"));
                }
                watched.set(&key, vec![1].into()).unwrap();
                assert!(watched.get(&key).unwrap().is_some());
            }
            for other in ["zarr.json", "array/zarr.json", "array/c/1", "array/c/1/1"] {
                let other = StoreKey::new(other).unwrap();
                assert!(watched.get(&other).unwrap().is_none(), "{other}");
            }
            store.erase_prefix(&StorePrefix::root()).unwrap();
        }
    }
}
