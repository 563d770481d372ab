//! A shape, a data type, a chain of codecs, and elements, which a target makes from the first bytes
//! of its input.

use std::sync::{Arc, LazyLock};

use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};
use zarrs::array::codec::{ShardingCodec, ShardingIndexLocation};
use zarrs::array::{ArraySubset, Indexer};
use zarrs_codec::CodecOptions;
use zarrs_cuda::{CudaShardingCodec, Options, WriteStrategy};

use crate::outcome::{assert_agree, of_ours, of_zarrs};
use zarrs_cuda_testing::index::IndexLayout;
use zarrs_cuda_testing::types::{self, Type};
use zarrs_cuda_testing::{Rng, Shards, codecs};

/// The largest number of elements in a shard.
const MOST_ELEMENTS: u64 = 300;

/// The largest number of bytes in a decoded shard.
const MOST_BYTES: u64 = 4096;

static TYPES: LazyLock<Vec<Type>> = LazyLock::new(types::fixed);

/// A shard to encode, and its codecs.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) shards: Shards,
    pub(crate) data_type: Type,
    pub(crate) elements: Vec<u8>,
    pub(crate) options: CodecOptions,
    pub(crate) strategy: WriteStrategy,
}

/// A case, our codec for it, and its encoded shard.
pub(crate) type WithShard = (Case, Arc<CudaShardingCodec>, Vec<u8>);

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
        let codecs = chain(u, &subchunk, 0)?;
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
            codecs,
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
            strategy: *u.choose(&STRATEGIES)?,
            shards,
            data_type,
            options,
        })
    }

    /// A case, our codec for it, and its shard; `None` if the codec or the shard cannot be made.
    pub(crate) fn with_shard(u: &mut Unstructured<'_>) -> Result<Option<WithShard>> {
        let case = Self::new(u)?;
        let shard = case.ours().and_then(|ours| {
            let encoded = case.encoded(&ours)?;
            Some((ours, encoded))
        });
        Ok(shard.map(|(ours, encoded)| (case, ours, encoded)))
    }

    /// Returns our codec; `None` if it cannot be made. zarrs' must agree.
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

    /// Returns the shard; `None` if its codecs cannot encode elements of this type. zarrs must
    /// agree.
    pub(crate) fn encoded(&self, ours: &CudaShardingCodec) -> Option<Vec<u8>> {
        let encoded = of_ours(|| self.shards.encode(ours, &self.elements, &self.options));
        let stock = self.stock();
        let by_zarrs = of_zarrs(|| {
            self.shards
                .encode(stock.as_ref(), &self.elements, &self.options)
        });
        // zarrs' compressed bytes have other lengths than ours, so a codec may reject only one of
        // them.
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

    /// Decodes with zarrs.
    pub(crate) fn decoded_by_zarrs(&self, encoded: &[u8]) -> Result<Vec<u8>, String> {
        let stock = self.stock();
        of_zarrs(|| self.shards.decode(stock.as_ref(), encoded, &self.options))
    }

    /// Decodes with our codec in two ways, which must agree.
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

    /// The largest single allocation that reading a shard of this length may make, in bytes.
    pub(crate) fn most_memory(&self, encoded: usize) -> usize {
        // A bzip2 frame does not state its decoded length: see `docs/reference/correctness.md`.
        if self.shards.json().to_string().contains("numcodecs.bz2") {
            return usize::MAX;
        }
        16 * (self.elements.len() + encoded) + (1 << 20)
    }

    /// Whether a codec rejects some lengths of its input.
    pub(crate) fn may_refuse_lengths(&self) -> bool {
        self.shards.json().to_string().contains("numcodecs.shuffle")
    }

    /// Whether checksums are validated.
    pub(crate) fn validates(&self) -> bool {
        self.options.validate_checksums()
    }

    /// Whether zarrs allocates any length that encoded bytes claim.
    pub(crate) fn is_dangerous_for_zarrs(&self) -> bool {
        let chain = self.shards.json().to_string();
        chain.contains(r#""name":"blosc""#) || chain.contains("numcodecs.pcodec")
    }

    /// Elements of the shard: a box, or some points, possibly repeated.
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

/// For each axis: the number of subchunks, and the elements of each.
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

/// Compressible elements. Some subchunks only hold the fill value.
fn elements_of(shards: &Shards, data_type: &Type, empty: u16, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    let palette: Vec<_> = (0..3).map(|_| data_type.element(&mut rng)).collect();
    let indices = zarrs_cuda_testing::all_indices(&shards.shape);
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

/// Codecs for subchunks of this shape. `depth` is the number of enclosing shards.
fn chain(u: &mut Unstructured<'_>, subchunk: &[u64], depth: usize) -> Result<Vec<Value>> {
    let mut chain = Vec::new();
    let mut shape = Some(subchunk.to_vec());
    match u.int_in_range(0..=9)? {
        0..=2 if !subchunk.is_empty() => {
            let order = Rng(u64::from(u.arbitrary::<u8>()?)).permutation(subchunk.len());
            shape = Some(order.iter().map(|&axis| subchunk[axis]).collect());
            chain.push(codecs::transpose(&order));
        }
        3 if !subchunk.is_empty() => {
            chain.push(json!({ "name": "reshape", "configuration": { "shape": [-1] } }));
            shape = None;
        }
        4 => {
            chain.push(json!({ "name": "zarrs.squeeze", "configuration": {} }));
            shape = None;
        }
        _ => {}
    }
    chain.push(match (u.int_in_range(0..=10)?, shape) {
        (0..=3, _) => codecs::bytes("little"),
        (4 | 5, _) => codecs::bytes("big"),
        (6, _) => codecs::packbits(),
        // This codec encodes numbers to bytes.
        (7, _) => codecs::pcodec(),
        (_, Some(shape)) if depth < 2 => {
            let mut inner = Vec::new();
            for &extent in &shape {
                let divisors: Vec<u64> = (1..=extent).filter(|d| extent % d == 0).collect();
                inner.push(*u.choose(&divisors)?);
            }
            let nested = self::chain(u, &inner, depth + 1)?;
            codecs::sharding(&inner, &nested)
        }
        _ => codecs::bytes("little"),
    });
    for _ in 0..u.int_in_range(0..=2)? {
        chain.push(bytes_to_bytes(u)?);
    }
    Ok(chain)
}

/// A bytes-to-bytes codec.
fn bytes_to_bytes(u: &mut Unstructured<'_>) -> Result<Value> {
    Ok(match u.int_in_range(0..=16)? {
        0..=2 => codecs::crc32c(),
        3..=5 => codecs::zstd(u.int_in_range(-5..=9)?, u.arbitrary()?),
        6 | 7 => codecs::gzip(u.int_in_range(0..=9)?),
        8..=10 => codecs::blosc(
            u.choose(&codecs::BLOSC_COMPRESSORS)?,
            u.int_in_range(0..=9)?,
            u.choose(&codecs::BLOSC_SHUFFLES)?,
            u.int_in_range(1..=17)?,
        ),
        11 => codecs::shuffle(u.int_in_range(1..=4)?),
        12 => codecs::xor(),
        13 => codecs::adler32(),
        14 => json!({ "name": "numcodecs.fletcher32", "configuration": {} }),
        15 => codecs::zlib(),
        _ => codecs::bz2(),
    })
}
