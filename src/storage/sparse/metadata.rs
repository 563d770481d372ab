//! Shows the metadata of a sharded array as those of an unsharded array with a chunk for each subchunk.
//!
//! The stored text gets other values of `chunk_grid` and `codecs`, and no other change: the chunk shape becomes
//! the shape of the subchunks, and the codecs become the inner codecs of the sharding codec.

use std::sync::Arc;

use serde_json::value::RawValue;
use zarrs::array::codec::ShardingCodec;
use zarrs::array::{Array, ArrayMetadata, ArrayMetadataV3};
use zarrs::node::NodePath;
use zarrs::plugin::{ExtensionAliasesV3, ExtensionName, ZarrVersion};
use zarrs_codec::CodecMetadataOptions;
use zarrs_storage::{StorageError, StoreKey};

use super::super::chunk_keys::{ChunkKeys, KeyEncoding};
use crate::codec::find;
use crate::codec::registry::{self, OwnedMetadata};
use crate::error::Error;
use crate::metadata::json::Document;
use crate::shard::sharding::Sharding;

/// The sharding of an array.
#[derive(Clone, Debug)]
pub(super) struct ShardedArray {
    pub(super) shards: Arc<Sharding>,
    /// The encoding of the array's chunk keys.
    pub(super) encoding: KeyEncoding,
}

impl ShardedArray {
    /// Checks that the array at `path`, whose present metadata at `key` are `stored`, still has this
    /// sharding. The adapter must not work on the shards of another array.
    ///
    /// # Errors
    /// [`StorageError::Other`] if the array has another sharding; [`StorageError::InvalidMetadata`].
    pub(super) fn check(
        &self,
        key: &StoreKey,
        path: &NodePath,
        stored: &[u8],
    ) -> Result<(), StorageError> {
        let array = array_of(key, path, stored)?;
        let (before, after) = (&self.shards, sharded_array(path, &array));
        let what = match after {
            Err(error) => error.to_string(),
            Ok(now) if now.shards.shape != before.shape => {
                format!(
                    "its shards are of {:?} elements, and were of {:?}",
                    now.shards.shape, before.shape
                )
            }
            Ok(now) if now.encoding != self.encoding => {
                "it has another chunk key encoding".to_owned()
            }
            Ok(now) if now.shards.codec.configuration() != before.codec.configuration() => {
                "it has other codecs, or subchunks of another shape".to_owned()
            }
            Ok(_) => return Ok(()),
        };
        Err(StorageError::Other(format!(
            "the array of {key} is sharded differently now: open the adapter anew ({what})"
        )))
    }
}

/// Returns the array at `path`, whose metadata are stored at `key`.
pub(super) fn array_of(
    key: &StoreKey,
    path: &NodePath,
    stored: &[u8],
) -> Result<Array<()>, StorageError> {
    let invalid = |reason: String| StorageError::InvalidMetadata(key.clone(), reason);
    let metadata: ArrayMetadata =
        serde_json::from_slice(stored).map_err(|error| invalid(error.to_string()))?;
    Array::new_with_metadata(Arc::new(()), path.as_str(), metadata)
        .map_err(|error| invalid(error.to_string()))
}

/// Returns the sharding of the array at `path`, whose metadata at `key` are `stored`.
///
/// # Errors
/// - [`Error::NotShards`] if the array does not store plain shards on a regular grid.
/// - [`Error::Storage`] if the metadata are invalid.
pub(super) fn sharded(
    key: &StoreKey,
    path: &NodePath,
    stored: &[u8],
) -> Result<ShardedArray, Error> {
    let array = array_of(key, path, stored).map_err(|source| Error::Storage {
        doing: "understand",
        key: key.clone(),
        source,
    })?;
    sharded_array(path, &array)
}

fn not_shards(reason: String) -> Error {
    Error::NotShards { reason }
}

fn sharded_array(path: &NodePath, array: &Array<()>) -> Result<ShardedArray, Error> {
    let codecs = array.codecs();
    if let Some(outer) = codecs.array_to_array_codecs().first() {
        return Err(not_shards(format!(
            "the codec `{}` comes before `sharding_indexed`, so that subchunks are not parts of the array as it is: put it among the inner codecs",
            outer.name(ZarrVersion::V3).unwrap_or_default()
        )));
    }
    let codec = find::of_array(array)?;
    codec.check_backend()?;
    if !array.storage_transformers().create_metadatas().is_empty() {
        return Err(not_shards(
            "a storage transformer comes before the store".to_owned(),
        ));
    }
    let grid = array.chunk_grid().name(ZarrVersion::V3).unwrap_or_default();
    if grid != "regular" {
        return Err(not_shards(format!(
            "the chunk grid is `{grid}`, and subchunks have a regular grid only within shards of one shape"
        )));
    }
    let first = vec![0; array.dimensionality()];
    let shape = array
        .chunk_shape(&first)
        .map_err(|error| not_shards(error.to_string()))?;
    let chunk = array.chunk_key(&first);
    let encoding = ChunkKeys::new(path, first.len()).parse(chunk.as_str());
    let encoding = encoding.ok_or_else(|| {
        not_shards(format!(
            "the key of its first chunk is {chunk}, which is neither of the chunk key encoding `default` nor of `v2`"
        ))
    })?;
    Ok(ShardedArray {
        shards: codec.sharding(&shape, array.data_type(), array.fill_value())?,
        encoding: encoding.encoding,
    })
}

