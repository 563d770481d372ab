//! `ShardedStore` over shards of any bytes. Reads must follow the index, and writes must not change
//! other chunks.

use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, StorePrefix,
    WritableStorageTraits,
};
use zarrs_cuda::storage::{BinaryFormat, ShardedStore};

use crate::memory::limited;
use zarrs_cuda_testing::index::{EMPTY, IndexLayout};

const SHARD: &str = "a/c/0";

/// Reads and writes chunks of any bytes as a shard.
pub fn sharded_index(input: &[u8]) {
    let _too_short = judge(&mut Unstructured::new(input));
}

/// An entry of the index.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Entry {
    Empty,
    /// An extent within the shard.
    Within(u8, u8),
    Shared,
    Words(u64, u64, u8),
    Top(u8, u8),
}

impl Entry {
    /// The entry in a shard with this many bytes before its index.
    fn words(self, len: u64) -> [u64; 2] {
        match self {
            Self::Empty => EMPTY,
            Self::Within(start, size) => {
                let start = u64::from(start) % (len + 1);
                [start, u64::from(size) % (len - start + 1)]
            }
            Self::Shared => [0, len],
            Self::Words(start, size, bits) => {
                let mask = u64::MAX >> (bits % 64);
                [start & mask, size & mask]
            }
            Self::Top(start, size) => [u64::MAX - u64::from(start), size.into()],
        }
    }
}

/// An operation of the adapter.
#[derive(Arbitrary, Clone, Debug)]
enum Step {
    Set(u8, Vec<u8>),
    SetPart(u8, u8, Vec<u8>),
    SetMany(Vec<(u8, Vec<u8>)>),
    Erase(u8),
    ErasePrefix,
    Forget,
}

/// Each chunk, or an error if it lies outside of its shard.
type Model = Vec<std::result::Result<Option<Vec<u8>>, Outside>>;

/// An extent outside of the shard; it may be empty.
#[derive(Clone, Debug)]
struct Outside {
    is_empty: bool,
}

fn judge(u: &mut Unstructured<'_>) -> Result<()> {
    let chunks = u.int_in_range(1..=6_u8)?;
    let checksum = u.arbitrary()?;
    let index = IndexLayout {
        checksum,
        ..IndexLayout::default()
    };
    assert_eq!(index.location, ShardingIndexLocation::End);
    let format = if checksum {
        BinaryFormat::IndexedCrc32c
    } else {
        BinaryFormat::Indexed
    };
    let mut object = u.arbitrary::<Vec<u8>>()?;
    let mut has_index = true;
    if u.ratio(7, 8)? {
        let mut entries = Vec::new();
        for _ in 0..chunks {
            entries.push(Entry::arbitrary(u)?.words(object.len() as u64));
        }
        object.extend(index.encode(&entries));
        if u.ratio(1, 8)? {
            let at = usize::from(u.arbitrary::<u8>()?) % object.len();
            object[at] ^= u.arbitrary::<u8>()?;
        }
    }
    let entries = read_index(index, &object, chunks.into());
    if entries.is_none() {
        has_index = false;
    }
    let store = Arc::new(MemoryStore::new());
    store.set(&key(SHARD), object.clone().into()).unwrap();
    let counts = [u64::from(chunks)];
    let adapter = ShardedStore::new(store.clone(), "/a", &counts, format).unwrap();
    let cache = if u.arbitrary()? { 1 << 16 } else { 0 };
    let adapter = adapter.with_index_cache(cache);
    let mut model: Model = match &entries {
        None => vec![Err(Outside { is_empty: false }); chunks.into()],
        Some(entries) => entries.iter().map(|e| chunk_of(&object, *e)).collect(),
    };
    limited(16 * object.len() + (1 << 20), "reading a shard", || {
        check(&adapter, &model, has_index);
    });
    for _ in 0..u.int_in_range(0..=4)? {
        let step = Step::arbitrary(u)?;
        let before = store.get(&key(SHARD)).unwrap();
        let shown = format!("{step:?}, {model:?}, {index:?}");
        let mut new = model.clone();
        let done = step.act(&adapter, &mut new);
        match done {
            Ok(()) => {
                model = new;
                // A completed write has stored a valid index.
                has_index |= model.iter().all(Result::is_ok);
            }
            Err(error) => {
                assert!(model.iter().any(Result::is_err), "{error}: {shown}");
                assert_eq!(store.get(&key(SHARD)).unwrap(), before, "{shown}");
            }
        }
        check(&adapter, &model, has_index);
        adapter.clear_index_cache();
        check(&adapter, &model, has_index);
    }
    Ok(())
}

