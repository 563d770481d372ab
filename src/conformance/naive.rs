//! The oracle: `sharding_indexed` as its specification says it, one element at a time.

use std::borrow::Cow;
use std::num::NonZeroU64;

use zarrs::array::{ArrayBytes, ArrayToBytesCodecTraits, CodecChain, CodecOptions, data_type};
use zarrs::array::{DataType, FillValue};

/// Everything about a shard but its elements.
pub(super) struct Naive<'a> {
    pub(super) shard: &'a [NonZeroU64],
    pub(super) subchunk: &'a [NonZeroU64],
    pub(super) data_type: &'a DataType,
    pub(super) fill_value: &'a FillValue,
    pub(super) inner_codecs: &'a CodecChain,
    pub(super) index_codecs: &'a CodecChain,
    pub(super) index_at_start: bool,
    pub(super) store_empty: bool,
}

impl Naive<'_> {
    /// The coordinates of the subchunks, in C order.
    pub(super) fn subchunks(&self) -> Vec<Vec<u64>> {
        let counts = self
            .shard
            .iter()
            .zip(self.subchunk)
            .map(|(s, c)| s.get() / c.get());
        all_coordinates(&counts.collect::<Vec<_>>())
    }

    /// The elements of one subchunk, in C order.
    pub(super) fn elements(&self, shard: &[u8], subchunk: &[u64]) -> Vec<u8> {
        let size = self.data_type.fixed_size().expect("a fixed-size data type");
        let extents: Vec<u64> = self.subchunk.iter().map(|c| c.get()).collect();
        let mut elements = Vec::new();
        for within in all_coordinates(&extents) {
            let mut position = 0;
            for d in 0..extents.len() {
                position = position * self.shard[d].get() + subchunk[d] * extents[d] + within[d];
            }
            let start = usize::try_from(position).expect("small") * size;
            elements.extend_from_slice(&shard[start..start + size]);
        }
        elements
    }

    /// Whether every element is the fill value, bit by bit.
    pub(super) fn is_empty(&self, elements: &[u8]) -> bool {
        let fill_value = self.fill_value.as_ne_bytes();
        elements.chunks(fill_value.len()).all(|e| e == fill_value)
    }

    /// One subchunk through the inner codecs.
    pub(super) fn encode(&self, elements: &[u8]) -> Vec<u8> {
        self.inner_codecs
            .encode(
                ArrayBytes::new_flen(Cow::Borrowed(elements)),
                self.subchunk,
                self.data_type,
                self.fill_value,
                &CodecOptions::default(),
            )
            .expect("zarrs encodes")
            .into_owned()
    }

    /// One subchunk back through the inner codecs.
    pub(super) fn decode(&self, encoded: &[u8]) -> Vec<u8> {
        self.inner_codecs
            .decode(
                Cow::Borrowed(encoded),
                self.subchunk,
                self.data_type,
                self.fill_value,
                &CodecOptions::default(),
            )
            .and_then(|bytes| Ok(bytes.into_fixed()?.into_owned()))
            .expect("zarrs decodes")
    }

    /// The whole shard: subchunks in C order, densely, and the index before or after them.
    pub(super) fn encode_shard(&self, shard: &[u8]) -> Vec<u8> {
        let index_len = self
            .encode_index(&vec![0; 2 * self.subchunks().len()])
            .len();
        let mut subchunks = Vec::new();
        let mut index = Vec::new();
        for coordinates in self.subchunks() {
            let elements = self.elements(shard, &coordinates);
            if self.is_empty(&elements) && !self.store_empty {
                index.extend([u64::MAX, u64::MAX]);
                continue;
            }
            let encoded = self.encode(&elements);
            let before = subchunks.len() + if self.index_at_start { index_len } else { 0 };
            index.extend([before as u64, encoded.len() as u64]);
            subchunks.extend(encoded);
        }
        let index = self.encode_index(&index);
        if self.index_at_start {
            [index, subchunks].concat()
        } else {
            [subchunks, index].concat()
        }
    }

    fn encode_index(&self, words: &[u64]) -> Vec<u8> {
        let mut shape: Vec<NonZeroU64> = self
            .shard
            .iter()
            .zip(self.subchunk)
            .map(|(s, c)| NonZeroU64::new(s.get() / c.get()).expect("divides"))
            .collect();
        shape.push(NonZeroU64::MIN.saturating_add(1));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.index_codecs
            .encode(
                ArrayBytes::from(bytes),
                &shape,
                &data_type::uint64(),
                &FillValue::from(u64::MAX),
                &CodecOptions::default(),
            )
            .expect("zarrs encodes an index")
            .into_owned()
    }
}

/// All coordinates below `extents`, last axis fastest.
fn all_coordinates(extents: &[u64]) -> Vec<Vec<u64>> {
    let mut all = vec![vec![]];
    for &extent in extents {
        all = all
            .into_iter()
            .flat_map(|slower: Vec<u64>| {
                (0..extent).map(move |i| [slower.clone(), vec![i]].concat())
            })
            .collect();
    }
    all
}
