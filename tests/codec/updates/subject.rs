//! An array, the steps applied to it, and its expected content. The oracle is a list of elements
//! for each shard.

use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use zarrs::array::{Array, ArrayBytes, ArraySubset, Indexer};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::storage_adapter::sync_to_async::{
    SyncToAsyncSpawnBlocking, SyncToAsyncStorageAdapter,
};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableStorageTraits, StoreKey};
use zarrs_codec::{ArrayPartialEncoderTraits, CodecOptions, CodecTraits};
use zarrs_cuda::{CompactionRequest, Options, WriteStrategy};

use super::case::{Case, Element, NUM_SHARDS, STRATEGIES, Values};
use super::step::{Step, What, subset};
use zarrs_cuda_testing::stores::watched::{Call, Watched};

/// Runs blocking work on the calling thread: there is no runtime.
pub(crate) struct Inline;

impl SyncToAsyncSpawnBlocking for Inline {
    async fn spawn_blocking<F, R>(&self, f: F) -> R
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        f()
    }
}

pub(crate) type AsyncWatched = SyncToAsyncStorageAdapter<Watched, Inline>;

/// The settings of all steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setting {
    pub(crate) filesystem: bool,
    pub(crate) store_empty_chunks: bool,
}

/// The same array opened under each strategy, and by zarrs.
struct Arrays {
    ours: Vec<Array<Watched>>,
    asynchronous: Vec<Array<AsyncWatched>>,
    stock: Array<Watched>,
}

/// A partial encoder that is kept, with its shard and its strategy.
pub(crate) type Kept = (usize, WriteStrategy, Arc<dyn ArrayPartialEncoderTraits>);

pub(crate) struct Subject {
    pub(crate) case: Case,
    setting: Setting,
    pub(crate) store: Arc<Watched>,
    arrays: Arrays,
    pub(crate) encoder: Option<Kept>,
    /// The expected elements of each shard.
    pub(crate) model: Vec<Vec<Element>>,
    requests: Arc<Mutex<Vec<CompactionRequest>>>,
    _directory: Option<TempDir>,
}

/// The effects of a step on one shard.
pub(crate) struct Change {
    pub(crate) shard: usize,
    /// The elements and the object before the step.
    pub(crate) elements: Vec<Element>,
    pub(crate) old: Option<Vec<u8>>,
    pub(crate) new: Option<Vec<u8>>,
    pub(crate) calls: Vec<Call>,
    pub(crate) requests: Vec<CompactionRequest>,
    /// The numbers of the written elements, if the step was a partial write.
    pub(crate) written: Option<Vec<usize>>,
}

pub(crate) fn key(shard: usize, case: &Case) -> StoreKey {
    let rest = "/0".repeat(case.shape.len() - 1);
    StoreKey::new(format!("array/c/{shard}{rest}")).unwrap()
}

fn position(strategy: WriteStrategy) -> usize {
    STRATEGIES.iter().position(|s| *s == strategy).unwrap()
}

impl Subject {
    pub(crate) fn new(case: &Case, setting: Setting) -> Self {
        let directory = setting.filesystem.then(|| TempDir::new().unwrap());
        let store = match &directory {
            Some(directory) => {
                Watched::new(Arc::new(FilesystemStore::new(directory.path()).unwrap()))
            }
            None => Watched::new(Arc::new(MemoryStore::new())),
        };
        let store = Arc::new(store);
        let requests = Arc::default();
        Self {
            arrays: open(case, &store, &requests),
            case: case.clone(),
            setting,
            store,
            encoder: None,
            model: vec![vec![case.fill(); case.num_elements()]; NUM_SHARDS],
            requests,
            _directory: directory,
        }
    }

    pub(crate) fn setting(&self) -> Setting {
        self.setting
    }

    pub(crate) fn stock(&self) -> &Array<Watched> {
        &self.arrays.stock
    }

    pub(crate) fn ours(&self, strategy: WriteStrategy) -> &Array<Watched> {
        &self.arrays.ours[position(strategy)]
    }

