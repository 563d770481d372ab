//! Encodes a shard that a box covers.

use zarrs_codec::CodecOptions;
use zarrs_storage::StoreKey;

use super::error::BoxWriterErrorKind as Kind;
use super::input::Source;
use crate::codec::encode_elements;
use crate::maintenance::ShardFormat;
use crate::reader::request::WantedPart;
use zarrs_cuda_engine::contract::ShardElements;
use zarrs_cuda_engine::memory::spares::Spares;

/// Returns the encoded shard `key` of the elements of `part` in `source`, or `None` if all of its subchunks are
/// empty. The elements are read where they are, unless they are in another byte order. The shard may be in one of
/// `spares`.
pub(super) fn encoded(
    format: &ShardFormat,
    (key, part, source): (&StoreKey, &WantedPart, &Source<'_>),
    spares: &Spares,
    options: &CodecOptions,
) -> Result<Option<Vec<u8>>, Kind> {
    let shards = format.shards();
    let encode = |elements: &ShardElements<'_>| {
        let encoded = encode_elements(shards, elements, Some(spares), options);
        encoded.map_err(Kind::codec("encode", key))
    };
    if let Some(bytes) = source.native_from(part.offset) {
        encode(&ShardElements::strided(bytes, &source.strides[..]))
    } else {
        let elements = source.elements(&part.shape, part.offset, &shards.data_type)?;
        encode(&ShardElements::contiguous(&elements))
    }
}
