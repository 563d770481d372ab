//! Arrays that are written as streams of frames, with known content.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::codec::ShardingCodecConfiguration;
use zarrs::array::{Array, ArrayMetadata, ArraySubset};
use zarrs::storage::{ListableStorageTraits, ReadableStorageTraits};
use zarrs_cuda::{Backend, CudaShardingCodec, Options};

/// The lease of a writer, which a writer that was killed leaves.
pub const LEASE: &str = "a/.zarrs-cuda-writer";

/// The path of the array.
pub const PATH: &str = "/a";

/// A kind of array of frames of `uint16`, in three dimensions.
#[derive(Clone, Debug)]
pub struct Frames {
    pub frame: [u64; 2],
    pub shard: [u64; 3],
    pub subchunk: [u64; 3],
    /// Inner codecs after `bytes`.
    pub compressors: Value,
    pub index_at_start: bool,
    pub separator: char,
}

impl Default for Frames {
    /// Frames of 9 × 13 in 2 × 2 shards, which the frames do not fill at the edges; four epochs in
    /// a shard.
    fn default() -> Self {
        Self {
            frame: [9, 13],
            shard: [8, 8, 8],
            subchunk: [2, 4, 4],
            compressors: json!([]),
            index_at_start: false,
            separator: '/',
        }
    }
}

/// The history of an array's writers. Each writes from a start slice on, over the earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Generations(Vec<(u64, u64)>);

impl Generations {
    /// One writer, which starts at slice 0.
    pub fn one() -> Self {
        let mut one = Self::default();
        one.begin(0, 0);
        one
    }

    /// Adds a writer that writes `generation` from slice `start` on.
    pub fn begin(&mut self, start: u64, generation: u64) {
        self.0.push((start, generation));
    }

    /// The generation of `slice`, if every writer got that far.
    fn of(&self, slice: u64) -> u64 {
        let mut newest_first = self.0.iter().rev();
        newest_first.find(|(start, _)| *start <= slice).unwrap().1
    }

    /// All generations that may be stored, the newest first.
    fn all(&self) -> impl Iterator<Item = u64> {
        self.0.iter().rev().map(|(_, generation)| *generation)
    }
}

fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Frames {
    pub fn frame_len(&self) -> usize {
        usize::try_from(self.frame.iter().product::<u64>()).unwrap()
    }

    /// Returns an element of a generation. Some shards, shard epochs and subchunks are empty.
    fn element(&self, generation: u64, [slice, y, x]: [u64; 3]) -> u16 {
        let at = |slice: u64, y: u64, x: u64| mix(mix(generation) ^ (slice << 32) ^ (y << 16) ^ x);
        let [shard, subchunk] = [self.shard, self.subchunk]
            .map(|extent| [slice / extent[0], y / extent[1], x / extent[2]]);
        let is_empty = at(shard[0], 1000, 0).is_multiple_of(7)
            || at(shard[0], 1001 + shard[1], shard[2]).is_multiple_of(5)
            || at(subchunk[0], 2001 + subchunk[1], subchunk[2]).is_multiple_of(5);
        if is_empty {
            return 0;
        }
        u16::try_from(at(slice, y, x) % 1000).unwrap() + 1
    }

    pub fn slice(&self, generation: u64, slice: u64) -> Vec<u16> {
        let [height, width] = self.frame;
        (0..height)
            .flat_map(|y| (0..width).map(move |x| [slice, y, x]))
            .map(|at| self.element(generation, at))
            .collect()
    }

    fn configuration(&self) -> Value {
        let little = json!({ "name": "bytes", "configuration": { "endian": "little" } });
        let mut codecs = vec![little.clone()];
        codecs.extend(self.compressors.as_array().unwrap().iter().cloned());
        json!({
            "chunk_shape": self.subchunk,
            "codecs": codecs,
            "index_codecs": [little, { "name": "crc32c" }],
            "index_location": if self.index_at_start { "start" } else { "end" },
        })
    }

    fn metadata(&self, slices: u64) -> ArrayMetadata {
        serde_json::from_value(json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": [slices, self.frame[0], self.frame[1]],
            "data_type": "uint16",
            "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": self.shard } },
            "chunk_key_encoding": {
                "name": "default",
                "configuration": { "separator": self.separator },
            },
            "fill_value": 0,
            "codecs": [{ "name": "sharding_indexed", "configuration": self.configuration() }],
            "attributes": { "a": "test" },
        }))
        .unwrap()
    }

    /// The array with zarrs' codec, unless ours is registered.
    pub fn stock<S: ?Sized>(&self, store: Arc<S>, slices: u64) -> Array<S> {
        Array::new_with_metadata(store, PATH, self.metadata(slices)).unwrap()
    }

    /// The array with our codec, on the host.
    pub fn ours<S: ?Sized>(&self, store: Arc<S>, slices: u64) -> Array<S> {
        let configuration: ShardingCodecConfiguration =
            serde_json::from_value(self.configuration()).unwrap();
        let options = Options::default().with_backend(Backend::Host);
        let codec = CudaShardingCodec::new_with_configuration(&configuration, options).unwrap();
        let mut builder = self.stock(store.clone(), slices).builder();
        builder.array_to_bytes_codec(Arc::new(codec));
        builder.build(store, PATH).unwrap()
    }

    /// Reads a subset of `array`, and checks it against the written data.
    pub fn check_subset<S: ?Sized + ReadableStorageTraits + 'static>(
        &self,
        array: &Array<S>,
        generations: &Generations,
        ranges: &[Range<u64>; 3],
    ) -> Result<(), String> {
        let subset = ArraySubset::new_with_ranges(ranges);
        let read = array.retrieve_array_subset::<Vec<u16>>(&subset);
        let read = read.map_err(|error| format!("cannot read {ranges:?}: {error}"))?;
        let [slices, ys, xs] = ranges;
        let mut elements = read.into_iter();
        for slice in slices.clone() {
            let generation = generations.of(slice);
            for y in ys.clone() {
                for x in xs.clone() {
                    let (read, written) =
                        (elements.next(), self.element(generation, [slice, y, x]));
                    if read != Some(written) {
                        return Err(format!(
                            "{:?} of {:?}: {read:?}, but {written} was written",
                            [slice, y, x],
                            array.shape()
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads `slices` of `array`, and checks them against the written data.
    pub fn check_slices<S: ?Sized + ReadableStorageTraits + 'static>(
        &self,
        array: &Array<S>,
        generations: &Generations,
        slices: Range<u64>,
    ) -> Result<(), String> {
        let [height, width] = self.frame;
        self.check_subset(array, generations, &[slices, 0..height, 0..width])
    }

    /// The indices of the shard that is stored under `key`.
    pub fn shard_of(&self, key: &str) -> Option<[u64; 3]> {
        let indices = key.strip_prefix("a/c")?.strip_prefix(self.separator)?;
        let indices: Option<Vec<u64>> = indices
            .split(self.separator)
            .map(|i| i.parse().ok())
            .collect();
        indices?.try_into().ok()
    }

    /// Checks that `store` holds nothing unknown: only the metadata, a lease, temporaries and shards. From
    /// index `first` on along the first axis, shards must be whole, of any generation. Nothing may
    /// be written from slice `end` on. Returns the temporaries, and the indices of the checked
    /// shards.
    pub fn check_shards<S>(
        &self,
        store: &Arc<S>,
        generations: &Generations,
        first: u64,
        end: u64,
    ) -> Result<(Vec<String>, Vec<[u64; 3]>), String>
    where
        S: ReadableStorageTraits + ListableStorageTraits + 'static,
    {
        let (mut temporaries, mut shards) = (Vec::new(), Vec::new());
        for key in store.list().map_err(|error| error.to_string())? {
            let key = key.as_str();
            if let Some(of) = key.strip_suffix(".tmp") {
                assert!(of == "a/zarr.json" || self.shard_of(of).is_some(), "{key}");
                temporaries.push(key.to_owned());
            } else if key != "a/zarr.json" && key != LEASE {
                let shard = self.shard_of(key).ok_or(format!("what is {key}?"))?;
                if shard[0] >= first {
                    shards.push(shard);
                }
            }
        }
        let last = shards.iter().map(|shard| shard[0]).max().unwrap_or(0);
        let array = self.stock(store.clone(), (last + 1) * self.shard[0]);
        for shard in &shards {
            let read = array.retrieve_chunk::<Vec<u16>>(shard);
            let read = read.map_err(|error| format!("the shard {shard:?}: {error}"))?;
            if !generations
                .all()
                .any(|g| read == self.whole_shard(g, *shard, end))
            {
                return Err(format!("the shard {shard:?} is not what any writer wrote"));
            }
        }
        Ok((temporaries, shards))
    }

    /// Returns all elements of a shard. Outside of the frames, and from slice `end` on, they are
    /// the fill value.
    fn whole_shard(&self, generation: u64, shard: [u64; 3], end: u64) -> Vec<u16> {
        let [slices, ys, xs] = [0, 1, 2].map(|d| {
            let start: u64 = shard[d] * self.shard[d];
            start..start + self.shard[d]
        });
        let is_inside =
            |[slice, y, x]: [u64; 3]| slice < end && y < self.frame[0] && x < self.frame[1];
        let mut elements = Vec::new();
        for slice in slices {
            for y in ys.clone() {
                elements.extend(xs.clone().map(|x| {
                    let at = [slice, y, x];
                    let written = is_inside(at).then(|| self.element(generation, at));
                    written.unwrap_or(0)
                }));
            }
        }
        elements
    }
}

/// Returns everything that the store holds.
pub fn snapshot<S>(store: &S) -> BTreeMap<String, Vec<u8>>
where
    S: ?Sized + ReadableStorageTraits + ListableStorageTraits,
{
    let keys = store.list().unwrap();
    keys.iter()
        .map(|key| {
            let value = store.get(key).unwrap().unwrap();
            (key.as_str().to_owned(), value.to_vec())
        })
        .collect()
}

/// Returns the keys of the stored temporaries.
pub fn temporaries<S: ?Sized + ListableStorageTraits>(store: &S) -> Vec<String> {
    let keys = store.list().unwrap();
    let keys = keys.iter().map(|key| key.as_str().to_owned());
    keys.filter(|key| key.strip_suffix(".tmp").is_some())
        .collect()
}
