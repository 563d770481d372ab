//! The draft of the sharding storage transformer, sentence by sentence.
//!
//! The draft's keys begin with `data/root`, which Zarr V3 no longer has. The tests apply its
//! statements to the keys of the array's chunks.

use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::{Bytes, ListableStorageTraits, ReadableStorageTraits, WritableStorageTraits};
use zarrs_cuda::storage::BinaryFormat;

use super::requests::Adapter;
use super::subject::{Sharded, key, prefix};
use zarrs_cuda_testing::stores::faulty::Operation::{Erase, Get, List, Set};

const EMPTY: u64 = u64::MAX;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn put(adapter: &Adapter, at: &str, object: Vec<u8>) {
    adapter.inner.inner().set(&key(at), object.into()).unwrap();
}

// Key & value transformation

/// "All other entries are simply passed on." "Any operations with keys not starting with `data/root`
/// are simply relayed to the underlying store and not described explicitly."
#[test]
fn other_entries_are_passed_on() {
    let adapter = Adapter::new(&[2, 2]);
    for at in [
        "b",
        "a/attributes",
        "a/c/1",
        "a/c/1/2/3",
        "b/c/1/2",
        "a/c.1/2",
        "a/c/x/1",
    ] {
        let ((), requests) =
            adapter.asked(|chunks| chunks.set(&key(at), b"0123"[..].into()).unwrap());
        assert_eq!(requests, [(Set, at.to_owned())]);
        assert_eq!(adapter.object(at).unwrap(), b"0123");
        let (read, requests) =
            adapter.asked(|chunks| chunks.get_partial(&key(at), ByteRange::Suffix(1)));
        assert_eq!(
            (read.unwrap().unwrap(), requests),
            (b"3"[..].into(), vec![(Get, at.to_owned())])
        );
        adapter
            .chunks
            .set_partial(&key(at), 0, b"x"[..].into())
            .unwrap();
        assert_eq!(adapter.object(at).unwrap(), b"x123");
        let ((), requests) = adapter.asked(|chunks| chunks.erase(&key(at)).unwrap());
        assert_eq!(requests, [(Erase, at.to_owned())]);
    }
    let (listed, requests) = adapter.asked(|chunks| chunks.list_prefix(&prefix("b/")).unwrap());
    assert_eq!((listed, requests), (vec![], vec![(List, "b/".to_owned())]));
    let ((), requests) = adapter.asked(|chunks| chunks.erase_prefix(&prefix("b/")).unwrap());
    assert_eq!(requests, [(Erase, "b/".to_owned())]);
}

/// "For all entries that are part of the same shard the key is changed to the shard-key and the values
/// are combined […]. The new shard-key is the chunk key divided by `chunks_per_shard` and floored per
/// dimension. For example for `chunks_per_shard=[32, 2]`, the chunk grid position `[96, 18]` […] is
/// transformed to the shard grid position `[3, 9]` and reassigned to the respective new key, honoring
/// the original chunk separator […]. Chunk grid positions `[96, 19]`, `[97, 18]`, …, up to `[127, 19]`
/// will also have the same shard grid position `[3, 9]`."
#[test]
fn chunks_of_a_shard_are_one_entry() {
    for (chunk, shard) in [
        ("c/{}/{}", "a/c/3/9"),
        ("c.{}.{}", "a/c.3.9"),
        ("{}/{}", "a/3/9"),
        ("{}.{}", "a/3.9"),
    ] {
        let adapter = Adapter::new(&[32, 2]);
        let at = |i: u64, j: u64| {
            let chunk = chunk.replacen("{}", &i.to_string(), 1);
            format!("a/{}", chunk.replacen("{}", &j.to_string(), 1))
        };
        let all = (96..128).flat_map(|i| [18, 19].map(|j| (i, j)));
        for (i, j) in all.clone() {
            adapter.set(&at(i, j), format!("{i} {j}").as_bytes());
        }
        assert_eq!(adapter.stored(), [shard]);
        for (i, j) in all {
            assert_eq!(
                adapter.get(&at(i, j)).unwrap(),
                format!("{i} {j}").as_bytes()
            );
        }
        for (i, j) in [(95, 18), (128, 18), (96, 17), (96, 20)] {
            adapter.set(&at(i, j), b"beside");
        }
        assert_eq!(adapter.stored().len(), 5);
    }
}

