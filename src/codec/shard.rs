//! One shard: its geometry, its index, and the job that it is for an engine.

use std::borrow::Cow;
use std::num::{NonZeroU64, NonZeroUsize};

use zarrs::array::concurrency::calc_concurrency_outer_inner;
use zarrs::array::{BytesRepresentation, DataType, FillValue};
use zarrs_codec::{ArrayCodecTraits, ArrayToBytesCodecTraits, CodecError, CodecOptions};

use super::CudaShardingCodec;
use super::foreign::{ForeignChain, codec_error};
use super::index::ShardIndex;
use crate::Error;
use crate::engine::{EncodedSubchunk, EngineError, Job, KnownChain, host};
use crate::layout::{Extent, SubchunkGrid};
use crate::plan::{self, ShardPlan};

/// A shard of one codec, shape and data type.
pub(crate) struct Shard<'a> {
    codec: &'a CudaShardingCodec,
    pub(crate) data_type: &'a DataType,
    pub(crate) fill_value: &'a FillValue,
    pub(crate) grid: SubchunkGrid,
    /// The inner codecs as data, or why they cannot be that.
    pub(crate) known: Result<KnownChain, String>,
    pub(crate) index: ShardIndex,
}

impl<'a> Shard<'a> {
    /// # Errors
    /// A [`CodecError`] if the shapes do not fit each other, the shard is not addressable, or the
    /// fill value is not one of the data type.
    pub(crate) fn new(
        codec: &'a CudaShardingCodec,
        shape: &[NonZeroU64],
        data_type: &'a DataType,
        fill_value: &'a FillValue,
    ) -> Result<Self, CodecError> {
        let Some(element_size) = data_type.fixed_size() else {
            return Err(CodecError::UnsupportedDataType(
                data_type.clone(),
                "sharding_indexed".to_string(),
            ));
        };
        if fill_value.as_ne_bytes().len() != element_size {
            return Err(CodecError::Other(format!(
                "the fill value has {} bytes, {data_type} needs {element_size}",
                fill_value.as_ne_bytes().len()
            )));
        }
        let grid = grid(codec, shape, element_size)?;
        let known = codec.recognised.clone().and_then(|chain| {
            let array_to_bytes = codec.inner_codecs.array_to_bytes_codec();
            chain.resolve(array_to_bytes.as_ref(), shape.len(), data_type, fill_value)
        });
        Ok(Self {
            index: ShardIndex::new(codec, &grid)?,
            codec,
            data_type,
            fill_value,
            grid,
            known,
        })
    }

    /// The engine that encodes it.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if the options ask for a device, and it cannot be one.
    pub(crate) fn choose_engine(&self) -> Result<ShardPlan, Error> {
        self.choose_engine_for(&self.grid)
    }

    /// The engine that encodes some of its subchunks, as a shard of `grid`.
    ///
    /// # Errors
    /// As for [`choose_engine`](Self::choose_engine).
    pub(crate) fn choose_engine_for(&self, grid: &SubchunkGrid) -> Result<ShardPlan, Error> {
        let known = self.known.as_ref().map_err(String::as_str);
        let engines = &self.codec.engines;
        engines.choose(&self.codec.options, grid, known)
    }

    /// The engine that decodes it whole.
    ///
    /// # Errors
    /// As for [`choose_engine`](Self::choose_engine).
    pub(crate) fn choose_decoder(&self) -> Result<ShardPlan, Error> {
        let known = self.known.as_ref().map_err(String::as_str);
        let engines = &self.codec.engines;
        engines.choose_decoder(&self.codec.options, &self.grid, known)
    }

