//! Boxes that are read into memory of an application on a simulated device: the elements are those that the host reads.

use std::time::{Duration, Instant};

use serde_json::json;
use zarrs::array::{Array, ArraySubset};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableStorageTraits, StoreKey, WritableStorageTraits};

use super::reading::{
    OnDevice, SHAPE, array_of, bytes, bytes_behind, fill, options, some_box, zstd,
};
use super::*;
use crate::options::Options;
use crate::plan::{EngineRule, Engines};
use crate::reader::{ArrayReader, DevicePlace, ReaderError};
use zarrs_cuda_engine::cuda::driver::{DeviceMemory, DeviceSpan, Site, StreamId};
use zarrs_cuda_engine::fakes::Numbers;
use zarrs_cuda_engine::fakes::simulation::Inject;

const DONE: Site = Site("test: the application's stream");
const FILLED: u8 = 0xcc;

/// Memory of an application, filled by its stream, and the bytes that are expected there.
struct Memory<'a> {
    driver: &'a dyn Driver,
    stream: StreamId,
    /// The driver's handle of the stream in which elements are written.
    handle: u64,
    memory: DeviceMemory,
    expected: Vec<u8>,
}

impl<'a> Memory<'a> {
    fn new(driver: &'a dyn Driver, len: usize) -> Self {
        driver.enter().unwrap();
        let stream = driver.create_stream().unwrap();
        let memory = driver.allocate(len).unwrap();
        let span = DeviceSpan {
            memory,
            offset: 0,
            len,
        };
        // SAFETY: the memory lives until the stream was synchronised.
        unsafe { driver.fill(stream, span, FILLED) }.unwrap();
        driver.leave().unwrap();
        Self {
            driver,
            stream,
            // The handle of a simulated stream.
            handle: stream.0,
            memory,
            expected: vec![FILLED; len],
        }
    }

    /// Returns memory of the device of `on`. Elements are written in the default stream of one that is not simulated.
    fn on(on: &'a OnDevice, len: usize) -> Self {
        let mut memory = Self::new(&*on.driver, len);
        if !on.is_simulated() {
            memory.handle = 0;
            on.driver.enter().unwrap();
            on.driver.synchronize_stream(memory.stream, DONE).unwrap();
            on.driver.leave().unwrap();
        }
        memory
    }

    /// Returns a place at `offset`.
    fn place(&self, offset: usize, strides: &[usize]) -> DevicePlace {
        DevicePlace {
            device: 0,
            pointer: self.memory.0 + offset as u64,
            len: self.expected.len() - offset,
            strides: strides.to_vec(),
            stream: self.handle,
        }
    }

    /// Expects the elements of a box at a place.
    fn expect<S: ?Sized + ReadableStorageTraits + 'static>(
        &mut self,
        reader: &ArrayReader<S>,
        subset: &ArraySubset,
        place: &DevicePlace,
    ) {
        let elements: Vec<u16> = reader.read(subset).expect("reads");
        let start = (place.pointer - self.memory.0) as usize;
        let shape: Vec<usize> = subset.shape().iter().map(|n| *n as usize).collect();
        for (number, element) in elements.iter().enumerate() {
            let (mut rest, mut at) = (number, start);
            for axis in (0..shape.len()).rev() {
                at += rest % shape[axis] * place.strides[axis];
                rest /= shape[axis];
            }
            self.expected[at..at + 2].copy_from_slice(&element.to_ne_bytes());
        }
    }

    /// Waits for the stream, compares, and frees everything.
    fn end(self) {
        let Self {
            driver,
            stream,
            handle,
            memory,
            expected,
        } = self;
        driver.enter().unwrap();
        if handle != stream.0 {
            driver.synchronize_context().unwrap();
        }
        let found = bytes_behind(driver, stream, memory.0, expected.len());
        // SAFETY: the stream was synchronised, and nothing else uses the memory.
        unsafe { driver.free(memory) }.unwrap();
        driver.destroy_stream(stream).unwrap();
        driver.leave().unwrap();
        assert!(found == expected, "wrong elements, or bytes between them");
    }
}

