//! The protocol of frames, in every order in which the calls of writers, readers and those who
//! consolidate can take effect, crashes at each call among them.
//!
//! Each actor is a process with an adapter of its own. After each order somebody else comes, reads,
//! consolidates and reads again: nothing that was written is lost, no read was torn or stale, and what
//! is left is one shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use zarrs_cuda_testing::effort;
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

use super::batch::SparseBatch;
use super::changed::Watch;
use super::frame::{self, Entry, Version};
use super::marker::Marker;
use super::protocol::{Frames, ReplacesShards};
use super::{SparseArray, metadata, reading};
use crate::reader::ArrayReader;
use crate::reader::newer_subchunks::{Later, ListsNewerSubchunks, NewerSubchunks};
use crate::storage::chunk_layout::ChunkLayout;
use crate::storage::listing::list_prefix;
use crate::storage::schedules::{
    Acting, Ending, Explored, Listing, Objects, Promises, Scenario, Seat, Silence, Value,
    Violation, judge_chunk,
};
use crate::store::{Writes, now};

const PATH: &str = "/a";

/// Whether the index of a shard changes with the written values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    /// The index stays the same as long as the same subchunks are stored.
    Equal,
    Different,
}

/// How a shard is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replacing {
    Set,
    /// A temporary is set, not at once, and renamed.
    Rename,
}

struct ByRename<'a>(&'a Seat);

impl ReplacesShards for ByRename<'_> {
    async fn replace(&self, key: &StoreKey, shard: Option<Bytes>) -> Result<(), StorageError> {
        let temporary = StoreKey::new(format!("{key}.tmp"))?;
        let Some(shard) = shard else {
            self.0.erase(&temporary).await?;
            return self.0.erase(key).await;
        };
        self.0.set(&temporary, shard).await?;
        self.0.rename(&temporary, key).await
    }
}

/// The shard and its frame before any actor acts. Values are small numbers; `None` is an empty subchunk.
#[derive(Clone, Copy, Debug)]
struct Before {
    shard: Option<[Option<u8>; 2]>,
    /// Number, version, value.
    frame: &'static [(u32, u64, Option<u8>)],
    /// Versions of which only half was written.
    torn: &'static [(u32, u64, u8)],
}

impl Before {
    fn value(&self, number: u32) -> Option<u8> {
        let versions = self.frame.iter().filter(|(of, ..)| *of == number);
        let newest = versions.max_by_key(|(_, version, _)| version);
        let packed = self.shard.and_then(|shard| shard[number as usize]);
        newest.map_or(packed, |(_, _, value)| *value)
    }
}

/// A shard, and nothing beside it.
const PACKED: Before = Before {
    shard: Some([Some(1), Some(1)]),
    frame: &[],
    torn: &[],
};
/// A subchunk was written, and not packed.
const WRITTEN: Before = Before {
    frame: &[(0, 1, Some(2))],
    ..PACKED
};
/// The subchunk was written twice.
const WRITTEN_TWICE: Before = Before {
    frame: &[(0, 1, Some(2)), (0, 2, Some(3))],
    ..PACKED
};
/// A process died while it wrote the subchunk once more.
const WRITTEN_AND_TORN: Before = Before {
    torn: &[(0, 2, 9)],
    ..WRITTEN
};
/// Versions between were packed, and deleted.
const WITH_A_GAP: Before = Before {
    frame: &[(0, 1, Some(2)), (0, 5, Some(3))],
    ..PACKED
};
const NOTHING: Before = Before {
    shard: None,
    ..PACKED
};

/// Batches of chunks and their values.
type Batches = &'static [&'static [(usize, Option<u8>)]];

/// An array of one shard with two subchunks, and five processes.
struct Subject {
    sizes: Sizes,
    replacing: Replacing,
    promises: Promises,
    /// Writers have seen the marker of the array before. A look for the marker is another call.
    knows_marker: bool,
    layout: ChunkLayout,
    /// The reader of shards, without frames.
    boxes: ArrayReader<()>,
    processes: Vec<SparseArray>,
    /// How many names of versions each has given.
    names: [Arc<AtomicU64>; 5],
}