    /// Call `f` with the job that this shard is for an engine.
    pub(crate) fn with_job<T>(&self, options: &CodecOptions, f: impl FnOnce(&Job<'_>) -> T) -> T {
        let (outer, inner) = self.concurrency(options);
        let foreign = ForeignChain {
            chain: &self.codec.inner_codecs,
            shape: &self.codec.subchunk_shape,
            data_type: self.data_type,
            fill_value: self.fill_value,
            options: options.with_concurrent_target(inner),
        };
        f(&Job {
            grid: &self.grid,
            chain: plan::chain(self.known.as_ref().ok(), &foreign),
            fill_value: self.fill_value.as_ne_bytes(),
            store_empty: options.store_empty_chunks(),
            validate_checksums: options.validate_checksums(),
            threads: outer,
            huge_pages: self.codec.options.huge_pages(),
        })
    }

    /// How many threads for subchunks, and how many inside each.
    pub(super) fn concurrency(&self, options: &CodecOptions) -> (NonZeroUsize, usize) {
        // zarrs: "concurrency is unconstrained if the concurrent target is set to zero".
        let target = match options.concurrent_target() {
            0 => rayon::current_num_threads(),
            target => target,
        };
        let inner = self
            .codec
            .inner_codecs
            .recommended_concurrency(&self.codec.subchunk_shape, self.data_type);
        let (outer, inner) = match (&self.known, inner) {
            (Err(_), Ok(inner)) => calc_concurrency_outer_inner(
                target,
                &zarrs_codec::RecommendedConcurrency::new_maximum(self.grid.num_subchunks()),
                &inner,
            ),
            _ => (target, 1),
        };
        (NonZeroUsize::new(outer).unwrap_or(NonZeroUsize::MIN), inner)
    }

    /// Check and decode the index of the encoded shard `bytes`.
    ///
    /// # Errors
    /// A [`CodecError`] if the shard is too short, the index codecs fail, or an entry is invalid.
    pub(crate) fn decode_index(
        &self,
        bytes: &[u8],
        options: &CodecOptions,
    ) -> Result<Vec<Extent>, CodecError> {
        let encoded = Cow::Borrowed(self.index.of(bytes)?);
        let entries = self.index.decode(encoded, bytes.len() as u64, options)?;
        Ok(entries.iter().collect())
    }

    /// Put the index of `extents` into `bytes`, where the room for it was left.
    ///
    /// # Errors
    /// A [`CodecError`] if the index codecs fail.
    pub(crate) fn with_index(
        &self,
        mut bytes: Vec<u8>,
        extents: &[Extent],
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        let index = self.index.encode(extents, options)?;
        if self.index.is_at_end() {
            bytes.extend_from_slice(&index);
        } else {
            bytes[..index.len()].copy_from_slice(&index);
        }
        Ok(bytes)
    }
}

/// The subchunks of the encoded shard `bytes`, for an engine.
pub(crate) fn encoded_subchunks<'b>(
    bytes: &'b [u8],
    extents: &[Extent],
) -> Vec<EncodedSubchunk<'b>> {
    extents
        .iter()
        .enumerate()
        .map(|(number, extent)| EncodedSubchunk {
            number,
            bytes: extent.clone().and_then(|extent| bytes.get(extent)),
        })
        .collect()
}

/// The grid of subchunks in a shard of `shape`.
fn grid(
    codec: &CudaShardingCodec,
    shape: &[NonZeroU64],
    element_size: usize,
) -> Result<SubchunkGrid, CodecError> {
    let to_u64 = |shape: &[NonZeroU64]| shape.iter().map(|d| d.get()).collect::<Vec<_>>();
    SubchunkGrid::new(&to_u64(shape), &to_u64(&codec.subchunk_shape), element_size)
        .map_err(|error| CodecError::Other(error.to_string()))
}

/// How many bytes a subchunk may have, encoded or between two of its codecs, as far as the metadata say.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SubchunkLen {
    Exactly(u64),
    AtMost(u64),
    Anything,
}