// Binary shard format

/// "Chunks are written successively in a shard, where unused space between them is allowed, followed by
/// an index referencing them. The index is placed at the end of the file and has a size of 16 bytes
/// multiplied by the number of chunks in a shard […]. The index holds an `offset, nbytes` pair of
/// little-endian uint64 per chunk, the chunks-order in the index is row-major (C) order […]. Empty
/// chunks are denoted by setting both offset and nbytes to `2^64 - 1`. The index always has the full
/// shape of all possible chunks per shard, even if they are outside of the array size."
#[test]
fn the_indexed_format() {
    let adapter = Adapter::new(&[2, 2]);
    adapter.set("a/c/1/0", b"ccc");
    adapter.set("a/c/0/1", b"bb");
    adapter.set("a/c/1/1", b"");
    let expected = [b"bbccc".to_vec(), words(&[EMPTY, EMPTY, 0, 2, 2, 3, 5, 0])].concat();
    assert_eq!(adapter.object("a/c/0/0").unwrap(), expected);
    assert_eq!(adapter.get("a/c/0/0"), None);
    assert_eq!(adapter.get("a/c/1/1").unwrap(), b"");
}

/// "The actual order of the chunk content is not fixed and may be chosen by the implementation as all
/// possible write orders are valid according to this specification and therefore can be read by any
/// other implementation." "Unused space between them is allowed."
#[test]
fn any_order_and_unused_space() {
    let adapter = Adapter::new(&[2, 2]);
    let index = words(&[9, 1, EMPTY, EMPTY, 1, 3, 2, 4]);
    put(
        &adapter,
        "a/c/0/0",
        [b"?ccc???..a!".to_vec(), index].concat(),
    );
    assert_eq!(adapter.get("a/c/0/0").unwrap(), b"a");
    assert_eq!(adapter.get("a/c/0/1"), None);
    assert_eq!(adapter.get("a/c/1/0").unwrap(), b"ccc");
    assert_eq!(adapter.get("a/c/1/1").unwrap(), b"cc??");
    let parts = [b"?ccc???..a!", &[][..]].concat();
    assert_eq!(parts.len(), 11);
    // "When writing partial chunks into an existing shard no specific order of the existing chunks may
    // be expected."
    adapter.set("a/c/0/1", b"bb");
    assert_eq!(adapter.get("a/c/0/0").unwrap(), b"a");
    assert_eq!(adapter.get("a/c/0/1").unwrap(), b"bb");
    assert_eq!(adapter.get("a/c/1/0").unwrap(), b"ccc");
    assert_eq!(adapter.get("a/c/1/1").unwrap(), b"cc??");
}

// API implementation

/// "`get_partial_values`: For each referenced key, request the indices from the underlying store […].
/// For existing keys, request the actual chunks by their ranges as read from the index […]. This
/// operation should be implemented using two `get_partial_values` operations on the underlying store,
/// one for retrieving the indices and one for retrieving existing chunks."
#[test]
fn get_partial_values() {
    let adapter = Adapter::new(&[2, 2]);
    let chunks = ["a/c/0/0", "a/c/0/1", "a/c/1/0"];
    adapter
        .chunks
        .set_many(chunks.map(|at| (key(at), Bytes::copy_from_slice(at.as_bytes()))))
        .unwrap();
    let wanted: Vec<_> = ["a/c/1/0", "a/c/1/1", "a/c/0/0"]
        .map(|at| (key(at), ByteRange::FromStart(2, Some(3))))
        .into();
    let (read, requests) = adapter.asked(|chunks| chunks.get_many(&wanted).unwrap());
    assert_eq!(
        requests,
        [(Get, "a/c/0/0".to_owned()), (Get, "a/c/0/0".to_owned())]
    );
    assert_eq!(
        read,
        [Some(b"c/1"[..].into()), None, Some(b"c/0"[..].into())]
    );
}