impl Subject {
    fn new(sizes: Sizes, replacing: Replacing, promises: Promises) -> Self {
        let compressor = match sizes {
            Sizes::Equal => "",
            Sizes::Different => r#", {"name": "gzip", "configuration": {"level": 1}}"#,
        };
        let stored = format!(
            r#"{{"zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "uint8", "fill_value": 0,
            "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": [8]}}}},
            "chunk_key_encoding": {{"name": "default"}},
            "codecs": [{{"name": "sharding_indexed", "configuration": {{"chunk_shape": [4],
                "codecs": [{{"name": "bytes"}}{compressor}], "index_location": "end",
                "index_codecs": [{{"name": "bytes", "configuration": {{"endian": "little"}}}}, {{"name": "crc32c"}}]}}}}]}}"#
        );
        let names = [(); 5].map(|()| Arc::new(AtomicU64::new(0)));
        let process = |(number, names): (usize, &Arc<AtomicU64>)| {
            let array = SparseArray::new(PATH, stored.as_bytes()).unwrap();
            let sharded = metadata::sharded(&array.metadata, &array.path, stored.as_bytes());
            let sharded = sharded.unwrap();
            // Names that are the same in each run, which begins with the first.
            let names = names.clone();
            let writer = move || format!("W{number}{:04}", names.fetch_add(1, Ordering::Relaxed));
            let marker = Marker::of(&array.metadata).unwrap();
            let frames = Frames::new(sharded.shards, Box::new(writer), marker).unwrap();
            let frames = Arc::new(frames);
            // Used to see that there is one.
            let rename: super::Rename = Arc::new(|_, _| unreachable!());
            let rename = (replacing == Replacing::Rename).then_some(rename);
            SparseArray {
                frames,
                rename,
                ..array
            }
        };
        let processes: Vec<_> = names.iter().enumerate().map(process).collect();
        let first = &processes[0];
        let sharded = metadata::sharded(&first.metadata, &first.path, stored.as_bytes());
        Self {
            sizes,
            replacing,
            promises,
            knows_marker: true,
            layout: ChunkLayout::of(sharded.unwrap().shards).unwrap(),
            boxes: {
                let array = metadata::array_of(&first.metadata, &first.path, stored.as_bytes());
                // The reader requests each subchunk by itself.
                let builder = ArrayReader::builder(&array.unwrap());
                builder.with_memory(0).with_gap(0).build().unwrap()
            },
            processes,
            names,
        }
    }

    fn bytes(&self, chunk: usize, value: u8) -> Bytes {
        let elements = [value + 16 * chunk as u8; 4];
        match self.sizes {
            Sizes::Equal => elements.to_vec(),
            Sizes::Different => members(elements, value),
        }
        .into()
    }

    fn value(&self, chunk: usize, value: Option<u8>) -> Value {
        value.map(|value| self.bytes(chunk, value))
    }

    fn objects(&self, before: &Before) -> Objects {
        let mut objects = Objects::new();
        if let Some(shard) = before.shard {
            let chunks = [0, 1].map(|chunk| self.value(chunk, shard[chunk]));
            let packed = self.layout.pack(&shard_key(), &chunks).unwrap();
            objects.extend(packed.map(|packed| (shard_key(), packed)));
        }
        let mut put = |number, version, object| {
            let version = Version {
                version,
                writer: "W".to_owned(),
            };
            let frame = frame::prefix_of(&shard_key()).unwrap();
            objects.insert(frame::key_of(&frame, number, &version).unwrap(), object);
        };
        for &(number, version, value) in before.frame {
            let value = self.value(number as usize, value);
            let entry = value.map_or(Entry::Tombstone, Entry::Data);
            put(number, version, entry.encode().unwrap());
        }
        for &(number, version, value) in before.torn {
            let object = Entry::Data(self.bytes(number as usize, value))
                .encode()
                .unwrap();
            put(number, version, object.slice(..object.len() / 2));
        }
        objects
    }

    async fn consolidate(&self, process: usize, seat: &Seat) -> Result<usize, String> {
        let array = &self.processes[process];
        let done = match self.replacing {
            Replacing::Set => {
                let done = array.consolidate(seat, &[0]).await;
                done.map_err(|error| error.to_string())?
            }
            Replacing::Rename => {
                let done = array
                    .frames
                    .consolidate(seat, &ByRename(seat), &shard_key(), &Watch::default())
                    .await;
                done.map_err(|error| error.to_string())?
            }
        };
        Ok(done.map_or(0, |done| done.versions))
    }

    /// Returns a scenario whose actors will find `before`.
    fn scenario(&self, before: Before) -> Scenario<'_> {
        let scenario = Scenario::new(self.objects(&before), move |ending| {
            self.judge(&before, ending)
        });
        scenario.promises(self.promises)
    }

    /// A process begins: in each order what it does depends on nothing that was before.
    fn begin(&self, process: usize) {
        self.names[process].store(0, Ordering::Relaxed);
        let frames = &self.processes[process].frames;
        frames.forget();
        frames.marker().forget(self.knows_marker);
    }

    /// Values are written, one after the other, or erased.
    async fn write(&self, seat: &Seat, process: usize, chunk: usize, values: &[Option<u8>]) {
        let array = &self.processes[process];
        for &value in values {
            let value = self.value(chunk, value);
            let write = async {
                match value.clone() {
                    Some(value) => array.set(seat, &chunk_key(chunk), value).await,
                    None => array.erase(seat, &chunk_key(chunk)).await,
                }
            };
            seat.writing(chunk, value.clone(), write).await;
        }
    }

    fn writer<'a>(
        &'a self,
        process: usize,
        chunk: usize,
        values: &'static [Option<u8>],
    ) -> impl Fn(Seat) -> Acting<'a> + 'a {
        move |seat| {
            Box::pin(async move {
                self.begin(process);
                self.write(&seat, process, chunk, values).await;
            })
        }
    }

    /// Values are written or erased by batches, one after the other.
    async fn write_batches(&self, seat: &Seat, process: usize, batches: Batches) {
        for &values in batches {
            let batch = SparseBatch::of(self.processes[process].clone());
            let values = values.iter();
            let values = values.map(|&(chunk, value)| (chunk, self.value(chunk, value)));
            let values: Vec<(usize, Value)> = values.collect();
            let write = async {
                for (chunk, value) in &values {
                    let key = chunk_key(*chunk);
                    match value.clone() {
                        Some(value) => batch.set(seat, &key, value).await,
                        None => batch.erase_each(seat, &[key]).await,
                    }
                    .map_err(|error| error.to_string())?;
                }
                let written = batch.write(seat).await;
                written.map_err(|error| error.to_string())
            };
            seat.writing_all(&values, write).await;
        }
    }

    fn batch_writer<'a>(
        &'a self,
        process: usize,
        batches: Batches,
    ) -> impl Fn(Seat) -> Acting<'a> + 'a {
        move |seat| {
            Box::pin(async move {
                self.begin(process);
                self.write_batches(&seat, process, batches).await;
            })
        }
    }

    fn reader<'a>(
        &'a self,
        process: usize,
        chunk: usize,
        times: usize,
    ) -> impl Fn(Seat) -> Acting<'a> + 'a {
        move |seat| {
            Box::pin(async move {
                let key = chunk_key(chunk);
                self.begin(process);
                for _ in 0..times {
                    let read = self.processes[process].get(&seat, &key);
                    seat.reading(chunk, read).await;
                }
            })
        }
    }

    /// Both subchunks are read by one call of a reader of boxes.
    fn box_reader<'a>(
        &'a self,
        process: usize,
        are_open_files: bool,
        times: usize,
    ) -> impl Fn(Seat) -> Acting<'a> + 'a {
        move |seat| {
            Box::pin(async move {
                let array = self.processes[process].clone();
                // In each order what it does depends on nothing else.
                array.frames.forget();
                let frames = Arc::new(SeatFrames(array, seat.clone()));
                let reader = self.boxes.with_newer_subchunks(frames);
                for _ in 0..times {
                    let read = async {
                        let all = reader.array().subset_all();
                        let read = reader.read_from(seat.clone(), are_open_files, &all);
                        read.await.map(|elements| self.values(&elements))
                    };
                    seat.reading_all(2, read).await;
                }
            })
        }
    }

    /// Returns the values of the chunks that have these elements.
    fn values(&self, elements: &[u8]) -> Vec<Value> {
        let chunks = elements.chunks(4).enumerate();
        let value = |(chunk, elements): (usize, &[u8])| match elements[0] {
            first if elements != [first; 4] => Some(elements.to_vec().into()),
            0 => None,
            first => Some(self.bytes(chunk, first.wrapping_sub(16 * chunk as u8) % 16)),
        };
        chunks.map(value).collect()
    }

    fn consolidator<'a>(
        &'a self,
        process: usize,
        times: usize,
    ) -> impl Fn(Seat) -> Acting<'a> + 'a {
        move |seat| {
            Box::pin(async move {
                for _ in 0..times {
                    let fails = self.promises.silent.is_some_and(|(_, most)| most > 0);
                    match self.consolidate(process, &seat).await {
                        // The consolidation has changed nothing, and can be tried again.
                        Err(error) if fails && error.contains("a second listing") => {}
                        Err(error) => seat.failed(0, &error),
                        Ok(_) => {}
                    }
                }
            })
        }
    }

    /// Judges what is left: another process reads all of it, and consolidates it.
    fn judge(&self, before: &Before, ending: &Ending<'_>) -> Result<(), String> {
        const PROCESS: usize = 4;
        let seat = Seat::alone(ending.objects.clone());
        let text = |error: StorageError| error.to_string();
        let read = || -> Result<Vec<Value>, String> {
            let read = |chunk| now(self.processes[PROCESS].get(&seat, &chunk_key(chunk)));
            (0..2).map(|chunk| read(chunk).map_err(text)).collect()
        };
        let values = read()?;
        for (chunk, value) in values.iter().enumerate() {
            let initial = self.value(chunk, before.value(chunk as u32));
            judge_chunk(ending.log, chunk, &initial, value)?;
        }
        now(self.consolidate(PROCESS, &seat))?;
        let consolidated = read()?;
        if consolidated != values {
            return Err(format!("{values:?} are consolidated to {consolidated:?}"));
        }
        let objects = seat.objects();
        now(self.consolidate(PROCESS, &seat))?;
        if seat.objects() != objects {
            return Err("it is not done when it was consolidated".to_owned());
        }
        let packed = match objects.get(&shard_key()) {
            Some(shard) => self.layout.chunks(&shard_key(), shard).map_err(text)?,
            None => vec![None; 2],
        };
        if packed != values {
            return Err(format!("the shard has {packed:?}, not {values:?}"));
        }
        if values.iter().all(Option::is_none) && objects.contains_key(&shard_key()) {
            return Err("an empty shard is stored".to_owned());
        }
        let is_version = |key: &&StoreKey| key.as_str().contains(".frame/");
        let marker = self.processes[PROCESS].frames.marker().key();
        if !self.knows_marker
            && let Some(version) = ending.objects.keys().find(is_version)
            && !ending.objects.contains_key(marker)
        {
            return Err(format!("{version} is there, and no marker"));
        }
        for (key, object) in &objects {
            if *key != shard_key()
                && (Entry::decode(object).is_some() || key.as_str().ends_with(super::TEMPORARY))
            {
                return Err(format!("{key} is left behind"));
            }
        }
        let view = super::View {
            array: &self.processes[PROCESS],
            store: &seat,
        };
        let listed = now(list_prefix(&view, &seat, &StorePrefix::root())).map_err(text)?;
        let expected = (0..2).filter(|&chunk| values[chunk].is_some());
        let expected: Vec<_> = expected.map(chunk_key).collect();
        if listed != expected {
            return Err(format!("{listed:?} are listed, not {expected:?}"));
        }
        Ok(())
    }
}