impl SubchunkLen {
    /// What the inner codecs of `codec` make of a subchunk.
    ///
    /// # Errors
    /// A [`CodecError`] if they do not fit the data type.
    pub(crate) fn of(
        codec: &CudaShardingCodec,
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Self, CodecError> {
        let representation = codec.inner_codecs.encoded_representation(
            &codec.subchunk_shape,
            data_type,
            fill_value,
        )?;
        Ok(representation.into())
    }

    /// The most bytes, if it says anything.
    pub(crate) fn most(self) -> Option<u64> {
        match self {
            Self::Exactly(most) | Self::AtMost(most) => Some(most),
            Self::Anything => None,
        }
    }

    /// Whether it says anything.
    pub(crate) fn is_bounded(self) -> bool {
        self.most().is_some()
    }

    /// That subchunk `number` may have `len` bytes.
    ///
    /// # Errors
    /// A [`CodecError`] if it may not.
    pub(crate) fn check(self, number: usize, len: usize) -> Result<(), CodecError> {
        let len = len as u64;
        let (expected, most) = match self {
            Self::Exactly(size) if len != size => ("exactly", size),
            Self::AtMost(most) if len > most => ("at most", most),
            _ => return Ok(()),
        };
        Err(CodecError::Other(format!(
            "subchunk {number} has {len} bytes in the shard index, expected {expected} {most}; the shard may be corrupted"
        )))
    }
}

impl From<BytesRepresentation> for SubchunkLen {
    fn from(representation: BytesRepresentation) -> Self {
        /// Beside twice what zarrs' own encoders need, since other encoders may need more.
        const SLACK: u64 = 4096;
        match representation {
            BytesRepresentation::FixedSize(size) => Self::Exactly(size),
            BytesRepresentation::BoundedSize(size) => {
                Self::AtMost(size.saturating_mul(2).saturating_add(SLACK))
            }
            BytesRepresentation::UnboundedSize => Self::Anything,
        }
    }
}

/// The grid and the index of a shard of any data type.
///
/// # Errors
/// A [`CodecError`] if the shapes do not fit each other, or the shard is not addressable.
pub(crate) fn index_geometry(
    codec: &CudaShardingCodec,
    shape: &[NonZeroU64],
) -> Result<(SubchunkGrid, ShardIndex), CodecError> {
    let grid = grid(codec, shape, 1)?;
    let index = ShardIndex::new(codec, &grid)?;
    Ok((grid, index))
}

/// Check the index of the encoded shard `bytes`, of any data type.
///
/// # Errors
/// As for [`Shard::decode_index`].
pub(crate) fn check_index(
    codec: &CudaShardingCodec,
    bytes: &[u8],
    shape: &[NonZeroU64],
    options: &CodecOptions,
) -> Result<(), CodecError> {
    let (_, index) = index_geometry(codec, shape)?;
    let encoded = Cow::Borrowed(index.of(bytes)?);
    let entries = index.decode(encoded, bytes.len() as u64, options)?;
    ShardIndex::check_overlaps(&entries, &codec.options)
}

/// The shard without bytes that no subchunk uses, with its subchunks in C order; `None` if there
/// are no such bytes.
///
/// # Errors
/// As for [`Shard::decode_index`], and if memory cannot be had.
pub(crate) fn compact(
    codec: &CudaShardingCodec,
    bytes: &[u8],
    shape: &[NonZeroU64],
    options: &CodecOptions,
) -> Result<Option<Vec<u8>>, CodecError> {
    let (_, index) = index_geometry(codec, shape)?;
    let encoded = Cow::Borrowed(index.of(bytes)?);
    let entries = index.decode(encoded, bytes.len() as u64, options)?;
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
    dense(codec, &index, &subchunks, used, options).map(Some)
}

/// A shard of the encoded `subchunks`, in C order, one after the other. It should have at most `most`
/// bytes.
///
/// # Errors
/// A [`CodecError`] if it would have more, if memory cannot be had, or if the index codecs fail.
pub(crate) fn dense(
    codec: &CudaShardingCodec,
    index: &ShardIndex,
    subchunks: &[Option<&[u8]>],
    most: usize,
    options: &CodecOptions,
) -> Result<Vec<u8>, CodecError> {
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
    let huge_pages = codec.options.huge_pages();
    let (mut shard, extents) =
        host::pack(subchunks, index.room(), threads, huge_pages).map_err(codec_error)?;
    let encoded = index.encode(&extents, options)?;
    let room = index.range_in(shard.len());
    let room = room.ok_or_else(|| codec_error(EngineError::Internal("no room for the index")))?;
    shard[room].copy_from_slice(&encoded);
    Ok(shard)
}

/// The most bytes that a shard can encode to.
///
/// # Errors
/// A [`CodecError`] if the shapes, data type and codecs do not fit each other.
pub(crate) fn encoded_representation(
    codec: &CudaShardingCodec,
    shape: &[NonZeroU64],
    data_type: &DataType,
    fill_value: &FillValue,
) -> Result<BytesRepresentation, CodecError> {
    // With the real size of an element: zarrs' codecs multiply by it without a check.
    let grid = grid(codec, shape, data_type.fixed_size().unwrap_or(1))?;
    let index_len = ShardIndex::new(codec, &grid)?.len();
    let subchunk =
        codec
            .inner_codecs
            .encoded_representation(&codec.subchunk_shape, data_type, fill_value)?;
    let bound = subchunk.size().map(|size| {
        size.checked_mul(grid.num_subchunks() as u64)
            .and_then(|len| len.checked_add(index_len as u64))
    });
    match bound {
        None => Ok(BytesRepresentation::UnboundedSize),
        Some(Some(bound)) => Ok(BytesRepresentation::BoundedSize(bound)),
        Some(None) => Err(CodecError::Other(format!(
            "a shard of shape {shape:?} encodes to more bytes than 64 bits can count"
        ))),
    }
}