/// "`set_partial_values`: For each referenced key, check if all available chunks in a shard are
/// referenced. In this case, a shard can be constructed according to the Binary shard format directly."
#[test]
fn shards_of_which_all_chunks_are_set() {
    let adapter = Adapter::new(&[2]);
    let values = (0..5).map(|at| (key(&format!("a/c/{at}")), Bytes::from(vec![at; 3])));
    let ((), requests) = adapter.asked(|chunks| chunks.set_many(values).unwrap());
    let expected = [
        (Set, "a/c/0"),
        (Set, "a/c/1"),
        (Get, "a/c/2"),
        (Set, "a/c/2"),
    ];
    assert_eq!(
        requests,
        expected.map(|(operation, at)| (operation, at.to_owned()))
    );
    let index = words(&[0, 3, 3, 3]);
    assert_eq!(
        adapter.object("a/c/1").unwrap(),
        [vec![2, 2, 2, 3, 3, 3], index].concat()
    );
}

/// "For simplification purposes a shard may also be read completely, combining the previous two `get`
/// operations into one. Based on the existing chunks and value ranges that need to be updated new shards
/// are constructed […]. All shards that need to be updated must now be set via `set` or
/// `set_partial_values`."
#[test]
fn shards_of_which_some_chunks_are_set() {
    let adapter = Adapter::new(&[3]);
    adapter.set("a/c/0", b"abc");
    adapter.set("a/c/2", b"def");
    let ((), requests) = adapter.asked(|chunks| {
        let parts = [(1, b"X"[..].into()), (4, b"Y"[..].into())];
        chunks
            .set_partial_many(&key("a/c/2"), Box::new(parts.into_iter()))
            .unwrap();
    });
    assert_eq!(
        requests,
        [(Get, "a/c/0".to_owned()), (Set, "a/c/0".to_owned())]
    );
    assert_eq!(adapter.get("a/c/2").unwrap(), b"dXf\0Y");
    assert_eq!(adapter.get("a/c/0").unwrap(), b"abc");
    assert!(!adapter.chunks.supports_set_partial());
}

/// "`erase_values`: For each referenced key, check if all available chunks in a shard are referenced. In
/// this case, the full shard is removed using `erase_values` on the underlying store. […] A larger
/// rewrite of the shard may be done including the index update, but also removing value ranges
/// corresponding to the erased chunks."
#[test]
fn erase_values() {
    let adapter = Adapter::new(&[2]);
    for at in 0..6 {
        adapter.set(&format!("a/c/{at}"), b"abc");
    }
    let ((), requests) = adapter.asked(|chunks| {
        chunks
            .erase_many(&["a/c/0", "a/c/3", "a/c/1"].map(key))
            .unwrap();
    });
    let expected = [(Erase, "a/c/0"), (Get, "a/c/1"), (Set, "a/c/1")];
    assert_eq!(
        requests,
        expected.map(|(operation, at)| (operation, at.to_owned()))
    );
    let rewritten = [b"abc".to_vec(), words(&[0, 3, EMPTY, EMPTY])].concat();
    assert_eq!(adapter.object("a/c/1").unwrap(), rewritten);
    // The last chunk of a shard.
    adapter.chunks.erase(&key("a/c/2")).unwrap();
    assert_eq!(adapter.stored(), ["a/c/2"]);
}

