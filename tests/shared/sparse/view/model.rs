//! Random operations on the adapter, compared with a map of keys to values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ListableStorageTraits, ReadableStorageTraits, ReadableWritableListableStorageTraits,
    StoreKey, StorePrefix, WritableStorageTraits,
};
use zarrs_cuda::storage::SparseShardStore;

use super::stores::{Layout, files};

type Store = Arc<dyn ReadableWritableListableStorageTraits>;

#[derive(Clone, Debug)]
enum Step {
    Set(usize, Vec<u8>),
    SetPartial(usize, u64, Vec<u8>),
    Erase(usize),
    /// By one call: chunks that are set or erased, and then one that is set in part.
    Batch(Vec<(usize, Option<Vec<u8>>)>, (usize, u64, Vec<u8>)),
    /// The prefix of the chunks with this first coordinate.
    ErasePrefix(u64),
    Consolidate(Vec<u64>),
    ConsolidateAll,
}

/// All chunks of a grid, in C order.
fn all(counts: &[u64]) -> Vec<Vec<u64>> {
    counts.iter().fold(vec![vec![]], |all, &count| {
        let longer = |first: Vec<u64>| (0..count).map(move |at| [&first[..], &[at]].concat());
        all.into_iter().flat_map(longer).collect()
    })
}

/// Set a part of a chunk.
fn with_part(chunks: &mut BTreeMap<StoreKey, Vec<u8>>, key: StoreKey, at: u64, part: &[u8]) {
    let at = usize::try_from(at).unwrap();
    let value = chunks.entry(key).or_default();
    value.resize(value.len().max(at + part.len()), 0);
    value[at..at + part.len()].copy_from_slice(part);
}

struct Model {
    layout: Layout,
    /// The keys of all chunks.
    keys: Vec<StoreKey>,
    chunks: BTreeMap<StoreKey, Vec<u8>>,
}

impl Model {
    fn new(layout: Layout) -> Self {
        let counts: Vec<u64> = std::iter::zip(&layout.shape, &layout.subchunk)
            .map(|(shape, chunk)| shape.div_ceil(*chunk))
            .collect();
        let separator = layout.separator.to_string();
        let key = |chunk: Vec<u64>| {
            let mut parts: Vec<String> = chunk.iter().map(u64::to_string).collect();
            match layout.encoding {
                "default" => parts.insert(0, "c".to_owned()),
                _ if parts.is_empty() => parts.push("0".to_owned()),
                _ => {}
            }
            StoreKey::new(format!("{}/{}", &layout.path[1..], parts.join(&separator))).unwrap()
        };
        Self {
            keys: all(&counts).into_iter().map(key).collect(),
            chunks: BTreeMap::new(),
            layout,
        }
    }

    fn prefix(&self, first: u64) -> StorePrefix {
        let c = if self.layout.encoding == "default" {
            "c/"
        } else {
            ""
        };
        StorePrefix::new(format!("{}/{c}{first}/", &self.layout.path[1..])).unwrap()
    }

    fn step(
        &mut self,
        step: &Step,
        sparse: &SparseShardStore<dyn ReadableWritableListableStorageTraits>,
    ) {
        let key = |number: &usize| self.keys[number % self.keys.len()].clone();
        match step {
            Step::Set(chunk, value) => {
                sparse.set(&key(chunk), Bytes::from(value.clone())).unwrap();
                self.chunks.insert(key(chunk), value.clone());
            }
            Step::SetPartial(chunk, at, part) => {
                sparse
                    .set_partial(&key(chunk), *at, Bytes::from(part.clone()))
                    .unwrap();
                let key = key(chunk);
                with_part(&mut self.chunks, key, *at, part);
            }
            Step::Erase(chunk) => {
                sparse.erase(&key(chunk)).unwrap();
                self.chunks.remove(&key(chunk));
            }
            Step::Batch(chunks, (chunk, at, part)) => {
                let batch = sparse.batch();
                let mut model = self.chunks.clone();
                for (chunk, value) in chunks {
                    let key = key(chunk);
                    if let Some(value) = value {
                        batch.set(&key, Bytes::from(value.clone())).unwrap();
                        model.insert(key.clone(), value.clone());
                    } else {
                        batch.erase(&key).unwrap();
                        model.remove(&key);
                    }
                    let kept = batch.get(&key).unwrap();
                    assert_eq!(kept.map(Vec::from), *value);
                }
                let part = Bytes::from(part.clone());
                batch.set_partial(&key(chunk), *at, part.clone()).unwrap();
                with_part(&mut model, key(chunk), *at, &part);
                // Nothing is written yet.
                self.check(sparse);
                batch.write().unwrap();
                self.chunks = model;
                // There is nothing left to write.
                batch.write().unwrap();
            }
            // With fewer axes, chunks have no prefixes.
            Step::ErasePrefix(_) if self.layout.shape.len() < 2 => {}
            Step::ErasePrefix(first) => {
                let prefix = self.prefix(*first);
                sparse.erase_prefix(&prefix).unwrap();
                self.chunks.retain(|key, _| !key.has_prefix(&prefix));
            }
            Step::Consolidate(shard) => {
                sparse
                    .consolidate(&shard[..self.layout.shape.len()])
                    .unwrap();
            }
            Step::ConsolidateAll => {
                sparse.consolidate_all(&|_| {}).unwrap();
                assert_eq!(sparse.pending().unwrap(), Vec::<Vec<u64>>::new());
            }
        }
    }

