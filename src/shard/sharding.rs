//! Everything about the shards of one codec, shape, data type and fill value except their bytes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use zarrs::array::{BytesRepresentation, ChunkShape, DataType, FillValue};
use zarrs::plugin::ZarrVersion;
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecOptions};

use super::codec_parts::CodecParts;
use super::error::sourced;
use super::index::ShardIndex;
use super::subchunk_len::SubchunkLen;
use zarrs_cuda_engine::contract::KnownChain;
use zarrs_cuda_engine::layout::{Extent, SubchunkGrid};

/// The encoder of the elements of a subchunk.
#[derive(Clone, Debug)]
enum SubchunkElements {
    /// The engines encode the elements.
    Known(KnownChain),
    /// The engines call zarrs' inner codecs, for the given reason.
    Foreign(String),
    /// zarrs' own sharding codec encodes the elements, because the engines cannot, for the given reason.
    Delegated(String),
}

/// Shards of one codec, shape, data type and fill value.
#[derive(Clone, Debug)]
pub(crate) struct Sharding {
    pub(crate) codec: Arc<CodecParts>,
    pub(crate) shape: ChunkShape,
    pub(crate) data_type: DataType,
    pub(crate) fill_value: FillValue,
    /// The grid of subchunks in a shard. An element that zarrs' own codec encodes counts as one byte.
    pub(crate) grid: SubchunkGrid,
    pub(crate) index: ShardIndex,
    elements: SubchunkElements,
    fingerprint: OnceLock<u64>,
    nested: OnceLock<Option<Arc<Self>>>,
}

