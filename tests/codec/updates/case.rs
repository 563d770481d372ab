//! Arrays to update, described as data: the format of their shards, and the codec that opens them.

use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{Array, ArrayBytes, ArrayMetadata, DataType, Element as _, data_type};
use zarrs_cuda::{Options, WriteStrategy, explain, register};

use zarrs_cuda_testing::index::IndexLayout;
use zarrs_cuda_testing::{Rng, Shards, codecs};

/// The bytes of one element.
pub(crate) type Element = Vec<u8>;

pub(crate) const STRATEGIES: [WriteStrategy; 4] = [
    WriteStrategy::Auto,
    WriteStrategy::Append,
    WriteStrategy::InPlace,
    WriteStrategy::Slots,
];

pub(crate) const LOCATIONS: [ShardingIndexLocation; 2] =
    [ShardingIndexLocation::Start, ShardingIndexLocation::End];

/// The number of shards of each array.
pub(crate) const NUM_SHARDS: usize = 2;

/// The encoding of subchunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    /// All nonempty subchunks have the same encoded size.
    pub(crate) fixed: bool,
    /// At least the parts of subchunks have a fixed encoded size, so `Auto` updates them in place.
    pub(crate) in_place: bool,
    /// The encoded size of subchunks has an upper bound.
    pub(crate) bounded: bool,
}

const fn chain(name: &'static str, [fixed, in_place, bounded]: [bool; 3]) -> Chain {
    Chain {
        name,
        fixed,
        in_place,
        bounded,
    }
}

const FIXED: [bool; 3] = [true, true, true];
const PARTS_ARE_FIXED: [bool; 3] = [false, true, true];
const BOUNDED: [bool; 3] = [false, false, true];
const UNBOUNDED: [bool; 3] = [false, false, false];

pub(crate) const CHAINS: [Chain; 14] = [
    chain("none", FIXED),
    chain("big-endian", FIXED),
    chain("crc32c", FIXED),
    chain("unknown codec", FIXED),
    chain("zstd", BOUNDED),
    chain("zstd, crc32c", BOUNDED),
    chain("gzip", BOUNDED),
    chain("blosc", BOUNDED),
    chain("transpose, zstd", BOUNDED),
    chain("no bound", UNBOUNDED),
    chain("nested", PARTS_ARE_FIXED),
    chain("nested zstd", BOUNDED),
    chain("nested, zstd", BOUNDED),
    chain("strings", UNBOUNDED),
];

pub(crate) fn chain_named(name: &str) -> Chain {
    CHAINS.into_iter().find(|c| c.name == name).unwrap()
}

/// The codecs around the sharding codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outer {
    Nothing,
    /// Reverses the axes.
    Transpose,
    /// With this, zarrs does not use a partial encoder by itself.
    Compressor,
}

/// Arrays of two shards of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) chain: Chain,
    /// In the array's order of axes, before the outer codecs.
    pub(crate) shape: Vec<u64>,
    pub(crate) subchunk: Vec<u64>,
    pub(crate) index: IndexLayout,
    pub(crate) outer: Outer,
}

impl Case {
    /// Six subchunks of 4 × 4 elements in a shard of 8 × 12.
    pub(crate) fn new(chain: Chain, location: ShardingIndexLocation) -> Self {
        Self {
            chain,
            shape: vec![8, 12],
            subchunk: vec![4, 4],
            index: IndexLayout {
                location,
                ..IndexLayout::default()
            },
            outer: Outer::Nothing,
        }
    }

    pub(crate) fn is_strings(&self) -> bool {
        self.chain.name == "strings"
    }

    fn codecs(&self) -> Vec<Value> {
        let little = codecs::bytes("little");
        let zstd = codecs::zstd(1, false);
        let reverse: Vec<usize> = (0..self.shape.len()).rev().collect();
        let nested = |inner: &[Value]| codecs::sharding(&self.sharded(&self.inner()), inner);
        match self.chain.name {
            "none" => vec![little],
            "big-endian" => vec![codecs::bytes("big")],
            "crc32c" => vec![little, codecs::crc32c()],
            "unknown codec" => vec![little, codecs::xor()],
            "zstd" => vec![little, zstd],
            "zstd, crc32c" => vec![little, zstd, codecs::crc32c()],
            "gzip" => vec![little, codecs::gzip(5)],
            "blosc" => vec![little, codecs::blosc("lz4", 5, "shuffle", 2)],
            "transpose, zstd" => vec![codecs::transpose(&reverse), little, zstd],
            "no bound" => vec![little, codecs::padding()],
            "nested" => vec![nested(&[little])],
            "nested zstd" => vec![nested(&[little, zstd])],
            "nested, zstd" => vec![nested(&[little]), zstd],
            "strings" => vec![json!({ "name": "vlen-utf8" }), zstd],
            other => panic!("no chain {other}"),
        }
    }

    /// The shape of a nested shard's subchunks: halves.
    pub(crate) fn inner(&self) -> Vec<u64> {
        let mut shape = self.subchunk.clone();
        shape[0] = shape[0].div_ceil(2);
        shape
    }

    /// Converts a shape of the array to the sharding codec's order of axes.
    pub(crate) fn sharded(&self, shape: &[u64]) -> Vec<u64> {
        let mut shape = shape.to_vec();
        if self.outer == Outer::Transpose {
            shape.reverse();
        }
        shape
    }

    /// The shards in the sharding codec's order of axes.
    pub(crate) fn shards(&self) -> Shards {
        Shards {
            shape: self.sharded(&self.shape),
            subchunk: self.sharded(&self.subchunk),
            data_type: self.data_type(),
            fill: self.fill(),
            codecs: self.codecs(),
            index: self.index,
        }
    }

