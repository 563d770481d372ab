//! A shape, a data type, a chain of codecs, and elements: what a target makes of the first bytes of
//! its input.

use std::sync::{Arc, LazyLock};

use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};
use zarrs::array::codec::{ShardingCodec, ShardingIndexLocation};
use zarrs::array::{ArraySubset, Indexer};
use zarrs_codec::CodecOptions;
use zarrs_cuda::{CudaShardingCodec, Options, WriteStrategy};

use crate::common::index::IndexLayout;
use crate::common::types::{self, Type};
use crate::common::{Rng, Shards, codecs};
use crate::outcome::{assert_agree, of_ours, of_zarrs};

/// Elements of a shard, at most.
const MOST_ELEMENTS: u64 = 300;

/// Bytes of a decoded shard, at most.
const MOST_BYTES: u64 = 4096;

/// What codecs outside of this repository allocate is known, and not what is looked for, unless this
/// environment variable is set.
const FOREIGN: &str = "ZARRS_CUDA_FUZZ_FOREIGN";

static WITH_FOREIGN: LazyLock<bool> = LazyLock::new(|| std::env::var_os(FOREIGN).is_some());

static TYPES: LazyLock<Vec<Type>> = LazyLock::new(types::fixed);

/// A shard to encode, and how.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) shards: Shards,
    pub(crate) data_type: Type,
    pub(crate) elements: Vec<u8>,
    /// Whether no codec of zarrs decodes it.
    pub(crate) is_known: bool,
    pub(crate) options: CodecOptions,
    pub(crate) strategy: WriteStrategy,
}

impl Case {
    pub(crate) fn new(u: &mut Unstructured<'_>) -> Result<Self> {
        let axes = axes(u)?;
        let subchunk: Vec<u64> = axes.iter().map(|(_, extent)| *extent).collect();
        let shape: Vec<u64> = axes.iter().map(|(count, extent)| count * extent).collect();
        let elements: u64 = shape.iter().product();
        let mut data_type = u.choose(&TYPES)?.clone();
        if elements * data_type.size() as u64 > MOST_BYTES {
            data_type = types::named("uint16");
        }
        let mut chain = Chain::new();
        chain.extend(u, &subchunk, 0)?;
        let seed = u64::from(u.arbitrary::<u32>()?);
        let mut fill = vec![0; data_type.size()];
        if u.ratio(1, 2)? {
            fill = data_type.element(&mut Rng(seed));
        }
        let shards = Shards {
            shape,
            subchunk,
            data_type: data_type.data_type.clone(),
            fill,
            codecs: chain.codecs,
            index: IndexLayout {
                location: if u.ratio(1, 4)? {
                    ShardingIndexLocation::Start
                } else {
                    ShardingIndexLocation::End
                },
                big_endian: u.ratio(1, 4)?,
                checksum: u.ratio(2, 3)?,
            },
        };
        let options = CodecOptions::default()
            .with_concurrent_target(usize::from(!u.ratio(1, 16)?))
            .with_store_empty_chunks(u.ratio(1, 8)?)
            .with_validate_checksums(!u.ratio(1, 8)?);
        Ok(Self {
            elements: elements_of(&shards, &data_type, u.arbitrary()?, seed),
            is_known: chain.is_known,
            strategy: *u.choose(&STRATEGIES)?,
            shards,
            data_type,
            options,
        })
    }

    /// Our codec; `None` if there is no such codec, which zarrs has to agree to.
    pub(crate) fn ours(&self) -> Option<Arc<CudaShardingCodec>> {
        let ours = self.shards.try_ours();
        let stock = self.shards.try_stock();
        assert_eq!(
            ours.as_ref().err().map(ToString::to_string),
            stock.err().map(|error| error.to_string()),
            "creating the codec {}",
            self.shards.json(),
        );
        let options = Options::default().with_write_strategy(self.strategy);
        Some(Arc::new((*ours.ok()?).clone().with_options(options)))
    }

    pub(crate) fn stock(&self) -> Arc<ShardingCodec> {
        self.shards.stock()
    }

