//! The metadata of the array: stored with the transformer, shown without it.

use std::sync::Arc;

use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    AsyncReadableStorageTraits, AsyncWritableStorageTraits, ReadableStorageTraits,
    WritableStorageTraits,
};
use zarrs_cuda::storage::{BinaryFormat, ShardedStore};

use super::subject::{Sharded, key, prefix};

const KEY: &str = "a/zarr.json";
const NAME: &str = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0";
const OTHER_NAME: &str = "http://purl.org/zarr/spec/storage-transformers/sharding/1.0";

/// Unusual but valid JSON. `{}` is a placeholder for more members.
const METADATA: &str = r#" {"zarr_format" :3,"node_type":"array","shape":[ 9 , 123456789012345678901234567890 ],
    "x": 1.10, "e": 1E+2, "\u00e9": "\u00e9", "attributes": {"storage_transformers": ["}"]}{} } "#;

fn metadata(more: &str) -> String {
    METADATA.replace("{}", more)
}

fn ours(name: &str) -> String {
    format!(
        r#"{{ "name":"{name}", "configuration" : {{"chunks_per_shard":[2,3],"type":"indexed"}} }}"#
    )
}

struct Case {
    inner: Arc<MemoryStore>,
    chunks: ShardedStore<MemoryStore>,
}

impl Case {
    fn new() -> Self {
        let inner = Arc::new(MemoryStore::new());
        let chunks = Sharded::new("/a", &[2, 3]).over(inner.clone());
        Self { inner, chunks }
    }

    fn put(&self, metadata: &str) {
        self.inner
            .set(&key(KEY), metadata.to_owned().into())
            .unwrap();
    }

    fn stored(&self) -> String {
        let stored = self.inner.get(&key(KEY)).unwrap().unwrap();
        String::from_utf8(stored.to_vec()).unwrap()
    }

    /// The shown metadata, checked to be the same for every operation that returns them.
    fn shown(&self) -> String {
        let shown = self.chunks.get(&key(KEY)).unwrap().unwrap();
        let size = self.chunks.size_key(&key(KEY)).unwrap().unwrap();
        assert_eq!(size, shown.len() as u64);
        use zarrs::storage::ListableStorageTraits;
        assert_eq!(self.chunks.size_prefix(&prefix("a/")).unwrap(), size);
        let ranges = [
            ByteRange::FromStart(0, Some(7)),
            ByteRange::FromStart(7, None),
            ByteRange::Suffix(3),
        ];
        let parts = self
            .chunks
            .get_partial_many(&key(KEY), Box::new(ranges.into_iter()));
        let parts: Result<Vec<_>, _> = parts.unwrap().unwrap().collect();
        let parts = parts.unwrap();
        assert_eq!([&parts[0][..], &parts[1]].concat(), shown);
        assert_eq!(parts[2], shown[shown.len() - 3..]);
        let beyond = ByteRange::FromStart(size, Some(1));
        self.chunks.get_partial(&key(KEY), beyond).unwrap_err();
        String::from_utf8(shown.to_vec()).unwrap()
    }
}

