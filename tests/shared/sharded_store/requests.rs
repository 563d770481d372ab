//! Adapters over a store in memory that records requests.

use std::sync::Arc;

use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{Bytes, ListableStorageTraits, ReadableStorageTraits, WritableStorageTraits};
use zarrs_cuda::storage::{BinaryFormat, ShardedStore};

use super::subject::{Sharded, key, prefix};
use zarrs_cuda_testing::stores::faulty::{Faulty, Operation};

pub(crate) type Asked = Faulty<MemoryStore>;

pub(crate) struct Adapter {
    pub(crate) inner: Arc<Asked>,
    pub(crate) chunks: ShardedStore<Asked>,
}

impl Adapter {
    /// The adapter of `/a`, which caches no indices.
    pub(crate) fn new(counts: &[u64]) -> Self {
        Self::of(&Sharded {
            index_cache: 0,
            ..Sharded::new("/a", counts)
        })
    }

    pub(crate) fn of(sharded: &Sharded) -> Self {
        let inner = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
        let chunks = sharded.over(inner.clone());
        Self { inner, chunks }
    }

    pub(crate) fn set(&self, at: &str, value: &[u8]) {
        let value = Bytes::copy_from_slice(value);
        self.chunks.set(&key(at), value).unwrap();
    }

    pub(crate) fn get(&self, at: &str) -> Option<Vec<u8>> {
        let value = self.chunks.get(&key(at)).unwrap();
        value.map(|value| value.to_vec())
    }

    /// Returns the result of `run`, and its requests to the store.
    pub(crate) fn asked<T>(
        &self,
        run: impl FnOnce(&ShardedStore<Asked>) -> T,
    ) -> (T, Vec<(Operation, String)>) {
        self.inner.work();
        let result = run(&self.chunks);
        let requests = self.inner.requests().into_iter();
        (
            result,
            requests
                .map(|request| (request.operation, request.key))
                .collect(),
        )
    }

    /// The keys in the store.
    pub(crate) fn stored(&self) -> Vec<String> {
        let keys = self.inner.inner().list().unwrap();
        keys.into_iter()
            .map(|key| key.as_str().to_owned())
            .collect()
    }

    pub(crate) fn object(&self, at: &str) -> Option<Vec<u8>> {
        let object = self.inner.inner().get(&key(at)).unwrap();
        object.map(|object| object.to_vec())
    }
}

use Operation::{Erase, Get, List, Set, Size};

fn asked(operations: &[(Operation, &str)]) -> Vec<(Operation, String)> {
    let operations = operations.iter();
    operations
        .map(|(operation, key)| (*operation, (*key).to_owned()))
        .collect()
}

