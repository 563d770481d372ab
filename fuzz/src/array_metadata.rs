//! Arrays with random metadata: opened with our codec registered, written and read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use arbitrary::{Arbitrary, Result, Unstructured};
use serde_json::{Map, Value, json};
use zarrs::array::{Array, ArrayBytes, ArraySubset};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    ListableStorageTraits, ReadableStorageTraits, StoreKey, WritableStorageTraits,
};
use zarrs_codec::CodecOptions;
use zarrs_cuda::maintenance::Shards;
use zarrs_cuda::storage::{ShardedStore, SparseShardStore};
use zarrs_cuda::{Options, explain};

use crate::case::Case;
use zarrs_cuda_testing::Rng;

/// The largest number of elements in arrays that are written and read, and in their shards.
const MOST_ELEMENTS: u64 = 2000;

/// Opens an array with metadata from `input`.
pub fn array_metadata(input: &[u8]) {
    static REGISTERED: LazyLock<()> = LazyLock::new(|| {
        zarrs_cuda::register(Options::default()).unwrap().leak();
    });
    let () = *REGISTERED;
    let _too_short = judge(&mut Unstructured::new(input));
}

/// A change of a document.
#[derive(Arbitrary, Clone, Debug)]
struct Change {
    /// The number of the changed value.
    which: u8,
    how: How,
}

#[derive(Arbitrary, Clone, Debug)]
enum How {
    Remove,
    Twice,
    Null,
    Zero,
    Number(i8),
    Large(u8),
    Fraction,
    Text(String),
    Name(u8),
    Empty(bool),
    Wrap,
    /// A copy of another value in the document.
    Of(u8),
}

const NAMES: [&str; 16] = [
    "bytes",
    "sharding_indexed",
    "transpose",
    "crc32c",
    "zstd",
    "gzip",
    "blosc",
    "packbits",
    "vlen-utf8",
    "string",
    "NaN",
    "uint8",
    "bool",
    "float32",
    "reshape",
    "rectangular",
];

fn judge(u: &mut Unstructured<'_>) -> Result<()> {
    let document = document(u)?;
    let store = Arc::new(MemoryStore::new());
    let key = StoreKey::new("a/zarr.json").unwrap();
    store.set(&key, document.clone().into()).unwrap();
    let seed = u.arbitrary::<u16>()?;
    // zarrs panics on some metadata. That is not a finding.
    let array = catch_unwind(AssertUnwindSafe(|| Array::open(store.clone(), "/a")));
    let is_array = matches!(array, Ok(Ok(_)));
    let is_writable = matches!(array, Ok(Ok(array)) if use_array(&array, seed));
    // Codecs that panic when they are created do so here, too.
    let sparse = catch_unwind(AssertUnwindSafe(|| {
        SparseShardStore::open(store.clone(), "/a")
    }));
    if let Ok(Ok(sparse)) = sparse {
        let shown = sparse.get(&key).unwrap().unwrap();
        let sparse = Arc::new(sparse);
        let subchunks = catch_unwind(AssertUnwindSafe(|| Array::open(sparse.clone(), "/a")));
        let shown = || format!("{} of {document}", String::from_utf8_lossy(&shown));
        assert!(!is_array || matches!(subchunks, Ok(Ok(_))), "{}", shown());
        if let Ok(Ok(subchunks)) = subchunks {
            round_trip(&subchunks, seed);
            if is_writable {
                sparse.consolidate_all(&|_| {}).unwrap();
            }
        }
        sparse.list().unwrap();
    }
    if let Ok(sharded) = ShardedStore::open(store, "/a") {
        sharded.list().unwrap();
        let _shown_or_refused = sharded.get(&key);
    }
    Ok(())
}