#[test]
fn what_is_set_is_shown_and_stored_with_the_transformer() {
    let case = Case::new();
    for given in [
        metadata(""),
        metadata("").replace('\n', " "),
        metadata(r#", "storage_transformers" :[ {"name":"x"}, "y" ]"#),
    ] {
        case.chunks.set(&key(KEY), given.clone().into()).unwrap();
        assert_eq!(case.shown(), given);
        let stored: serde_json::Value = serde_json::from_str(&case.stored()).unwrap();
        let ours = &stored["storage_transformers"][0];
        assert_eq!(ours["name"], NAME);
        assert_eq!(ours["configuration"]["type"], "indexed");
        assert_eq!(
            ours["configuration"]["chunks_per_shard"],
            serde_json::json!([2, 3])
        );
        // Metadata that already describe the shards are stored unchanged.
        let described = case.stored();
        case.chunks
            .set(&key(KEY), described.clone().into())
            .unwrap();
        assert_eq!(case.stored(), described);
        let opened = ShardedStore::open(case.inner.clone(), "/a").unwrap();
        assert_eq!(opened.chunks_per_shard(), [2, 3]);
        assert_eq!(opened.format(), BinaryFormat::Indexed);
    }
    // An empty list means the same as none.
    case.chunks
        .set(&key(KEY), metadata(r#","storage_transformers":[ ]"#).into())
        .unwrap();
    assert_eq!(case.shown(), metadata(""));
}

#[test]
fn the_transformer_is_hidden_wherever_it_is() {
    let case = Case::new();
    for name in [NAME, OTHER_NAME] {
        let ours = ours(name);
        let other = r#"{"name":"x"}"#;
        for (more, shown) in [
            (
                format!(r#","storage_transformers":[{ours}]"#),
                String::new(),
            ),
            (
                format!(" ,\n \"storage_transformers\" : [ {ours} ]"),
                " ".to_owned(),
            ),
            (
                format!(r#","storage\u005ftransformers":[{ours}],"y":1"#),
                r#","y":1"#.to_owned(),
            ),
            (
                format!(r#","storage_transformers":[ {ours} , {other},"z" ],"y":1"#),
                format!(r#","storage_transformers":[ {other},"z" ],"y":1"#),
            ),
        ] {
            case.put(&metadata(&more));
            // Only the comma before the member, and the white space around that comma, are removed
            // with it.
            let expected = metadata(&shown);
            assert_eq!(case.shown().replace(' ', ""), expected.replace(' ', ""));
            ShardedStore::open(case.inner.clone(), "/a").unwrap();
        }
        let first =
            format!(r#"{{ "storage_transformers":[{ours}] , "node_type":"array","shape":[1,1]}}"#);
        case.put(&first);
        assert_eq!(case.shown(), r#"{ "node_type":"array","shape":[1,1]}"#);
    }
}

/// Metadata without the transformer, and metadata of other nodes, are returned byte for byte.
#[test]
fn other_documents() {
    let case = Case::new();
    for document in [
        &metadata("")[..],
        &metadata(r#", "storage_transformers": []"#),
        &metadata(r#", "storage_transformers": [{"name":"x"}]"#),
        r#"{"zarr_format":3,"node_type":"group"}"#,
        r#"{"zarr_format":3,"node_type":"arr"#,
        "",
        "[]",
        "\u{feff}{}",
    ] {
        case.put(document);
        assert_eq!(case.chunks.get(&key(KEY)).unwrap().unwrap(), document);
        ShardedStore::open(case.inner.clone(), "/a").unwrap_err();
    }
    for document in ["", r#"{"node_type":"group","storage_transformers":[]}"#] {
        case.chunks
            .set(&key(KEY), document.to_owned().into())
            .unwrap();
        assert_eq!(case.stored(), document);
    }
    case.inner.set(&key(KEY), vec![0xff, 0xfe].into()).unwrap();
    assert_eq!(
        case.chunks.get(&key(KEY)).unwrap().unwrap(),
        [0xff, 0xfe][..]
    );
    // Metadata of other nodes are not parsed.
    let others = metadata(&format!(r#","storage_transformers":[{}]"#, ours(NAME)));
    for at in ["zarr.json", "b/zarr.json", "a/a/zarr.json"] {
        case.chunks.set(&key(at), others.clone().into()).unwrap();
        assert_eq!(case.chunks.get(&key(at)).unwrap().unwrap(), others);
    }
}

#[test]
fn shards_of_another_kind() {
    let case = Case::new();
    let with = |transformers: &str| metadata(&format!(r#","storage_transformers":{transformers}"#));
    let named =
        |configuration: &str| format!(r#"[{{"name":"{NAME}","configuration":{configuration}}}]"#);
    for (transformers, says) in [
        (
            named(r#"{"type":"indexed","chunks_per_shard":[3,2]}"#),
            &["[3, 2]", "[2, 3]"][..],
        ),
        (
            named(r#"{"type":"indexed_crc32c","chunks_per_shard":[2,3]}"#),
            &["\"indexed_crc32c\"", "\"indexed\""],
        ),
        (
            named(r#"{"type":"indexed","chunks_per_shard":[2]}"#),
            &["1 chunks_per_shard", "2 axes"],
        ),
        (
            named(r#"{"type":"other","chunks_per_shard":[2,3]}"#),
            &["`type` must be"],
        ),
        (
            named(r#"{"type":"indexed"}"#),
            &["`chunks_per_shard` must be"],
        ),
        (
            named(r#"{"type":"indexed","chunks_per_shard":[2,3],"order":"C"}"#),
            &["order"],
        ),
        (named("[]"), &["no `configuration`"]),
        (format!("[\"{NAME}\"]"), &["no `configuration`"]),
        (format!(r#"["x",{}]"#, ours(NAME)), &["number 1"]),
        (
            format!("[{},{}]", ours(NAME), ours(OTHER_NAME)),
            &["number 1"],
        ),
        (
            format!(r#"[{0}],"storage_transformers":[{0}]"#, ours(NAME)),
            &["more than once"],
        ),
        ("{}".to_owned(), &["storage_transformers"]),
    ] {
        let document = with(&transformers);
        case.put(&document);
        let mut errors = vec![
            case.chunks.get(&key(KEY)).unwrap_err().to_string(),
            case.chunks.size_key(&key(KEY)).unwrap_err().to_string(),
        ];
        if !transformers.contains("],\"storage_transformers\"") {
            errors.push(
                case.chunks
                    .set(&key(KEY), document.clone().into())
                    .unwrap_err()
                    .to_string(),
            );
        }
        for error in errors {
            for says in says {
                assert!(error.contains(says), "{error}");
            }
            assert!(error.contains(KEY), "{error}");
        }
        assert_eq!(case.stored(), document);
    }
    // The metadata must have as many axes as the adapter.
    let error = case
        .chunks
        .set(&key(KEY), metadata("").replace("[ 9 ,", "[ 9 , 9,").into());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("3 axes") && error.contains("2 chunks_per_shard"),
        "{error}"
    );
}

/// Chunk keys are known for two encodings. With another encoding, chunks would be stored one by one
/// in an array whose metadata say that it has shards.
#[test]
fn keys_of_chunks_that_are_none() {
    let case = Case::new();
    let with = |encoding: &str, transformers: &str| {
        let transformers = format!(r#","storage_transformers":[{transformers}]"#);
        metadata(&format!(
            r#","chunk_key_encoding":{encoding}{transformers}"#
        ))
    };
    for encoding in [
        r#"{"name":"zarrs.default_suffix","configuration":{"suffix":".x"}}"#,
        r#"{ "name" : "other" }"#,
        r#""other""#,
    ] {
        let described = with(encoding, &ours(NAME));
        case.put(&described);
        let errors = [
            case.chunks.get(&key(KEY)).unwrap_err(),
            case.chunks.set(&key(KEY), described.into()).unwrap_err(),
            case.chunks
                .set(&key(KEY), with(encoding, "").into())
                .unwrap_err(),
        ];
        let mut errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let opened = ShardedStore::open(case.inner.clone(), "/a");
        errors.push(opened.unwrap_err().to_string());
        for error in errors {
            assert!(
                error.contains(KEY) && error.contains("`default`"),
                "{error}"
            );
            assert!(
                error.contains("suffix") || error.contains("other"),
                "{error}"
            );
        }
    }
    for encoding in [
        r#""default""#,
        r#"{"name":"v2"}"#,
        r#"{"name":"default","configuration":{"separator":"."}}"#,
    ] {
        let shown = with(encoding, r#""x""#);
        case.chunks.set(&key(KEY), shown.clone().into()).unwrap();
        assert_eq!(case.shown(), shown);
        ShardedStore::open(case.inner.clone(), "/a").unwrap();
    }
}

#[test]
fn what_cannot_be_opened() {
    let inner = Arc::new(MemoryStore::new());
    let error = ShardedStore::open(inner.clone(), "/a")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("missing metadata") && error.contains("a/"),
        "{error}"
    );
    inner.set(&key(KEY), metadata("").into()).unwrap();
    let error = ShardedStore::open(inner.clone(), "/a")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("ShardedStore::new") && error.contains(NAME),
        "{error}"
    );
    for path in ["", "a", "/a/", "//a"] {
        assert!(ShardedStore::open(inner.clone(), path).is_err(), "{path}");
        assert!(ShardedStore::new(inner.clone(), path, &[2], BinaryFormat::Indexed).is_err());
    }
    ShardedStore::new(inner, "/", &[2], BinaryFormat::Indexed).unwrap();
}

#[test]
fn asynchronous_metadata() {
    let inner = Arc::new(AsyncMemoryStore::new());
    futures::executor::block_on(async {
        let chunks = Sharded::new("/a", &[2, 3]).over(inner.clone());
        chunks.set(&key(KEY), metadata("").into()).await.unwrap();
        assert_eq!(chunks.get(&key(KEY)).await.unwrap().unwrap(), metadata(""));
        assert!(inner.get(&key(KEY)).await.unwrap().unwrap().len() > metadata("").len());
        let opened = ShardedStore::async_open(inner.clone(), "/a").await.unwrap();
        assert_eq!(opened.chunks_per_shard(), [2, 3]);
        chunks.erase(&key(KEY)).await.unwrap();
        ShardedStore::async_open(inner, "/a").await.unwrap_err();
    });
}

/// "All available chunks" of a shard at the edge are the chunks within the array. If all of them
/// are set, the shard is built from them alone. Nothing is lost if another program enlarged the
/// array meanwhile.
#[test]
fn shards_at_the_edge_of_the_array() {
    use zarrs::storage::Bytes;
    use zarrs_cuda_testing::stores::faulty::Operation::{Get, Set};
    let adapter = super::requests::Adapter::new(&[2, 3]);
    let shape = |shape: &str| {
        format!(
            r#"{{"node_type":"array","shape":{shape},"chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[10,10]}}}}}}"#
        )
    };
    let given =
        [(2, 3), (2, 4)].map(|(i, j)| (key(&format!("a/c/{i}/{j}")), Bytes::from_static(b"x")));
    let operations = |expected: &[_]| {
        let ((), requests) = adapter.asked(|chunks| chunks.set_many(given.clone()).unwrap());
        let operations: Vec<_> = requests
            .into_iter()
            .map(|(operation, _)| operation)
            .collect();
        assert_eq!(operations, expected);
    };
    let metadata = |text: String| adapter.chunks.set(&key(KEY), text.into()).unwrap();
    operations(&[Get, Set]);
    metadata(shape("[30,50]"));
    // The index is read, the chunks are not.
    adapter.set("a/c/2/3", &vec![1; 1000]);
    let inner = adapter.inner.inner();
    let mut object = inner.get(&key("a/c/1/1")).unwrap().unwrap().to_vec();
    operations(&[Get, Set]);
    assert_eq!(adapter.get("a/c/2/4").unwrap(), b"x");
    // An extent that would be an error if chunks were read.
    let index = object.len() - 96;
    object[index + 8..index + 16].copy_from_slice(&u64::to_le_bytes(1 << 30));
    inner.set(&key("a/c/1/1"), object.into()).unwrap();
    operations(&[Get, Set]);
    // Another program has enlarged the array, and written the new chunk.
    let others = Sharded::new("/a", &[2, 3]).over(inner.clone());
    others.set(&key("a/c/3/5"), b"others"[..].into()).unwrap();
    operations(&[Get, Get, Set]);
    assert_eq!(adapter.get("a/c/3/5").unwrap(), b"others");
    metadata(shape("[40,50]"));
    operations(&[Get, Set]);
    // The available chunks of other grids are unknown.
    adapter.chunks.erase(&key("a/c/3/5")).unwrap();
    metadata(shape("[30,50]").replace("regular", "rectilinear"));
    operations(&[Get, Set]);
    assert_eq!(adapter.get("a/c/2/3").unwrap(), b"x");
}
