//! Shards that another program replaces while subchunks wait beside them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ListableStorageTraits, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits,
    StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};
use zarrs_cuda::Error;
use zarrs_cuda::storage::SparseShardStore;

const PATH: &str = "/volume";
const SHARD: &str = "volume/c/0";
const FRAME: &str = "volume/c/0.frame/";
const SUBCHUNKS: u64 = 4;

/// Something that happens at a request.
type Interrupt = (usize, Box<dyn FnOnce() + Send>);

/// A store in memory with a clock, which goes on by one with each value that is set.
#[derive(Default)]
struct Clocked {
    inner: MemoryStore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    now: u64,
    times: BTreeMap<StoreKey, u64>,
    /// Requests until nothing is done any more, as after a kill.
    left: Option<usize>,
    interrupt: Option<Interrupt>,
    /// A program works that knows no frames.
    is_foreign: bool,
    /// The program that knows no frames set the shard last.
    shard_is_foreign: bool,
}

impl Clocked {
    /// A request begins.
    fn ask(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock().unwrap();
        if let Some(left) = &mut state.left {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => return Err(StorageError::Other("the process was killed".to_owned())),
            }
        }
        let due = match &mut state.interrupt {
            Some((0, _)) => state.interrupt.take(),
            Some((before, _)) => {
                *before -= 1;
                None
            }
            None => None,
        };
        drop(state);
        if let Some((_, interrupt)) = due {
            interrupt();
        }
        Ok(())
    }

    fn time(&self, key: &StoreKey) -> Option<u64> {
        self.inner.size_key(key).unwrap()?;
        self.state.lock().unwrap().times.get(key).copied()
    }

    /// The time of the newest version of each subchunk in the frame.
    fn newest(&self) -> BTreeMap<String, u64> {
        let listed = self.inner.list_prefix(&StorePrefix::new(FRAME).unwrap());
        let mut newest = BTreeMap::new();
        // In order, so the newest version of a subchunk comes last.
        for key in listed.unwrap() {
            let name = key.as_str().strip_prefix(FRAME).unwrap();
            let time = self.time(&key).unwrap();
            if name.strip_suffix(".chunk").is_some() {
                newest.insert(name[..8].to_owned(), time);
            }
        }
        newest
    }

    fn receipts(&self) -> usize {
        let listed = self.inner.list_prefix(&StorePrefix::new(FRAME).unwrap());
        let listed = listed.unwrap();
        let receipts = listed.iter();
        receipts
            .filter(|key| key.as_str().ends_with(".packed"))
            .count()
    }

    /// Returns `true` if a program that knows no frames stored the shard after a version that is not packed, of another
    /// subchunk than `but`.
    fn is_changed(&self, but: Option<u64>) -> bool {
        let Some(shard) = self.time(&StoreKey::new(SHARD).unwrap()) else {
            return false;
        };
        let but = but.map(|number| format!("{number:08X}"));
        let mut newest = self.newest();
        newest.retain(|number, time| Some(number) != but.as_ref() && *time < shard);
        self.state.lock().unwrap().shard_is_foreign && !newest.is_empty()
    }
}