impl Step {
    /// Applies the step to the adapter, and to the expected chunks.
    fn act(
        self,
        adapter: &ShardedStore<MemoryStore>,
        new: &mut Model,
    ) -> std::result::Result<(), StorageError> {
        let chunks = u8::try_from(new.len()).unwrap();
        match self {
            Self::Set(number, value) => {
                let number = number % chunks;
                new[usize::from(number)] = Ok(Some(value.clone()));
                adapter.set(&chunk(number), value.into())
            }
            Self::SetPart(number, offset, part) => {
                let number = number % chunks;
                let start = usize::from(offset);
                if let Ok(value) = &mut new[usize::from(number)] {
                    let value = value.get_or_insert_default();
                    value.resize(value.len().max(start + part.len()), 0);
                    value[start..start + part.len()].copy_from_slice(&part);
                }
                let parts = [(u64::from(offset), Bytes::from(part))];
                adapter.set_partial_many(&chunk(number), Box::new(parts.into_iter()))
            }
            Self::SetMany(values) => {
                let values: Vec<_> = values.into_iter().map(|(n, v)| (n % chunks, v)).collect();
                for (number, value) in &values {
                    new[usize::from(*number)] = Ok(Some(value.clone()));
                }
                let values = values.into_iter().map(|(n, v)| (chunk(n), Bytes::from(v)));
                adapter.set_many(values)
            }
            Self::Erase(number) => {
                let number = number % chunks;
                new[usize::from(number)] = Ok(None);
                adapter.erase(&chunk(number))
            }
            Self::ErasePrefix => {
                new.fill(Ok(None));
                adapter.erase_prefix(&StorePrefix::new("a/c/").unwrap())
            }
            Self::Forget => {
                adapter.clear_index_cache();
                Ok(())
            }
        }
    }
}

fn key(key: &str) -> StoreKey {
    StoreKey::new(key).unwrap()
}

fn chunk(number: u8) -> StoreKey {
    key(&format!("a/c/{number}"))
}

/// The entries of a shard, if it has an index.
fn read_index(index: IndexLayout, shard: &[u8], chunks: usize) -> Option<Vec<[u64; 2]>> {
    let start = shard.len().checked_sub(index.size(chunks))?;
    let entries = index.entries(shard, chunks);
    (index.encode(&entries) == shard[start..]).then_some(entries)
}

/// The chunk at an entry.
fn chunk_of(shard: &[u8], entry: [u64; 2]) -> std::result::Result<Option<Vec<u8>>, Outside> {
    if entry == EMPTY {
        return Ok(None);
    }
    let [start, size] = entry.map(|word| usize::try_from(word).ok());
    let bytes = start.and_then(|start| shard.get(start..));
    let bytes = bytes.and_then(|bytes| bytes.get(..size?));
    let outside = Outside {
        is_empty: entry[1] == 0,
    };
    bytes.map(|bytes| Some(bytes.to_vec())).ok_or(outside)
}

fn check(adapter: &ShardedStore<MemoryStore>, model: &Model, has_index: bool) {
    let all_ok = model.iter().all(Result::is_ok);
    for (number, expected) in model.iter().enumerate() {
        let key = chunk(u8::try_from(number).unwrap());
        let read = adapter.get(&key);
        let size = adapter.size_key(&key);
        let part = adapter.get_partial(&key, ByteRange::Suffix(1));
        match expected {
            Ok(expected) if all_ok => {
                assert_eq!(read.unwrap().as_deref(), expected.as_deref(), "{key}");
                let len = expected.as_ref().map(|expected| expected.len() as u64);
                assert_eq!(size.unwrap(), len, "{key}");
                match expected.as_ref().map(|expected| expected.last()) {
                    None => assert_eq!(part.unwrap(), None, "{key}"),
                    Some(None) => assert!(part.is_err(), "{key}"),
                    Some(Some(last)) => assert_eq!(part.unwrap().unwrap(), [*last][..], "{key}"),
                }
            }
            // One invalid entry may invalidate the whole index.
            Ok(expected) if has_index => {
                if let Ok(read) = read {
                    assert_eq!(read.as_deref(), expected.as_deref(), "{key}");
                }
            }
            // Reading no bytes makes no request, so it may succeed.
            Err(outside) if outside.is_empty && has_index => {
                assert!(read.is_err() || read.unwrap().is_some_and(|bytes| bytes.is_empty()));
            }
            _ => assert!(read.is_err(), "{key}: {read:?}, {model:?}"),
        }
    }
    let listed = adapter.list_prefix(&StorePrefix::new("a/c/").unwrap());
    if all_ok {
        let numbers = 0..u8::try_from(model.len()).unwrap();
        let expected = numbers.filter(|n| matches!(model[usize::from(*n)], Ok(Some(_))));
        let expected: Vec<StoreKey> = expected.map(chunk).collect();
        assert_eq!(listed.unwrap(), expected);
    }
}