    fn data_type(&self) -> DataType {
        if self.is_strings() {
            data_type::string()
        } else {
            data_type::uint16()
        }
    }

    /// The shape of the array. The second shard extends beyond it.
    pub(crate) fn array_shape(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        shape[0] = NUM_SHARDS as u64 * shape[0] - 1;
        shape
    }

    pub(crate) fn num_elements(&self) -> usize {
        self.shards().num_elements()
    }

    /// The number of the element at `indices` of a shard, in the array's order.
    pub(crate) fn number(&self, indices: &[u64]) -> usize {
        let number = indices.iter().zip(&self.shape);
        usize::try_from(number.fold(0, |number, (i, d)| number * d + i)).unwrap()
    }

    /// The number of the subchunk with the element at `indices`.
    pub(crate) fn subchunk_of(&self, indices: &[u64]) -> usize {
        self.shards().subchunk_of(&self.sharded(indices))
    }

    /// Whether a shard may be followed by other bytes.
    pub(crate) fn takes_junk(&self) -> bool {
        self.outer != Outer::Compressor && self.index.location == ShardingIndexLocation::Start
    }

    /// The metadata of an array.
    fn metadata(&self) -> ArrayMetadata {
        let reverse: Vec<usize> = (0..self.shape.len()).rev().collect();
        let sharding = json!({ "name": "sharding_indexed", "configuration": self.shards().json() });
        let codecs = match self.outer {
            Outer::Nothing => vec![sharding],
            Outer::Transpose => vec![codecs::transpose(&reverse), sharding],
            Outer::Compressor => vec![sharding, codecs::gzip(1)],
        };
        let metadata = json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": self.array_shape(),
            "data_type": if self.is_strings() { "string" } else { "uint16" },
            "chunk_grid": {
                "name": "regular",
                "configuration": { "chunk_shape": self.shape },
            },
            "chunk_key_encoding": { "name": "default", "configuration": { "separator": "/" } },
            "fill_value": if self.is_strings() { json!("none") } else { json!(9) },
            "codecs": codecs,
        });
        serde_json::from_value(metadata).unwrap()
    }

    /// Opens the array with zarrs' codecs, or with ours if there are options for it.
    fn open<S: ?Sized>(&self, store: &Arc<S>, ours: Option<Options>) -> Array<S> {
        let _alone = crate::registry();
        let registration = ours.map(|options| register(options).unwrap());
        let array = Array::new_with_metadata(store.clone(), "/array", self.metadata()).unwrap();
        assert_eq!(explain(&array).is_ok(), registration.is_some());
        array
    }

    /// Opens the array with zarrs' own codecs.
    pub(crate) fn stock<S: ?Sized>(&self, store: &Arc<S>) -> Array<S> {
        self.open(store, None)
    }

    /// Opens the array with our codec, also for nested sharding.
    pub(crate) fn ours<S: ?Sized>(&self, store: &Arc<S>, options: Options) -> Array<S> {
        self.open(store, Some(options))
    }

    /// The fill value.
    pub(crate) fn fill(&self) -> Element {
        if self.is_strings() {
            b"none".to_vec()
        } else {
            9_u16.to_ne_bytes().to_vec()
        }
    }

    /// A random element out of `variety` different ones.
    fn element(&self, rng: &mut Rng, variety: u64) -> Element {
        let number = rng.below(variety);
        if self.is_strings() {
            if number % 10 == 9 {
                return self.fill();
            }
            // No string is empty. If all other elements are the fill value, zarrs cannot tell an
            // empty string from a missing one.
            let len = usize::try_from(number % 17).unwrap();
            format!("{number:017}").into_bytes()[16 - len..].to_vec()
        } else {
            u16::try_from(number % 0x1_0000)
                .unwrap()
                .to_ne_bytes()
                .to_vec()
        }
    }

    /// Converts elements to zarrs' form.
    pub(crate) fn to_bytes(&self, elements: &[Element]) -> ArrayBytes<'static> {
        if self.is_strings() {
            Vec::<u8>::into_array_bytes(&data_type::bytes(), elements.to_vec()).unwrap()
        } else {
            ArrayBytes::from(elements.concat())
        }
    }

    /// Converts elements from zarrs' form.
    pub(crate) fn parse(&self, bytes: ArrayBytes<'_>) -> Vec<Element> {
        if self.is_strings() {
            let (bytes, offsets) = bytes.into_variable().unwrap().into_parts();
            let elements = offsets.windows(2);
            elements
                .map(|pair| bytes[pair[0]..pair[1]].to_vec())
                .collect()
        } else {
            let bytes = bytes.into_fixed().unwrap();
            bytes.chunks(2).map(<[u8]>::to_vec).collect()
        }
    }
}

/// Elements to write, as data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Values {
    Fill,
    /// One value for all elements.
    Constant(u64),
    /// Few different values, among them the fill value.
    Few(u64),
    /// Incompressible values.
    Any(u64),
}

impl Values {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let seed = rng.next();
        match rng.below(6) {
            0 | 1 => Self::Fill,
            2 => Self::Constant(seed),
            3 => Self::Few(seed),
            _ => Self::Any(seed),
        }
    }

    pub(crate) fn elements(self, case: &Case, len: usize) -> Vec<Element> {
        let (mut rng, variety) = match self {
            Self::Fill => return vec![case.fill(); len],
            Self::Constant(seed) => {
                let mut rng = Rng(seed);
                return vec![case.element(&mut rng, 1 << 16); len];
            }
            Self::Few(seed) => (Rng(seed), 10),
            Self::Any(seed) => (Rng(seed), u64::MAX),
        };
        (0..len).map(|_| case.element(&mut rng, variety)).collect()
    }
}
