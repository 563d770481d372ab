//! A sharded array, also one whose subchunks this program cannot decode: nothing here decodes any.

use std::num::NonZeroU64;

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayMetadata, DataType};
use zarrs::metadata::v3::MetadataV3;
use zarrs_cuda::maintenance::{Inspection, ShardFormat, inspect};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::open::{self, Opened, Place};
use zarrs_cuda_convert::reshard::side::Index;
use zarrs_storage::StoreKey;

/// A sharded array.
pub(super) struct Sharded {
    /// If subchunks cannot be decoded, they are of bytes here.
    pub(super) opened: Opened,
    /// The metadata as they are stored.
    pub(super) metadata: Value,
    /// How the index of a shard is encoded, and why subchunks cannot be decoded, if that is so.
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

    /// The array with subchunks of bytes, if its metadata are understood but for the subchunks.
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

    /// Why subchunks cannot be decoded, if that is so.
    pub(super) fn why_unknown(&self) -> Option<&str> {
        self.unknown.as_ref().map(|(_, why)| why.as_str())
    }

    /// The size of an element; `None` if elements differ in it, or it is not known.
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

    /// The shape of a subchunk in elements, as it is stored.
    pub(super) fn subchunk(&self) -> Vec<u64> {
        let codecs = self.metadata["codecs"].as_array().into_iter().flatten();
        let mut sharding = codecs.filter(|codec| codec["name"] == "sharding_indexed");
        let shape = sharding
            .next()
            .and_then(|sharding| sharding["configuration"]["chunk_shape"].as_array());
        let extents = shape.into_iter().flatten();
        extents.filter_map(Value::as_u64).collect()
    }

    /// The shape in elements in which a shard of this shape is stored, behind codecs such as `transpose`.
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

    /// The format of a shard.
    ///
    /// # Errors
    /// There is no such shard in the grid, or codecs do not fit.
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

    /// Inspects a shard. Returns `None` if it is not stored.
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