/// The table of the documentation, without cached indices.
#[test]
fn each_operation_and_its_requests() {
    let adapter = Adapter::new(&[2, 2]);
    for (number, at) in ["a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/2/2"]
        .iter()
        .enumerate()
    {
        adapter.set(at, &[u8::try_from(number).unwrap(); 3]);
    }
    let (_, requests) = adapter.asked(|chunks| chunks.get(&key("a/c/0/1")).unwrap().unwrap());
    assert_eq!(requests, asked(&[(Get, "a/c/0/0"), (Get, "a/c/0/0")]));
    let (_, requests) = adapter.asked(|chunks| chunks.get(&key("a/c/1/1")).unwrap());
    assert_eq!(requests, asked(&[(Get, "a/c/0/0")]));
    let (_, requests) = adapter.asked(|chunks| chunks.get(&key("a/c/7/1")).unwrap());
    assert_eq!(requests, asked(&[(Get, "a/c/3/0")]));
    let (_, requests) = adapter.asked(|chunks| {
        let ranges = [ByteRange::FromStart(0, Some(1)), ByteRange::Suffix(1)];
        let parts = chunks.get_partial_many(&key("a/c/0/0"), Box::new(ranges.into_iter()));
        parts.unwrap().unwrap().count()
    });
    assert_eq!(requests, asked(&[(Get, "a/c/0/0"), (Get, "a/c/0/0")]));
    let (size, requests) = adapter.asked(|chunks| chunks.size_key(&key("a/c/1/0")).unwrap());
    assert_eq!((size, requests), (Some(3), asked(&[(Get, "a/c/0/0")])));

    let ((), requests) =
        adapter.asked(|chunks| chunks.set(&key("a/c/1/1"), b"x"[..].into()).unwrap());
    assert_eq!(requests, asked(&[(Get, "a/c/0/0"), (Set, "a/c/0/0")]));
    let ((), requests) = adapter.asked(|chunks| {
        chunks
            .set_partial(&key("a/c/1/1"), 1, b"y"[..].into())
            .unwrap();
    });
    assert_eq!(requests, asked(&[(Get, "a/c/0/0"), (Set, "a/c/0/0")]));
    let ((), requests) = adapter.asked(|chunks| {
        let keys = ["a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1"].map(key);
        chunks
            .set_many(keys.map(|key| (key, Bytes::from_static(b"z"))))
            .unwrap();
    });
    assert_eq!(requests, asked(&[(Set, "a/c/0/0")]));
    let ((), requests) = adapter.asked(|chunks| chunks.erase(&key("a/c/1/1")).unwrap());
    assert_eq!(requests, asked(&[(Get, "a/c/0/0"), (Set, "a/c/0/0")]));
    let ((), requests) = adapter.asked(|chunks| chunks.erase(&key("a/c/1/1")).unwrap());
    assert_eq!(requests, asked(&[(Get, "a/c/0/0")]));
    let ((), requests) = adapter.asked(|chunks| chunks.erase(&key("a/c/2/2")).unwrap());
    assert_eq!(requests, asked(&[(Get, "a/c/1/1"), (Erase, "a/c/1/1")]));

    let (keys, requests) = adapter.asked(|chunks| chunks.list_prefix(&prefix("a/c/1/")).unwrap());
    assert_eq!(keys, [key("a/c/1/0")]);
    assert_eq!(requests, asked(&[(List, "a/c/0/"), (Get, "a/c/0/0")]));
    let (_, requests) = adapter.asked(|chunks| chunks.list_dir(&prefix("a/c/")).unwrap());
    assert_eq!(requests, asked(&[(List, "a/c/")]));
    let ((), requests) = adapter.asked(|chunks| chunks.erase_prefix(&prefix("a/c/")).unwrap());
    assert_eq!(requests, asked(&[(Erase, "a/c/")]));
    assert_eq!(adapter.stored(), [""; 0]);
}

/// Several chunks, shards and other keys in one call: at most two requests for each object.
#[test]
fn many_at_once() {
    let adapter = Adapter::new(&[2]);
    for at in 0..6_u8 {
        adapter.set(&format!("a/c/{at}"), &[at; 4]);
    }
    adapter.set("b", b"0123");
    let all = ByteRange::FromStart(0, None);
    let wanted = [
        (key("a/c/5"), ByteRange::Suffix(2)),
        (key("a/c/0"), all),
        (key("b"), ByteRange::FromStart(1, Some(2))),
        (key("a/c/4"), all),
        (key("a/c/9"), all),
        (key("a/c/5"), ByteRange::FromStart(0, Some(1))),
        (key("b"), ByteRange::Suffix(1)),
        (key("nothing"), all),
    ];
    let (read, requests) = adapter.asked(|chunks| chunks.get_many(&wanted).unwrap());
    let expected: [Option<&[u8]>; 8] = [
        Some(&[5; 2]),
        Some(&[0; 4]),
        Some(b"12"),
        Some(&[4; 4]),
        None,
        Some(&[5]),
        Some(b"3"),
        None,
    ];
    assert_eq!(
        read.iter()
            .map(|bytes| bytes.as_deref())
            .collect::<Vec<_>>(),
        expected
    );
    let objects = ["a/c/0", "a/c/0", "a/c/2", "a/c/2", "a/c/4", "b", "nothing"];
    assert_eq!(requests, asked(&objects.map(|object| (Get, object))));
    assert_eq!(adapter.chunks.get_many(&[]).unwrap(), []);
}