/// Parses `bytes`, the value of `key`, as a JSON object.
fn document_of<'a>(key: &StoreKey, bytes: &'a [u8]) -> Result<Document<'a>, StorageError> {
    let document = Document::parse(bytes);
    document.map_err(|reason| StorageError::InvalidMetadata(key.clone(), reason))
}

/// Returns the metadata of the unsharded array that is shown in place of the array that is `stored` at `key`.
///
/// # Errors
/// [`StorageError::InvalidMetadata`] if `stored` are not the metadata of an array with `sharding_indexed` as
/// its only codec.
pub(super) fn presented(key: &StoreKey, stored: &[u8]) -> Result<String, StorageError> {
    let invalid = |reason: &str| {
        StorageError::InvalidMetadata(
            key.clone(),
            format!(
                "it is not that of an array with `sharding_indexed` as its only codec: {reason}"
            ),
        )
    };
    let document = document_of(key, stored)?;
    let codecs = document
        .member("codecs")
        .ok_or_else(|| invalid("it has no codecs"))?;
    let codecs: Vec<&RawValue> =
        serde_json::from_str(codecs).map_err(|error| invalid(&error.to_string()))?;
    let [codec] = codecs[..] else {
        return Err(invalid(&format!("it has {} codecs", codecs.len())));
    };
    let codec = document_of(key, codec.get().as_bytes())?;
    let configuration = codec.member("configuration").unwrap_or("{}");
    let configuration = document_of(key, configuration.as_bytes())?;
    let field = |name: &str| {
        let value = configuration.member(name);
        value.ok_or_else(|| invalid(&format!("the codec has no `{name}`")))
    };
    let grid = format!(
        r#"{{"name":"regular","configuration":{{"chunk_shape":{}}}}}"#,
        field("chunk_shape")?
    );
    Ok(document.with(&[("chunk_grid", &grid), ("codecs", field("codecs")?)]))
}

/// Makes this library the owner of the codec of nested shards, if the subchunks of the array `stored` at
/// `key` are shards themselves. The library also owns the codec where nothing is registered, because zarrs'
/// own codec panics on some corrupted shards. Returns `None` if the subchunks are no shards, or if an
/// application has registered another codec for them.
pub(super) fn own_nested(
    key: &StoreKey,
    stored: &[u8],
) -> Result<Option<OwnedMetadata>, StorageError> {
    let invalid =
        |error: serde_json::Error| StorageError::InvalidMetadata(key.clone(), error.to_string());
    let presented: ArrayMetadataV3 =
        serde_json::from_str(&presented(key, stored)?).map_err(invalid)?;
    let mut codecs = presented.codecs.into_iter();
    let nested = codecs.find(|codec| ShardingCodec::matches_name_v3(codec.name()));
    Ok(nested.and_then(|codec| registry::own(codec).ok()))
}

