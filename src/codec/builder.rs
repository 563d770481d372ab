//! A builder of the codec.

use std::sync::Arc;

use zarrs::array::codec::{
    BytesCodec, Crc32cCodec, ShardingIndexLocation, default_array_to_bytes_codec,
};
use zarrs::array::{ChunkShape, CodecChain, DataType};
use zarrs::plugin::PluginCreateError;
use zarrs_codec::{ArrayToArrayCodecTraits, ArrayToBytesCodecTraits, BytesToBytesCodecTraits};

use crate::codec::CudaShardingCodec;
use crate::options::Options;

/// Builds a [`CudaShardingCodec`] for
/// [`ArrayBuilder::array_to_bytes_codec`](zarrs::array::ArrayBuilder::array_to_bytes_codec).
///
/// It mirrors zarrs' [`ShardingCodecBuilder`](zarrs::array::codec::ShardingCodecBuilder), with the
/// same defaults. Subchunks are encoded with the default codec of the data type. The index is
/// encoded with `bytes` and `crc32c`, at the end of the shard.
///
/// ```
/// # use std::sync::Arc;
/// use zarrs::array::codec::ZstdCodec;
/// use zarrs::array::{ArrayBuilder, data_type};
/// use zarrs_cuda::CudaShardingCodecBuilder;
///
/// let codec = CudaShardingCodecBuilder::new(vec![32.try_into()?; 3], &data_type::uint16())
///     .bytes_to_bytes_codecs(vec![Arc::new(ZstdCodec::new(1, false))])
///     .build_arc()?;
/// let store = Arc::new(zarrs::storage::store::MemoryStore::new());
/// let array = ArrayBuilder::new(
///     vec![512, 512, 512], // the array
///     vec![256, 256, 256], // a shard
///     data_type::uint16(),
///     0u16,
/// )
/// .array_to_bytes_codec(codec)
/// .build(store, "/array")?;
/// println!("{}", zarrs_cuda::explain(&array)?);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CudaShardingCodecBuilder {
    subchunk_shape: ChunkShape,
    index_array_to_bytes_codec: Arc<dyn ArrayToBytesCodecTraits>,
    index_bytes_to_bytes_codecs: Vec<Arc<dyn BytesToBytesCodecTraits>>,
    array_to_array_codecs: Vec<Arc<dyn ArrayToArrayCodecTraits>>,
    array_to_bytes_codec: Arc<dyn ArrayToBytesCodecTraits>,
    bytes_to_bytes_codecs: Vec<Arc<dyn BytesToBytesCodecTraits>>,
    index_location: ShardingIndexLocation,
    options: Options,
}

impl CudaShardingCodecBuilder {
    /// Returns a builder for subchunks of `subchunk_shape` (elements) and `data_type`.
    #[must_use]
    pub fn new(subchunk_shape: ChunkShape, data_type: &DataType) -> Self {
        Self {
            subchunk_shape,
            index_array_to_bytes_codec: Arc::<BytesCodec>::default(),
            index_bytes_to_bytes_codecs: vec![Arc::new(Crc32cCodec::new())],
            array_to_array_codecs: Vec::new(),
            array_to_bytes_codec: default_array_to_bytes_codec(data_type),
            bytes_to_bytes_codecs: Vec::new(),
            index_location: ShardingIndexLocation::default(),
            options: Options::default(),
        }
    }

    /// Sets the array-to-bytes codec of the index. Default: `bytes`, in native byte order.
    pub fn index_array_to_bytes_codec(
        &mut self,
        codec: Arc<dyn ArrayToBytesCodecTraits>,
    ) -> &mut Self {
        self.index_array_to_bytes_codec = codec;
        self
    }

    /// Sets the bytes-to-bytes codecs of the index. Default: `crc32c`.
    pub fn index_bytes_to_bytes_codecs(
        &mut self,
        codecs: Vec<Arc<dyn BytesToBytesCodecTraits>>,
    ) -> &mut Self {
        self.index_bytes_to_bytes_codecs = codecs;
        self
    }

    /// Sets the array-to-array codecs of subchunks. Default: none.
    pub fn array_to_array_codecs(
        &mut self,
        codecs: Vec<Arc<dyn ArrayToArrayCodecTraits>>,
    ) -> &mut Self {
        self.array_to_array_codecs = codecs;
        self
    }

    /// Sets the array-to-bytes codec of subchunks. Default: zarrs' codec for the data type.
    pub fn array_to_bytes_codec(&mut self, codec: Arc<dyn ArrayToBytesCodecTraits>) -> &mut Self {
        self.array_to_bytes_codec = codec;
        self
    }

    /// Sets the bytes-to-bytes codecs of subchunks. Default: none.
    pub fn bytes_to_bytes_codecs(
        &mut self,
        codecs: Vec<Arc<dyn BytesToBytesCodecTraits>>,
    ) -> &mut Self {
        self.bytes_to_bytes_codecs = codecs;
        self
    }

    /// Sets the location of the index. Default: the end of the shard.
    pub fn index_location(&mut self, index_location: ShardingIndexLocation) -> &mut Self {
        self.index_location = index_location;
        self
    }

    /// Sets the runtime options. Default: [`Options::default`].
    pub fn options(&mut self, options: Options) -> &mut Self {
        self.options = options;
        self
    }

    /// Builds the codec.
    ///
    /// # Errors
    /// The errors of [`CudaShardingCodec::new`].
    pub fn build(&self) -> Result<CudaShardingCodec, PluginCreateError> {
        CudaShardingCodec::new(
            self.subchunk_shape.clone(),
            Arc::new(CodecChain::new(
                self.array_to_array_codecs.clone(),
                self.array_to_bytes_codec.clone(),
                self.bytes_to_bytes_codecs.clone(),
            )),
            Arc::new(CodecChain::new(
                Vec::new(),
                self.index_array_to_bytes_codec.clone(),
                self.index_bytes_to_bytes_codecs.clone(),
            )),
            self.index_location,
            self.options.clone(),
        )
    }

    /// Builds the codec in an [`Arc`].
    ///
    /// # Errors
    /// The errors of [`CudaShardingCodec::new`].
    pub fn build_arc(&self) -> Result<Arc<CudaShardingCodec>, PluginCreateError> {
        self.build().map(Arc::new)
    }
}
