//! The storage transformer as zarrs uses it.

use std::sync::Arc;

use futures::executor::block_on;
use serde_json::json;
use zarrs::array::storage_transformer::StorageTransformerChain;
use zarrs::array::{Array, ArrayBuilder, StorageTransformerTraits, data_type};
use zarrs::metadata::v3::MetadataV3;
use zarrs::node::NodePath;
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{Bytes, ReadableStorageTraits, StorageError, WritableStorageTraits};
use zarrs_cuda::reader::ArrayReader;
use zarrs_cuda::storage::{BinaryFormat, ShardingTransformer};

use super::subject::{Sharded, key, prefix};

const NAMES: [&str; 2] = [
    "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
    "http://purl.org/zarr/spec/storage-transformers/sharding/1.0",
];

fn created(
    metadata: &serde_json::Value,
) -> Result<zarrs::array::storage_transformer::StorageTransformer, String> {
    let metadata: MetadataV3 = serde_json::from_value(metadata.clone()).unwrap();
    let path = NodePath::new("/a").unwrap();
    ShardingTransformer::create(&metadata, &path).map_err(|error| error.to_string())
}

#[test]
fn names_and_configurations_stay_as_they_are() {
    for name in NAMES {
        for format in ["indexed", "indexed_crc32c"] {
            let metadata = json!({
                "name": name,
                "configuration": { "type": format, "chunks_per_shard": [3, 2] },
            });
            let chain = StorageTransformerChain::new(vec![created(&metadata).unwrap()]);
            let again = serde_json::to_value(&chain.create_metadatas()[0]).unwrap();
            assert_eq!(again, metadata);
        }
    }
    let ours = ShardingTransformer::new("/a", &[3, 2], BinaryFormat::Indexed).unwrap();
    assert_eq!(ours.name(ZarrVersion::V3).unwrap(), NAMES[0]);
    assert_eq!(ours.name(ZarrVersion::V2), None);
    assert_eq!(ours.chunks_per_shard(), [3, 2]);
}