#[test]
fn indices_that_are_kept_are_not_requested() {
    let adapter = Adapter::of(&Sharded::new("/a", &[4]));
    adapter.set("a/c/0", b"abc");
    adapter.set("a/c/1", b"de");
    let get = |at: &'static str| adapter.asked(|_| adapter.get(at));
    assert_eq!(get("a/c/0").1.len(), 2);
    assert_eq!(
        get("a/c/1"),
        (Some(b"de".to_vec()), asked(&[(Get, "a/c/0")]))
    );
    assert_eq!(get("a/c/3"), (None, vec![]));
    adapter.set("a/c/3", b"f");
    assert_eq!(get("a/c/3").1.len(), 2);
    assert_eq!(
        get("a/c/3"),
        (Some(b"f".to_vec()), asked(&[(Get, "a/c/0")]))
    );

    // Another program replaces the shard. The adapter sees the new shard after its index cache is
    // cleared. It sees at the next read if the shard is gone.
    let others = Adapter::new(&[4]);
    others.set("a/c/0", b"123");
    let shard = others.object("a/c/0").unwrap();
    adapter
        .inner
        .inner()
        .set(&key("a/c/0"), shard.into())
        .unwrap();
    adapter.chunks.clear_index_cache();
    assert_eq!(get("a/c/3").0, None);
    assert_eq!(
        get("a/c/0"),
        (Some(b"123".to_vec()), asked(&[(Get, "a/c/0")]))
    );
    adapter.inner.inner().erase(&key("a/c/0")).unwrap();
    assert_eq!(get("a/c/0").0, None);
    assert_eq!(get("a/c/0").1, asked(&[(Get, "a/c/0")]));
}

/// All reads of one shard form one request with as few ranges as possible.
#[test]
fn touching_ranges_are_merged() {
    let inner = Arc::new(zarrs_cuda_testing::stores::watched::Watched::new(Arc::new(
        MemoryStore::new(),
    )));
    let chunks = ShardedStore::new(inner.clone(), "/a", &[4], BinaryFormat::Indexed).unwrap();
    let value = |at: u8| Bytes::from(vec![at; 10]);
    chunks
        .set_many((0..4).map(|at| (key(&format!("a/c/{at}")), value(at))))
        .unwrap();
    inner.take_calls();
    let wanted = [
        (key("a/c/3"), ByteRange::FromStart(2, Some(3))),
        (key("a/c/0"), ByteRange::Suffix(4)),
        (key("a/c/1"), ByteRange::FromStart(0, Some(5))),
        (key("a/c/1"), ByteRange::FromStart(3, Some(4))),
        (key("a/c/2"), ByteRange::FromStart(10, None)),
    ];
    let read = chunks.get_many(&wanted).unwrap();
    let lens: Vec<_> = read
        .iter()
        .map(|bytes| bytes.as_ref().unwrap().len())
        .collect();
    assert_eq!(lens, [3, 4, 5, 4, 0]);
    let calls = inner.take_calls().into_iter().map(|(_, call)| call);
    use zarrs_cuda_testing::stores::watched::Call::Read;
    assert_eq!(
        calls.collect::<Vec<_>>(),
        [Read(vec![40..104]), Read(vec![6..17, 32..35])]
    );
}

/// A large read first asks for the size, once for each index.
#[test]
fn large_reads_are_checked_first() {
    let adapter = Adapter::of(&Sharded::new("/a", &[2]));
    adapter.set("a/c/0", &vec![1; 17 << 20]);
    let (_, requests) = adapter.asked(|chunks| chunks.get(&key("a/c/0")).unwrap().unwrap());
    assert_eq!(
        requests,
        asked(&[(Get, "a/c/0"), (Size, "a/c/0"), (Get, "a/c/0")])
    );
    let (_, requests) = adapter.asked(|chunks| chunks.get(&key("a/c/0")).unwrap().unwrap());
    assert_eq!(requests, asked(&[(Get, "a/c/0")]));
}
