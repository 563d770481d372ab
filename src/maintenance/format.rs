//! The format of a shard: everything that is needed to understand the bytes of a shard, and is not in them.

use std::cell::OnceCell;
use std::num::{NonZeroU64, TryFromIntError};
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{Array, ChunkShape, DataType, FillValue};
use zarrs::metadata::v3::MetadataV3;
use zarrs_codec::{CodecError, CodecOptions};

use super::diagnosis::{Diagnosis, Geometry, diagnose};
use crate::codec::CudaShardingCodec;
use crate::codec::find;
use crate::error::Error;
use crate::shard::error::is_about_stored_bytes;
use crate::shard::packed::{Packing, of_encoded_subchunks};
use crate::shard::sharding::Sharding;
use crate::shard::stored;

/// The format of a shard: its codec, shape, data type and fill value. It is needed to understand the bytes of
/// a shard.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # use zarrs::storage::ReadableStorageTraits;
/// use zarrs_cuda::maintenance::ShardFormat;
///
/// array.store_array_subset(&[0..8, 0..8], vec![7_u16; 64])?;
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let shard = store.get(&array.chunk_key(&[0, 0]))?.ok_or("no such shard")?;
///
/// // Finds the encoded subchunks in the bytes of a shard.
/// let size = shard.len() as u64;
/// let place = format.index_range(size).ok_or("the shard is shorter than its index")?;
/// let index = &shard[usize::try_from(place.start)?..usize::try_from(place.end)?];
/// assert_eq!(format.decode_index(index, size)?[..2], [Some(0..128), None]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShardFormat {
    codec: Arc<CudaShardingCodec>,
    shards: Arc<Sharding>,
}