    pub(crate) fn asynchronous(&self, strategy: WriteStrategy) -> &Array<AsyncWatched> {
        &self.arrays.asynchronous[position(strategy)]
    }

    /// Drops all state that is not in the store.
    pub(crate) fn reopen(&mut self) {
        self.arrays = open(&self.case, &self.store, &self.requests);
    }

    /// zarrs' options for writing.
    pub(crate) fn options(&self) -> CodecOptions {
        CodecOptions::default()
            .with_experimental_partial_encoding(true)
            .with_store_empty_chunks(self.setting.store_empty_chunks)
    }

    /// The object of a shard.
    pub(crate) fn object(&self, shard: usize) -> Option<Vec<u8>> {
        let value = self.store.get(&key(shard, &self.case)).unwrap();
        value.map(|value| value.to_vec())
    }

    /// The indices of a chunk.
    pub(crate) fn chunk(&self, shard: usize) -> Vec<u64> {
        let mut indices = vec![0; self.case.shape.len()];
        indices[0] = shard as u64;
        indices
    }

    /// Copies elements to the model, in the order of `indexer`, and returns their numbers.
    fn note(&mut self, shard: usize, indexer: &dyn Indexer, values: Values) -> Vec<usize> {
        let len = usize::try_from(indexer.len()).unwrap();
        let elements = values.elements(&self.case, len);
        let numbers = indexer.iter_indices().map(|i| self.case.number(&i));
        let numbers: Vec<usize> = numbers.collect();
        for (number, element) in numbers.iter().zip(elements) {
            self.model[shard][*number] = element;
        }
        numbers
    }

    /// Applies `step` to the model. Returns the numbers of the written elements of each shard.
    fn expect(&mut self, step: &Step) -> Vec<(usize, Vec<usize>)> {
        let len = self.case.num_elements();
        match &step.what {
            What::ArraySubset(ranges, values) => {
                let subset = subset(ranges);
                let elements = values.elements(&self.case, subset.num_elements_usize());
                let mut written = vec![Vec::new(); NUM_SHARDS];
                for (mut indices, element) in subset.iter_indices().zip(elements) {
                    let shard = usize::try_from(indices[0] / self.case.shape[0]).unwrap();
                    indices[0] %= self.case.shape[0];
                    let number = self.case.number(&indices);
                    written[shard].push(number);
                    self.model[shard][number] = element;
                }
                let written = written.into_iter().enumerate();
                written.filter(|(_, w)| !w.is_empty()).collect()
            }
            What::ChunkSubset(shard, ranges, values) | What::Encode(shard, ranges, values) => {
                let written = self.note(*shard, &subset(ranges), *values);
                vec![(*shard, written)]
            }
            What::Points(shard, points, values) => {
                vec![(*shard, self.note(*shard, points, *values))]
            }
            What::Store(shard, values, _) => {
                self.model[*shard] = values.elements(&self.case, len);
                vec![(*shard, Vec::new())]
            }
            What::Erase(shard) | What::EncodeErase(shard) => {
                self.model[*shard] = vec![self.case.fill(); len];
                vec![(*shard, Vec::new())]
            }
            What::Compact(shard) | What::Junk(shard, _) => vec![(*shard, Vec::new())],
            What::Reopen => vec![],
        }
    }