/// Returns the metadata to store at `key` in the place of `stored`, so that the unsharded array is shown with
/// `new`.
///
/// # Errors
/// [`StorageError::Unsupported`] if `new` has other chunks than the stored array;
/// [`StorageError::InvalidMetadata`].
pub(super) fn stored_for(
    key: &StoreKey,
    path: &NodePath,
    stored: &[u8],
    new: &[u8],
) -> Result<String, StorageError> {
    let old = array_of(key, path, presented(key, stored)?.as_bytes())?;
    let array = array_of(key, path, new)?;
    let differs = |what: &str| {
        Err(StorageError::Unsupported(format!(
            "cannot store {key}: its {what} is not that of the subchunks that the array's shards have. Store another sharding in the store itself, and the array anew"
        )))
    };
    let first = vec![0; old.dimensionality()];
    if array.dimensionality() != old.dimensionality() {
        return differs("number of axes");
    }
    if array.data_type() != old.data_type() {
        return differs("data type");
    }
    if array.fill_value() != old.fill_value() {
        return differs("fill value");
    }
    let is_regular =
        array.chunk_grid().name(ZarrVersion::V3) == old.chunk_grid().name(ZarrVersion::V3);
    if !is_regular || array.chunk_shape(&first).ok() != old.chunk_shape(&first).ok() {
        return differs("chunk grid");
    }
    let some: Vec<u64> = (10..).take(first.len()).collect();
    if array.chunk_key(&some) != old.chunk_key(&some) {
        return differs("chunk key encoding");
    }
    if !array.storage_transformers().create_metadatas().is_empty() {
        return differs("chain of storage transformers");
    }
    let codecs = |array: &Array<()>| {
        array
            .codecs()
            .create_metadatas(&CodecMetadataOptions::default())
    };
    if codecs(&array) != codecs(&old) {
        return differs("chain of codecs");
    }
    let stored = document_of(key, stored)?;
    let mut values = Vec::new();
    for name in ["chunk_grid", "codecs"] {
        values.extend(stored.member(name).map(|value| (name, value)));
    }
    Ok(document_of(key, new)?.with(&values))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unusual, but legal.
    const STORED: &str = r#" {"zarr_format":3, "node_type": "array","shape" : [6, 5],
        "codecs": [ {"configuration": {"index_codecs": [{"name":"bytes","configuration":{"endian":"little"}},{"name":"crc32c"}],
          "chunk_shape": [2 ,1], "index_location": "start",
          "codecs": [{"name": "bytes"}, {"name":"zstd","configuration":{"level": 1,"checksum":false}}]}, "name": "sharding_indexed"} ],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [ 4,5 ]}},
        "attributes": {"codecs": 1, "n": 123456789012345678901234567890},
        "data_type":"uint8","fill_value": 0, "chunk_key_encoding": {"name":"default"} } "#;
    const PRESENTED: &str = r#" {"zarr_format":3, "node_type": "array","shape" : [6, 5],
        "codecs": [{"name": "bytes"}, {"name":"zstd","configuration":{"level": 1,"checksum":false}}],
        "chunk_grid": {"name":"regular","configuration":{"chunk_shape":[2 ,1]}},
        "attributes": {"codecs": 1, "n": 123456789012345678901234567890},
        "data_type":"uint8","fill_value": 0, "chunk_key_encoding": {"name":"default"} } "#;

    fn key() -> StoreKey {
        StoreKey::new("a/zarr.json").unwrap()
    }

    fn path() -> NodePath {
        NodePath::new("/a").unwrap()
    }

    #[test]
    fn two_values_are_others() {
        assert_eq!(presented(&key(), STORED.as_bytes()).unwrap(), PRESENTED);
        let stored = stored_for(&key(), &path(), STORED.as_bytes(), PRESENTED.as_bytes());
        assert_eq!(stored.unwrap(), STORED);
    }

    #[test]
    fn what_is_not_the_sharding_can_change() {
        let new = PRESENTED
            .replace("[6, 5]", "[60, 5]")
            .replace("\"codecs\": 1", "\"made by\": \"a test\"");
        let array = array_of(&key(), &path(), new.as_bytes()).unwrap();
        // The metadata as zarrs writes them.
        let written = serde_json::to_string(array.metadata()).unwrap();
        for new in [new, written] {
            let stored = stored_for(&key(), &path(), STORED.as_bytes(), new.as_bytes()).unwrap();
            let now = array_of(&key(), &path(), stored.as_bytes()).unwrap();
            assert_eq!((now.shape(), now.attributes().len()), (&[60, 5][..], 2));
            let before = array_of(&key(), &path(), STORED.as_bytes()).unwrap();
            assert_eq!(
                now.chunk_shape(&[0, 0]).unwrap(),
                before.chunk_shape(&[0, 0]).unwrap()
            );
            let codecs = |array: &Array<()>| {
                array
                    .codecs()
                    .create_metadatas(&CodecMetadataOptions::default())
            };
            assert_eq!(codecs(&now), codecs(&before));
        }
    }

    #[test]
    fn another_sharding_is_refused() {
        for (from, to, what) in [
            ("[2 ,1]", "[2, 5]", "chunk grid"),
            ("\"level\": 1", "\"level\": 2", "chain of codecs"),
            ("uint8", "int8", "data type"),
            ("\"fill_value\": 0", "\"fill_value\": 1", "fill value"),
            (
                "{\"name\":\"default\"}",
                "{\"name\":\"v2\"}",
                "chunk key encoding",
            ),
        ] {
            let new = PRESENTED.replace(from, to);
            assert_ne!(new, PRESENTED, "{from}");
            let refused = stored_for(&key(), &path(), STORED.as_bytes(), new.as_bytes());
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
    }

    #[test]
    fn arrays_that_have_no_plain_shards() {
        let transpose =
            r#"{"name":"transpose","configuration":{"order":[1,0]}}, {"configuration": {"index"#;
        for (from, to, reason) in [
            (
                r#"{"configuration": {"index"#,
                transpose,
                "`transpose` comes before",
            ),
            (
                r#""name": "sharding_indexed"} ]"#,
                r#""name": "sharding_indexed"}, {"name":"crc32c"} ]"#,
                "encoded once more",
            ),
        ] {
            let stored = STORED.replace(from, to);
            assert_ne!(stored, STORED, "{from}");
            let error = sharded(&key(), &path(), stored.as_bytes()).err().unwrap();
            assert!(error.to_string().contains(reason), "{error}");
            assert!(presented(&key(), stored.as_bytes()).is_err());
        }
        let plain = sharded(&key(), &path(), PRESENTED.as_bytes())
            .err()
            .unwrap();
        assert!(matches!(plain, Error::NotShards { .. }), "{plain}");
        assert!(sharded(&key(), &path(), b"{}").is_err());
        let sharded = sharded(&key(), &path(), STORED.as_bytes()).unwrap();
        assert_eq!(sharded.shards.grid.counts(), [2, 5]);
    }
}
