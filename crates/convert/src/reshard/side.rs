//! The description of one array, by its metadata alone. No codec of a subchunk is created, so zarrs need not
//! know it.

use std::num::NonZeroU64;

use serde_json::{Map, Value};
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{ChunkKeyEncoding, DataType, FillValueMetadata};
use zarrs::metadata::v3::MetadataV3;
use zarrs_cuda::maintenance::ShardFormat;

use super::chain::{self, name_of};

/// The members of an array's metadata that this program understands.
const MEMBERS: [&str; 11] = [
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "attributes",
    "storage_transformers",
    "dimension_names",
];

/// An array whose stored objects are chunks, or shards of subchunks.
#[derive(Clone, Debug)]
pub(super) struct Side {
    /// The shape of the array, in elements.
    pub(super) shape: Vec<u64>,
    /// The shape of a stored object, in elements.
    pub(super) object: Vec<u64>,
    /// The shape of a subchunk in elements; the shape of the whole object, if the objects are chunks.
    pub(super) subchunk: Vec<u64>,
    pub(super) data_type: Value,
    fill_value: Value,
    /// The codecs of a subchunk.
    pub(super) chain: Vec<Value>,
    /// The place and the codecs of the index of a shard; `None` if the objects are chunks.
    pub(super) index: Option<Index>,
    pub(super) keys: ChunkKeyEncoding,
}

/// The place and the codecs of the index of a shard.
#[derive(Clone, Debug)]
pub struct Index {
    pub codecs: Vec<MetadataV3>,
    pub location: ShardingIndexLocation,
}

impl Side {
    /// Describes the array with these metadata.
    ///
    /// # Errors
    /// The reason why this program cannot move its subchunks, as the end of a sentence.
    pub(super) fn of(metadata: &Map<String, Value>) -> Result<Self, String> {
        if metadata.get("zarr_format").and_then(Value::as_u64) != Some(3) {
            return Err("it is not of Zarr v3".to_string());
        }
        if metadata.get("node_type").and_then(Value::as_str) != Some("array") {
            return Err("it is not an array".to_string());
        }
        let member = |name: &str| {
            let member = metadata.get(name);
            member.ok_or_else(|| format!("its metadata have no `{name}`"))
        };
        let is_optional = |value: &Value| value["must_understand"] == Value::Bool(false);
        let unknown = metadata
            .iter()
            .find(|(name, value)| !MEMBERS.contains(&name.as_str()) && !is_optional(value));
        if let Some((name, _)) = unknown {
            return Err(format!("nothing is known of the member `{name}`"));
        }
        let transformers = metadata.get("storage_transformers");
        if let Some(first) = transformers.and_then(|list| list.as_array()?.first()) {
            return Err(format!(
                "it has the storage transformer `{}`",
                name_of(first)
            ));
        }
        let shape = extents(member("shape")?).ok_or("its `shape` is not a list of numbers")?;
        let grid = member("chunk_grid")?;
        if name_of(grid) != "regular" {
            return Err(format!(
                "its chunk grid is `{}`, not `regular`",
                name_of(grid)
            ));
        }
        let object = box_of(&grid["configuration"]["chunk_shape"], shape.len())?;
        let codecs = member("codecs")?.as_array().cloned().unwrap_or_default();
        let (subchunk, chain, index) = match sharding_in(&codecs)? {
            None => (object.clone(), codecs, None),
            Some(configuration) => {
                let subchunk = box_of(&configuration["chunk_shape"], shape.len())?;
                if object.iter().zip(&subchunk).any(|(o, s)| o % s != 0) {
                    return Err(format!(
                        "its shards of {object:?} are not whole multiples of its subchunks of {subchunk:?}"
                    ));
                }
                let chain = configuration["codecs"].as_array();
                let chain = chain.ok_or("its `sharding_indexed` has no `codecs`")?;
                let index = Index::of(configuration)?;
                (subchunk, chain.clone(), Some(index))
            }
        };
        let keys: MetadataV3 = serde_json::from_value(member("chunk_key_encoding")?.clone())
            .map_err(|error| format!("its chunk key encoding is not understood: {error}"))?;
        let keys = ChunkKeyEncoding::from_metadata(&keys)
            .map_err(|error| format!("its chunk key encoding is not understood: {error}"))?;
        Ok(Self {
            shape,
            object,
            subchunk,
            data_type: member("data_type")?.clone(),
            fill_value: member("fill_value")?.clone(),
            chain,
            index,
            keys,
        })
    }