/// An array with zstd on a device, and its reader.
fn reader(on: &OnDevice, options: &Options) -> (Array<MemoryStore>, ArrayReader<MemoryStore>) {
    let codecs = json!([bytes("little"), zstd()]);
    let store = Arc::new(MemoryStore::new());
    fill(&store, &codecs);
    let options = options.clone().with_device_decode(true);
    let array = array_of(&store, &codecs, options, on.engines.clone());
    let reader = ArrayReader::builder(&array).build().expect("suits");
    (array, reader)
}

/// Returns strides for `shape` with some order of axes, and gaps, and the number of bytes that they span.
fn some_strides(shape: &[u64], numbers: &mut Numbers) -> (Vec<usize>, usize) {
    let mut axes: Vec<usize> = (0..shape.len()).collect();
    for at in 0..axes.len() {
        let other = numbers.below(axes.len());
        axes.swap(at, other);
    }
    let (mut strides, mut step) = (vec![0; axes.len()], 2);
    for axis in axes {
        step += 2 * numbers.below(3) * numbers.below(2);
        strides[axis] = step;
        step *= shape[axis] as usize;
    }
    (strides, step)
}

/// Reads boxes of some shapes into places of any layout, and compares.
pub(super) fn place_boxes(on: OnDevice, options: &Options, seed: u64) {
    let mut numbers = Numbers::new(seed);
    let (array, reader) = reader(&on, options);
    let mut memories = Vec::new();
    let (mut boxes, mut places) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        // Boxes of one shape, and others, in one stream.
        let shape = [5, 7, 4];
        let (strides, len) = some_strides(&shape, &mut numbers);
        let mut memory = Memory::on(&on, 3 * len + 5000);
        for number in 0..3 {
            let ranges = std::iter::zip(SHAPE, shape).map(|(extent, len)| {
                let start = numbers.below((extent - len) as usize) as u64;
                start..start + len
            });
            let subset = ArraySubset::from(ranges.collect::<Vec<_>>());
            let place = memory.place(number * len, &strides);
            memory.expect(&reader, &subset, &place);
            boxes.push(subset);
            places.push(place);
        }
        memories.push(memory);
        let subset = some_box(SHAPE, &mut numbers);
        let (strides, len) = some_strides(subset.shape(), &mut numbers);
        let mut memory = Memory::on(&on, len);
        let place = memory.place(0, &strides);
        memory.expect(&reader, &subset, &place);
        boxes.push(subset);
        places.push(place);
        memories.push(memory);
    }
    let most = [usize::MAX, 1, 1000, 5000][numbers.below(4)];
    // SAFETY: the streams live, and order the use of the memory.
    let read = unsafe { reader.read_pieces_into_device(&boxes, &places, most) };
    read.unwrap_or_else(|error| panic!("{seed}: {error}"));
    for memory in memories {
        memory.end();
    }
    assert_eq!(on.counts().subchunks_read_on_host, 0);
    drop((reader, array));
    on.end();
}

#[test]
fn boxes_of_every_layout() {
    for seed in 0..12 {
        place_boxes(OnDevice::new(schedule_of(seed)), &options(), seed);
    }
}

/// Two views of one memory, side by side: their bytes take turns.
#[test]
fn places_between_each_other() {
    let on = OnDevice::new(Schedule::Latest);
    let (array, reader) = reader(&on, &options());
    let mut memory = Memory::on(&on, 6 * 20 * 10 * 2);
    let strides = [20 * 10 * 2, 10 * 2, 2];
    let boxes = [[0..6, 0..20, 0..5], [1..7, 3..23, 30..35]].map(|b| ArraySubset::from(b.to_vec()));
    let places = [memory.place(0, &strides), memory.place(10, &strides)];
    for (subset, place) in std::iter::zip(&boxes, &places) {
        memory.expect(&reader, subset, place);
    }
    // SAFETY: the stream lives, and orders the use of the memory.
    unsafe { reader.read_into_device(&boxes, &places) }.expect("reads");
    memory.end();
    drop((reader, array));
    on.end();
}

