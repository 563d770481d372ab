//! The facts in the metadata of an array, for people.

use super::sharded::Sharded;
use indicatif::HumanBytes;
use serde_json::Value;
use zarrs_cuda_convert::Failure;

/// The facts in the metadata of a sharded array.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The shape of the array, in elements.
    pub(super) shape: Vec<u64>,
    pub(super) shard: Vec<u64>,
    /// The shape of a shard as the sharding codec sees it: codecs before that codec may change the shape.
    pub(super) stored_shard: Vec<u64>,
    /// The shape of a subchunk, as the stored metadata have it.
    pub(super) subchunk: Vec<u64>,
    pub(super) names: Vec<String>,
    pub(super) data_type: String,
    /// The size of an element in bytes; `None` if elements differ in size.
    pub(super) element: Option<u64>,
    /// The codecs before the sharding codec, and the codecs of a subchunk.
    pub(super) chain: String,
    /// The codecs of the index, and the end of the shard at which the index lies.
    pub(super) index: String,
    /// Further lines for people.
    pub(super) notes: Vec<String>,
}

impl Facts {
    pub(super) fn of(sharded: &Sharded) -> Self {
        let (metadata, array) = (&sharded.metadata, &sharded.opened.array);
        let shard = match array.chunk_shape(&vec![0; array.dimensionality()]) {
            Ok(shape) => shape.iter().map(|extent| extent.get()).collect(),
            // zarrs has no shard for an array without elements.
            Err(_) => extents(&metadata["chunk_grid"]["configuration"]["chunk_shape"]),
        };
        let codecs = metadata["codecs"].as_array().into_iter().flatten();
        let (mut before, mut sharding) = (Vec::new(), None);
        for one in codecs {
            if one["name"] == "sharding_indexed" {
                sharding = Some(&one["configuration"]);
                break;
            }
            before.push(format!("{} of the shard; ", codec(one)));
        }
        let list = |name: &str| {
            let codecs = sharding.and_then(|sharding| sharding[name].as_array());
            codecs.map_or_else(String::new, |codecs| {
                let codecs: Vec<_> = codecs.iter().map(codec).collect();
                codecs.join(" → ")
            })
        };
        let location = sharding.and_then(|sharding| sharding["index_location"].as_str());
        let names = array.dimension_names().iter().flatten();
        let names = names.map(|name| name.clone().unwrap_or_default());
        let unknown = sharded.why_unknown();
        let unknown = unknown.map(|why| format!("subchunks cannot be decoded here: {why}"));
        Self {
            shape: array.shape().to_vec(),
            stored_shard: sharded.stored_shape(&shard).unwrap_or_default(),
            shard,
            subchunk: sharded.subchunk(),
            names: names.collect(),
            data_type: match &metadata["data_type"] {
                Value::String(name) => name.clone(),
                other => other["name"].as_str().unwrap_or("?").to_string(),
            },
            element: sharded.element(),
            chain: before.concat() + &list("codecs"),
            index: format!(
                "{}, at the {}",
                list("index_codecs"),
                location.unwrap_or("end")
            ),
            notes: unknown.into_iter().collect(),
        }
    }

    /// Returns the number of subchunks in a stored shard along each axis.
    pub(super) fn counts(&self) -> Vec<u64> {
        let axes = self.stored_shard.iter().zip(&self.subchunk);
        axes.map(|(shard, subchunk)| shard / (*subchunk).max(1))
            .collect()
    }

    /// Returns the name of an axis, or its number if it has no name.
    pub(super) fn axis(&self, axis: usize) -> String {
        let name = self.names.get(axis).filter(|name| !name.is_empty());
        name.cloned().unwrap_or_else(|| format!("axis {axis}"))
    }

    /// Returns the size of a decoded box of elements in bytes; `None` if elements differ in size.
    pub(super) fn decoded(&self, extents: impl IntoIterator<Item = u64>) -> Option<u64> {
        let elements = extents.into_iter().fold(1, u64::saturating_mul);
        Some(elements.saturating_mul(self.element?))
    }

    /// Returns the size in bytes of the decoded elements of a shard that lie within the array; `None` if
    /// elements differ in size.
    pub(super) fn decoded_shard(&self, indices: &[u64]) -> Option<u64> {
        let axes = indices.iter().zip(&self.shard).zip(&self.shape);
        self.decoded(axes.map(|((index, shard), shape)| {
            let start = index.saturating_mul(*shard);
            shape.saturating_sub(start).min(*shard)
        }))
    }

    /// Returns a size as text, `, 2.0 MiB`; empty text if it is not known.
    pub(super) fn comma_bytes(bytes: Option<u64>) -> String {
        bytes.map_or_else(String::new, |bytes| format!(", {}", HumanBytes(bytes)))
    }
}

/// Returns the name of a codec, with the parameter that people ask for.
fn codec(codec: &Value) -> String {
    let name = codec.get("name").unwrap_or(codec).as_str().unwrap_or("?");
    let configuration = &codec["configuration"];
    let said: Vec<String> = ["endian", "order", "cname", "clevel", "level", "chunk_shape"]
        .iter()
        .filter_map(|&parameter| match &configuration[parameter] {
            Value::Null => None,
            Value::String(value) => Some(value.clone()),
            value if parameter.ends_with("level") => Some(format!("level {value}")),
            value => Some(value.to_string()),
        })
        .collect();
    if said.is_empty() {
        name.to_string()
    } else {
        format!("{name} ({})", said.join(", "))
    }
}

/// Returns the numbers in a list of the metadata.
fn extents(list: &Value) -> Vec<u64> {
    let extents = list.as_array().into_iter().flatten();
    extents.filter_map(Value::as_u64).collect()
}

/// Checks that the array has a shard with these indices.
pub(super) fn must_be_a_shard(sharded: &Sharded, shard: &[u64]) -> Result<(), Failure> {
    let format = sharded.format(shard);
    let failed = format.map_err(|error| {
        let grid = sharded.opened.array.chunk_grid_shape();
        let last: Vec<_> = grid
            .iter()
            .map(|count| count.saturating_sub(1).to_string())
            .collect();
        Failure::from(error)
            .with_remedy(format!("the last shard of the grid is {}", last.join(",")))
    });
    failed.map(|_| ())
}