/// The metadata of an array.
fn document(u: &mut Unstructured<'_>) -> Result<String> {
    if u.ratio(1, 16)? {
        return u.arbitrary();
    }
    let case = Case::new(u)?;
    let shards = &case.shards;
    let name = zarrs::plugin::ExtensionName::name_v3(&shards.data_type);
    let shape: Vec<u64> = shards.shape.iter().map(|d| d + d / 2).collect();
    let mut document = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": name,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": shards.shape } },
        "chunk_key_encoding": { "name": "default", "configuration": { "separator": "/" } },
        "fill_value": 0,
        "codecs": [{ "name": "sharding_indexed", "configuration": shards.json() }],
        "attributes": {},
    });
    match u.int_in_range(0..=9)? {
        0 => {
            document["storage_transformers"] = json!([{
                "name": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
                "configuration": { "type": "indexed", "chunks_per_shard": [2] },
            }]);
        }
        1 => document["data_type"] = json!("string"),
        2 => document["codecs"] = shards.json()["codecs"].clone(),
        3 => {
            let outer =
                json!({ "name": "zstd", "configuration": { "level": 1, "checksum": true } });
            document["codecs"].as_array_mut().unwrap().push(outer);
        }
        _ => {}
    }
    for _ in 0..u.int_in_range(0..=3)? {
        let change = Change::arbitrary(u)?;
        change.apply(&mut document);
    }
    Ok(document.to_string())
}

impl Change {
    fn apply(self, document: &mut Value) {
        let count = count(document);
        let other = |which: u8| {
            let mut at = usize::from(which) % count;
            at_place(document, &mut at).cloned()
        };
        let value = match &self.how {
            How::Of(which) => other(*which).unwrap_or_default(),
            How::Zero => json!(0),
            How::Number(number) => json!(number),
            How::Large(bit) => json!(u64::MAX >> (bit % 64)),
            How::Fraction => json!(0.5),
            How::Text(text) => json!(text),
            How::Name(name) => json!(NAMES[usize::from(*name) % NAMES.len()]),
            How::Empty(is_list) => {
                if *is_list {
                    json!([])
                } else {
                    json!({})
                }
            }
            How::Wrap => json!([other(self.which)]),
            How::Null | How::Remove | How::Twice => Value::Null,
        };
        let mut at = usize::from(self.which) % count;
        change_place(document, &mut at, &self.how, value);
    }
}

/// The number of values in `document`.
fn count(document: &Value) -> usize {
    1 + match document {
        Value::Array(values) => values.iter().map(count).sum(),
        Value::Object(values) => values.values().map(count).sum(),
        _ => 0,
    }
}

/// The value with this number.
fn at_place<'a>(document: &'a Value, at: &mut usize) -> Option<&'a Value> {
    if *at == 0 {
        return Some(document);
    }
    *at -= 1;
    match document {
        Value::Array(values) => values.iter().find_map(|value| at_place(value, at)),
        Value::Object(values) => values.values().find_map(|value| at_place(value, at)),
        _ => None,
    }
}

/// Changes the value with this number. Returns whether there is one.
fn change_place(document: &mut Value, at: &mut usize, how: &How, value: Value) -> bool {
    if *at == 0 {
        *document = value;
        return true;
    }
    match document {
        Value::Array(values) => {
            for number in 0..values.len() {
                if *at == 1 {
                    match how {
                        How::Remove => drop(values.remove(number)),
                        How::Twice => values.insert(number, values[number].clone()),
                        _ => values[number] = value,
                    }
                    return true;
                }
                *at -= 1;
                if change_inside(&mut values[number], at, how, &value) {
                    return true;
                }
            }
            false
        }
        Value::Object(values) => change_object(values, at, how, &value),
        _ => false,
    }
}

fn change_inside(document: &mut Value, at: &mut usize, how: &How, value: &Value) -> bool {
    // Number 0 is `document` itself, which the caller handles.
    match document {
        Value::Array(_) | Value::Object(_) => {
            let inner = count(document) - 1;
            if *at > inner {
                *at -= inner;
                return false;
            }
            change_place(document, at, how, value.clone())
        }
        _ => false,
    }
}

fn change_object(
    values: &mut Map<String, Value>,
    at: &mut usize,
    how: &How,
    value: &Value,
) -> bool {
    let names: Vec<String> = values.keys().cloned().collect();
    for name in names {
        if *at == 1 {
            match how {
                How::Remove => drop(values.remove(&name)),
                How::Twice => drop(values.insert(format!("{name}2"), values[&name].clone())),
                _ => values[&name] = value.clone(),
            }
            return true;
        }
        *at -= 1;
        if change_inside(&mut values[&name], at, how, value) {
            return true;
        }
    }
    false
}

