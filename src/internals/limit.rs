//! The most that the host engine could reach on this machine.

use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::{DataType, FillValue};
use zarrs_codec::{CodecError, CodecOptions};

use crate::CudaShardingCodec;
use crate::codec::error::codec_error;
use crate::codec::sharding::Sharding;
use zarrs_cuda_engine::host;

/// The same gather and the same library call per subchunk as the host engine's, into warm
/// per-thread buffers, and nothing kept.
#[derive(Debug)]
pub struct Limit {
    shards: Arc<Sharding>,
}

impl Limit {
    /// For shards of `shape` (elements).
    ///
    /// # Errors
    /// A [`CodecError`] if the shapes, data type and codecs do not fit each other.
    pub fn new(
        codec: &CudaShardingCodec,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Self, CodecError> {
        let shards = codec.sharding(shape, data_type, fill_value)?;
        Ok(Self { shards })
    }

    /// Encode the subchunks of `decoded`.
    ///
    /// # Errors
    /// A [`CodecError`] if a codec fails, or is not one that the engines know.
    pub fn encode(&self, decoded: &[u8], options: &CodecOptions) -> Result<(), CodecError> {
        self.shards
            .with_job(options, |job| host::limit::encode(job, decoded))
            .map_err(codec_error)
    }

    /// Decode the subchunks of the shard `encoded`.
    ///
    /// # Errors
    /// A [`CodecError`] if a codec fails, or is not one that the engines know.
    pub fn decode(&self, encoded: &[u8], options: &CodecOptions) -> Result<(), CodecError> {
        let extents = self.shards.decode_index(encoded, options)?;
        self.shards
            .with_job(options, |job| host::limit::decode(job, encoded, &extents))
            .map_err(codec_error)
    }
}
