//! A stream in any pieces is stored like one `store_array_subset`.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;
use zarrs::array::{Array, ArrayBytes};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableWritableListableStorage, ReadableWritableListableStorageTraits};
use zarrs_cuda::writer::{ArrayWriter, ArrayWriterBuilder, Resume};

use super::appending::Appending;
use super::case::{Case, Place, case};
use super::content::{self, Density};
use super::probe::Probe;
use super::watchdog::within;
use zarrs_cuda_testing::index::EMPTY;

/// A builder for an array in any store.
type Builder = ArrayWriterBuilder<dyn ReadableWritableListableStorageTraits>;

/// The store of a case.
pub(crate) struct Stored {
    pub(crate) store: ReadableWritableListableStorage,
    kept: Option<Arc<Probe>>,
    files: Option<Arc<FilesystemStore>>,
    _directory: Option<TempDir>,
}

impl Stored {
    pub(crate) fn new(place: Place) -> Self {
        let (mut kept, mut files, mut directory) = (None, None, None);
        let store: ReadableWritableListableStorage = match place {
            Place::Memory => Arc::new(MemoryStore::new()),
            Place::Kept | Place::KeptAndRenamed => kept.insert(Probe::new()).clone(),
            Place::Files | Place::FilesRenamed => {
                let directory = directory.insert(TempDir::new().unwrap());
                let store = FilesystemStore::new(directory.path()).unwrap();
                files.insert(Arc::new(store)).clone()
            }
        };
        Self {
            store,
            kept: kept.filter(|_| place == Place::KeptAndRenamed),
            files: files.filter(|_| place == Place::FilesRenamed),
            _directory: directory,
        }
    }

    /// Whether shards grow in temporaries.
    fn renames(&self) -> bool {
        self.kept.is_some() || self.files.is_some()
    }

    /// Makes shards grow in temporaries if the case says so.
    pub(crate) fn rename(&self, builder: Builder) -> Builder {
        match (&self.kept, &self.files) {
            (Some(kept), _) => builder.with_atomic_rename(kept.clone()),
            (_, Some(files)) => builder.with_atomic_rename(files.clone()),
            _ => builder,
        }
    }
}

/// Returns everything in a store.
pub(crate) fn values(
    store: &dyn ReadableWritableListableStorageTraits,
) -> BTreeMap<String, Vec<u8>> {
    let keys = store.list().unwrap().into_iter();
    keys.map(|key| {
        let value = store.get(&key).unwrap().unwrap();
        (key.to_string(), value.to_vec())
    })
    .collect()
}

fn elements<S>(array: &Array<S>, case: &Case, slices: u64) -> Vec<u8>
where
    S: ?Sized + zarrs::storage::ReadableStorageTraits + 'static,
{
    let bytes = array
        .retrieve_array_subset::<ArrayBytes>(&case.subset(0, slices))
        .unwrap();
    bytes.into_fixed().unwrap().into_owned()
}

/// The existing content of the array, and the appended bytes.
struct Data {
    existing: Vec<u8>,
    appended: Vec<u8>,
    /// The final length.
    slices: u64,
}

impl Data {
    fn new(case: &Case) -> Self {
        let bytes = |slices, density, seed| {
            content::bytes(&case.shards, &case.shape(slices), density, seed)
        };
        Self {
            existing: bytes(case.existing, Density::Full, !case.seed),
            appended: bytes(case.slices, case.density, case.seed),
            slices: case.existing.max(case.first() + case.slices),
        }
    }

    /// The expected content of the array. Written shards keep nothing of the existing content.
    fn all(&self, case: &Case) -> Vec<u8> {
        let slice_bytes = case.slice_bytes();
        let at = |slice: u64| usize::try_from(slice).unwrap() * slice_bytes;
        let mut all = self.existing.clone();
        let fill = &case.shards.fill;
        all.extend(fill.iter().cycle().take(at(self.slices) - all.len()));
        let (first, end) = (case.first(), case.first() + case.slices);
        let whole = end.next_multiple_of(case.shards.shape[0]).min(self.slices);
        for element in all[at(first)..at(whole)].chunks_mut(fill.len()) {
            element.copy_from_slice(fill);
        }
        all[at(first)..at(end)].copy_from_slice(&self.appended);
        all
    }

    /// The slices of the shards that the writer writes.
    fn rewritten(&self, case: &Case) -> Vec<u8> {
        let read_back = usize::try_from(case.rewritten().start).unwrap() * case.slice_bytes();
        let mut elements = self.existing.get(read_back..).unwrap_or(&[]).to_vec();
        if !case.resumes || case.slices == 0 {
            elements.clear();
        }
        elements.extend(&self.appended);
        elements
    }

    /// Stores the expected content, each shard with one call.
    fn store(&self, case: &Case, open: impl Fn(u64) -> Array<MemoryStore>) {
        let options = case.options().with_concurrent_target(1);
        let before = open(case.existing);
        if case.existing > 0 {
            let subset = case.subset(0, case.existing);
            let elements = ArrayBytes::from(self.existing.as_slice());
            before
                .store_array_subset_opt(&subset, elements, &options)
                .unwrap();
        }
        let after = open(self.slices);
        after.store_metadata().unwrap();
        let slices = case.rewritten();
        let rows = slices.start / case.shards.shape[0]..slices.end.div_ceil(case.shards.shape[0]);
        let mut chunks = vec![rows];
        let grid = after.chunk_grid_shape();
        chunks.extend(grid[1..].iter().map(|&shards| 0..shards));
        if case.slices > 0 {
            let chunks = zarrs::array::ArraySubset::new_with_ranges(&chunks);
            after.erase_chunks(&chunks).unwrap();
            let elements = self.rewritten(case);
            let subset = case.subset(slices.start, slices.end - slices.start);
            after
                .store_array_subset_opt(&subset, ArrayBytes::from(elements), &options)
                .unwrap();
        }
    }
}