impl ReadableStorageTraits for Clocked {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.ask()?;
        self.inner.get_partial_many(key, ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.ask()?;
        self.inner.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Clocked {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.ask()?;
        let mut state = self.state.lock().unwrap();
        self.inner.set(key, value)?;
        state.now += 1;
        let now = state.now;
        state.times.insert(key.clone(), now);
        if key.as_str() == SHARD {
            state.shard_is_foreign = state.is_foreign;
        }
        Ok(())
    }

    fn set_partial_many(&self, _: &StoreKey, _: OffsetBytesIterator) -> Result<(), StorageError> {
        Err(StorageError::Unsupported("values are set whole".to_owned()))
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.ask()?;
        self.inner.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.ask()?;
        self.inner.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

impl ListableStorageTraits for Clocked {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.ask()?;
        self.inner.list()
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.ask()?;
        self.inner.list_prefix(prefix)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.ask()?;
        self.inner.list_dir(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.ask()?;
        self.inner.size_prefix(prefix)
    }
}

/// An array of one shard, and two adapters, as in two processes.
struct Subject {
    store: Arc<Clocked>,
    plain: Array<Clocked>,
    /// With the times of the store.
    sparse: SparseShardStore<Clocked>,
    writer: Arc<Array<SparseShardStore<Clocked>>>,
    /// How often the other program wrote.
    foreign: AtomicU8,
}

impl Subject {
    fn new() -> Self {
        let store = Arc::new(Clocked::default());
        let mut builder = ArrayBuilder::new(
            vec![2 * SUBCHUNKS],
            vec![2 * SUBCHUNKS],
            data_type::uint8(),
            0_u8,
        );
        builder.subchunk_shape(vec![2]);
        let plain = builder.build(store.clone(), PATH).unwrap();
        plain.store_metadata().unwrap();
        let open = || SparseShardStore::open(store.clone(), PATH).unwrap();
        let clock = store.clone();
        let sparse = open().with_times(move |shard, frame| {
            let mut keys = clock.list_prefix(frame)?;
            keys.push(shard.clone());
            let time = |key: StoreKey| {
                let time = UNIX_EPOCH + Duration::from_secs(clock.time(&key)?);
                Some((key, time))
            };
            Ok(keys.into_iter().filter_map(time).collect())
        });
        let writer = Array::open(Arc::new(open()), PATH).unwrap();
        Self {
            plain,
            sparse,
            writer: Arc::new(writer),
            foreign: AtomicU8::new(0),
            store,
        }
    }

    fn step(&self, step: &Step) {
        let state = || self.store.state.lock().unwrap();
        match *step {
            Step::Write(subchunk, value) => {
                self.writer
                    .store_chunk(&[subchunk], vec![value; 2])
                    .unwrap();
            }
            Step::Foreign(subchunk) => {
                // The value is none that a consolidation has stored before.
                let value = 100 + self.foreign.fetch_add(1, Ordering::Relaxed);
                state().is_foreign = true;
                let elements = 2 * subchunk..2 * subchunk + 2;
                let stored = self.plain.store_array_subset(&[elements], vec![value; 2]);
                state().is_foreign = false;
                stored.unwrap();
            }
            Step::Consolidate => {
                let is_changed = self.store.is_changed(None);
                let before = self.read();
                let done = self.sparse.consolidate(&[0]);
                assert_eq!(self.read(), before);
                if is_changed {
                    let error = done.unwrap_err();
                    assert!(matches!(error, Error::ShardChanged { .. }), "{error}");
                    let text = error.to_string();
                    assert!(
                        text.contains(SHARD) && text.contains("1970-01-01"),
                        "{text}"
                    );
                } else {
                    done.unwrap();
                    assert!(self.store.newest().is_empty());
                    assert_eq!(self.store.receipts(), 0);
                    assert_eq!(self.read_plain(), before);
                }
            }
            Step::Killed(request) => {
                let before = self.read();
                state().left = Some(request);
                // The consolidation reports, is done, or dies.
                let _ = self.sparse.consolidate(&[0]);
                state().left = None;
                assert_eq!(self.read(), before);
            }
            Step::Between(request, subchunk, value) => {
                let writer = self.writer.clone();
                let write = move || writer.store_chunk(&[subchunk], vec![value; 2]).unwrap();
                let is_changed = self.store.is_changed(None);
                let is_certain = self.store.is_changed(Some(subchunk));
                state().interrupt = Some((request, Box::new(write)));
                let done = self.sparse.consolidate(&[0]);
                // A version that comes before the listing may be the newest of its subchunk.
                let may_be = if is_certain {
                    [true, true]
                } else {
                    [false, is_changed]
                };
                assert!(may_be.contains(&done.is_err()), "{done:?}");
                // The consolidation may have made fewer requests.
                let late = state().interrupt.take();
                if let Some((_, write)) = late {
                    write();
                }
            }
        }
    }

    fn read(&self) -> Vec<u8> {
        let array = &self.writer;
        array.retrieve_array_subset(&array.subset_all()).unwrap()
    }

    fn read_plain(&self) -> Vec<u8> {
        self.plain
            .retrieve_array_subset(&self.plain.subset_all())
            .unwrap()
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A subchunk is written beside the shard.
    Write(u64, u8),
    /// A program that knows no frames changes the shard.
    Foreign(u64),
    Consolidate,
    /// A consolidation dies behind so many requests.
    Killed(usize),
    /// A subchunk is written at this request of a consolidation.
    Between(usize, u64, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (subchunk, value) = (|| 0..SUBCHUNKS, || 0_u8..4);
    let step = prop_oneof![
        4 => (subchunk(), value()).prop_map(|(subchunk, value)| Step::Write(subchunk, value)),
        1 => subchunk().prop_map(Step::Foreign),
        2 => Just(Step::Consolidate),
        2 => (0_usize..24).prop_map(Step::Killed),
        2 => (0_usize..24, subchunk(), value())
            .prop_map(|(request, subchunk, value)| Step::Between(request, subchunk, value)),
    ];
    prop::collection::vec(step, 1..16)
}

proptest! {
    #![proptest_config(zarrs_cuda_testing::effort::config(400))]

    /// A consolidation reports a shard if, and only if, another program stored it after a version that waits.
    #[test]
    fn another_program_is_told_from_consolidations(steps in steps()) {
        let subject = Subject::new();
        for step in &steps {
            subject.step(step);
        }
        subject.step(&Step::Consolidate);
        if subject.store.is_changed(None) {
            let before = subject.read();
            let over = subject.sparse.clone().over_changed_shards();
            over.consolidate(&[0]).unwrap().unwrap();
            assert_eq!(subject.read_plain(), before);
            assert_eq!((subject.store.newest().len(), subject.store.receipts()), (0, 0));
        }
    }
}

/// Without the times of a store, the subchunks win.
#[test]
fn stores_without_times() {
    let subject = Subject::new();
    subject.step(&Step::Write(0, 1));
    subject.step(&Step::Foreign(0));
    let untimed = subject.writer.storage();
    untimed.consolidate(&[0]).unwrap().unwrap();
    assert_eq!(subject.read_plain()[..2], [1, 1]);
}

/// All shards that were changed are named, and the others are packed.
#[cfg(feature = "filesystem")]
#[test]
fn files_have_times() {
    use zarrs::filesystem::FilesystemStore;

    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let mut builder = ArrayBuilder::new(vec![24], vec![8], data_type::uint8(), 0_u8);
    builder.subchunk_shape(vec![2]);
    let plain = builder.build(store.clone(), PATH).unwrap();
    plain.store_metadata().unwrap();
    let sparse = Arc::new(SparseShardStore::on_filesystem(store, PATH).unwrap());
    let subchunks = Array::open(sparse.clone(), PATH).unwrap();
    for shard in 0..3 {
        subchunks.store_chunk(&[4 * shard], vec![1_u8; 2]).unwrap();
    }
    let time = |path: &std::path::Path| path.metadata().unwrap().modified().unwrap();
    for shard in [0, 2] {
        let frame = folder.path().join(format!("volume/c/{shard}.frame"));
        let version = frame.read_dir().unwrap().next().unwrap().unwrap().path();
        let stored = folder.path().join(format!("volume/c/{shard}"));
        // The clock of a file system may stand for some milliseconds.
        loop {
            plain.store_chunk(&[shard], vec![2_u8; 8]).unwrap();
            if time(&stored) > time(&version) {
                break;
            }
        }
    }
    let error = sparse.consolidate_all(&|_| ()).unwrap_err();
    assert!(matches!(error, Error::ShardChanged { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("volume/c/0 ") || text.contains("volume/c/0:"),
        "{text}"
    );
    assert!(
        text.contains("volume/c/2:") && text.contains("So do 1 others"),
        "{text}"
    );
    assert_eq!(sparse.pending().unwrap(), [[0], [2]]);
    let all = || -> Vec<u8> { plain.retrieve_array_subset(&plain.subset_all()).unwrap() };
    assert_eq!(all()[..10], [2, 2, 2, 2, 2, 2, 2, 2, 1, 1]);
    let over = SparseShardStore::clone(&sparse).over_changed_shards();
    over.consolidate_all(&|_| ()).unwrap();
    assert_eq!(all()[..10], [1, 1, 2, 2, 2, 2, 2, 2, 1, 1]);
    assert_eq!(all()[16..], [1, 1, 2, 2, 2, 2, 2, 2]);
    let frames = ["0", "1", "2"].map(|shard| {
        let frame = folder.path().join(format!("volume/c/{shard}.frame"));
        frame.read_dir().unwrap().count()
    });
    assert_eq!(frames, [0, 0, 0]);
}