impl Sharding {
    /// # Errors
    /// A [`CodecError`] if the shapes do not fit each other, the shard is not addressable, or the
    /// fill value is not one of the data type.
    pub(super) fn new(
        codec: Arc<CodecParts>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Self, CodecError> {
        let (element_size, elements) = if let Some(why) = why_delegated(data_type) {
            (1, SubchunkElements::Delegated(why))
        } else {
            let element_size = data_type.fixed_size().unwrap_or(1);
            let len = fill_value.as_ne_bytes().len();
            if len != element_size {
                return Err(CodecError::Other(format!(
                    "the fill value has {len} bytes, {data_type} needs {element_size}"
                )));
            }
            let known = codec.recognised.as_ref().map_err(Clone::clone);
            let known = known.and_then(|chain| {
                let array_to_bytes = codec.inner_codecs.array_to_bytes_codec();
                chain.resolve(array_to_bytes.as_ref(), shape.len(), data_type, fill_value)
            });
            (
                element_size,
                known.map_or_else(SubchunkElements::Foreign, SubchunkElements::Known),
            )
        };
        let grid = grid(&codec, shape, element_size)?;
        Ok(Self {
            index: ShardIndex::new(&codec.index_codecs, codec.index_location, &grid)?,
            shape: shape.to_vec(),
            data_type: data_type.clone(),
            fill_value: fill_value.clone(),
            codec,
            grid,
            elements,
            fingerprint: OnceLock::new(),
            nested: OnceLock::new(),
        })
    }

    /// Returns the inner codecs as the engines know them, or the reason why the engines do not know them.
    pub(crate) fn known(&self) -> Result<&KnownChain, &str> {
        match &self.elements {
            SubchunkElements::Known(chain) => Ok(chain),
            SubchunkElements::Foreign(why) | SubchunkElements::Delegated(why) => Err(why),
        }
    }

    /// Returns whether an encoded subchunk is its elements, in the byte order of this machine, with their axes in
    /// some order.
    pub(crate) fn is_plain(&self) -> bool {
        self.known()
            .is_ok_and(|chain| chain.stages.is_empty() && chain.swap == 1)
    }

    /// Returns the reason why zarrs' own codec encodes these shards, or `None` if the engines encode them.
    pub(crate) fn delegated(&self) -> Option<&str> {
        match &self.elements {
            SubchunkElements::Delegated(why) => Some(why),
            SubchunkElements::Known(_) | SubchunkElements::Foreign(_) => None,
        }
    }

    /// Returns the order of axes in which the elements of a decoded subchunk are stored.
    pub(crate) fn order(&self) -> Vec<usize> {
        match self.known() {
            Ok(chain) => chain.order.clone(),
            Err(_) => (0..self.shape.len()).collect(),
        }
    }

    /// Returns a number that is equal for shards of one configuration, shape, data type and fill value.
    pub(crate) fn fingerprint(&self) -> u64 {
        *self.fingerprint.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            format!("{:?}", self.codec.configuration()).hash(&mut hasher);
            self.shape.hash(&mut hasher);
            self.data_type.name(ZarrVersion::V3).hash(&mut hasher);
            let data_type = self.data_type.configuration(ZarrVersion::V3);
            format!("{data_type:?}").hash(&mut hasher);
            self.fill_value.as_ne_bytes().hash(&mut hasher);
            hasher.finish()
        })
    }

    /// Returns the inner shards, if each subchunk is a shard and the inner codecs do nothing else.
    ///
    /// # Errors
    /// A [`CodecError`] if the shapes of the inner shards and their subchunks do not fit each other.
    pub(crate) fn nested(&self) -> Result<Option<Arc<Self>>, CodecError> {
        if let Some(known) = self.nested.get() {
            return Ok(known.clone());
        }
        let nested = self.codec.nested.as_ref().map(|codec| {
            let shape = &self.codec.subchunk_shape;
            Self::new(codec.clone(), shape, &self.data_type, &self.fill_value)
        });
        let nested = nested.transpose()?.map(Arc::new);
        Ok(self.nested.get_or_init(|| nested).clone())
    }

    /// Checks and decodes the index of the encoded shard `bytes`.
    ///
    /// # Errors
    /// A [`CodecError`] if the shard is too short, the index codecs fail, or an entry is invalid.
    pub(crate) fn decode_index(
        &self,
        bytes: &[u8],
        options: &CodecOptions,
    ) -> Result<Vec<Extent>, CodecError> {
        Ok(self.index.decode_in(bytes, options)?.iter().collect())
    }

    /// Returns the limit for the length of an encoded subchunk.
    ///
    /// # Errors
    /// A [`CodecError`] if the inner codecs do not fit the data type.
    pub(crate) fn subchunk_len(&self) -> Result<SubchunkLen, CodecError> {
        Ok(self.subchunk_representation()?.into())
    }

    /// Returns the size of an encoded subchunk, or its bound, as the inner codecs give it.
    ///
    /// # Errors
    /// A [`CodecError`] if the inner codecs do not fit the data type.
    pub(crate) fn subchunk_representation(&self) -> Result<BytesRepresentation, CodecError> {
        let codec = &self.codec;
        codec.inner_codecs.encoded_representation(
            &codec.subchunk_shape,
            &self.data_type,
            &self.fill_value,
        )
    }

    /// Returns the largest size that an encoded shard can have.
    ///
    /// # Errors
    /// A [`CodecError`] if the inner codecs do not fit the data type, or 64 bits cannot count the
    /// bytes.
    pub(crate) fn encoded_representation(&self) -> Result<BytesRepresentation, CodecError> {
        if self.delegated().is_some() {
            // The grid is checked with the real size of an element: zarrs' codecs multiply by this size
            // without a check.
            let element_size = self.data_type.fixed_size().unwrap_or(1);
            grid(&self.codec, &self.shape, element_size)?;
        }
        let bound = self.subchunk_representation()?.size().map(|size| {
            size.checked_mul(self.grid.num_subchunks() as u64)
                .and_then(|len| len.checked_add(self.index.len() as u64))
        });
        match bound {
            None => Ok(BytesRepresentation::UnboundedSize),
            Some(Some(bound)) => Ok(BytesRepresentation::BoundedSize(bound)),
            Some(None) => Err(CodecError::Other(format!(
                "a shard of shape {:?} encodes to more bytes than 64 bits can count",
                self.shape
            ))),
        }
    }
}

/// Returns the reason why zarrs' own codec encodes elements of `data_type`: they have no fixed size, may be
/// missing, or have no bytes. Returns `None` if the engines encode them.
fn why_delegated(data_type: &DataType) -> Option<String> {
    if data_type.is_optional() {
        return Some(format!("elements of {data_type} may be missing"));
    }
    match data_type.fixed_size() {
        None => Some(format!("elements of {data_type} have no fixed size")),
        Some(0) => Some(format!("elements of {data_type} have no bytes")),
        Some(_) => None,
    }
}

/// Returns the grid of subchunks in a shard of `shape`.
///
/// # Errors
/// A [`CodecError`] if the shapes do not fit each other, or the shard is not addressable.
pub(crate) fn grid(
    codec: &CodecParts,
    shape: &[NonZeroU64],
    element_size: usize,
) -> Result<SubchunkGrid, CodecError> {
    let to_u64 = |shape: &[NonZeroU64]| shape.iter().map(|d| d.get()).collect::<Vec<_>>();
    SubchunkGrid::new(&to_u64(shape), &to_u64(&codec.subchunk_shape), element_size).map_err(sourced)
}