/// Returns a file of gzip, longer for a greater `value`: behind the elements are members without content.
fn members(elements: [u8; 4], value: u8) -> Vec<u8> {
    let level = libdeflater::CompressionLvl::default();
    let mut compressor = libdeflater::Compressor::new(level);
    let mut file = vec![0; 64];
    let len = compressor.gzip_compress(&elements, &mut file).unwrap();
    file.truncate(len);
    let empty = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x03\0\0\0\0\0\0\0\0\0";
    file.extend(empty.repeat(value.into()));
    file
}

/// The frames of a process, in the store of an actor.
struct SeatFrames(SparseArray, Seat);

impl ListsNewerSubchunks for SeatFrames {
    fn blocks(&self) -> bool {
        true
    }

    fn list<'a>(
        &'a self,
        shard: &'a StoreKey,
        anew: bool,
    ) -> Later<'a, Result<Box<dyn NewerSubchunks + 'a>, StorageError>> {
        Box::pin(reading::list(&self.0, self.1.clone(), shard, anew))
    }
}

fn shard_key() -> StoreKey {
    StoreKey::new("a/c/0").unwrap()
}

fn chunk_key(chunk: usize) -> StoreKey {
    StoreKey::new(format!("a/c/{chunk}")).unwrap()
}

/// Listings may fail silently, for all that the store says; but none does.
const MAY_FAIL: Option<(Silence, usize)> = Some((Silence::Empty, 0));