    /// The shard; `None` if its codecs do not encode elements of this type, which zarrs has to agree
    /// to.
    pub(crate) fn encoded(&self, ours: &CudaShardingCodec) -> Option<Vec<u8>> {
        let encoded = of_ours(|| self.shards.encode(ours, &self.elements, &self.options));
        let stock = self.stock();
        let by_zarrs = of_zarrs(|| {
            self.shards
                .encode(stock.as_ref(), &self.elements, &self.options)
        });
        // What is compressed is not as long by zarrs.
        let same = encoded.is_ok() == by_zarrs.is_ok() || self.may_refuse_lengths();
        assert!(
            same,
            "encoding with {}: ours {:?}, zarrs {:?}",
            self.shards.json(),
            encoded.err(),
            by_zarrs.err(),
        );
        encoded.ok()
    }

    /// What zarrs decodes.
    pub(crate) fn decoded_by_zarrs(&self, encoded: &[u8]) -> Result<Vec<u8>, String> {
        let stock = self.stock();
        of_zarrs(|| self.shards.decode(stock.as_ref(), encoded, &self.options))
    }

    /// What our codec decodes, in one way and in another.
    pub(crate) fn decoded(
        &self,
        ours: &Arc<CudaShardingCodec>,
        encoded: &[u8],
    ) -> Result<Vec<u8>, String> {
        let options = &self.options;
        let decoded = of_ours(|| self.shards.decode(ours.as_ref(), encoded, options));
        let into = of_ours(|| self.shards.decode_into(ours.clone(), encoded, options));
        assert_agree(("decode", &decoded), ("decode_into", &into));
        decoded
    }

    /// Bytes that reading a shard of so many bytes may allocate at once.
    pub(crate) fn most_memory(&self, encoded: usize) -> usize {
        if !self.is_known && !*WITH_FOREIGN {
            return usize::MAX;
        }
        16 * (self.elements.len() + encoded) + (1 << 20)
    }

    /// Whether a codec refuses to encode bytes of some lengths.
    pub(crate) fn may_refuse_lengths(&self) -> bool {
        self.shards.json().to_string().contains("numcodecs.shuffle")
    }

    /// Whether checksums are compared.
    pub(crate) fn validates(&self) -> bool {
        self.options.validate_checksums()
    }

    /// Whether frames say how much zarrs allocates for them.
    pub(crate) fn has_blosc(&self) -> bool {
        self.shards.json().to_string().contains(r#""name":"blosc""#)
    }

    /// Elements of the shard: a box, or some points, one of them more than once perhaps.
    pub(crate) fn indexer(&self, u: &mut Unstructured<'_>) -> Result<Box<dyn Indexer>> {
        let shape = &self.shards.shape;
        if u.ratio(1, 3)? {
            let mut points = Vec::new();
            for _ in 0..u.int_in_range(1..=6)? {
                points.push(
                    shape
                        .iter()
                        .map(|d| u.int_in_range(0..=d - 1))
                        .collect::<Result<Vec<u64>>>()?,
                );
            }
            return Ok(Box::new(points));
        }
        Ok(Box::new(self.subset(u)?))
    }

    /// A box of the shard.
    pub(crate) fn subset(&self, u: &mut Unstructured<'_>) -> Result<ArraySubset> {
        let mut ranges = Vec::new();
        for d in &self.shards.shape {
            let start = u.int_in_range(0..=d - 1)?;
            ranges.push(start..u.int_in_range(start + 1..=*d)?);
        }
        Ok(ArraySubset::new_with_ranges(&ranges))
    }
}

pub(crate) const STRATEGIES: [WriteStrategy; 4] = [
    WriteStrategy::Auto,
    WriteStrategy::Append,
    WriteStrategy::InPlace,
    WriteStrategy::Slots,
];

/// How many subchunks along each axis, and how many elements in each.
fn axes(u: &mut Unstructured<'_>) -> Result<Vec<(u64, u64)>> {
    let mut axes = Vec::new();
    let mut elements = 1;
    for _ in 0..u.int_in_range(0..=4)? {
        let mut axis = (u.int_in_range(1..=4)?, u.int_in_range(1..=6)?);
        if elements * axis.0 * axis.1 > MOST_ELEMENTS {
            axis = (1, 1);
        }
        elements *= axis.0 * axis.1;
        axes.push(axis);
    }
    Ok(axes)
}

/// Elements of which some subchunks have none but the fill value, and which compress.
fn elements_of(shards: &Shards, data_type: &Type, empty: u16, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    let palette: Vec<_> = (0..3).map(|_| data_type.element(&mut rng)).collect();
    let indices = crate::common::all_indices(&shards.shape);
    indices
        .flat_map(|indices| {
            let subchunk = shards.subchunk_of(&indices);
            if empty >> (subchunk % 16) & 1 == 1 {
                shards.fill.clone()
            } else if rng.one_in(4) {
                data_type.element(&mut rng)
            } else {
                palette[usize::from(rng.byte() % 3)].clone()
            }
        })
        .collect()
}

/// The codecs of subchunks.
struct Chain {
    codecs: Vec<Value>,
    is_known: bool,
}

impl Chain {
    const fn new() -> Self {
        Self {
            codecs: Vec::new(),
            is_known: true,
        }
    }

