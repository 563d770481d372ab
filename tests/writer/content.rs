//! Elements to append. Some whole shards and subchunks hold only the fill value.

use std::collections::BTreeMap;

use zarrs_cuda_testing::types::Type;
use zarrs_cuda_testing::{Rng, Shards, all_indices};

/// How much of the content is the fill value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Density {
    /// All of it.
    Empty,
    /// Some whole shards and subchunks.
    Holes,
    /// No whole subchunk, except by chance, but most of some subchunks.
    Full,
}

/// The bytes of an array of `shape` whose first slice is the first of a shard.
pub(crate) fn bytes(shards: &Shards, shape: &[u64], density: Density, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    let data_type = Type::of(&shards.data_type);
    // Few different values, so that they compress, and zeros of both signs.
    let mut values: Vec<Vec<u8>> = (0..5).map(|_| data_type.element(&mut rng)).collect();
    values.push(shards.fill.clone());
    let mut negative_zero = vec![0; data_type.size()];
    values.push(negative_zero.clone());
    *negative_zero.last_mut().unwrap() = 0x80;
    data_type.normalise(&mut negative_zero);
    values.push(negative_zero);

    let mut whole = BTreeMap::new();
    let mut parts = BTreeMap::new();
    let mut all = Vec::new();
    for at in all_indices(shape) {
        let within = |extents: &[u64]| -> Vec<u64> {
            at.iter()
                .zip(extents)
                .map(|(i, extent)| i / extent)
                .collect()
        };
        let shard_is_empty = *whole
            .entry(within(&shards.shape))
            .or_insert_with(|| rng.one_in(4));
        // Empty, sparse, or full.
        let kind = *parts
            .entry(within(&shards.subchunk))
            .or_insert_with(|| rng.below(3));
        let fill = match density {
            Density::Empty => true,
            Density::Holes => shard_is_empty || kind == 0 || (kind == 1 && !rng.one_in(9)),
            Density::Full => kind == 0 && !rng.one_in(9),
        };
        if fill {
            all.extend(&shards.fill);
        } else {
            let number = usize::try_from(rng.below(values.len() as u64)).unwrap();
            all.extend(&values[number]);
        }
    }
    all
}