const WHOLE: Promises = Promises {
    listing: Listing::AtOnce,
    torn: None,
    backwards: false,
    apart: false,
    sized: false,
    silent: MAY_FAIL,
};

/// Returns the promises of stores: object stores, file systems, and some that are worse.
fn stores() -> Vec<(Replacing, Promises)> {
    let torn = |listing, replacing: Replacing, backwards| {
        let torn = match replacing {
            Replacing::Set => ".frame/",
            // The temporary of the shard, and nothing else, has this in common with the frame.
            Replacing::Rename => "a/c/0.",
        };
        let promises = Promises {
            listing,
            torn: Some(torn),
            backwards,
            // Other listings report their failures, as those of `on_filesystem` do. A second listing of each
            // write, key by key, would be too many orders.
            silent: MAY_FAIL.filter(|_| listing == Listing::AtOnce),
            ..WHOLE
        };
        (replacing, promises)
    };
    let sized = Promises {
        sized: true,
        ..WHOLE
    };
    vec![
        (Replacing::Set, WHOLE),
        (Replacing::Rename, WHOLE),
        (Replacing::Set, sized),
        torn(Listing::AtOnce, Replacing::Set, true),
        torn(Listing::AtOnce, Replacing::Rename, false),
        torn(Listing::Checked, Replacing::Rename, true),
        torn(Listing::Ascending, Replacing::Set, true),
        torn(Listing::Descending, Replacing::Set, true),
        torn(Listing::Hashed(1), Replacing::Rename, true),
    ]
}

/// Explores what `scenario` makes of each kind of subject, and returns how many orders there were of each.
fn explore(scenario: impl for<'a> Fn(&'a Subject) -> Scenario<'a>) -> Vec<Explored> {
    let mut explored = Vec::new();
    for sizes in [Sizes::Equal, Sizes::Different] {
        for (replacing, promises) in stores() {
            let subject = Subject::new(sizes, replacing, promises);
            let found = scenario(&subject).explore();
            let found = found.unwrap_or_else(|violation| {
                panic!("{sizes:?}, {replacing:?}, {promises:?}: {violation}")
            });
            explored.push(found);
        }
    }
    println!("{explored:?}");
    explored
}

#[track_caller]
fn at_least(explored: &[Explored], schedules: u128) {
    let least = explored
        .iter()
        .map(|explored| explored.schedules)
        .min()
        .unwrap();
    assert!(least >= schedules, "{least}: {explored:?}");
}

#[test]
fn two_writers_and_one_who_consolidates() {
    let explored = explore(|subject| {
        let scenario = subject.scenario(WRITTEN);
        let scenario = scenario.actor(subject.writer(0, 0, &[Some(3), Some(4)]));
        let scenario = scenario.actor(subject.writer(1, 1, &[Some(5)]));
        scenario.actor(subject.consolidator(2, 1)).who_may_crash()
    });
    at_least(&explored, 8_032);
}

#[test]
fn a_writer_a_reader_and_one_who_consolidates() {
    for before in [WRITTEN, WRITTEN_TWICE, WRITTEN_AND_TORN, PACKED, NOTHING] {
        let explored = explore(|subject| {
            let scenario = subject.scenario(before);
            let scenario = scenario
                .actor(subject.writer(0, 0, &[Some(4)]))
                .who_may_crash();
            let scenario = scenario.actor(subject.consolidator(1, 1)).who_may_crash();
            scenario.actor(subject.reader(2, 0, 2))
        });
        at_least(&explored, 864);
    }
}

/// One call writes both subchunks, between one listing and another.
#[test]
fn a_batch_a_reader_and_one_who_consolidates() {
    for before in [WRITTEN, WRITTEN_TWICE, WRITTEN_AND_TORN, PACKED, NOTHING] {
        for chunk in [0, 1] {
            let explored = explore(|subject| {
                let scenario = subject.scenario(before);
                let both: Batches = &[&[(0, Some(4)), (1, Some(5))]];
                let scenario = scenario
                    .actor(subject.batch_writer(0, both))
                    .who_may_crash();
                let scenario = scenario.actor(subject.consolidator(1, 1)).who_may_crash();
                scenario.actor(subject.reader(2, chunk, 1))
            });
            at_least(&explored, 864);
        }
    }
}