/// "`erase_prefix`: If the prefix contains a part of the chunk-grid key, this part is translated to the
/// referenced shard and contained chunks. For affected shards where all contained chunks are erased the
/// prefix is rewritten to the corresponding shard key and the operation is relayed to the underlying
/// store. For all shards where only some chunks are erased the affected chunks are removed by invoking
/// the operation `erase_values` on this storage transformer with the respective chunk keys."
#[test]
fn erase_prefix() {
    for counts in [[2, 2], [1, 3], [3, 1]] {
        let adapter = Adapter::new(&counts);
        let at = |i, j| format!("a/c/{i}/{j}");
        let all = (0..6).flat_map(|i| (0..6).map(move |j| (i, j)));
        let chunks = all
            .clone()
            .map(|(i, j)| (key(&at(i, j)), Bytes::from(at(i, j))));
        adapter.chunks.set_many(chunks).unwrap();
        let ((), requests) =
            adapter.asked(|chunks| chunks.erase_prefix(&prefix("a/c/4/")).unwrap());
        if counts[0] == 1 {
            assert_eq!(requests, [(Erase, "a/c/4/".to_owned())]);
        } else {
            let shard = 4 / counts[0];
            assert_eq!(requests[0], (List, format!("a/c/{shard}/")));
            let is_shard = |at: &String| at.starts_with(&format!("a/c/{shard}/"));
            assert!(requests[1..].iter().all(|(_, at)| is_shard(at)));
            assert!(requests.iter().all(|(operation, _)| *operation != Erase));
        }
        for (i, j) in all {
            let expected = (i != 4).then(|| at(i, j).into_bytes());
            assert_eq!(adapter.get(&at(i, j)), expected, "{counts:?}");
        }
        // Another row of the same shards. Afterwards some shards have no chunks.
        for row in [3, 5] {
            adapter
                .chunks
                .erase_prefix(&prefix(&format!("a/c/{row}/")))
                .unwrap();
        }
        let shards = adapter.stored();
        let last = 5 / counts[0];
        assert!(
            !shards
                .iter()
                .any(|at| at.starts_with(&format!("a/c/{last}/"))),
            "{shards:?}"
        );
        for whole in ["a/c/", "a/", ""] {
            adapter.set("a/c/1/1", b"again");
            let ((), requests) =
                adapter.asked(|chunks| chunks.erase_prefix(&prefix(whole)).unwrap());
            assert_eq!(requests, [(Erase, whole.to_owned())]);
            assert_eq!(adapter.stored(), [""; 0]);
        }
    }
}

