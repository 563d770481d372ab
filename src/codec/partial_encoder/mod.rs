//! Part of a shard, updated where it is stored.
//!
//! 1. Read the index.
//! 2. Read the subchunks of which a part stays, in one request; decode them, patch them.
//! 3. Encode what changes as one batch, on the engine that the plan names.
//! 4. Read the index again, with the record before it, and the last byte: they say how large the shard
//!    is. If the index has changed since step 1, refuse.
//! 5. Write: usually once, twice where an index is rewritten where it is.
//!
//! What a codec can do to a stored value bounds all of this: read ranges of it, overwrite bytes,
//! make it longer, and erase it. `docs/updates.md` has the protocol and its promises.

#[cfg(feature = "async")]
mod asynchronous;
mod commit;
mod comparison;
mod delegated;
mod nested;
mod reads;
mod sync;
mod target;
mod turns;
mod update;
mod writes;

use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::{ArrayBytes, ArrayBytesRaw, ArraySubset, DataType, FillValue};
use zarrs_codec::{CodecError, CodecOptions};
use zarrs_storage::byte_range::ByteRange;

use super::CudaShardingCodec;
use super::partial_decoder::check_memory;
use super::shard::dense;
use crate::layout::placement::Rule;
use crate::write_strategy::{CompactionRequest, counters};
use commit::rule;
use comparison::StoredIndex;
use reads::Fetched;
use target::Target;
use update::Update;

/// Encodes parts of one shard. `H` is how its bytes are read and written.
pub(super) struct PartialEncoder<H: ?Sized> {
    target: Target,
    handle: Arc<H>,
}

impl<H: ?Sized> PartialEncoder<H> {
    /// # Errors
    /// A [`CodecError`] if the shapes do not fit each other.
    pub(super) fn new(
        codec: Arc<CudaShardingCodec>,
        handle: Arc<H>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Self, CodecError> {
        Ok(Self {
            target: Target::new(codec, shape, data_type, fill_value)?,
            handle,
        })
    }

    /// The index that was read, if there is a shard.
    fn index(
        &self,
        encoded: Option<ArrayBytesRaw<'_>>,
        options: &CodecOptions,
    ) -> Result<Option<StoredIndex>, CodecError> {
        let Some(encoded) = encoded else {
            return Ok(None);
        };
        // Whatever the caller does not want to know of data: a new index says that the old one was right.
        let options = options.with_validate_checksums(true);
        StoredIndex::new(&self.target.index, encoded.into_owned(), &options).map(Some)
    }

    /// Where to read the index.
    fn index_range(&self) -> Result<ByteRange, CodecError> {
        check_memory(self.target.index.len())?;
        Ok(self.target.index.byte_range())
    }

    /// Tell the metrics, and who wants to know, that a write happened.
    fn written(&self, size: usize, dead: Option<usize>) {
        counters::partial_write();
        let Some(dead) = dead else { return };
        counters::compaction_request();
        let request = CompactionRequest {
            size: size as u64,
            dead: dead as u64,
        };
        tracing::debug!(size, dead, "a shard should be compacted");
        if let Some(callback) = self.target.codec.options.compaction_callback() {
            (callback.0)(&request);
        }
    }
}

/// Encode a whole shard of elements that have no fixed size.
///
/// # Errors
/// A [`CodecError`] if a subchunk cannot be encoded.
pub(super) fn encode_delegated(
    codec: &CudaShardingCodec,
    (shape, data_type, fill_value): (&[NonZeroU64], &DataType, &FillValue),
    elements: &ArrayBytes<'_>,
    options: &CodecOptions,
) -> Result<Vec<u8>, CodecError> {
    let target = Target::new(Arc::new(codec.clone()), shape, data_type, fill_value)?;
    let all = ArraySubset::new_with_shape(shape.iter().map(|d| d.get()).collect());
    let update = Update::new(&target, None, &all, elements)?;
    let changes = delegated::encode(&update, &Fetched::default(), options)?;
    let subchunks: Vec<Option<&[u8]>> = changes
        .subchunks
        .iter()
        .map(|(_, new)| new.as_ref().map(|new| changes.encoded(new)))
        .collect();
    dense(codec, &target.index, &subchunks, usize::MAX, options)
}

/// What to read again before something moves: subchunks that were patched, where others may have
/// written to them without a change of the index.
fn to_compare<'f, 'b>(rule: Rule, fetched: &'f Fetched<'b>) -> Option<&'f Fetched<'b>> {
    match rule {
        Rule::InPlace | Rule::Slots { .. } => Some(fetched),
        Rule::Append | Rule::Reuse => None,
    }
}

/// Say where a partial write of a shard puts what it changes, on a store that writes ranges.
///
/// # Errors
/// A [`CodecError`] if the shapes, data type and codecs do not fit each other.
pub(super) fn explain(
    codec: &CudaShardingCodec,
    shape: &[NonZeroU64],
    data_type: &DataType,
    fill_value: &FillValue,
) -> Result<String, CodecError> {
    let target = Target::new(Arc::new(codec.clone()), shape, data_type, fill_value)?;
    Ok(match rule(&target, true) {
        Err(error) => error.to_string(),
        Ok(Rule::Append) => "behind everything that is there".to_string(),
        Ok(Rule::Reuse) => {
            "into bytes that nothing uses, or behind everything: the old state stays until the new one is whole".to_string()
        }
        Ok(Rule::InPlace) => {
            "where the subchunk was, if it fits; else into bytes that nothing uses, or behind everything".to_string()
        }
        Ok(Rule::Slots { size }) => format!("each subchunk into its own slot of {size} bytes"),
    })
}

/// With what to do about an index that cannot be read.
fn index_error(error: &CodecError) -> CodecError {
    CodecError::Other(format!(
        "the index of a shard that is to be updated cannot be read: {error}. If an earlier update was interrupted, zarrs_cuda::recover restores it"
    ))
}

/// With what to do about a shard that was left in the middle of a write.
fn write_error(error: &CodecError) -> CodecError {
    CodecError::Other(format!(
        "a partial write of a shard failed, and may have stopped in the middle: {error}. Call zarrs_cuda::recover for the shard before reading or writing it"
    ))
}