/// The process that puts the first version has put the marker before, also one that crashed.
#[test]
fn versions_have_a_marker() {
    for (replacing, promises) in stores() {
        // The marker is not looked into: half of it will do.
        let mut subject = Subject::new(Sizes::Equal, replacing, promises);
        subject.knows_marker = false;
        let both: Batches = &[&[(0, Some(4)), (1, None)]];
        let scenario = subject.scenario(PACKED);
        let scenario = scenario
            .actor(subject.batch_writer(0, both))
            .who_may_crash();
        let scenario = scenario
            .actor(subject.writer(1, 1, &[Some(5)]))
            .after(0)
            .who_may_crash();
        let scenario = scenario.actor(subject.consolidator(2, 1)).who_may_crash();
        let found = scenario.explore();
        let found = found.unwrap_or_else(|violation| panic!("{promises:?}: {violation}"));
        assert!(found.schedules >= 1_000, "{found:?}");
    }
}

/// Batches that erase subchunks, empty ones among them, and one after the other.
#[test]
fn batches_that_erase() {
    const CASES: [(Before, Batches); 5] = [
        (WRITTEN, &[&[(0, None), (1, Some(5))]]),
        (PACKED, &[&[(0, None), (1, None)]]),
        (NOTHING, &[&[(0, Some(4)), (1, Some(5))], &[(1, Some(6))]]),
        (WRITTEN, &[&[(1, Some(5)), (0, Some(4))], &[(0, None)]]),
        (PACKED, &[&[(0, None)], &[(0, Some(4)), (1, None)]]),
    ];
    for (before, batches) in CASES {
        let explored = explore(|subject| {
            let scenario = subject.scenario(before);
            let scenario = scenario
                .actor(subject.batch_writer(0, batches))
                .who_may_crash();
            scenario.actor(subject.consolidator(1, 1)).who_may_crash()
        });
        at_least(&explored, 50);
    }
}

/// One process dies in the middle of a batch, and another process continues.
#[test]
fn a_batch_where_another_crashed() {
    let explored = explore(|subject| {
        let both: Batches = &[&[(0, Some(4)), (1, Some(5))]];
        let scenario = subject.scenario(WRITTEN);
        let scenario = scenario
            .actor(subject.batch_writer(0, both))
            .who_may_crash();
        let other: Batches = &[&[(1, Some(6)), (0, Some(7))]];
        let scenario = scenario.actor(subject.batch_writer(1, other)).after(0);
        scenario.actor(subject.consolidator(2, 1))
    });
    at_least(&explored, 1_000);
}

/// A batch that changes parts of subchunks reads them first.
#[test]
fn parts_of_subchunks_in_a_batch() {
    let explored = explore(|subject| {
        let scenario = subject.scenario(WRITTEN);
        let scenario = scenario.actor(move |seat| async move {
            subject.begin(0);
            let batch = SparseBatch::of(subject.processes[0].clone());
            let values = [(0, 2), (1, 1)].map(|(chunk, value)| {
                let mut value = subject.bytes(chunk, value).to_vec();
                value[0] = 9;
                (chunk, Some(value.into()))
            });
            let write = async {
                for chunk in [0, 1] {
                    let part = vec![(0, vec![9].into())];
                    let set = batch.set_ranges(&seat, &chunk_key(chunk), part).await;
                    set.map_err(|error| error.to_string())?;
                }
                let written = batch.write(&seat).await;
                written.map_err(|error| error.to_string())
            };
            seat.writing_all(&values, write).await;
        });
        scenario.actor(subject.consolidator(1, 1)).who_may_crash()
    });
    at_least(&explored, 50);
}

/// Two threads of one process write the same subchunks by batches: each waits for all of its locks.
#[test]
fn batches_of_one_adapter_take_turns() {
    let explored = explore(|subject| {
        let mut scenario = Scenario::new(subject.objects(&PACKED), |ending: &Ending<'_>| {
            let seat = Seat::alone(ending.objects.clone());
            let value = |chunk| now(subject.processes[4].get(&seat, &chunk_key(chunk))).unwrap();
            // One came last for both.
            let is_of = |written: u8| {
                let expected = [0, 1].map(|chunk| Some(subject.bytes(chunk, written)));
                expected == [value(0), value(1)]
            };
            let what = || format!("{:?} and {:?}", value(0), value(1));
            (is_of(4) || is_of(5)).then_some(()).ok_or_else(what)
        })
        .promises(subject.promises)
        .who_share_memory();
        let batches: [Batches; 2] = [
            &[&[(0, Some(4)), (1, Some(4))]],
            &[&[(1, Some(5)), (0, Some(5))]],
        ];
        for batches in batches {
            scenario = scenario.actor(move |seat| async move {
                subject.begin(0);
                subject.write_batches(&seat, 0, batches).await;
            });
        }
        scenario.actor(subject.consolidator(1, 1)).who_may_crash()
    });
    at_least(&explored, 100);
}

/// One call of a reader of boxes reads all subchunks, after one listing.
#[test]
fn a_reader_of_boxes() {
    for (before, are_open_files) in [
        (WRITTEN, true),
        (WRITTEN, false),
        (PACKED, false),
        (NOTHING, false),
    ] {
        let explored = explore(|subject| {
            let scenario = subject.scenario(before);
            let scenario = scenario.actor(subject.writer(0, 0, &[Some(4)]));
            let scenario = scenario.actor(subject.consolidator(1, 1)).who_may_crash();
            scenario.actor(subject.box_reader(2, are_open_files, 1))
        });
        at_least(&explored, 864);
    }
}

