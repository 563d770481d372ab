//! Puts shards together from encoded subchunks, in C order and densely.

use std::borrow::Cow;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{CodecChain, FillValue, data_type};
use zarrs::metadata::v3::MetadataV3;
use zarrs_codec::{CodecError, CodecOptions};

use super::codec_parts::{ChainMemoryBounds, CodecParts, InnerCodecs};
use super::error::codec_error;
use super::sharding::Sharding;
use super::spec::ShardingSpec;
use crate::error::Error;
use crate::options::Options;
use zarrs_cuda_engine::contract::EngineError;
use zarrs_cuda_engine::layout::Extent;
use zarrs_cuda_engine::memory::pack::pack;

/// The copy of a stored shard to a shard without unused bytes.
///
/// ```
/// # use zarrs::array::{ArrayBuilder, CodecOptions, data_type};
/// # use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};
/// # let codec = CudaShardingCodecBuilder::new(vec![8.try_into()?; 2], &data_type::uint16())
/// #     .options(Options::default().with_write_strategy(WriteStrategy::Append))
/// #     .build_arc()?;
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0_u16);
/// # let array = builder.array_to_bytes_codec(codec).build(store.clone(), "/volume")?;
/// # let options = CodecOptions::default().with_experimental_partial_encoding(true);
/// # for value in 1..=10_u16 {
/// #     array.store_array_subset_opt(&[0..8, 0..8], vec![value; 64], &options)?;
/// # }
/// # use zarrs::storage::{ReadableStorageTraits, WritableStorageTraits};
/// use zarrs_cuda::maintenance::ShardFormat;
///
/// let (key, format) = (array.chunk_key(&[0, 0]), ShardFormat::of(&array, &[0, 0])?);
/// let shard = store.get(&key)?.ok_or("no such shard")?;
/// // The index is at the end of these shards.
/// let index = &shard[shard.len() - usize::try_from(format.index_len())?..];
/// if let Some(packing) = format.packing(index, shard.len())? {
///     let parts = packing.parts.iter().map(|part| &shard[part.clone()]);
///     let packed: Vec<&[u8]> = parts.chain([&packing.index[..]]).collect();
///     store.set(&key, packed.concat().into())?;
/// }
/// # assert_eq!(store.size_key(&key)?, Some(128 + format.index_len()));
/// # assert_eq!(array.retrieve_array_subset::<Vec<u16>>(&[0..1, 0..2])?, [10, 10]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// The byte ranges of the stored shard to copy, in the order of the copy.
    pub parts: Vec<Range<usize>>,
    /// The encoded index of the copy. It has the same place as in the stored shard: before or behind the
    /// parts.
    pub index: Vec<u8>,
}

/// Returns shards with `counts` subchunks along each axis and the given index codecs, and their
/// configuration. The encoded subchunks may be any bytes.
///
/// # Errors
/// - [`Error::Create`] if an index codec cannot be created, or an encoded index has no fixed size.
/// - [`Error::Codec`] if the index codecs cannot encode an index, or this machine cannot address it.
pub(crate) fn of_encoded_subchunks(
    counts: &[NonZeroU64],
    index_codecs: &[MetadataV3],
    location: ShardingIndexLocation,
) -> Result<(ShardingSpec, Arc<Sharding>), Error> {
    let bytes = InnerCodecs {
        chain: Arc::new(CodecChain::from_metadata(&[MetadataV3::new("bytes")])?),
        memory_bounds: ChainMemoryBounds {
            is_bounded: true,
            unbounded: None,
        },
        nested: None,
    };
    let spec = ShardingSpec::new(CodecParts::new(
        vec![NonZeroU64::MIN; counts.len()],
        bytes,
        Arc::new(CodecChain::from_metadata(index_codecs)?),
        location,
        Options::default(),
    )?);
    let shards = spec.sharding(counts, &data_type::uint8(), &FillValue::from(0_u8))?;
    shards.index.check_codecs()?;
    Ok((spec, shards))
}