    /// Add codecs for subchunks of this shape, in so many shards.
    fn extend(&mut self, u: &mut Unstructured<'_>, subchunk: &[u64], depth: usize) -> Result<()> {
        let mut shape = Some(subchunk.to_vec());
        match u.int_in_range(0..=9)? {
            0..=2 if !subchunk.is_empty() => {
                let order = Rng(u64::from(u.arbitrary::<u8>()?)).permutation(subchunk.len());
                shape = Some(order.iter().map(|&axis| subchunk[axis]).collect());
                self.codecs.push(codecs::transpose(&order));
            }
            3 if !subchunk.is_empty() => {
                let configuration = json!({ "shape": [-1] });
                let reshape = json!({ "name": "reshape", "configuration": configuration });
                self.foreign(reshape);
                shape = None;
            }
            4 => {
                self.foreign(json!({ "name": "zarrs.squeeze", "configuration": {} }));
                shape = None;
            }
            _ => {}
        }
        let mut is_nested = false;
        match (u.int_in_range(0..=9)?, shape) {
            (0..=3, _) => self.codecs.push(codecs::bytes("little")),
            (4 | 5, _) => self.codecs.push(codecs::bytes("big")),
            (6, _) => self.foreign(codecs::packbits()),
            (_, Some(shape)) if depth < 2 => {
                let mut inner = Vec::new();
                for &extent in &shape {
                    let divisors: Vec<u64> = (1..=extent).filter(|d| extent % d == 0).collect();
                    inner.push(*u.choose(&divisors)?);
                }
                let mut nested = Self::new();
                nested.extend(u, &inner, depth + 1)?;
                self.is_known &= nested.is_known;
                self.codecs.push(codecs::sharding(&inner, &nested.codecs));
                is_nested = true;
            }
            _ => self.codecs.push(codecs::bytes("little")),
        }
        for _ in 0..u.int_in_range(0..=2)? {
            self.after(u)?;
            // What is around a nested shard is for zarrs to decode.
            self.is_known &= !is_nested;
        }
        Ok(())
    }

    /// Add a bytes-to-bytes codec.
    fn after(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let codec = match u.int_in_range(0..=13)? {
            0..=2 => codecs::crc32c(),
            3..=5 => codecs::zstd(u.int_in_range(-5..=9)?, u.arbitrary()?),
            6 | 7 => codecs::gzip(u.int_in_range(0..=9)?),
            // Its frames say how much zarrs allocates for them, 2 GiB at most.
            8..=10 if self.is_known || *WITH_FOREIGN => codecs::blosc(
                u.choose(&codecs::BLOSC_COMPRESSORS)?,
                u.int_in_range(0..=9)?,
                u.choose(&codecs::BLOSC_SHUFFLES)?,
                u.int_in_range(1..=17)?,
            ),
            other => {
                let other = match other % 6 {
                    0 => codecs::shuffle(u.int_in_range(1..=4)?),
                    1 => codecs::xor(),
                    2 => json!({ "name": "numcodecs.adler32", "configuration": {} }),
                    3 => json!({ "name": "numcodecs.fletcher32", "configuration": {} }),
                    4 => json!({ "name": "numcodecs.zlib", "configuration": { "level": 1 } }),
                    _ => json!({ "name": "numcodecs.bz2", "configuration": { "level": 1 } }),
                };
                let is_blosc = |codec: &Value| codec["name"] == "blosc";
                if *WITH_FOREIGN || !self.codecs.iter().any(is_blosc) {
                    self.foreign(other);
                }
                return Ok(());
            }
        };
        self.codecs.push(codec);
        Ok(())
    }

    fn foreign(&mut self, codec: Value) {
        self.is_known = false;
        self.codecs.push(codec);
    }
}