#[test]
fn subchunks_that_are_erased() {
    for (before, values) in [
        (PACKED, &[None, Some(4)][..]),
        (WRITTEN, &[None, Some(4)]),
        (NOTHING, &[Some(4)]),
    ] {
        let explored = explore(|subject| {
            let scenario = subject.scenario(before);
            let scenario = scenario.actor(subject.writer(0, 0, values)).who_may_crash();
            let scenario = scenario.actor(subject.consolidator(1, 1)).who_may_crash();
            scenario.actor(subject.reader(2, 0, 1))
        });
        at_least(&explored, 864);
    }
}

#[test]
fn all_of_a_shard_is_erased() {
    let explored = explore(|subject| {
        let scenario = subject.scenario(WRITTEN);
        let scenario = scenario.actor(move |seat: Seat| async move {
            subject.begin(0);
            for chunk in 0..2 {
                subject.write(&seat, 0, chunk, &[None]).await;
            }
        });
        let scenario = scenario.who_may_crash();
        let scenario = scenario.actor(subject.consolidator(1, 1)).who_may_crash();
        scenario.actor(subject.reader(2, 1, 1))
    });
    at_least(&explored, 10_000);
}

#[test]
fn one_consolidates_where_another_crashed() {
    for before in [WRITTEN, WRITTEN_TWICE] {
        let explored = explore(|subject| {
            let scenario = subject.scenario(before);
            let scenario = scenario.actor(subject.consolidator(0, 1)).who_may_crash();
            let scenario = scenario
                .actor(subject.consolidator(1, 1))
                .after(0)
                .who_may_crash();
            let scenario = scenario.actor(subject.writer(2, 0, &[Some(4)]));
            scenario.actor(subject.reader(3, 0, 1))
        });
        at_least(&explored, 10_000);
    }
}

#[test]
fn one_writes_where_another_crashed() {
    let explored = explore(|subject| {
        let scenario = subject.scenario(WRITTEN);
        let scenario = scenario
            .actor(subject.writer(0, 0, &[Some(4)]))
            .who_may_crash();
        let scenario = scenario
            .actor(subject.writer(1, 0, &[Some(5)]))
            .after(0)
            .who_may_crash();
        let scenario = scenario.actor(subject.consolidator(2, 1));
        scenario.actor(subject.reader(3, 0, 1))
    });
    at_least(&explored, 10_000);
}

/// Returns a scenario in which one actor writes and consolidates, twice: the shard is another one, and then
/// one that looks like the first.
fn packed_twice(subject: &Subject) -> Scenario<'_> {
    subject
        .scenario(PACKED)
        .actor(move |seat: Seat| async move {
            subject.begin(0);
            for value in [None, Some(4)] {
                subject.write(&seat, 0, 0, &[value]).await;
                subject.consolidator(1, 1)(seat.clone()).await;
            }
        })
}

#[test]
fn consolidated_twice_while_somebody_reads() {
    for chunk in [0, 1] {
        let explored = explore(|subject| packed_twice(subject).actor(subject.reader(2, chunk, 1)));
        at_least(&explored, 100);
    }
    for are_open_files in [false, true] {
        let explored = explore(|subject| {
            packed_twice(subject).actor(subject.box_reader(2, are_open_files, 1))
        });
        at_least(&explored, 100);
    }
}

/// A writer that changes a part of a subchunk reads it first.
#[test]
fn parts_of_subchunks() {
    let explored = explore(|subject| {
        let scenario = subject.scenario(WRITTEN);
        let scenario = scenario.actor(move |seat| async move {
            let (array, key) = (&subject.processes[0], chunk_key(0));
            subject.begin(0);
            for at in 0..2 {
                let mut value = subject.bytes(0, 2).to_vec();
                value[..=at].fill(9);
                let parts = vec![(at as u64, vec![9].into())];
                array.frames.forget();
                let write = array.set_ranges(&seat, &key, parts);
                seat.writing(0, Some(value.into()), write).await;
            }
        });
        let scenario = scenario.actor(subject.consolidator(1, 1)).who_may_crash();
        scenario.actor(subject.reader(2, 0, 1))
    });
    at_least(&explored, 864);
}

/// Two threads of one process write parts of one subchunk.
#[test]
fn one_adapter_takes_turns() {
    let explored = explore(|subject| {
        let mut scenario = Scenario::new(subject.objects(&PACKED), |ending: &Ending<'_>| {
            let seat = Seat::alone(ending.objects.clone());
            let value = now(subject.processes[4].get(&seat, &chunk_key(0))).unwrap();
            let mut expected = subject.bytes(0, 1).to_vec();
            expected[..2].fill(9);
            (value == Some(expected.into()))
                .then_some(())
                .ok_or(format!("{value:?}"))
        })
        .promises(subject.promises)
        .who_share_memory();
        for at in 0..2 {
            scenario = scenario.actor(move |seat| async move {
                let parts = vec![(at, vec![9].into())];
                subject.begin(0);
                subject.processes[0]
                    .set_ranges(&seat, &chunk_key(0), parts)
                    .await
                    .unwrap();
            });
        }
        scenario.actor(subject.consolidator(1, 1)).who_may_crash()
    });
    at_least(&explored, 1_000);
}