fn check(case: &Case) {
    let _watchdog = within(100, "a stream");
    let data = Data::new(case);
    let stored = Stored::new(case.place);
    let ours = case.ours(&stored.store, case.existing);
    ours.store_metadata().unwrap();
    if case.existing > 0 {
        let elements = ArrayBytes::from(data.existing.as_slice());
        let options = case.options().with_concurrent_target(1);
        case.stock(&stored.store, case.existing)
            .store_array_subset_opt(&case.subset(0, case.existing), elements, &options)
            .unwrap();
    }

    let mut builder = stored
        .rename(ArrayWriter::builder(&ours))
        .with_codec_options(case.options())
        .with_store_threads(case.store_threads);
    // Existing elements that are the fill value have no shard, and the writer refuses to guess a start.
    let last = case.existing.saturating_sub(1) / case.shards.shape[0];
    let is_found = |key: &String| match indices_of(key) {
        // Only stores that rename are listed.
        Some(indices) => stored.renames() || [0, last].contains(&indices[0]),
        None => false,
    };
    let is_without_shards =
        case.existing > 0 && !values(stored.store.as_ref()).keys().any(is_found);
    let start = case.start.or(is_without_shards.then_some(case.existing));
    if case.resumes {
        builder = builder.with_start(Resume);
    } else if let Some(start) = start {
        builder = builder.with_start(start);
    }
    if let Some(epochs) = case.epochs_per_batch {
        builder = builder.with_epochs_per_batch(epochs);
    }
    if case.resumes && is_without_shards {
        let refused = builder.build().unwrap_err().to_string();
        let starts = format!("`with_start({})`", case.border());
        assert!(refused.contains(&starts), "{refused}");
        return;
    }
    let mut appending = Appending::new(case, &data.appended, builder.build().unwrap());
    appending.append_all();
    appending.finish(data.slices);

    let found = values(stored.store.as_ref());
    // zarrs reads the elements.
    let array = Array::open(stored.store.clone(), "/array").unwrap();
    assert_eq!(array.shape(), case.shape(data.slices));
    assert_eq!(
        elements(&array, case, data.slices),
        data.all(case),
        "elements"
    );

    // The keys, the bytes of shards, and the metadata are the same, and nothing else is stored.
    let oracle = Arc::new(MemoryStore::new());
    data.store(case, |slices| case.stock(&oracle, slices));
    let oracle = values(oracle.as_ref());
    let keys = |values: &BTreeMap<String, Vec<u8>>| values.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&found), keys(&oracle), "the keys");
    let metadata = |values: &BTreeMap<String, Vec<u8>>| {
        serde_json::from_slice::<Value>(&values["array/zarr.json"]).unwrap()
    };
    assert_eq!(metadata(&found), metadata(&oracle));
    if case.store_empty {
        // zarrs never stores empty subchunks, so its bytes cannot be compared.
        check_stored(case, &data, &found);
        return;
    }
    let ours = Arc::new(MemoryStore::new());
    data.store(case, |slices| case.ours(&ours, slices));
    let ours = values(ours.as_ref());
    for key in keys(&oracle) {
        if key.ends_with("zarr.json") || written(case, &data, &key).is_none() {
            continue;
        }
        if case.canonical() {
            assert!(
                found[&key] == oracle[&key],
                "{key} is not as zarrs stores it"
            );
        }
        assert!(
            found[&key] == ours[&key],
            "{key} is not as the codec stores it"
        );
    }
}

/// The indices of the shard with this key.
fn indices_of(key: &str) -> Option<Vec<u64>> {
    let indices = key.strip_prefix("array/c")?[1..].split(['/', '.']);
    Some(indices.map(|index| index.parse().unwrap()).collect())
}

/// The indices of the shard with this key, if the writer wrote it.
fn written(case: &Case, _data: &Data, key: &str) -> Option<Vec<u64>> {
    let indices = indices_of(key)?;
    let first = indices[0] * case.shards.shape[0];
    case.rewritten().contains(&first).then_some(indices)
}

/// If empty subchunks are stored, all subchunks with elements of the array are.
fn check_stored(case: &Case, data: &Data, found: &BTreeMap<String, Vec<u8>>) {
    let Case { shards, .. } = case;
    let shape = case.shape(case.first() + case.slices);
    for (key, value) in found {
        let Some(indices) = written(case, data, key) else {
            continue;
        };
        let counts: Vec<u64> = std::iter::zip(&shards.shape, &shards.subchunk)
            .map(|(shard, subchunk)| shard / subchunk)
            .collect();
        let entries = shards.index.entries(value, shards.num_subchunks());
        let inside = zarrs_cuda_testing::all_indices(&counts).map(|at| {
            (0..at.len())
                .all(|d| indices[d] * shards.shape[d] + at[d] * shards.subchunk[d] < shape[d])
        });
        for (number, (entry, inside)) in entries.into_iter().zip(inside).enumerate() {
            assert!(!inside || entry != EMPTY, "subchunk {number} of {key}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 2000,
        ..zarrs_cuda_testing::effort::config(300)
    })]

    /// Any stream, writer, pieces and store.
    #[test]
    fn a_stream_is_what_store_array_subset_stores(case in case()) {
        check(&case);
    }
}
