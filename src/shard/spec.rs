//! The shards of one configuration, for any shape, data type and fill value.

use std::num::NonZeroU64;
use std::sync::{Arc, RwLock};

use zarrs::array::{DataType, FillValue};
use zarrs_codec::CodecError;

use super::codec_parts::CodecParts;
use super::sharding::Sharding;

/// The number of prepared shapes to keep: an array has shards of one shape, and perhaps a few others at its
/// edges.
const MOST: usize = 8;

/// A configuration of `sharding_indexed`, and the shards that were prepared for it last. Clones share the
/// prepared shards.
#[derive(Clone, Debug)]
pub(crate) struct ShardingSpec {
    pub(crate) parts: Arc<CodecParts>,
    prepared: Arc<RwLock<Vec<Arc<Sharding>>>>,
}

impl ShardingSpec {
    pub(crate) fn new(parts: CodecParts) -> Self {
        Self {
            parts: Arc::new(parts),
            prepared: Arc::default(),
        }
    }

    /// Returns the shards of this configuration with `shape` (elements), `data_type` and `fill_value`.
    ///
    /// # Errors
    /// A [`CodecError`] if the shape, data type, fill value and configuration do not fit each other.
    pub(crate) fn sharding(
        &self,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Arc<Sharding>, CodecError> {
        // No thread waits for the lock, because in a forked child process it may be held for ever.
        if let Ok(known) = self.prepared.try_read()
            && let Some(sharding) = known.iter().find(|sharding| {
                sharding.shape == shape
                    && sharding.data_type == *data_type
                    && sharding.fill_value == *fill_value
            })
        {
            return Ok(sharding.clone());
        }
        let sharding = Arc::new(Sharding::new(
            self.parts.clone(),
            shape,
            data_type,
            fill_value,
        )?);
        if let Ok(mut known) = self.prepared.try_write() {
            known.truncate(MOST - 1);
            known.insert(0, sharding.clone());
        }
        Ok(sharding)
    }
}