    /// Returns the noun for a stored object: "shard" or "chunk".
    pub(super) fn noun(&self) -> &'static str {
        if self.index.is_some() {
            "shard"
        } else {
            "chunk"
        }
    }

    /// Returns the number of subchunks in an object along each axis.
    pub(super) fn counts(&self) -> Vec<u64> {
        let axes = self.object.iter().zip(&self.subchunk);
        axes.map(|(object, subchunk)| object / subchunk).collect()
    }

    /// Returns the format of a shard; `None` if the objects are chunks.
    pub(super) fn format(&self) -> Result<Option<ShardFormat>, zarrs_cuda::Error> {
        let Some(index) = &self.index else {
            return Ok(None);
        };
        let counts = self.counts();
        let counts: Vec<_> = counts.into_iter().filter_map(NonZeroU64::new).collect();
        ShardFormat::of_encoded_subchunks(&counts, &index.codecs, index.location).map(Some)
    }

    /// Returns the reasons why encoded subchunks of this array do not fit `other` as they are; none if they
    /// fit.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.shape != other.shape {
            reasons.push(format!(
                "the arrays have the shapes {:?} and {:?}",
                self.shape, other.shape
            ));
        }
        let types = [self, other].map(Self::typed);
        match &types {
            [Some((a, _)), Some((b, _))] if a == b => {}
            _ if chain::plain(&self.data_type) == chain::plain(&other.data_type) => {}
            _ => reasons.push(format!(
                "the data types are {} and {}",
                self.data_type, other.data_type
            )),
        }
        let fill_values = types.map(|typed| typed.and_then(|(_, bytes)| bytes));
        match &fill_values {
            [Some(a), Some(b)] if a == b => {}
            [None, None] if self.fill_value == other.fill_value => {}
            _ => reasons.push(format!(
                "the fill values are {} and {}, whose bits differ",
                self.fill_value, other.fill_value
            )),
        }
        if self.subchunk != other.subchunk && self.shape.len() == other.shape.len() {
            reasons.push(format!(
                "{} have the shape {:?}, {} have {:?}",
                self.parts("IN"),
                self.subchunk,
                other.parts("OUT"),
                other.subchunk
            ));
        }
        let is_bytes = self
            .typed()
            .is_some_and(|(data_type, _)| data_type.fixed_size() == Some(1));
        reasons.extend(chain::difference(&self.chain, &other.chain, is_bytes));
        reasons
    }

    fn parts(&self, side: &str) -> String {
        let noun = if self.index.is_some() {
            "subchunks"
        } else {
            "chunks"
        };
        format!("{noun} of {side}")
    }

    /// Returns the data type, and the bytes of the fill value if zarrs knows it; `None` if zarrs does not
    /// know the data type.
    fn typed(&self) -> Option<(DataType, Option<Vec<u8>>)> {
        let metadata: MetadataV3 = serde_json::from_value(self.data_type.clone()).ok()?;
        let data_type = DataType::from_metadata(&metadata).ok()?;
        let fill_value: Option<FillValueMetadata> =
            serde_json::from_value(self.fill_value.clone()).ok();
        let bits = fill_value.and_then(|value| data_type.fill_value_v3(&value).ok());
        Some((data_type, bits.map(|bits| bits.as_ne_bytes().to_vec())))
    }
}

impl Index {
    /// Reads the configuration of `sharding_indexed`.
    ///
    /// # Errors
    /// The reason why the configuration is not understood.
    pub fn of(sharding: &Value) -> Result<Self, String> {
        let location = match sharding.get("index_location").and_then(Value::as_str) {
            Some("start") => ShardingIndexLocation::Start,
            Some("end") | None => ShardingIndexLocation::End,
            Some(other) => return Err(format!("its index location is `{other}`")),
        };
        let codecs = serde_json::from_value(sharding["index_codecs"].clone());
        Ok(Self {
            codecs: codecs.map_err(|error| format!("its index codecs are invalid: {error}"))?,
            location,
        })
    }
}

/// Returns the configuration of the sharding codec; `None` if the array has none. Refuses codecs before or
/// after it.
fn sharding_in(codecs: &[Value]) -> Result<Option<&Value>, String> {
    let is_sharding = |codec: &&Value| name_of(codec) == "sharding_indexed";
    let Some(sharding) = codecs.iter().find(is_sharding) else {
        return Ok(None);
    };
    let around: Vec<_> = codecs
        .iter()
        .filter(|codec| !is_sharding(codec))
        .map(|codec| format!("`{}`", name_of(codec)))
        .collect();
    if !around.is_empty() {
        return Err(format!(
            "it has {} around `sharding_indexed`",
            around.join(" and ")
        ));
    }
    Ok(Some(&sharding["configuration"]))
}

fn extents(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}

/// Returns the extents in `value`, of a chunk or subchunk with `rank` dimensions.
fn box_of(value: &Value, rank: usize) -> Result<Vec<u64>, String> {
    extents(value)
        .filter(|extents| extents.len() == rank && !extents.contains(&0))
        .ok_or_else(|| format!("{value} is not the shape of a chunk of {rank} dimensions"))
}