    fn check(&self, sparse: &SparseShardStore<dyn ReadableWritableListableStorageTraits>) {
        for key in &self.keys {
            let value = self.chunks.get(key);
            assert_eq!(
                sparse.get(key).unwrap().as_deref(),
                value.map(Vec::as_slice),
                "{key}"
            );
            assert_eq!(
                sparse.size_key(key).unwrap(),
                value.map(|value| value.len() as u64)
            );
            let half = value.map_or(0, Vec::len) / 2;
            let range = ByteRange::FromStart(half as u64, None);
            let part = sparse.get_partial(key, range).unwrap();
            assert_eq!(part.as_deref(), value.map(|value| &value[half..]));
        }
        // Lists every prefix of every key.
        let mut keys: BTreeSet<StoreKey> = self.chunks.keys().cloned().collect();
        keys.insert(self.layout.key());
        let mut prefixes: BTreeSet<StorePrefix> = keys.iter().map(StoreKey::parent).collect();
        prefixes.extend([StorePrefix::root(), StorePrefix::new("group/").unwrap()]);
        for first in 0..4 {
            prefixes.insert(self.prefix(first));
        }
        for prefix in prefixes {
            let below: Vec<_> = keys
                .iter()
                .filter(|key| key.has_prefix(&prefix))
                .cloned()
                .collect();
            assert_eq!(sparse.list_prefix(&prefix).unwrap(), below, "{prefix}");
            let sizes = self
                .chunks
                .iter()
                .filter(|(key, _)| key.has_prefix(&prefix));
            let mut sizes: u64 = sizes.map(|(_, value)| value.len() as u64).sum();
            if self.layout.key().has_prefix(&prefix) {
                sizes += sparse.size_key(&self.layout.key()).unwrap().unwrap();
            }
            assert_eq!(sparse.size_prefix(&prefix).unwrap(), sizes, "{prefix}");
            let listed = sparse.list_dir(&prefix).unwrap();
            let (here, deeper): (Vec<_>, Vec<_>) =
                below.into_iter().partition(|key| key.parent() == prefix);
            assert_eq!(*listed.keys(), here, "{prefix}");
            // "Not all listed prefixes must necessarily contain keys."
            for key in deeper {
                let rest = &key.as_str()[prefix.as_str().len()..];
                let first = rest.split('/').next().unwrap();
                let first = StorePrefix::new(format!("{prefix}{first}/")).unwrap();
                assert!(listed.prefixes().contains(&first), "{first} in {prefix}");
            }
            for prefix in listed.prefixes() {
                assert!(!prefix.as_str().contains("frame"), "{prefix}");
            }
        }
        assert_eq!(sparse.list().unwrap(), keys.into_iter().collect::<Vec<_>>());
    }
}

fn layouts() -> impl Strategy<Value = Layout> {
    let shapes = prop_oneof![
        Just((vec![8, 6], vec![4, 4], vec![2, 2])),
        Just((vec![7, 5], vec![4, 2], vec![1, 2])),
        Just((vec![10], vec![4], vec![2])),
        Just((vec![3, 4, 2], vec![2, 2, 2], vec![1, 2, 1])),
        Just((vec![], vec![], vec![])),
    ];
    let encodings = prop_oneof![Just("default"), Just("v2")];
    let separators = prop_oneof![Just('/'), Just('.')];
    let locations = prop_oneof![Just("start"), Just("end")];
    (shapes, encodings, separators, locations).prop_map(
        |((shape, shard, subchunk), encoding, separator, index_location)| Layout {
            encoding,
            separator,
            index_location,
            // With a compressor, a stored value may be longer than a subchunk.
            codecs: json!([
                { "name": "bytes", "configuration": { "endian": "little" } },
                { "name": "zstd", "configuration": { "level": 1, "checksum": false } },
            ]),
            ..Layout::new(&shape, &shard, &subchunk)
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<(bool, Step)>> {
    let value = || prop::collection::vec(any::<u8>(), 0..6);
    let chunk = || 0_usize..64;
    let step = prop_oneof![
        6 => (chunk(), value()).prop_map(|(chunk, value)| Step::Set(chunk, value)),
        1 => (chunk(), 0_u64..4, value()).prop_map(|(chunk, at, part)| Step::SetPartial(chunk, at, part)),
        2 => chunk().prop_map(Step::Erase),
        4 => (
            prop::collection::vec((chunk(), prop::option::of(value())), 0..8),
            (chunk(), 0_u64..4, value()),
        )
            .prop_map(|(chunks, part)| Step::Batch(chunks, part)),
        1 => (0_u64..4).prop_map(Step::ErasePrefix),
        2 => prop::collection::vec(0_u64..2, 3).prop_map(Step::Consolidate),
        1 => Just(Step::ConsolidateAll),
    ];
    prop::collection::vec((any::<bool>(), step), 1..20)
}

/// Two adapters, as in two processes, take turns.
fn run(store: &Store, layout: Layout, steps: &[(bool, Step)]) {
    layout.create(&**store);
    let adapters = [layout.open(store), layout.open(store)];
    let mut model = Model::new(layout);
    model.check(&adapters[0]);
    for (which, step) in steps {
        model.step(step, &adapters[usize::from(*which)]);
        model.check(&adapters[usize::from(!*which)]);
    }
}

proptest! {
    #![proptest_config(zarrs_cuda_testing::effort::config(100))]

    #[test]
    fn in_memory(layout in layouts(), steps in steps()) {
        let store: Store = Arc::new(MemoryStore::new());
        run(&store, layout, &steps);
    }
}

proptest! {
    #![proptest_config(zarrs_cuda_testing::effort::config(10))]

    #[test]
    fn in_files(layout in layouts(), steps in steps()) {
        let (_folder, store) = files();
        let store: Store = store;
        run(&store, layout, &steps);
    }
}