/// Nothing is read, and nothing is written, if a place is wrong.
#[test]
fn wrong_places_are_refused() {
    let on = OnDevice::new(Schedule::Latest);
    let (array, reader) = reader(&on, &options());
    let memory = Memory::on(&on, 4096);
    let subset = || ArraySubset::from(vec![0..4, 0..5, 0..6]);
    let strides = [60, 12, 2];
    let place = |offset| memory.place(offset, &strides);
    let wrong = |change: &dyn Fn(&mut DevicePlace)| {
        let mut wrong = place(0);
        change(&mut wrong);
        vec![wrong]
    };
    let error_of = |reader: &ArrayReader<_>, places: &[DevicePlace], why: &str| {
        let boxes = vec![subset(); places.len()];
        // SAFETY: the stream lives, and orders the use of the memory.
        let error = unsafe { reader.read_into_device(&boxes, places) }.expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
        assert!(!error.device_may_write(), "{error}");
        error
    };
    let refused = |places: &[DevicePlace], why: &str| {
        let error = error_of(&reader, places, why);
        assert!(matches!(error, ReaderError::Output { .. }), "{error:?}");
    };
    let not_memory = |places: &[DevicePlace], why: &str| {
        let error = error_of(&reader, places, why);
        assert!(
            matches!(error, ReaderError::DevicePlace { .. }),
            "{error:?}"
        );
    };
    let on_3 = wrong(&|place| place.device = 3);
    let error = error_of(&reader, &on_3, "CUDA device 3");
    assert!(
        matches!(error, ReaderError::DeviceUnusable { .. }),
        "{error:?}"
    );
    let (_, of_0) = self::reader(&on, &options().with_devices([0]));
    let error = error_of(&of_0, &on_3, "CUDA device 3 is not among");
    assert!(
        matches!(error, ReaderError::DeviceNotAsked { .. }),
        "{error:?}"
    );
    drop(of_0);
    refused(&wrong(&|place| place.len = 239), "ends at byte 240");
    refused(
        &wrong(&|place| place.strides = vec![60, 12]),
        "one for each axis",
    );
    refused(&wrong(&|place| place.strides = vec![60, 12, 1]), "overlap");
    not_memory(&wrong(&|place| place.pointer = 4096), "no device memory");
    not_memory(&wrong(&|place| place.pointer += 4000), "bytes left");
    refused(&[place(0), place(238)], "may overlap");
    let mut other = place(2);
    other.strides = vec![120, 24, 4];
    refused(&[place(0), other], "may overlap");
    let mut other = place(240);
    other.device = 1;
    not_memory(&[place(0), other], "one device at a time");
    on.simulation().capture(memory.stream, true);
    not_memory(&[place(0)], "captured");
    on.simulation().capture(memory.stream, false);
    // SAFETY: as above.
    let error = unsafe { reader.read_into_device(&[subset()], &[]) }.expect_err("no place");
    assert!(matches!(error, ReaderError::Output { .. }), "{error}");
    // SAFETY: as above.
    unsafe { reader.read_into_device(&[], &[]) }.expect("nothing");
    let empty = ArraySubset::from(vec![0..0, 0..5, 0..6]);
    let nowhere = DevicePlace {
        pointer: 0,
        len: 0,
        ..place(0)
    };
    // SAFETY: as above.
    unsafe { reader.read_into_device(&[empty], &[nowhere]) }.expect("nothing");
    assert_eq!(on.counts().subchunks_read, 0);
    memory.end();
    drop((reader, array));
    on.end();
}

/// A damaged subchunk leaves the application's memory as it is.
#[test]
fn damage_is_found_before_anything_is_written() {
    let on = OnDevice::new(Schedule::Latest);
    let (array, reader) = reader(&on, &options());
    let key = StoreKey::new("array/c/1/0/0").unwrap();
    let mut shard = array.storage().get(&key).unwrap().expect("stored").to_vec();
    shard[1] ^= 0xff;
    array.storage().set(&key, shard.into()).unwrap();
    let memory = Memory::on(&on, 21 * 30 * 37 * 2);
    let place = memory.place(0, &[30 * 37 * 2, 37 * 2, 2]);
    // SAFETY: the stream lives, and orders the use of the memory.
    let error = unsafe { reader.read_into_device(&[array.subset_all()], &[place]) };
    let error = error.expect_err("damaged");
    assert!(matches!(error, ReaderError::Damaged(_)), "{error}");
    memory.end();
    drop((reader, array));
    on.end();
}