/// "For affected shards where all contained chunks are erased the prefix is rewritten to the
/// corresponding shard key and the operation is relayed". This also erases objects beside the
/// chunks. The same holds if only some chunks are erased: every key that is listed with a prefix is
/// erased with it.
#[test]
fn what_is_listed_is_erased() {
    for counts in [[2, 2], [1, 3]] {
        let adapter = Adapter::new(&counts);
        let all = ["a/c/0/1", "a/c/0/notes/x", "a/c/0/x", "a/c/1/0", "a/c/1/x"];
        for at in all {
            adapter.set(at, b"x");
        }
        let listed = |of: &str| {
            let listed = adapter.chunks.list_prefix(&prefix(of)).unwrap();
            listed.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(listed("a/c/"), all);
        assert_eq!(listed("a/c/0/"), all[..3]);
        let below = adapter.chunks.list_dir(&prefix("a/c/0/")).unwrap();
        assert_eq!(below.keys(), &[key("a/c/0/1"), key("a/c/0/x")]);
        assert_eq!(below.prefixes(), &[prefix("a/c/0/notes/")]);
        adapter.chunks.erase_prefix(&prefix("a/c/0/")).unwrap();
        assert_eq!(listed("a/c/0/"), [""; 0]);
        assert_eq!(listed("a/c/"), all[3..]);
    }
}

/// "`list()`: See `list_prefix` with the prefix `/`." "`list_prefix(prefix)`: If the prefix contains a
/// part of the chunk-grid key, this part is translated to the referenced shard and contained chunks.
/// Then, `list_prefix` is called on the underlying store with the translated prefix. For all listed
/// shards request the indices from the underlying store using `get_partial_values`. Existing chunks […]
/// are then listed by their original key."
#[test]
fn list_and_list_prefix() {
    let adapter = Adapter::new(&[2, 2]);
    let chunks = ["a/c/0/0", "a/c/0/3", "a/c/1/2", "a/c/10/0", "a/c/2/0"];
    for at in ["a/zarr.json", "b"].iter().chain(&chunks) {
        adapter.set(at, b"{}");
    }
    let list = |of: &str| {
        let (listed, requests) = adapter.asked(|chunks| chunks.list_prefix(&prefix(of)).unwrap());
        let listed: Vec<String> = listed.iter().map(ToString::to_string).collect();
        (listed, requests)
    };
    let all = [
        "a/c/0/0",
        "a/c/0/3",
        "a/c/1/2",
        "a/c/10/0",
        "a/c/2/0",
        "a/zarr.json",
        "b",
    ];
    assert_eq!(list("").0, all);
    let listed = adapter.chunks.list().unwrap();
    assert_eq!(listed, all.map(key));
    assert_eq!(list("a/c/").0, all[..5]);
    let (listed, requests) = list("a/c/1/");
    assert_eq!(listed, ["a/c/1/2"]);
    let expected = [(List, "a/c/0/"), (Get, "a/c/0/0"), (Get, "a/c/0/1")];
    assert_eq!(
        requests,
        expected.map(|(operation, at)| (operation, at.to_owned()))
    );
    assert_eq!(list("a/c/3/").0, [""; 0]);
    assert_eq!(list("a/c/7/").0, [""; 0]);
}

/// "`list_dir(prefix)`: If the prefix contains a part of the chunk-grid key, this part is translated to
/// the referenced shard and contained chunks. Then, `list_dir` is called on the underlying store with
/// the translated prefix. For all *retrieved prefixes* (not full keys) with partial shard keys, the
/// corresponding original prefixes covering all possible chunks in the shard are listed. For *retrieved
/// full keys* the indices from the underlying store are requested using `get_partial_values`. Existing
/// chunks […] are then listed by their original key."
///
/// "Not all listed prefixes must necessarily contain keys […]. Returned full keys always reflect the
/// available chunks and are safe to request."
#[test]
fn list_dir() {
    let adapter = Adapter::new(&[2, 3]);
    for at in ["a/zarr.json", "a/c/0/4", "a/c/6/0", "a/c/6/1"] {
        adapter.set(at, b"{}");
    }
    let list = |of: &str| {
        let (listed, requests) = adapter.asked(|chunks| chunks.list_dir(&prefix(of)).unwrap());
        let keys: Vec<String> = listed.keys().iter().map(ToString::to_string).collect();
        let prefixes: Vec<String> = listed.prefixes().iter().map(ToString::to_string).collect();
        let operations: Vec<_> = requests
            .into_iter()
            .map(|(operation, _)| operation)
            .collect();
        (keys, prefixes, operations)
    };
    let none: Vec<String> = Vec::new();
    assert_eq!(list(""), (none.clone(), vec!["a/".to_owned()], vec![List]));
    let (keys, prefixes, _) = list("a/");
    assert_eq!(
        (keys, prefixes),
        (vec!["a/zarr.json".to_owned()], vec!["a/c/".to_owned()])
    );
    // The prefixes 1 and 7 have no chunks, but could have.
    let (keys, prefixes, operations) = list("a/c/");
    assert_eq!((keys, operations), (none.clone(), vec![List]));
    assert_eq!(prefixes, ["a/c/0/", "a/c/1/", "a/c/6/", "a/c/7/"]);
    assert_eq!(
        list("a/c/6/"),
        (
            vec!["a/c/6/0".to_owned(), "a/c/6/1".to_owned()],
            none.clone(),
            vec![List, Get]
        )
    );
    assert_eq!(list("a/c/7/"), (none.clone(), none, vec![List, Get]));
}

/// "In this version, the only binary format is the `indexed` format." The other format here is the
/// one of the codec `sharding_indexed`, whose index is followed by its CRC32C.
#[test]
fn the_format_with_a_checksum() {
    let adapter = Adapter::of(&Sharded {
        format: BinaryFormat::IndexedCrc32c,
        ..Sharded::new("/a", &[2])
    });
    adapter.set("a/c/1", b"abc");
    let object = adapter.object("a/c/0").unwrap();
    let index = words(&[EMPTY, EMPTY, 0, 3]);
    assert_eq!(object[..3 + 32], [b"abc".to_vec(), index].concat());
    assert_eq!(object.len(), 3 + 32 + 4);
}
