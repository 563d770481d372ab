//! Builds a sharded array from zarrs' builder, with this crate's codec.

use std::sync::Arc;

use zarrs::array::codec::ShardingCodec;
use zarrs::array::{Array, ArrayBuilder, ArrayCreateError};
use zarrs::plugin::{ExtensionAliasesV3, PluginCreateError};

use crate::codec::{CudaShardingCodec, registry};

/// Builds a sharded array with this crate's codec from all that `builder` has: its codecs, attributes, chunk
/// keys and options. The metadata are those that [`ArrayBuilder::build`] makes.
///
/// [`ArrayBuilder::build`] itself makes zarrs' own codec after [`ArrayBuilder::subchunk_shape`], and asks no
/// registry. This function needs no registration; the codec has the options of [`register`](crate::register) while
/// a registration is in force, and the default ones otherwise.
///
/// ```standalone_crate
/// # use std::sync::Arc;
/// # use zarrs::array::{ArrayBuilder, data_type};
/// # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
/// let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0u16);
/// builder.subchunk_shape(vec![8, 8]);
/// let array = zarrs_cuda::build_sharded(builder, store, "/array")?;
/// array.store_metadata()?;
///
/// assert!(zarrs_cuda::explain(&array).is_ok());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`ArrayCreateError::CodecsCreateError`] if the builder has neither a `subchunk_shape` nor a
///   `sharding_indexed` codec, or if this crate's codec cannot be made of its configuration.
/// - The errors of [`ArrayBuilder::build`].
pub fn build_sharded<TStorage: ?Sized>(
    mut builder: ArrayBuilder,
    storage: Arc<TStorage>,
    path: &str,
) -> Result<Array<TStorage>, ArrayCreateError> {
    let codecs = builder.build_metadata()?.codecs;
    let sharding = codecs
        .iter()
        .find(|codec| ShardingCodec::matches_name_v3(codec.name()))
        .ok_or_else(|| {
            let what = format!(
                "the array at {path} is not sharded: call `ArrayBuilder::subchunk_shape`, or `ArrayBuilder::build` for an array without shards"
            );
            ArrayCreateError::CodecsCreateError(PluginCreateError::Other(what))
        })?;
    let codec = CudaShardingCodec::from_metadata(sharding, registry::options())
        .map_err(ArrayCreateError::CodecsCreateError)?;
    builder.subchunk_shape(None);
    builder.array_to_bytes_codec(Arc::new(codec));
    if let [_] = &*codecs {
        // The builder's own codecs encode subchunks, and the new codec has them already.
        builder.array_to_array_codecs(vec![]);
        builder.bytes_to_bytes_codecs(vec![]);
    }
    builder.build(storage, path)
}