    /// Applies `step` to the array and to the model. An error comes from the array; the model is
    /// then unchanged.
    pub(crate) fn apply(&mut self, step: &Step) -> Result<Vec<Change>, String> {
        let before = self.model.clone();
        let old: Vec<_> = (0..NUM_SHARDS).map(|shard| self.object(shard)).collect();
        let written = self.expect(step);
        self.store.take_calls();
        self.requests.lock().unwrap().clear();
        if let Err(error) = self.act(step) {
            self.model = before;
            return Err(error);
        }
        let calls = self.store.take_calls();
        let requests = std::mem::take(&mut *self.requests.lock().unwrap());
        let partial = match &step.what {
            What::ArraySubset(..) | What::ChunkSubset(..) => self.stores_parts(),
            What::Encode(..) | What::Points(..) => true,
            _ => false,
        };
        let whole = |numbers: &[usize]| numbers.len() == self.case.num_elements();
        let direct = matches!(step.what, What::Encode(..) | What::Points(..));
        let changes = written.into_iter().map(|(shard, numbers)| Change {
            shard,
            elements: before[shard].clone(),
            old: old[shard].clone(),
            new: self.object(shard),
            calls: calls
                .iter()
                .filter(|(k, _)| *k == key(shard, &self.case))
                .map(|(_, call)| call.clone())
                .collect(),
            requests: requests.clone(),
            // A chunk that is covered entirely is stored by zarrs.
            written: (partial && (direct || !whole(&numbers))).then_some(numbers),
        });
        let changes = changes.collect();
        self.store.take_calls();
        Ok(changes)
    }

    /// Whether zarrs uses our partial encoder by itself.
    fn stores_parts(&self) -> bool {
        let codecs = self.ours(WriteStrategy::Auto).codecs();
        codecs.partial_encoder_capability().partial_encode
    }

    /// Checks that an encoder reads the elements that it wrote.
    pub(crate) fn check_part(
        &self,
        shard: usize,
        indexer: &dyn Indexer,
        part: ArrayBytes<'_>,
    ) -> Result<(), String> {
        let part = self.case.parse(part);
        let model = &self.model[shard];
        let expected = indexer
            .iter_indices()
            .map(|i| &model[self.case.number(&i)])
            .collect::<Vec<_>>();
        if part.iter().eq(expected.iter().copied()) {
            Ok(())
        } else {
            Err(format!("the encoder reads {part:?} and not {expected:?}"))
        }
    }

    /// Checks that all arrays read the elements of the model.
    pub(crate) fn check(&self, step: &Step) -> Result<(), String> {
        let (stock, ours) = (self.stock(), self.ours(step.strategy));
        for (shard, model) in self.model.iter().enumerate() {
            let chunk = self.chunk(shard);
            for (who, array) in [("zarrs", stock), ("the codec", ours)] {
                let read = array
                    .retrieve_chunk::<ArrayBytes>(&chunk)
                    .map_err(|error| format!("{who} cannot read shard {shard}: {error}"))?;
                let read = self.case.parse(read);
                if read != *model {
                    let wrong = (0..read.len()).filter(|&i| read[i] != model[i]);
                    let wrong = wrong.map(|i| (i, &read[i], &model[i])).collect::<Vec<_>>();
                    return Err(format!(
                        "{who} reads shard {shard} wrongly: (element, read, written) {wrong:?}"
                    ));
                }
            }
            // Reads a part of the shard, too.
            let shape = &self.case.shape;
            let middle: Vec<_> = shape.iter().map(|&d| d / 3..d - d / 4).collect();
            let middle: ArraySubset = subset(&middle);
            let read = ours
                .retrieve_chunk_subset::<ArrayBytes>(&chunk, &middle)
                .map_err(|error| format!("the codec cannot read part of shard {shard}: {error}"))?;
            self.check_part(shard, &middle, read)?;
        }
        self.store.take_calls();
        Ok(())
    }
}

/// Opens an array with each codec and strategy.
fn open(
    case: &Case,
    store: &Arc<Watched>,
    requests: &Arc<Mutex<Vec<CompactionRequest>>>,
) -> Arrays {
    let options = |strategy| {
        let requests = requests.clone();
        Options::default()
            .with_write_strategy(strategy)
            .with_compaction_callback(move |request| requests.lock().unwrap().push(*request))
    };
    let adapter = Arc::new(SyncToAsyncStorageAdapter::new(store.clone(), Inline));
    Arrays {
        ours: STRATEGIES
            .iter()
            .map(|&strategy| case.ours(store, options(strategy)))
            .collect(),
        asynchronous: STRATEGIES
            .iter()
            .map(|&strategy| case.ours(&adapter, options(strategy)))
            .collect(),
        stock: case.stock(store),
    }
}
