//! Shards that are put together from encoded subchunks, in C order and densely.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{CodecChain, FillValue, data_type};
use zarrs::metadata::v3::MetadataV3;
use zarrs_codec::{CodecError, CodecOptions};

use super::CudaShardingCodec;
use super::error::codec_error;
use super::sharding::Sharding;
use crate::engine::EngineError;
use crate::engine::pack::pack;
use crate::{Error, Options};

/// The shards of `counts` subchunks along each axis, where a subchunk is any bytes, with their codec.
///
/// # Errors
/// - [`Error::Create`] if an index codec cannot be created, or an encoded index has no fixed size.
/// - [`Error::Codec`] if the index codecs cannot encode an index, or this machine cannot address it.
pub(crate) fn of_encoded_subchunks(
    counts: &[NonZeroU64],
    index_codecs: &[MetadataV3],
    location: ShardingIndexLocation,
) -> Result<(Arc<CudaShardingCodec>, Arc<Sharding>), Error> {
    let codec = CudaShardingCodec::new(
        vec![NonZeroU64::MIN; counts.len()],
        Arc::new(CodecChain::from_metadata(&[MetadataV3::new("bytes")])?),
        Arc::new(CodecChain::from_metadata(index_codecs)?),
        location,
        Options::default(),
    )?;
    let shards = codec.sharding(counts, &data_type::uint8(), &FillValue::from(0_u8))?;
    shards.index.check_codecs()?;
    Ok((Arc::new(codec), shards))
}

impl Sharding {
    /// A shard of the encoded `subchunks`, in C order, one after the other. It should have at most
    /// `most` bytes.
    ///
    /// # Errors
    /// A [`CodecError`] if it would have more, if memory cannot be had, or if the index codecs fail.
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
        let threads = NonZeroUsize::new(options.concurrent_target());
        let threads = threads.unwrap_or(NonZeroUsize::MAX);
        let huge_pages = self.codec.options.huge_pages();
        let (mut shard, extents) =
            pack(subchunks, index.room(), threads, huge_pages).map_err(codec_error)?;
        let encoded = index.encode(&extents, options)?;
        let room = index.range_in(shard.len());
        let room =
            room.ok_or_else(|| codec_error(EngineError::Internal("no room for the index")))?;
        shard[room].copy_from_slice(&encoded);
        Ok(shard)
    }

    /// The shard `bytes` without bytes that no subchunk uses; `None` if there are no such bytes.
    ///
    /// # Errors
    /// A [`CodecError`] if the index is invalid, or memory cannot be had.
    pub(crate) fn compact(
        &self,
        bytes: &[u8],
        options: &CodecOptions,
    ) -> Result<Option<Vec<u8>>, CodecError> {
        let index = &self.index;
        let entries = index.decode_in(bytes, options)?;
        let used = entries
            .iter()
            .flatten()
            .try_fold(index.len(), |sum, extent| sum.checked_add(extent.len()));
        // Subchunks that overlap could add up to more than the shard has. They are legal, and compact.
        let Some(used) = used.filter(|&used| used < bytes.len()) else {
            return Ok(None);
        };
        let subchunks: Vec<Option<&[u8]>> = entries
            .iter()
            .map(|extent| extent.and_then(|extent| bytes.get(extent)))
            .collect();
        self.pack(&subchunks, used, options).map(Some)
    }
}