/// The number of bytes of a row of shards.
const ROW: usize = 8 * 30 * 37 * 2;

/// Damages a shard behind the first row of shards, and reads all rows into `memory`, in pieces of such rows.
fn read_until_damage(
    (array, reader): (&Array<MemoryStore>, &ArrayReader<MemoryStore>),
    memory: &Memory<'_>,
) -> ReaderError {
    let key = StoreKey::new("array/c/1/0/0").unwrap();
    let mut shard = array.storage().get(&key).unwrap().expect("stored").to_vec();
    shard[1] ^= 0xff;
    array.storage().set(&key, shard.into()).unwrap();
    let place = memory.place(0, &[30 * 37 * 2, 37 * 2, 2]);
    // SAFETY: the stream lives, and orders the use of the memory.
    let read = unsafe { reader.read_pieces_into_device(&[array.subset_all()], &[place], ROW) };
    read.expect_err("damaged")
}

/// After an error the call waits for the pieces before, so that the places can be used again.
#[test]
fn pieces_before_an_error_are_complete() {
    let on = OnDevice::new(Schedule::Latest);
    let (array, reader) = reader(&on, &options());
    let mut memory = Memory::on(&on, 21 * 30 * 37 * 2);
    let depth = array.chunk_shape(&[0, 0, 0]).unwrap()[0].get();
    let first = ArraySubset::from(vec![0..depth, 0..30, 0..37]);
    let place = memory.place(0, &[30 * 37 * 2, 37 * 2, 2]);
    memory.expect(&reader, &first, &place);
    let error = read_until_damage((&array, &reader), &memory);
    assert!(matches!(error, ReaderError::Damaged(_)), "{error}");
    assert!(!error.device_may_write());
    // Nothing is enqueued any more: the stream is through, and nobody has waited for it.
    on.simulation().stall(memory.stream, true);
    on.driver.enter().unwrap();
    assert!(on.driver.poll_stream(memory.stream, DONE).unwrap());
    on.driver.leave().unwrap();
    on.simulation().stall(memory.stream, false);
    memory.end();
    drop((reader, array));
    on.end();
}

/// If the application's stream stands still, the device may write the places after the call has failed.
#[test]
fn pieces_before_an_error_may_still_be_written() {
    let on = OnDevice::new(Schedule::Latest);
    let limit = Duration::from_millis(100);
    let options = options().with_device_timeout(limit);
    let (array, reader) = reader(&on, &options);
    let mut memory = Memory::on(&on, 21 * 30 * 37 * 2);
    let depth = array.chunk_shape(&[0, 0, 0]).unwrap()[0].get();
    let first = ArraySubset::from(vec![0..depth, 0..30, 0..37]);
    let place = memory.place(0, &[30 * 37 * 2, 37 * 2, 2]);
    memory.expect(&reader, &first, &place);
    on.simulation().stall(memory.stream, true);
    let begin = Instant::now();
    let error = read_until_damage((&array, &reader), &memory);
    assert!(begin.elapsed() >= limit);
    assert!(error.device_may_write(), "{error:?}");
    assert!(error.to_string().contains("c/1/0/0"), "{error}");
    assert!(error.to_string().contains("on their way"), "{error}");
    on.simulation().stall(memory.stream, false);
    // The stream of the application was slow, and the device is still used.
    reader.read_device(&first).expect("reads");
    memory.end();
    // The thread that frees the buffer of the second piece has waited for the stalled stream, which the simulation reports
    // as a hang: `end` would not find it clean.
    drop((reader, array));
}

/// Errors before anything is written leave the places to the application: it may free them, and try again.
#[test]
fn devices_that_fail_before_a_copy_do_not_write() {
    let on = OnDevice::new(Schedule::Latest);
    // No lane has so little memory.
    let (array, reader) = reader(&on, &options().with_device_memory(1));
    let memory = Memory::on(&on, 21 * 30 * 37 * 2);
    let place = memory.place(0, &[30 * 37 * 2, 37 * 2, 2]);
    let all = [array.subset_all()];
    // SAFETY: the stream lives, and orders the use of the memory.
    let error = unsafe { reader.read_into_device(&all, &[place]) }.expect_err("too little");
    assert!(
        matches!(error, ReaderError::DeviceUnusable { .. }),
        "{error:?}"
    );
    assert!(!error.device_may_write(), "{error:?}");
    memory.end();
    drop((reader, array));
    on.end();
}