impl ShardFormat {
    /// Returns the format of shards of `shape` (elements) that `codec` encodes.
    ///
    /// # Errors
    /// [`Error::Codec`] if the shapes and codecs do not fit each other.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "the parts of a format, which it keeps"
    )]
    pub fn new(
        codec: Arc<CudaShardingCodec>,
        shape: ChunkShape,
        data_type: DataType,
        fill_value: FillValue,
    ) -> Result<Self, Error> {
        let shards = codec.sharding(&shape, &data_type, &fill_value)?;
        Ok(Self { codec, shards })
    }

    /// Returns the format of the shard of `array` with the chunk indices `shard`. The codec of the array may
    /// be this crate's or zarrs' own `sharding_indexed`: both encode to the same format.
    ///
    /// # Errors
    /// - [`Error::NotShards`] if the array is not sharded, or if bytes-to-bytes codecs encode its
    ///   shards once more.
    /// - [`Error::Codec`] if `shard` is not in the array's chunk grid, or the codecs do not fit.
    pub fn of<TStorage: ?Sized>(array: &Array<TStorage>, shard: &[u64]) -> Result<Self, Error> {
        Self::of_codec(find::of_array(array)?, array, shard)
    }

    /// Returns the format of shards with `counts` subchunks along each axis, for subchunks of any content.
    /// This format is enough to [find](Self::decode_index) encoded subchunks and to
    /// [place](Self::encode_index) them in another shard: it needs no inner codecs, and calls none. Each
    /// subchunk counts as one element of one byte.
    ///
    /// `index_codecs` and `location` are those in the configuration of `sharding_indexed`.
    ///
    /// # Errors
    /// - [`Error::Create`] if an index codec cannot be created, or an encoded index has no fixed
    ///   size.
    /// - [`Error::Codec`] if the index codecs cannot encode an index, or if this machine cannot
    ///   address it.
    pub fn of_encoded_subchunks(
        counts: &[NonZeroU64],
        index_codecs: &[MetadataV3],
        location: ShardingIndexLocation,
    ) -> Result<Self, Error> {
        let (spec, shards) = of_encoded_subchunks(counts, index_codecs, location)?;
        let codec = Arc::new(CudaShardingCodec::of_spec(spec));
        Ok(Self { codec, shards })
    }

    /// Returns the format of the shard of `array` with the chunk indices `shard`. `codec` is the codec of the
    /// array.
    pub(crate) fn of_codec<TStorage: ?Sized>(
        codec: Arc<CudaShardingCodec>,
        array: &Array<TStorage>,
        shard: &[u64],
    ) -> Result<Self, Error> {
        let grid = array.chunk_grid_shape();
        let is_in_grid = shard.len() == grid.len() && shard.iter().zip(grid).all(|(i, n)| i < n);
        let shape = array.chunk_shape(shard).ok().filter(|_| is_in_grid);
        let shape = shape.ok_or_else(|| {
            let message = format!("there is no shard {shard:?} in a grid of {grid:?} shards");
            CodecError::Other(message)
        })?;
        let (shape, data_type, fill_value) = find::representation(array, shape)?;
        Self::new(codec, shape, data_type, fill_value)
    }

    /// Returns the codec.
    #[must_use]
    pub fn codec(&self) -> &Arc<CudaShardingCodec> {
        &self.codec
    }

    /// Returns the shape of a shard, in elements.
    #[must_use]
    pub fn shape(&self) -> &[NonZeroU64] {
        &self.shards.shape
    }

    /// Returns the size of an encoded index, in bytes.
    #[must_use]
    pub fn index_len(&self) -> u64 {
        self.shards.index.len() as u64
    }

    /// Returns the location of the index in a shard: its start or its end.
    #[must_use]
    pub fn index_location(&self) -> ShardingIndexLocation {
        self.shards.index.location()
    }

    /// Returns the byte range of the encoded index in a shard of `size` bytes. Returns `None` if a shard of
    /// this size has no room for an index.
    #[must_use]
    pub fn index_range(&self, size: u64) -> Option<Range<u64>> {
        let len = self.index_len();
        let behind = size.checked_sub(len)?;
        Some(match self.index_location() {
            ShardingIndexLocation::Start => 0..len,
            ShardingIndexLocation::End => behind..size,
        })
    }

    /// Returns the byte range of each subchunk in a shard of `size` bytes with the encoded `index`, in C
    /// order. The range of an empty subchunk is `None`. Subchunks may overlap each other and the index.
    ///
    /// # Errors
    /// [`Error::Codec`] if the index codecs fail, or a subchunk lies outside of the shard.
    pub fn decode_index(&self, index: &[u8], size: u64) -> Result<Vec<Option<Range<u64>>>, Error> {
        let entries = self.shards.entries(index, size)?;
        let bytes = |extent: Range<usize>| extent.start as u64..extent.end as u64;
        Ok(entries.iter().map(|extent| extent.map(bytes)).collect())
    }

    /// Returns the byte ranges of the subchunks that boxes of elements meet, in a shard with the encoded
    /// `index`. Each box has the extents `shape` and begins at one of `starts`, which have a number for each
    /// axis, in elements from the origin of the shard. Empty subchunks have no range. The ranges are in the
    /// order of the boxes. If several boxes meet a subchunk, its range is returned for each.
    ///
    /// # Errors
    /// [`Error::Codec`] if the index codecs fail, or if a box is not within the shard.
    pub fn ranges_of_boxes(
        &self,
        index: &[u8],
        starts: &[Vec<usize>],
        shape: &[usize],
    ) -> Result<Vec<Range<u64>>, Error> {
        let shard = self.shards.grid.shard();
        let is_within = |start: &Vec<usize>| {
            let mut axes = start.iter().zip(shape).zip(shard);
            start.len() == shard.len()
                && shape.len() == shard.len()
                && axes.all(|((start, len), extent)| {
                    start.checked_add(*len).is_some_and(|end| end <= *extent)
                })
        };
        if let Some(outside) = starts.iter().find(|start| !is_within(start)) {
            let message = format!(
                "a box of {shape:?} elements at {outside:?} is not within a shard of {shard:?}"
            );
            return Err(CodecError::Other(message).into());
        }
        let subchunks = self.decode_index(index, i64::MAX as u64)?;
        let numbers = starts
            .iter()
            .flat_map(|start| self.shards.grid.numbers_in(start, shape));
        Ok(numbers
            .filter_map(|number| subchunks.get(number)?.clone())
            .collect())
    }

    /// Returns the parts and the index with which a shard of `size` bytes, with the encoded `index`, is
    /// copied without its unused bytes. Returns `None` if every byte is used.
    ///
    /// # Errors
    /// [`Error::Codec`] if the index codecs fail, or a subchunk lies outside of the shard.
    pub fn packing(&self, index: &[u8], size: usize) -> Result<Option<Packing>, Error> {
        Ok(self.shards.packing(index, size, &CodecOptions::default())?)
    }

    /// Returns the encoded index of a shard whose subchunks lie at `subchunks`, which are byte ranges in C
    /// order. An empty subchunk is `None`.
    ///
    /// # Errors
    /// [`Error::Codec`] if `subchunks` has another length than the shard has subchunks, if this machine
    /// cannot address a range, or if the index codecs fail.
    pub fn encode_index(&self, subchunks: &[Option<Range<u64>>]) -> Result<Vec<u8>, Error> {
        let expected = self.shards.grid.num_subchunks();
        if subchunks.len() != expected {
            let message = format!(
                "cannot encode an index of {} subchunks: a shard has {expected}",
                subchunks.len()
            );
            return Err(CodecError::Other(message).into());
        }
        let extent = |bytes: &Range<u64>| {
            let [start, end] = [bytes.start, bytes.end].map(usize::try_from);
            Ok(start?..end?)
        };
        let extents: Result<Vec<_>, TryFromIntError> = subchunks
            .iter()
            .map(|subchunk| subchunk.as_ref().map(extent).transpose())
            .collect();
        let extents = extents.map_err(|error| {
            CodecError::Other(format!("cannot encode an index: an offset is {error}"))
        })?;
        Ok(self.shards.index.encode(&extents, &stored::options())?)
    }

    pub(crate) fn shards(&self) -> &Arc<Sharding> {
        &self.shards
    }
}

/// Returns the diagnosis of `object`.
///
/// # Errors
/// A [`CodecError`] if bytes that may be an index were not decoded for a reason other than the bytes, because
/// a repair must not depend on such a reason.
pub(super) fn diagnosis_of(shards: &Sharding, object: &[u8]) -> Result<Diagnosis, CodecError> {
    let trouble = OnceCell::new();
    let is_index = |index: &[u8], size| match shards.entries(index, size) {
        Ok(_) => true,
        Err(error) => {
            if !is_about_stored_bytes(&error) {
                // The first error is kept, and returned to the caller.
                let _ = trouble.set(error);
            }
            false
        }
    };
    let geometry = Geometry {
        location: shards.index.location(),
        index_len: shards.index.len(),
        checksum: shards.index.has_checksum(),
        is_index: &is_index,
    };
    let diagnosis = diagnose(object, &geometry);
    trouble.into_inner().map_or(Ok(diagnosis), Err)
}
