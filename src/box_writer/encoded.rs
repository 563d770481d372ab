//! Encodes a shard that a box covers.

use zarrs::array::ArrayBytes;
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};
use zarrs_storage::StoreKey;

use super::error::BoxWriterErrorKind as Kind;
use super::input::Source;
use crate::maintenance::ShardFormat;
use crate::reader::request::WantedPart;

/// Returns the encoded shard `key` of the elements of `part` in `source`, or `None` if all of its subchunks are
/// empty.
pub(super) fn encoded(
    format: &ShardFormat,
    (key, part, source): (&StoreKey, &WantedPart, &Source<'_>),
    options: &CodecOptions,
) -> Result<Option<Vec<u8>>, Kind> {
    let shards = format.shards();
    let elements = source.elements(&part.shape, part.offset, &shards.data_type)?;
    let fill = shards.fill_value.as_ne_bytes();
    if !options.store_empty_chunks() && elements.chunks_exact(fill.len()).all(|e| e == fill) {
        return Ok(None);
    }
    let encoded = format.codec().encode(
        ArrayBytes::new_flen(elements),
        format.shape(),
        &shards.data_type,
        &shards.fill_value,
        options,
    );
    let encoded = encoded.map_err(Kind::codec("encode", key))?;
    Ok(Some(encoded.into_owned()))
}