impl Sharding {
    /// Returns a shard of the encoded `subchunks`, which follow one another in C order. The shard should have
    /// at most `most` bytes.
    ///
    /// # Errors
    /// A [`CodecError`] if the shard would have more bytes, if memory cannot be had, or if the index codecs
    /// fail.
    pub(crate) fn pack(
        &self,
        subchunks: &[Option<&[u8]>],
        most: usize,
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        debug_assert_eq!(subchunks.len(), self.grid.num_subchunks());
        let index = &self.index;
        subchunks
            .iter()
            .flatten()
            .try_fold(index.len(), |sum, bytes| sum.checked_add(bytes.len()))
            .filter(|&len| len <= most)
            .ok_or_else(|| {
                CodecError::Other(format!(
                    "subchunks share bytes in their shard, and one after the other they would have more than the {most} bytes that are there: the shard may be corrupted"
                ))
            })?;
        let (mut shard, extents) = self.placed(subchunks, options)?;
        let encoded = index.encode(&extents, options)?;
        self.put_index(&mut shard, &encoded)?;
        Ok(shard)
    }

    /// Returns a shard of `parts`, one after the other, with room for the index. Also returns the extent of
    /// each part.
    fn placed(
        &self,
        parts: &[Option<&[u8]>],
        options: &CodecOptions,
    ) -> Result<(Vec<u8>, Vec<Extent>), CodecError> {
        let threads = NonZeroUsize::new(options.concurrent_target());
        let threads = threads.unwrap_or(NonZeroUsize::MAX);
        let huge_pages = self.codec.options.huge_pages();
        pack(parts, self.index.room(), threads, huge_pages).map_err(codec_error)
    }

    fn put_index(&self, shard: &mut [u8], encoded: &[u8]) -> Result<(), CodecError> {
        let room = self.index.range_in(shard.len());
        let room =
            room.ok_or_else(|| codec_error(EngineError::Internal("no room for the index")))?;
        shard[room].copy_from_slice(encoded);
        Ok(())
    }

    /// Returns the shard `bytes` without its unused bytes, or `None` if every byte is used.
    ///
    /// # Errors
    /// A [`CodecError`] if the index is invalid, or memory cannot be had.
    pub(crate) fn compact(
        &self,
        bytes: &[u8],
        options: &CodecOptions,
    ) -> Result<Option<Vec<u8>>, CodecError> {
        let Some(packing) = self.packing(self.index.of(bytes)?, bytes.len(), options)? else {
            return Ok(None);
        };
        let parts = packing.parts.into_iter();
        let parts: Vec<Option<&[u8]>> = parts.map(|part| bytes.get(part)).collect();
        let (mut shard, _) = self.placed(&parts, options)?;
        self.put_index(&mut shard, &packing.index)?;
        Ok(Some(shard))
    }

    /// Returns the parts and the index with which a shard of `size` bytes, with the encoded index `index`, is
    /// copied without its unused bytes. Returns `None` if every byte is used.
    ///
    /// # Errors
    /// A [`CodecError`] if the index is invalid.
    pub(crate) fn packing(
        &self,
        index: &[u8],
        size: usize,
        options: &CodecOptions,
    ) -> Result<Option<Packing>, CodecError> {
        let entries = self
            .index
            .decode(Cow::Borrowed(index), size as u64, options)?;
        let used = entries
            .iter()
            .flatten()
            .try_fold(self.index.len(), |sum, extent| {
                sum.checked_add(extent.len())
            });
        // Subchunks that share bytes can add up to more than the size of the shard. They are legal, and leave
        // no unused bytes.
        if used.is_none_or(|used| used >= size) {
            return Ok(None);
        }
        let mut parts: Vec<Range<usize>> = Vec::new();
        let mut end = self.index.room().0;
        let extents = entries.iter().map(|extent| {
            let extent = extent?;
            let start = end;
            end += extent.len();
            match parts.last_mut() {
                Some(last) if last.end == extent.start => last.end = extent.end,
                _ => parts.push(extent),
            }
            Some(start..end)
        });
        let extents: Vec<_> = extents.collect();
        let index = self.index.encode(&extents, options)?;
        Ok(Some(Packing { parts, index }))
    }
}
