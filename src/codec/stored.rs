//! What is asked of the codec about shards that are stored, of any data type.

use std::borrow::Cow;
use std::num::NonZeroU64;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use zarrs::array::{DataType, FillValue};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecOptions};

use super::CudaShardingCodec;
use super::foreign::codec_error;
use super::index::ShardIndex;
use super::shard::{self, Shard, index_geometry};
use crate::engine::EncodedSubchunk;
use crate::layout::{Entries, Extent, SubchunkGrid};
use crate::plan::host_engine;
use crate::store::no_panic;

/// Decodes the bytes of the subchunk of a number.
type TryOne<'a> = dyn Fn(usize, &[u8]) -> Result<(), CodecError> + Sync + 'a;

/// Shards of one codec, shape and data type.
pub(crate) struct StoredShard<'a> {
    codec: &'a CudaShardingCodec,
    shape: &'a [NonZeroU64],
    data_type: &'a DataType,
    fill_value: &'a FillValue,
    grid: SubchunkGrid,
    index: ShardIndex,
    options: CodecOptions,
}

impl<'a> StoredShard<'a> {
    /// # Errors
    /// A [`CodecError`] if the shapes and codecs do not fit each other.
    pub(crate) fn new(
        codec: &'a CudaShardingCodec,
        shape: &'a [NonZeroU64],
        data_type: &'a DataType,
        fill_value: &'a FillValue,
    ) -> Result<Self, CodecError> {
        let (grid, index) = index_geometry(codec, shape)?;
        Ok(Self {
            codec,
            shape,
            data_type,
            fill_value,
            grid,
            index,
            options: CodecOptions::default().with_validate_checksums(true),
        })
    }

    pub(crate) fn index(&self) -> &ShardIndex {
        &self.index
    }

    pub(crate) fn grid(&self) -> &SubchunkGrid {
        &self.grid
    }

    /// The size of a decoded subchunk, in bytes; `None` if subchunks differ in it.
    pub(crate) fn decoded_size(&self) -> Option<u64> {
        let element = self.data_type.fixed_size()?;
        let subchunk = self.codec.subchunk_shape.iter();
        subchunk
            .map(|d| d.get())
            .try_fold(element as u64, u64::checked_mul)
    }

    /// The entries of an encoded index, whatever its checksum says, and wherever they lead.
    ///
    /// # Errors
    /// A [`CodecError`] if the index codecs fail.
    pub(crate) fn entries_unchecked<'b>(&self, index: &'b [u8]) -> Result<Entries<'b>, CodecError> {
        let options = self.options.with_validate_checksums(false);
        self.index.decode_unchecked(Cow::Borrowed(index), &options)
    }

    /// The entries of an encoded index, of an object of `size` bytes.
    ///
    /// # Errors
    /// A [`CodecError`] if the index codecs fail, or an extent is outside the object.
    pub(crate) fn entries<'b>(
        &self,
        index: &'b [u8],
        size: u64,
    ) -> Result<Entries<'b>, CodecError> {
        self.index.decode(Cow::Borrowed(index), size, &self.options)
    }

    /// The shard without bytes that no subchunk uses; `None` if there are no such bytes.
    ///
    /// # Errors
    /// A [`CodecError`] if the index is invalid, or memory cannot be had.
    pub(crate) fn compact(&self, object: &[u8]) -> Result<Option<Vec<u8>>, CodecError> {
        shard::compact(self.codec, object, self.shape, &self.options)
    }

    /// A shard of the encoded `subchunks`, in C order, one after the other.
    ///
    /// # Errors
    /// A [`CodecError`] if memory cannot be had, or the index codecs fail.
    pub(crate) fn pack(&self, subchunks: &[Option<&[u8]>]) -> Result<Vec<u8>, CodecError> {
        debug_assert_eq!(subchunks.len(), self.grid.num_subchunks());
        shard::dense(
            self.codec,
            &self.index,
            subchunks,
            usize::MAX,
            &self.options,
        )
    }

    /// Decode the subchunks of `object` that are not empty, each for itself, and say which cannot
    /// be decoded.
    ///
    /// # Errors
    /// A [`CodecError`] if the shapes, data type and codecs do not fit each other, or the codecs are for
    /// trusted data.
    pub(crate) fn try_subchunks(
        &self,
        object: &[u8],
        entries: &Entries<'_>,
    ) -> Result<Vec<Result<(), CodecError>>, CodecError> {
        self.codec.check_trusted()?;
        let numbered: Vec<(usize, Extent)> = entries.iter().enumerate().collect();
        let each = |decode: &TryOne<'_>| {
            let results = numbered.par_iter().map(|(number, extent)| match extent {
                None => Ok(()),
                Some(extent) => match object.get(extent.clone()) {
                    Some(bytes) => decode(*number, bytes),
                    None => Err(CodecError::Other(format!(
                        "bytes {}..{} are not in a shard of {} bytes",
                        extent.start,
                        extent.end,
                        object.len()
                    ))),
                },
            });
            results.collect()
        };
        if CudaShardingCodec::is_delegated(self.data_type) {
            return Ok(each(&|_, bytes| self.decode_delegated(bytes)));
        }
        let shard = Shard::new(self.codec, self.shape, self.data_type, self.fill_value)?;
        let options = self.options.with_concurrent_target(1);
        Ok(shard.with_job(&options, |job| {
            each(&|number, bytes| {
                let subchunk = EncodedSubchunk {
                    number,
                    bytes: Some(bytes),
                };
                host_engine()
                    .decode_each(job, &[subchunk], &|_, _, _| Ok(()))
                    .map_err(codec_error)
            })
        }))
    }

    /// Decode a subchunk whose elements have no fixed size.
    fn decode_delegated(&self, bytes: &[u8]) -> Result<(), CodecError> {
        let shape = &self.codec.subchunk_shape;
        no_panic(|| {
            let decoded = self.codec.inner_codecs.decode(
                Cow::Borrowed(bytes),
                shape,
                self.data_type,
                self.fill_value,
                &self.options,
            )?;
            let num_elements = shape.iter().map(|d| d.get()).product();
            decoded.validate(num_elements, self.data_type)
        })
    }
}