/// A device that breaks may write the places if it breaks behind the copies of a piece, and not if it breaks before.
#[test]
fn devices_that_break_may_write_what_was_enqueued() {
    let read = |part: Option<usize>| {
        let on = OnDevice::new(Schedule::Latest);
        let (array, reader) = reader(&on, &options());
        let memory = Memory::on(&on, 21 * 30 * 37 * 2);
        let place = memory.place(0, &[30 * 37 * 2, 37 * 2, 2]);
        let operations = || on.simulation().counts().operations;
        let first = operations();
        if let Some(part) = part {
            let operation = first + part;
            on.simulation().inject(Inject::Sticky { operation });
        }
        // SAFETY: the stream lives, and orders the use of the memory.
        let read = unsafe { reader.read_pieces_into_device(&[array.subset_all()], &[place], ROW) };
        (read, operations() - first)
    };
    let (whole, operations) = read(None);
    whole.expect("reads");
    let mut seen = [false; 2];
    for part in (0..10).map(|tenth| operations * tenth / 10) {
        // The operations are not always as many.
        let (Err(error), _) = read(Some(part)) else {
            continue;
        };
        if !matches!(error, ReaderError::DeviceUnusable { .. }) {
            assert!(matches!(error, ReaderError::Device { .. }), "{error:?}");
        }
        assert!(part > 0 || !error.device_may_write(), "{error:?}");
        seen[usize::from(error.device_may_write())] = true;
    }
    assert_eq!(seen, [true; 2]);
}

/// A device that breaks is told from one that cannot be used, in the read and afterwards.
#[test]
fn devices_that_have_failed_are_told() {
    let on = OnDevice::new(Schedule::Latest);
    let (array, reader) = reader(&on, &options());
    let memory = Memory::on(&on, 21 * 30 * 37 * 2);
    let place = memory.place(0, &[30 * 37 * 2, 37 * 2, 2]);
    let all = [array.subset_all()];
    let operation = on.simulation().counts().operations + 10;
    on.simulation().inject(Inject::Sticky { operation });
    for _ in 0..2 {
        // SAFETY: the stream lives, and orders the use of the memory.
        let read = unsafe { reader.read_into_device(&all, std::slice::from_ref(&place)) };
        let error = read.expect_err("broken");
        assert!(matches!(error, ReaderError::Device { .. }), "{error:?}");
        assert!(!error.device_may_write(), "{error:?}");
    }
}

/// Each device reads into its own memory, also for a reader of the first one.
#[test]
fn several_devices() {
    let simulations = [
        simulation(Schedule::Latest),
        Arc::new(Simulation::new(Config {
            ordinal: 1,
            schedule: Schedule::Latest,
            ..Config::default()
        })),
    ];
    let drivers = simulations.iter().map(|s| s.clone() as Arc<dyn Driver>);
    let devices = Devices::new(drivers.collect());
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
    let codecs = json!([bytes("little"), zstd()]);
    let store = Arc::new(MemoryStore::new());
    fill(&store, &codecs);
    let options = options().with_device_decode(true);
    let array = array_of(&store, &codecs, options, engines);
    let first = ArrayReader::builder(&array).build().expect("suits");
    let subset = ArraySubset::from(vec![1..9, 2..22, 3..33]);
    for (device, simulation) in simulations.iter().enumerate() {
        let tensor = first
            .with_device(device)
            .read_device(&subset)
            .expect("reads");
        assert_eq!(tensor.device(), device);
        let mut memory = Memory::new(&**simulation, 8 * 20 * 30 * 2);
        let mut place = memory.place(0, &[1200, 60, 2]);
        memory.expect(&first, &subset, &place);
        place.device = device;
        // SAFETY: the stream lives, and orders the use of the memory.
        unsafe { first.read_into_device(std::slice::from_ref(&subset), &[place]) }.expect("reads");
        memory.end();
    }
    let error = first.with_device(2).read_device(&subset).expect_err("none");
    assert!(error.to_string().contains("CUDA device 2"), "{error}");
    devices.release_idle();
}
