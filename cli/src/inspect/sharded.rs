//! Opens a sharded array without decoding a subchunk, so that subchunks with unknown codecs are no error.

use std::num::NonZeroU64;

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayMetadata, DataType};
use zarrs::metadata::v3::MetadataV3;
use zarrs_cuda::maintenance::{Inspection, ShardFormat, inspect};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::open::{self, Opened, Place};
use zarrs_cuda_convert::reshard::side::Index;
use zarrs_storage::StoreKey;

/// A sharded array, whose subchunks may have unknown codecs.
pub(super) struct Sharded {
    /// The array. If subchunks cannot be decoded, its metadata are changed: subchunks are of bytes.
    pub(super) opened: Opened,
    /// The metadata as they are stored.
    pub(super) metadata: Value,
    /// The codecs of the index, and the reason why subchunks cannot be decoded; `None` if they can.
    unknown: Option<(Index, String)>,
}

impl Sharded {
    pub(super) fn open(place: &Place) -> Result<Self, Failure> {
        let failure = match open::array(place) {
            Err(failure) => failure,
            Ok(opened) => {
                open::shards(&opened)?;
                let metadata = serde_json::to_value(opened.array.metadata());
                let metadata =
                    metadata.map_err(Failure::to(format_args!("show the metadata of {place}")))?;
                return Ok(Self {
                    opened,
                    metadata,
                    unknown: None,
                });
            }
        };
        Self::of_bytes(place, &failure).ok_or(failure)
    }

    /// Opens the array with subchunks of bytes; `None` if its metadata are wrong in more than the subchunks.
    fn of_bytes(place: &Place, failure: &Failure) -> Option<Self> {
        let stores = open::store(place).ok()?;
        let metadata = stores.store.get(&StoreKey::new("zarr.json").ok()?).ok()??;
        let metadata: Value = serde_json::from_slice(&metadata).ok()?;
        let mut of_bytes = metadata.clone();
        let codecs = of_bytes.get_mut("codecs")?.as_array_mut()?;
        let mut codecs = codecs.iter_mut();
        let sharding = codecs.find(|codec| codec["name"] == "sharding_indexed")?;
        let index = Index::of(&sharding["configuration"]).ok()?;
        let mut known = json!({ "codecs": ["bytes"] });
        for name in ["chunk_shape", "index_codecs", "index_location"] {
            if let Some(value) = sharding["configuration"].get(name) {
                known[name] = value.clone();
            }
        }
        sharding["configuration"] = known;
        of_bytes["data_type"] = "uint8".into();
        of_bytes["fill_value"] = 0.into();
        let of_bytes: ArrayMetadata = serde_json::from_value(of_bytes).ok()?;
        let array = Array::new_with_metadata(stores.store.clone(), "/", of_bytes).ok()?;
        let opened = Opened {
            place: place.clone(),
            array,
            stores,
        };
        open::shards(&opened).ok()?;
        Some(Self {
            opened,
            metadata,
            unknown: Some((index, failure.to_string())),
        })
    }

    /// Returns the reason why subchunks cannot be decoded; `None` if they can.
    pub(super) fn why_unknown(&self) -> Option<&str> {
        self.unknown.as_ref().map(|(_, why)| why.as_str())
    }

    /// Returns the size of an element in bytes; `None` if elements differ in size, or their size is not
    /// known.
    pub(super) fn element(&self) -> Option<u64> {
        let data_type = if self.unknown.is_some() {
            let metadata = self.metadata["data_type"].clone();
            let metadata: MetadataV3 = serde_json::from_value(metadata).ok()?;
            DataType::from_metadata(&metadata).ok()?
        } else {
            self.opened.array.data_type().clone()
        };
        data_type.fixed_size().map(|size| size as u64)
    }

    /// Returns the shape of a subchunk in elements, as the stored metadata have it.
    pub(super) fn subchunk(&self) -> Vec<u64> {
        let codecs = self.metadata["codecs"].as_array().into_iter().flatten();
        let mut sharding = codecs.filter(|codec| codec["name"] == "sharding_indexed");
        let shape = sharding
            .next()
            .and_then(|sharding| sharding["configuration"]["chunk_shape"].as_array());
        let extents = shape.into_iter().flatten();
        extents.filter_map(Value::as_u64).collect()
    }

    /// Returns the shape of a shard after the codecs before the sharding codec, such as `transpose`; `None`
    /// if it is not known.
    pub(super) fn stored_shape(&self, shard: &[u64]) -> Option<Vec<u64>> {
        let shape: Option<Vec<_>> = shard
            .iter()
            .map(|&extent| NonZeroU64::new(extent))
            .collect();
        let codecs = self.opened.array.codecs();
        let mut codecs = codecs.array_to_array_codecs().iter();
        let stored = codecs
            .try_fold(shape?, |shape, codec| codec.encoded_shape(&shape))
            .ok()?;
        Some(stored.iter().map(|extent| extent.get()).collect())
    }

    /// Returns the format of the shard with these indices.
    ///
    /// # Errors
    /// The grid has no such shard, or its codecs do not fit its shape.
    pub(super) fn format(&self, shard: &[u64]) -> Result<ShardFormat, zarrs_cuda::Error> {
        let format = ShardFormat::of(&self.opened.array, shard)?;
        let Some((index, _)) = &self.unknown else {
            return Ok(format);
        };
        let counts = format.shape().iter().zip(self.subchunk());
        let counts = counts
            .filter_map(|(shard, subchunk)| NonZeroU64::new(shard.get().checked_div(subchunk)?));
        let counts: Vec<_> = counts.collect();
        ShardFormat::of_encoded_subchunks(&counts, &index.codecs, index.location)
    }

    /// Inspects a shard. Returns `None` if the shard is not stored.
    pub(super) fn inspect(&self, shard: &[u64]) -> Result<Option<Inspection>, Failure> {
        let array = &self.opened.array;
        let not_read = |error: zarrs_cuda::Error| {
            Failure::from(error).with_remedy(
                "nothing was changed: when the cause is gone, run the same command again",
            )
        };
        let format = self.format(shard).map_err(not_read)?;
        let found = inspect(&*array.storage(), &array.chunk_key(shard), &format);
        let mut found = found.map_err(not_read)?;
        if let (Some(found), Some(_)) = (&mut found, &self.unknown) {
            let elements = self.subchunk().into_iter().fold(1, u64::saturating_mul);
            let size = self
                .element()
                .map(|element| element.saturating_mul(elements));
            found.decoded_size = size;
        }
        Ok(found)
    }
}