/// A listing in any order may find a version, and miss one that was put before it.
#[test]
fn a_listing_in_any_order_misses_versions() {
    let mut schedules = 0;
    for seed in effort::seeds(12) {
        let promises = Promises {
            listing: Listing::Hashed(seed),
            silent: MAY_FAIL.filter(|_| seed % 2 == 0),
            ..WHOLE
        };
        for before in [PACKED, WRITTEN, WRITTEN_AND_TORN] {
            let subject = Subject::new(Sizes::Equal, Replacing::Set, promises);
            let scenario = subject.scenario(before);
            let scenario = scenario.actor(subject.writer(0, 0, &[Some(3), Some(4)]));
            let found = scenario.actor(subject.consolidator(1, 1)).explore();
            let found = found.unwrap_or_else(|violation| panic!("{seed}, {before:?}: {violation}"));
            schedules += found.schedules;
        }
    }
    println!("{schedules} schedules");
    assert!(schedules >= 500, "{schedules}");
}

/// The first listing misses a version that was put before one that it has, and the second fails: what
/// it misses would be the newest one again.
#[test]
fn a_listing_in_any_order_and_one_that_fails_silently() {
    let mut schedules = 0;
    for seed in effort::seeds(6) {
        for silence in [Silence::Empty, Silence::Short] {
            let promises = Promises {
                listing: Listing::Hashed(seed),
                silent: Some((silence, 1)),
                ..WHOLE
            };
            for before in [PACKED, WRITTEN] {
                let subject = Subject::new(Sizes::Equal, Replacing::Set, promises);
                let scenario = subject.scenario(before);
                let scenario = scenario.actor(subject.writer(0, 0, &[Some(3), Some(4)]));
                let scenario = scenario.who_lists_well();
                let found = scenario.actor(subject.consolidator(1, 1)).explore();
                let found =
                    found.unwrap_or_else(|violation| panic!("{seed}, {before:?}: {violation}"));
                schedules += found.schedules;
            }
        }
    }
    println!("{schedules} schedules");
    assert!(schedules >= 500, "{schedules}");
}

/// A process asked for a version to be deleted, and died; the store does it later.
#[test]
fn a_deletion_that_comes_late() {
    let explored = explore(|subject| {
        let mut packed = subject.objects(&WRITTEN);
        // The frame is packed already.
        let chunks = [(0, 2), (1, 1)].map(|(chunk, value)| Some(subject.bytes(chunk, value)));
        let shard = subject.layout.pack(&shard_key(), &chunks).unwrap();
        packed.extend(shard.map(|shard| (shard_key(), shard)));
        let version = packed.keys().find(|key| **key != shard_key()).cloned();
        let scenario = Scenario::new(packed, move |ending| subject.judge(&WRITTEN, ending));
        let scenario = scenario.promises(subject.promises);
        let scenario = scenario.actor(move |seat| {
            let version = version.clone().unwrap();
            async move { seat.erase(&version).await.unwrap() }
        });
        let scenario = scenario.actor(subject.writer(0, 0, &[Some(3)]));
        scenario.actor(move |seat| async move {
            // The consolidation may find that another process deletes versions, and say so.
            let _ = subject.consolidate(1, &seat).await;
        })
    });
    at_least(&explored, 50);
}

/// Explores a writer whose listings fail without an error, with a consolidation beside it or not.
fn silent(
    silence: (Silence, usize),
    before: Before,
    values: &'static [Option<u8>],
    consolidates: bool,
) -> Result<Explored, Box<Violation>> {
    let promises = Promises {
        silent: Some(silence),
        ..WHOLE
    };
    let subject = Subject::new(Sizes::Equal, Replacing::Set, promises);
    let scenario = subject.scenario(before);
    let mut scenario = scenario.actor(subject.writer(0, 0, values));
    if consolidates {
        scenario = scenario.actor(subject.consolidator(1, 1)).who_may_crash();
    }
    scenario.explore()
}

#[test]
fn listings_that_fail_silently() {
    let mut schedules = 0;
    for before in [NOTHING, PACKED, WRITTEN, WRITTEN_AND_TORN, WITH_A_GAP] {
        for (values, consolidates) in [(&[Some(4), Some(5)][..], false), (&[Some(4)], true)] {
            for silence in [(Silence::Empty, 3), (Silence::Short, 1)] {
                let found = silent(silence, before, values, consolidates);
                let found = found.unwrap_or_else(|violation| {
                    panic!("{silence:?}, {before:?}, {consolidates}: {violation}")
                });
                schedules += found.schedules;
            }
        }
    }
    println!("{schedules} schedules");
    assert!(schedules >= 500, "{schedules}");
}

/// The same of a batch: its listings are of all of its subchunks.
#[test]
fn listings_of_a_batch_that_fail_silently() {
    let mut schedules = 0;
    for before in [NOTHING, PACKED, WRITTEN, WRITTEN_AND_TORN, WITH_A_GAP] {
        for consolidates in [false, true] {
            for silent in [(Silence::Empty, 3), (Silence::Short, 1)] {
                let promises = Promises {
                    silent: Some(silent),
                    ..WHOLE
                };
                let subject = Subject::new(Sizes::Equal, Replacing::Set, promises);
                let both: Batches = &[&[(0, Some(4)), (1, Some(5))]];
                let mut scenario = subject.scenario(before);
                scenario = scenario.actor(subject.batch_writer(0, both));
                if consolidates {
                    scenario = scenario.actor(subject.consolidator(1, 1)).who_may_crash();
                }
                let found = scenario.explore().unwrap_or_else(|violation| {
                    panic!("{silent:?}, {before:?}, {consolidates}: {violation}")
                });
                schedules += found.schedules;
            }
        }
    }
    println!("{schedules} schedules");
    assert!(schedules >= 500, "{schedules}");
}

