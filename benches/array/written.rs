//! An array that is written by this crate's writer of boxes, or by zarrs.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use zarrs::array::codec::{ShardingCodec, ShardingCodecConfiguration};
use zarrs::array::{
    Array, ArrayBuilder, ArrayMetadataOptions, ArraySubset, ArrayToBytesCodecTraits, CodecOptions,
    data_type,
};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableWritableListableStorage, ReadableWritableListableStorageTraits};
use zarrs_cuda::writer::{BoxWriter, ShardUpdate};
use zarrs_cuda::{Backend, CudaShardingCodec, Options};
use zarrs_cuda_benches::Result;

use crate::cases::EDGE;
use crate::writing::SHARD;

type Store = dyn ReadableWritableListableStorageTraits;

/// The calls that write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    /// This crate's writer, with its way to change shards, and whether files are synced.
    BoxWriter(ShardUpdate, bool),
    /// zarrs' own codec, which changes parts of shards in place.
    Zarrs,
}

/// An array of uint16, and its contender.
pub(crate) struct Written {
    /// The array with zarrs' own codec.
    array: Array<Store>,
    /// The writer, unless zarrs writes.
    writer: Option<BoxWriter<Store>>,
    /// The folder of the files, which is deleted with this value.
    _folder: Option<TempDir>,
}

impl Written {
    /// Creates an array in a new folder in `parent`, or in memory.
    pub(crate) fn new(
        parent: Option<&Path>,
        codecs: &ShardingCodecConfiguration,
        by: By,
    ) -> Result<Self> {
        let folder = parent.map(TempDir::new_in).transpose()?;
        let files = folder
            .as_ref()
            .map(|folder| FilesystemStore::new(folder.path()));
        let files = files.transpose()?.map(Arc::new);
        let store: ReadableWritableListableStorage = match &files {
            Some(files) => files.clone(),
            None => Arc::new(MemoryStore::new()),
        };
        let array = array(
            &store,
            Arc::new(ShardingCodec::new_with_configuration(codecs)?),
        )?;
        array.store_metadata()?;
        let writer = match by {
            By::Zarrs => None,
            By::BoxWriter(update, sync) => {
                let options = Options::default().with_backend(Backend::Host);
                let codec = CudaShardingCodec::new_with_configuration(codecs, options)?;
                let mut writer = BoxWriter::builder(&self::array(&store, Arc::new(codec))?)
                    .with_update(update)
                    .with_sync(sync);
                if let Some(files) = &files {
                    writer = writer.on_filesystem(files);
                }
                Some(writer.build()?)
            }
        };
        Ok(Self {
            array,
            writer,
            _folder: folder,
        })
    }

    /// Opens the array in `folder`, which another contender has written.
    pub(crate) fn open(folder: &Path, codecs: &ShardingCodecConfiguration) -> Result<Self> {
        let store: ReadableWritableListableStorage = Arc::new(FilesystemStore::new(folder)?);
        let codec = Arc::new(ShardingCodec::new_with_configuration(codecs)?);
        Ok(Self {
            array: array(&store, codec)?,
            writer: None,
            _folder: None,
        })
    }

    /// Returns the array's `zarr.json`.
    pub(crate) fn metadata(&self) -> Result<Value> {
        let options = ArrayMetadataOptions::default().with_include_zarrs_metadata(false);
        Ok(serde_json::to_value(self.array.metadata_opt(&options))?)
    }

    /// Writes the elements of a box, in C order.
    pub(crate) fn write(&self, subset: &ArraySubset, elements: &[u16]) -> Result<()> {
        if let Some(writer) = &self.writer {
            writer.write(subset, elements)?;
        } else {
            let options = CodecOptions::default().with_experimental_partial_encoding(true);
            self.array
                .store_array_subset_opt(subset, elements, &options)?;
        }
        Ok(())
    }

    /// Returns whether the array has the elements `expected`, as zarrs reads it.
    pub(crate) fn has(&self, expected: &[u16]) -> Result<bool> {
        let read: Vec<u16> = self.array.retrieve_array_subset(&self.array.subset_all())?;
        Ok(read == expected)
    }

    /// Returns the box of each shard, and the bytes that are stored for it.
    pub(crate) fn shards(&self) -> Result<Vec<(ArraySubset, Vec<u8>)>> {
        let shards = self
            .array
            .chunks_in_array_subset(&self.array.subset_all())?;
        let indices = shards.ok_or("an array without shards")?.indices();
        let shards = indices.iter().map(|at| {
            let value = self.array.storage().get(&self.array.chunk_key(&at))?;
            let value = value.ok_or("a shard is missing")?;
            Ok((self.array.chunk_subset(&at)?, value.to_vec()))
        });
        shards.collect()
    }
}

/// Returns the array with the codec `codec`.
fn array(
    store: &ReadableWritableListableStorage,
    codec: Arc<dyn ArrayToBytesCodecTraits>,
) -> Result<Array<Store>> {
    let shape = vec![EDGE; 3];
    let mut builder = ArrayBuilder::new(shape, vec![SHARD; 3], data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(codec);
    Ok(builder.build(store.clone(), "/")?)
}
