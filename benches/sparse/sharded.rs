//! A sharded array in files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use zarrs::array::codec::ShardingCodec;
use zarrs::array::{
    Array, ArrayBuilder, ArrayBytes, ArrayToBytesCodecTraits, CodecOptions, data_type,
};
use zarrs::filesystem::FilesystemStore;
use zarrs::metadata_ext::codec::sharding::ShardingCodecConfiguration;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda::{CudaShardingCodec, Options};
use zarrs_cuda_benches::microscopy::Microscopy;
use zarrs_cuda_benches::{Result, chains};

/// Elements of a shard along each axis.
pub(crate) const SHARD: u64 = 256;
/// Elements of a subchunk along each axis.
pub(crate) const SUBCHUNK: u64 = 32;
/// The array has two shards along the last two axes.
pub(crate) const SHAPE: [u64; 3] = [SHARD, 2 * SHARD, 2 * SHARD];

pub(crate) type Sparse = Arc<SparseShardStore<FilesystemStore>>;

/// An array in a folder of its own, stored entirely as shards.
pub(crate) struct Sharded {
    pub(crate) chain: &'static str,
    configuration: ShardingCodecConfiguration,
    folder: TempDir,
}

impl Sharded {
    pub(crate) fn new(chain: &'static str, folder: &Path) -> Result<Self> {
        let configuration = chains::configuration(&chains::codecs(chain)?, SUBCHUNK)?;
        let sharded = Self {
            chain,
            configuration,
            folder: TempDir::new_in(folder)?,
        };
        let array = sharded.array(Encoder::Ours)?;
        array.store_metadata()?;
        let mut microscopy = Microscopy::new();
        for y in 0..2 {
            for x in 0..2 {
                let start = [0, y * SHARD, x * SHARD];
                let elements = microscopy.volume(start, [SHARD; 3], 6);
                array.store_chunk(&[0, y, x], ArrayBytes::new_flen(elements))?;
            }
        }
        Ok(sharded)
    }

    pub(crate) fn store(&self) -> Result<Arc<FilesystemStore>> {
        Ok(Arc::new(FilesystemStore::new(self.folder.path())?))
    }

    /// The file of a shard.
    pub(crate) fn file(&self, [z, y, x]: [u64; 3]) -> PathBuf {
        self.folder.path().join(format!("c/{z}/{y}/{x}"))
    }

    /// The array for an application that does not know about frames.
    pub(crate) fn array(&self, encoder: Encoder) -> Result<Array<FilesystemStore>> {
        let codec: Arc<dyn ArrayToBytesCodecTraits> = match encoder {
            Encoder::Zarrs => Arc::new(ShardingCodec::new_with_configuration(&self.configuration)?),
            Encoder::Ours => Arc::new(CudaShardingCodec::new_with_configuration(
                &self.configuration,
                Options::default(),
            )?),
        };
        let mut builder =
            ArrayBuilder::new(SHAPE.to_vec(), vec![SHARD; 3], data_type::uint16(), 0_u16);
        builder.array_to_bytes_codec(codec);
        Ok(builder.build(self.store()?, "/")?)
    }

    /// The adapter. It replaces shards by renaming.
    pub(crate) fn sparse(&self) -> Result<SparseShardStore<FilesystemStore>> {
        Ok(SparseShardStore::on_filesystem(self.store()?, "/")?)
    }
}

/// The codec to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoder {
    Zarrs,
    Ours,
}

/// zarrs' options with or without partial encoding.
pub(crate) fn options(partial: bool) -> CodecOptions {
    CodecOptions::default().with_experimental_partial_encoding(partial)
}

/// Opens the array of subchunks.
pub(crate) fn open(
    sparse: SparseShardStore<FilesystemStore>,
) -> Result<(Sparse, Array<SparseShardStore<FilesystemStore>>)> {
    let sparse = Arc::new(sparse);
    let array = Array::open(sparse.clone(), "/")?;
    Ok((sparse, array))
}
