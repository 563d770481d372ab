//! Shards described as data, for our codec and for zarrs'.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::codec::{
    BytesCodec, ShardingCodec, ShardingCodecConfiguration, ShardingIndexLocation,
    SubchunkWriteOrder,
};
use zarrs::array::{
    ArrayBuilder, ArrayBytes, ArraySubset, ChunkShape, CodecChain, DataType, FillValue, Indexer,
};
use zarrs::plugin::PluginCreateError;
use zarrs::storage::WritableStorageTraits;
use zarrs::storage::store::MemoryStore;
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecOptions};
use zarrs_cuda::reader::{ArrayReader, Output, ReaderError};
use zarrs_cuda::{CudaShardingCodec, Options};

use crate::index::{self, IndexLayout};
use crate::rng::Rng;

/// Converts a shape without zeros to zarrs' type.
pub fn chunk_shape(shape: &[u64]) -> ChunkShape {
    shape.iter().map(|&d| NonZeroU64::new(d).unwrap()).collect()
}

/// Shards of one shape, type and configuration.
#[derive(Clone, Debug)]
pub struct Shards {
    pub shape: Vec<u64>,
    pub subchunk: Vec<u64>,
    pub data_type: DataType,
    /// The bytes of one fill value.
    pub fill: Vec<u8>,
    /// The subchunks' codecs, as metadata.
    pub codecs: Vec<Value>,
    pub index: IndexLayout,
}

impl Shards {
    pub fn configuration(&self) -> ShardingCodecConfiguration {
        serde_json::from_value(self.json()).unwrap()
    }

    /// The configuration of the codec.
    pub fn json(&self) -> Value {
        json!({
            "chunk_shape": self.subchunk,
            "codecs": self.codecs,
            "index_codecs": self.index.codecs(),
            "index_location": match self.index.location {
                ShardingIndexLocation::Start => "start",
                ShardingIndexLocation::End => "end",
            },
        })
    }

    /// Our codec.
    pub fn ours(&self) -> Arc<CudaShardingCodec> {
        self.try_ours().unwrap()
    }

    pub fn try_ours(&self) -> Result<Arc<CudaShardingCodec>, PluginCreateError> {
        CudaShardingCodec::new_with_configuration(&self.configuration(), Options::default())
            .map(Arc::new)
    }

    /// zarrs' codec. Subchunks lie in C order, as in our shards.
    pub fn stock(&self) -> Arc<ShardingCodec> {
        self.try_stock().unwrap()
    }

    pub fn try_stock(&self) -> Result<Arc<ShardingCodec>, PluginCreateError> {
        let codec = ShardingCodec::new_with_configuration(&self.configuration())?;
        Ok(Arc::new(
            codec.with_subchunk_write_order(SubchunkWriteOrder::C),
        ))
    }

    pub fn chunk_shape(&self) -> ChunkShape {
        chunk_shape(&self.shape)
    }

    pub fn fill_value(&self) -> FillValue {
        FillValue::new(self.fill.clone())
    }

    pub fn element_size(&self) -> usize {
        self.data_type.fixed_size().unwrap()
    }

    pub fn num_elements(&self) -> usize {
        usize::try_from(self.shape.iter().product::<u64>()).unwrap()
    }

    pub fn num_subchunks(&self) -> usize {
        let counts = self.shape.iter().zip(&self.subchunk).map(|(s, c)| s / c);
        usize::try_from(counts.product::<u64>()).unwrap()
    }

    /// The number of the subchunk with the element at `indices`.
    pub fn subchunk_of(&self, indices: &[u64]) -> usize {
        let number = indices
            .iter()
            .zip(&self.shape)
            .zip(&self.subchunk)
            .fold(0, |number, ((i, s), c)| number * (s / c) + i / c);
        usize::try_from(number).unwrap()
    }

    pub fn encode(
        &self,
        codec: &dyn ArrayToBytesCodecTraits,
        elements: &[u8],
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        let encoded = codec.encode(
            ArrayBytes::from(elements),
            &self.chunk_shape(),
            &self.data_type,
            &self.fill_value(),
            options,
        )?;
        Ok(encoded.into_owned())
    }

    pub fn decode(
        &self,
        codec: &dyn ArrayToBytesCodecTraits,
        encoded: &[u8],
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        let decoded = codec.decode(
            Cow::Borrowed(encoded),
            &self.chunk_shape(),
            &self.data_type,
            &self.fill_value(),
            options,
        )?;
        Ok(decoded.into_fixed()?.into_owned())
    }