#[test]
fn configurations_that_are_none() {
    for (configuration, says) in [
        (json!({}), "`type`"),
        (json!({ "type": "indexed" }), "`chunks_per_shard`"),
        (
            json!({ "type": "indexed", "chunks_per_shard": [0] }),
            "zero",
        ),
        (
            json!({ "type": "indexed", "chunks_per_shard": [2], "x": 1 }),
            "\"x\"",
        ),
        (
            json!({ "type": "indexed", "chunks_per_shard": [1 << 30] }),
            "more than",
        ),
    ] {
        let error = created(&json!({ "name": NAMES[0], "configuration": configuration }));
        let error = error.unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    assert!(created(&json!("other")).unwrap_err().contains("other"));
}

fn names_the_adapter<T>(result: Result<T, StorageError>) {
    match result {
        Err(StorageError::Unsupported(message)) => {
            assert!(
                message.contains("zarrs_cuda::storage::ShardedStore"),
                "{message}"
            );
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[test]
fn chunks_are_read_and_everything_else_is_passed_on() {
    let inner = Arc::new(MemoryStore::new());
    let chunks = Sharded::new("/a", &[2]).over(inner.clone());
    chunks.set(&key("a/c/1"), b"abc"[..].into()).unwrap();
    let transformer =
        || Arc::new(ShardingTransformer::new("/a", &[2], BinaryFormat::Indexed).unwrap());
    let reader = transformer()
        .create_readable_transformer(inner.clone())
        .unwrap();
    assert_eq!(reader.get(&key("a/c/1")).unwrap().unwrap(), b"abc"[..]);
    assert_eq!(reader.size_key(&key("a/c/1")).unwrap(), Some(3));
    assert_eq!(reader.get(&key("a/c/0")).unwrap(), None);

    let writer = transformer()
        .create_writable_transformer(inner.clone())
        .unwrap();
    let both = transformer()
        .create_readable_writable_transformer(inner.clone())
        .unwrap();
    let list = transformer()
        .create_listable_transformer(inner.clone())
        .unwrap();
    let metadata = r#"{"node_type":"array","storage_transformers":[]}"#;
    for at in ["a/zarr.json", "b", "b/c/1"] {
        writer
            .set(&key(at), Bytes::from_static(metadata.as_bytes()))
            .unwrap();
        assert_eq!(inner.get(&key(at)).unwrap().unwrap(), metadata);
        assert_eq!(both.get(&key(at)).unwrap().unwrap(), metadata);
        both.set_partial(&key(at), 0, b" "[..].into()).unwrap();
    }
    assert_eq!(list.list_prefix(&prefix("b/")).unwrap(), [key("b/c/1")]);
    assert_eq!(
        list.list_dir(&prefix("")).unwrap().prefixes(),
        &["a/", "b/"].map(prefix)
    );
    assert_eq!(
        list.size_prefix(&prefix("b/")).unwrap(),
        metadata.len() as u64
    );
    writer.erase_prefix(&prefix("b/")).unwrap();
    writer.erase(&key("b")).unwrap();
    for at in ["a/c/1", "a/c.1", "a/1"] {
        names_the_adapter(writer.set(&key(at), b"x"[..].into()));
        names_the_adapter(both.set_partial(&key(at), 0, b"x"[..].into()));
        names_the_adapter(writer.erase(&key(at)));
        names_the_adapter(writer.erase_many(&[key(at)]));
    }
    for of in ["", "a/", "a/c/"] {
        names_the_adapter(writer.erase_prefix(&prefix(of)));
        names_the_adapter(list.list_prefix(&prefix(of)));
        names_the_adapter(list.size_prefix(&prefix(of)));
    }
    for of in ["a/", "a/c/"] {
        names_the_adapter(list.list_dir(&prefix(of)));
    }
    names_the_adapter(list.list());
    names_the_adapter(list.size());
    assert!(!writer.supports_set_partial());
    assert_eq!(chunks.get(&key("a/c/1")).unwrap().unwrap(), b"abc"[..]);
}

#[test]
fn asynchronous_chunks_are_read_and_everything_else_is_passed_on() {
    let inner = Arc::new(AsyncMemoryStore::new());
    let chunks = Sharded::new("/a", &[2]).over(inner.clone());
    let transformer =
        || Arc::new(ShardingTransformer::new("/a", &[2], BinaryFormat::Indexed).unwrap());
    block_on(async {
        chunks
            .async_set_many([(key("a/c/1"), Bytes::from_static(b"abc"))])
            .await
            .unwrap();
        let reader = transformer()
            .create_async_readable_transformer(inner.clone())
            .await
            .unwrap();
        assert_eq!(
            reader.get(&key("a/c/1")).await.unwrap().unwrap(),
            b"abc"[..]
        );
        assert_eq!(reader.size_key(&key("a/c/1")).await.unwrap(), Some(3));
        let writer = transformer()
            .create_async_writable_transformer(inner.clone())
            .await
            .unwrap();
        let both = transformer()
            .create_async_readable_writable_transformer(inner.clone())
            .await
            .unwrap();
        let list = transformer()
            .create_async_listable_transformer(inner.clone())
            .await
            .unwrap();
        writer
            .set(&key("a/zarr.json"), b"{}"[..].into())
            .await
            .unwrap();
        assert_eq!(
            both.get(&key("a/zarr.json")).await.unwrap().unwrap(),
            b"{}"[..]
        );
        names_the_adapter(writer.set(&key("a/c/1"), b"x"[..].into()).await);
        names_the_adapter(both.set_partial(&key("a/c/1"), 0, b"x"[..].into()).await);
        names_the_adapter(both.erase(&key("a/c/1")).await);
        names_the_adapter(writer.erase_prefix(&prefix("a/")).await);
        names_the_adapter(list.list().await);
        names_the_adapter(list.list_dir(&prefix("a/")).await);
        names_the_adapter(list.size_prefix(&prefix("")).await);
        assert_eq!(
            list.list_dir(&prefix("")).await.unwrap().prefixes(),
            &[prefix("a/")]
        );
        assert_eq!(list.list_prefix(&prefix("b/")).await.unwrap(), []);
    });
}

/// An array that is built with the transformer.
#[test]
fn an_array_that_is_built_with_it() {
    let _alone = crate::registry();
    let _registration = zarrs_cuda::register(zarrs_cuda::Options::default()).unwrap();
    let inner = Arc::new(MemoryStore::new());
    let transformer = ShardingTransformer::new("/a", &[2, 2], BinaryFormat::IndexedCrc32c).unwrap();
    let mut builder = ArrayBuilder::new(vec![8, 8], vec![2, 2], data_type::uint16(), 7u16);
    builder.storage_transformers(StorageTransformerChain::new(vec![Arc::new(transformer)]));
    let array = builder.build(inner.clone(), "/a").unwrap();
    array.store_metadata().unwrap();
    assert!(
        array
            .store_chunk(&[0, 0], vec![1_u16; 4])
            .unwrap_err()
            .to_string()
            .contains("ShardedStore")
    );
    let sharded = zarrs_cuda::storage::ShardedStore::open(inner, "/a").unwrap();
    let through: Array<_> = Array::open(Arc::new(sharded), "/a").unwrap();
    through.store_chunk(&[1, 3], vec![1_u16, 2, 3, 4]).unwrap();
    assert_eq!(
        array.retrieve_chunk::<Vec<u16>>(&[1, 3]).unwrap(),
        [1, 2, 3, 4]
    );
    assert_eq!(array.retrieve_chunk::<Vec<u16>>(&[1, 2]).unwrap(), [7; 4]);
}

/// A reader leaves it to zarrs, whose storage transformer changes what the store has.
#[test]
fn an_array_reader_of_it() {
    let _alone = crate::registry();
    let _registration = zarrs_cuda::register(zarrs_cuda::Options::default()).unwrap();
    let store = Arc::new(MemoryStore::new());
    let transformer = ShardingTransformer::new("/a", &[2], BinaryFormat::Indexed).unwrap();
    let mut builder = ArrayBuilder::new(vec![8], vec![4], data_type::uint16(), 0_u16);
    builder.subchunk_shape(vec![2]);
    builder.storage_transformers(StorageTransformerChain::new(vec![Arc::new(transformer)]));
    let array = builder.build(store.clone(), "/a").unwrap();
    array.store_metadata().unwrap();
    let chunks = zarrs_cuda::storage::ShardedStore::open(store, "/a").unwrap();
    let through = Array::open(Arc::new(chunks), "/a").unwrap();
    let elements: Vec<u16> = (1..9).collect();
    through
        .store_array_subset(&through.subset_all(), &elements)
        .unwrap();

    let reader = ArrayReader::builder(&array).build().unwrap();
    assert!(reader.is_by_zarrs());
    assert!(reader.explain().contains("storage transformers"));
    assert_eq!(reader.read::<u16>(&[1..7]).unwrap(), elements[1..7]);
}