/// Whether the array is small enough to be written and read as a whole.
fn is_small<S: ?Sized>(array: &Array<S>) -> bool {
    let size = array.data_type().fixed_size().unwrap_or(1).max(1) as u64;
    let product = |shape: &[u64]| {
        let mut axes = shape.iter();
        axes.try_fold(size, |product, d| product.checked_mul(*d))
            .is_some_and(|product| product <= 8 * MOST_ELEMENTS)
    };
    let origin = vec![0; array.dimensionality()];
    let chunk = array.chunk_shape(&origin);
    let chunk = chunk.map(|shape| shape.iter().map(|d| d.get()).collect::<Vec<_>>());
    product(array.shape()) && chunk.is_ok_and(|shape| product(&shape))
}

/// Reads and writes the array. Returns whether it can be written.
fn use_array(array: &Array<MemoryStore>, seed: u16) -> bool {
    // Explanations work for arrays of any size.
    if let Ok(explained) = explain(array) {
        assert!(!explained.to_string().is_empty());
    }
    let is_writable = round_trip(array, seed);
    if let Ok(shards) = Shards::of(array)
        && is_small(array)
        && let Ok(stored) = shards.stored()
    {
        for (shard, _) in stored {
            shards.recover(&shard).unwrap();
            shards.compact(&shard).unwrap();
        }
    }
    is_writable
}

/// Checks that written values are read, whole and in part. Returns whether the array can be
/// written.
fn round_trip<S>(array: &Array<S>, seed: u16) -> bool
where
    S: zarrs::storage::ReadableWritableListableStorageTraits + 'static,
{
    let Some(size) = array.data_type().fixed_size() else {
        return false;
    };
    if !is_small(array) || array.data_type().is_optional() || array.shape().contains(&0) {
        return false;
    }
    let whole = array.subset_all();
    let len = usize::try_from(whole.num_elements()).unwrap() * size;
    let mut rng = Rng(seed.into());
    // Bytes 0 and 1 form valid values of every type.
    let written: Vec<u8> = (0..len).map(|_| rng.byte() & 1).collect();
    let options = CodecOptions::default()
        .with_experimental_partial_encoding(seed.is_multiple_of(2))
        .with_concurrent_target(1);
    let store = |subset: &ArraySubset, bytes: &[u8]| {
        let bytes = ArrayBytes::new_flen(bytes.to_vec());
        array.store_array_subset_opt(subset, bytes, &options)
    };
    let metadata = || serde_json::to_string(array.metadata()).unwrap_or_default();
    // Some of zarrs' codecs panic on values or types that they do not support.
    let Ok(stored) = catch_unwind(AssertUnwindSafe(|| store(&whole, &written))) else {
        return false;
    };
    if stored.is_err() {
        return false;
    }
    let read = |subset: &ArraySubset| -> std::result::Result<Vec<u8>, String> {
        let bytes: ArrayBytes<'static> = array
            .retrieve_array_subset(subset)
            .map_err(|e| e.to_string())?;
        Ok(bytes.into_fixed().map_err(|e| e.to_string())?.into_owned())
    };
    // The behaviour of zarrs' codecs alone is not tested.
    let is_ours = explain(array).is_ok() && array.codecs().bytes_to_bytes_codecs().is_empty();
    if is_ours && is_lossless(&metadata()) {
        let found = read(&whole);
        assert_eq!(found.as_ref(), Ok(&written), "{}", metadata());
        let first: Vec<_> = array.shape().iter().map(|_| 0..1).collect();
        let first = ArraySubset::new_with_ranges(&first);
        assert_eq!(
            read(&first).as_deref(),
            Ok(&written[..size]),
            "{}",
            metadata()
        );
        let changed = store(&first, &written[len - size..]);
        let mut expected = written.clone();
        if let Err(error) = changed {
            // zarrs' shuffle refuses some lengths, and a compressor before it makes any length.
            assert!(metadata().contains("shuffle"), "{error}: {}", metadata());
        } else {
            expected[..size].copy_from_slice(&written[len - size..]);
        }
        assert_eq!(read(&whole), Ok(expected), "{}", metadata());
    }
    true
}

/// Whether all codecs keep the values.
fn is_lossless(metadata: &str) -> bool {
    !["scale", "bitround", "cast", "zfp", "quantize"]
        .iter()
        .any(|name| metadata.contains(name))
}