    /// Decodes with `decode_into` to a part of a larger array. The output is not contiguous, and
    /// the elements around it must not change.
    ///
    /// Only zarrs can create a view of an output. Therefore the shard becomes part of a shard of
    /// shards, which zarrs' own codec decodes through `decode_into`.
    pub fn decode_into(
        &self,
        codec: Arc<dyn ArrayToBytesCodecTraits>,
        encoded: &[u8],
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        // Twice as large along the first axes only: more axes would be slow in many dimensions.
        let doubled = self.shape.len().min(2);
        let factors = std::iter::repeat_n(2, doubled).chain(std::iter::repeat(1));
        let around = Self {
            shape: self.shape.iter().zip(factors).map(|(d, f)| d * f).collect(),
            subchunk: self.shape.clone(),
            index: IndexLayout {
                checksum: false,
                ..IndexLayout::default()
            },
            ..self.clone()
        };
        let outer = ShardingCodec::new(
            chunk_shape(&around.subchunk),
            Arc::new(CodecChain::new(vec![], codec, vec![])),
            Arc::new(CodecChain::new(
                vec![],
                Arc::new(BytesCodec::little()),
                vec![],
            )),
            ShardingIndexLocation::End,
        );
        // Our shard is the last subchunk; the others are empty.
        let mut entries = vec![index::EMPTY; around.num_subchunks()];
        *entries.last_mut().unwrap() = [0, encoded.len() as u64];
        let mut shard = encoded.to_vec();
        shard.extend(around.index.encode(&entries));
        let decoded = around.decode(&outer, &shard, options)?;

        let mut inside = Vec::new();
        let element_size = self.element_size();
        for (element, indices) in decoded.chunks(element_size).zip(all_indices(&around.shape)) {
            let ours = indices.iter().zip(&self.shape).take(doubled);
            if ours.into_iter().all(|(i, d)| i >= d) {
                inside.extend(element);
            } else {
                assert_eq!(element, self.fill, "written outside of its view");
            }
        }
        Ok(inside)
    }

    /// The elements of a decoded shard that `indexer` selects, computed independently of the codec.
    pub fn slice(&self, elements: &[u8], indexer: &dyn Indexer) -> Vec<u8> {
        let size = self.element_size();
        indexer
            .iter_indices()
            .flat_map(|indices| {
                let number = indices
                    .iter()
                    .zip(&self.shape)
                    .fold(0, |number, (i, d)| number * d + i);
                let start = usize::try_from(number).unwrap() * size;
                &elements[start..start + size]
            })
            .copied()
            .collect()
    }

    /// Decodes the elements that `indexer` selects, with a partial decoder over `encoded`.
    pub fn partial_decode(
        &self,
        codec: Arc<dyn ArrayToBytesCodecTraits>,
        encoded: &[u8],
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        let decoder = codec.partial_decoder(
            Arc::new(encoded.to_vec()),
            &self.chunk_shape(),
            &self.data_type,
            &self.fill_value(),
            options,
        )?;
        let decoded = decoder.partial_decode(indexer, options)?;
        Ok(decoded.into_fixed()?.into_owned())
    }

    /// Reads a box of an array that is one shard, `encoded`, with an `ArrayReader`; `None` if zarrs
    /// makes no array of these elements: it refuses some fill values.
    pub fn read(
        &self,
        codec: Arc<dyn ArrayToBytesCodecTraits>,
        encoded: &[u8],
        subset: &ArraySubset,
        options: &CodecOptions,
    ) -> Option<Result<Vec<u8>, ReaderError>> {
        let store = Arc::new(MemoryStore::new());
        let (data_type, fill_value) = (self.data_type.clone(), self.fill_value());
        let shape = (self.shape.clone(), self.chunk_shape());
        let array = ArrayBuilder::new(shape.0, shape.1, data_type, fill_value)
            .array_to_bytes_codec(codec)
            .build(store.clone(), "/")
            .ok()?;
        let key = array.chunk_key(&vec![0; self.shape.len()]);
        store.set(&key, encoded.to_vec().into()).unwrap();
        let reader = ArrayReader::builder(&array)
            .with_codec_options(*options)
            .build();
        let mut elements = vec![0; subset.num_elements_usize() * self.element_size()];
        let read = reader
            .and_then(|reader| reader.read_bytes_into(subset, Output::contiguous(&mut elements)));
        Some(read.map(|_| elements))
    }

    /// The same as [`partial_decode`](Self::partial_decode), asynchronously.
    pub fn async_partial_decode(
        &self,
        codec: Arc<dyn ArrayToBytesCodecTraits>,
        encoded: &[u8],
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        futures::executor::block_on(async {
            let decoder = codec
                .async_partial_decoder(
                    Arc::new(encoded.to_vec()),
                    &self.chunk_shape(),
                    &self.data_type,
                    &self.fill_value(),
                    options,
                )
                .await?;
            let decoded = decoder.partial_decode(indexer, options).await?;
            Ok(decoded.into_fixed()?.into_owned())
        })
    }
}

/// The indices of all elements of an array, in C order.
pub fn all_indices(shape: &[u64]) -> impl Iterator<Item = Vec<u64>> {
    let shape = shape.to_vec();
    let num_elements: u64 = shape.iter().product();
    (0..num_elements).map(move |mut number| {
        let mut indices = vec![0; shape.len()];
        for (index, extent) in indices.iter_mut().zip(&shape).rev() {
            *index = number % extent;
            number /= extent;
        }
        indices
    })
}

/// A box of an array of `shape`, perhaps an empty one.
pub fn random_box(shape: &[u64], rng: &mut Rng) -> ArraySubset {
    let ranges: Vec<_> = shape
        .iter()
        .map(|extent| {
            let (a, b) = (rng.below(extent + 1), rng.below(extent + 1));
            a.min(b)..a.max(b)
        })
        .collect();
    ArraySubset::new_with_ranges(&ranges)
}