/// Subchunks that are there all the time are listed all the time.
#[test]
fn keys_are_listed() {
    for before in [PACKED, WRITTEN, WRITTEN_TWICE] {
        let explored = explore(|subject| {
            let scenario = subject.scenario(before);
            let scenario = scenario
                .actor(subject.writer(0, 0, &[Some(4)]))
                .who_may_crash();
            let scenario = scenario.actor(subject.consolidator(1, 1)).who_may_crash();
            scenario.actor(move |seat| async move {
                let view = super::View {
                    array: &subject.processes[2],
                    store: &seat,
                };
                match list_prefix(&view, &seat, &StorePrefix::root()).await {
                    Ok(listed) if listed == [0, 1].map(chunk_key) => {}
                    other => seat.failed(0, &format!("{other:?}")),
                }
            })
        });
        at_least(&explored, 864);
    }
}

/// Returns a violation that the protocol does not exclude. The exploration finds the violation, so the checks
/// can fail.
fn violated(what: &str, scenario: impl for<'a> Fn(&'a Subject) -> Scenario<'a>) -> Violation {
    let subject = Subject::new(Sizes::Different, Replacing::Set, WHOLE);
    let found = scenario(&subject).explore();
    *found.expect_err(what)
}

/// If both listings of a write miss the newest version, and the second has the one that was put.
#[test]
fn two_short_listings_in_one_write() {
    silent((Silence::Short, 2), WITH_A_GAP, &[Some(4)], false).expect_err("an update is lost");
}

/// If the only listing of an erasure fails: nothing is put that a second one could show.
#[test]
fn an_erasure_whose_listing_fails_silently() {
    let promises = Promises {
        silent: Some((Silence::Empty, 1)),
        ..WHOLE
    };
    let subject = Subject::new(Sizes::Equal, Replacing::Set, promises);
    let scenario = subject.scenario(Before {
        shard: None,
        ..WRITTEN
    });
    let scenario = scenario.actor(subject.writer(0, 0, &[None]));
    scenario.explore().expect_err("the erasure is lost");
}

#[test]
fn two_who_consolidate_at_once() {
    violated("an update is lost", |subject| {
        let scenario = subject.scenario(WRITTEN);
        let scenario = scenario.actor(subject.consolidator(0, 1));
        let scenario = scenario.actor(subject.consolidator(1, 1));
        scenario.actor(subject.writer(2, 1, &[Some(5)]))
    });
}

#[test]
fn two_who_write_one_subchunk_at_once() {
    let found = |silent, what| {
        let promises = Promises { silent, ..WHOLE };
        let subject = Subject::new(Sizes::Different, Replacing::Set, promises);
        let scenario = subject.scenario(PACKED);
        let scenario = scenario.actor(subject.writer(0, 0, &[Some(4)]));
        let scenario = scenario.actor(subject.writer(1, 0, &[Some(5)]));
        let violation = scenario.explore().expect_err("one is lost");
        assert!(violation.what.contains(what), "{violation}");
    };
    found(None, "chunk 0 is read as");
    // Each puts above the other, until one gives up.
    found(MAY_FAIL, "was put 16 times");
}

/// Nor if one reads a part, and another one writes it.
#[test]
fn two_processes_that_write_parts_of_one_subchunk() {
    let subject = &Subject::new(Sizes::Equal, Replacing::Set, WHOLE);
    let mut scenario = Scenario::new(subject.objects(&PACKED), |ending: &Ending<'_>| {
        let seat = Seat::alone(ending.objects.clone());
        let value = now(subject.processes[4].get(&seat, &chunk_key(0)))
            .unwrap()
            .unwrap();
        (value[..2] == [9, 9])
            .then_some(())
            .ok_or(format!("{value:?}"))
    });
    for at in 0..2_u64 {
        let number = usize::from(at > 0);
        scenario = scenario.actor(move |seat| async move {
            subject.begin(number);
            let parts = vec![(at, vec![9].into())];
            subject.processes[number]
                .set_ranges(&seat, &chunk_key(0), parts)
                .await
                .unwrap();
        });
    }
    scenario.explore().expect_err("one is lost");
}

/// If the parts of a shard that are asked for at once come from different shards.
#[test]
fn parts_of_several_shards() {
    let promises = Promises {
        apart: true,
        ..WHOLE
    };
    for replacing in [Replacing::Set, Replacing::Rename] {
        let subject = Subject::new(Sizes::Equal, replacing, promises);
        let scenario = packed_twice(&subject).actor(subject.reader(2, 0, 1));
        scenario
            .explore()
            .expect_err("a part of another shard is read");
        let scenario = packed_twice(&subject).actor(subject.box_reader(2, false, 1));
        scenario
            .explore()
            .expect_err("a part of another shard is read");
    }
}

/// A shard is set in two steps: readers find half of it.
#[test]
fn a_shard_that_is_not_replaced_at_once() {
    let promises = Promises {
        torn: Some("a/c/0"),
        ..WHOLE
    };
    let subject = Subject::new(Sizes::Different, Replacing::Set, promises);
    let scenario = subject.scenario(WRITTEN).actor(subject.consolidator(0, 1));
    let scenario = scenario.actor(subject.reader(1, 1, 1));
    scenario.explore().expect_err("half of a shard is read");
}
