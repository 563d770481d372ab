//! Boxes that are read into the memory of a simulated device: the elements are those that the host reads.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    ReadableStorageTraits, ReadableWritableStorageTraits, StoreKey, WritableStorageTraits,
};
use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::*;
use crate::codec::CudaShardingCodec;
use crate::options::Options;
use crate::plan::{EngineRule, Engines};
use crate::reader::{ArrayReader, DeviceTensor, ReaderError};
use zarrs_cuda_engine::cuda::DeviceMetrics;
use zarrs_cuda_engine::cuda::driver::{Access, PinnedSpan, PinnedUse, Site, Span, StreamId};
use zarrs_cuda_engine::fakes::Numbers;

pub(super) const SHAPE: [u64; 3] = [21, 30, 37];

pub(super) fn bytes(endian: &str) -> Value {
    json!({ "name": "bytes", "configuration": { "endian": endian } })
}

pub(super) fn zstd() -> Value {
    json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } })
}

/// The inner codecs of arrays, and whether a device must be able to decode them.
pub(super) fn chains() -> Vec<(Value, bool)> {
    let transpose = json!({ "name": "transpose", "configuration": { "order": [2, 0, 1] } });
    let crc32c = || json!({ "name": "crc32c" });
    let gzip = json!({ "name": "gzip", "configuration": { "level": 2 } });
    let blosc = |cname: &str, shuffle: &str, typesize: usize| {
        json!({ "name": "blosc", "configuration": {
            "cname": cname, "clevel": 5, "shuffle": shuffle, "typesize": typesize, "blocksize": 0,
        } })
    };
    vec![
        (json!([bytes("little")]), true),
        (json!([bytes("big"), crc32c()]), true),
        (json!([transpose, bytes("big")]), true),
        (json!([bytes("little"), zstd()]), true),
        (json!([bytes("big"), crc32c(), zstd(), crc32c()]), true),
        (json!([bytes("little"), gzip]), true),
        (json!([bytes("little"), blosc("zstd", "shuffle", 2)]), true),
        // C-Blosc splits its blocks into a stream for each byte of an element: the default of numcodecs.
        (json!([bytes("little"), blosc("lz4", "shuffle", 2)]), true),
        (json!([bytes("little"), gzip, zstd()]), false),
    ]
}

/// A device, and the engines on it.
pub(super) struct OnDevice {
    pub(super) driver: Arc<dyn Driver>,
    /// The device, if it is a simulated one.
    simulation: Option<Arc<Simulation>>,
    pub(super) devices: Arc<Devices>,
    pub(super) engines: Engines,
}

impl OnDevice {
    pub(super) fn new(schedule: Schedule) -> Self {
        Self::on(&simulation(schedule), Tuning::TINY)
    }

    pub(super) fn on(simulation: &Arc<Simulation>, tuning: Tuning) -> Self {
        Self {
            simulation: Some(simulation.clone()),
            ..Self::tuned(simulation.clone(), tuning)
        }
    }

    pub(super) fn of(driver: Arc<dyn Driver>) -> Self {
        Self::tuned(driver, Tuning::TINY)
    }

    fn tuned(driver: Arc<dyn Driver>, tuning: Tuning) -> Self {
        let devices = Devices::new(vec![driver.clone()]);
        let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, tuning);
        Self {
            driver,
            simulation: None,
            devices,
            engines,
        }
    }

    pub(super) fn is_simulated(&self) -> bool {
        self.simulation.is_some()
    }

    /// Returns the simulated device.
    pub(super) fn simulation(&self) -> &Simulation {
        self.simulation.as_ref().expect("a simulated device")
    }

    pub(super) fn counts(&self) -> DeviceMetrics {
        self.devices.counters.snapshot()
    }

    /// Checks that no rule was broken, and that all memory is freed at last.
    pub(super) fn end(self) {
        let Self {
            simulation,
            devices,
            engines,
            ..
        } = self;
        // Spare memory is kept otherwise.
        devices.release_idle();
        drop((devices, engines));
        let Some(simulation) = simulation else { return };
        let begin = Instant::now();
        while simulation.live() != Live::default() && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_clean(&simulation);
    }

    /// Returns the bytes of a tensor.
    pub(super) fn bytes(&self, tensor: &DeviceTensor) -> Vec<u8> {
        let driver = &*self.driver;
        driver.enter().unwrap();
        let stream = driver.create_stream().unwrap();
        let bytes = bytes_behind(driver, stream, tensor.pointer(), tensor.size());
        driver.destroy_stream(stream).unwrap();
        driver.leave().unwrap();
        bytes
    }
}

/// Returns `len` bytes of the device, as they are behind the work in `stream`. The device's context is current.
pub(super) fn bytes_behind(
    driver: &dyn Driver,
    stream: StreamId,
    pointer: u64,
    len: usize,
) -> Vec<u8> {
    const DONE: Site = Site("test: bytes of a device for the test");
    let memory = driver
        .allocate_pinned(len.max(1), PinnedUse::FromDevice)
        .unwrap();
    let pinned = PinnedSpan {
        memory,
        offset: 0,
        len,
    };
    let device = driver.adopt(pointer, len).unwrap();
    let mut bytes = vec![0; len];
    // SAFETY: the memory lives until the stream was synchronised, and nothing else uses it.
    unsafe {
        driver
            .copy(stream, Span::Device(device), Span::Pinned(pinned))
            .unwrap();
        driver.synchronize_stream(stream, DONE).unwrap();
        driver.host_access(pinned, Access::Read).unwrap();
        let from = memory.0.as_ptr();
        bytes.as_mut_ptr().copy_from_nonoverlapping(from, len);
        driver.free_pinned(memory).unwrap();
    }
    bytes
}

pub(super) fn options() -> Options {
    Options::default()
        .with_device_memory(1 << 30)
        .with_pinned_memory(1 << 26)
        .with_nvcomp(StandIn::Six.path())
}

pub(super) fn array_of<S: ?Sized + ReadableWritableStorageTraits + 'static>(
    store: &Arc<S>,
    codecs: &Value,
    options: Options,
    engines: Engines,
) -> Array<S> {
    let configuration = json!({
        "chunk_shape": [4, 5, 6], "codecs": codecs, "index_location": "end",
        "index_codecs": [bytes("little"), { "name": "crc32c" }],
    });
    let configuration = serde_json::from_value(configuration).expect("valid");
    let codec = CudaShardingCodec::new_with_configuration(&configuration, options);
    let codec = codec.expect("valid").with_engines(engines);
    ArrayBuilder::new(SHAPE.to_vec(), vec![8, 15, 18], data_type::uint16(), 9_u16)
        .array_to_bytes_codec(Arc::new(codec))
        .build(store.clone(), "/array")
        .expect("valid")
}

/// Stores elements, by the host: some subchunks are empty, and one shard is absent.
pub(super) fn fill<S: ?Sized + ReadableWritableStorageTraits + 'static>(
    store: &Arc<S>,
    codecs: &Value,
) {
    let options = Options::default();
    let engines = Engines::of_process(&options);
    let array = array_of(store, codecs, options, engines);
    array.store_metadata().expect("stores");
    let elements = (0..SHAPE.iter().product()).map(|i: u64| {
        let (z, x) = (i / (SHAPE[1] * SHAPE[2]), i % SHAPE[2]);
        let is_absent = z < 8 && (18..36).contains(&x) && i / SHAPE[2] % SHAPE[1] < 15;
        if is_absent || z / 4 == 3 {
            9
        } else {
            (i / 5 * 3) as u16
        }
    });
    let elements: Vec<u16> = elements.collect();
    array
        .store_array_subset(&array.subset_all(), elements)
        .expect("stores");
}

pub(super) fn some_box(shape: [u64; 3], numbers: &mut Numbers) -> ArraySubset {
    let ranges = shape.map(|extent| {
        let start = numbers.below(extent as usize) as u64;
        start..start + 1 + numbers.below((extent - start) as usize) as u64
    });
    ArraySubset::from(ranges.to_vec())
}

pub(super) fn bytes_of(elements: &[u16]) -> Vec<u8> {
    elements
        .iter()
        .flat_map(|element| element.to_ne_bytes())
        .collect()
}

/// Compares boxes on the device with boxes on the host.
fn compare<S: ?Sized + ReadableStorageTraits + 'static>(
    on: &OnDevice,
    reader: &ArrayReader<S>,
    numbers: &mut Numbers,
) {
    let whole = reader.array().subset_all();
    for subset in [whole, some_box(SHAPE, numbers), some_box(SHAPE, numbers)] {
        let tensor = reader.read_device(&subset).expect("reads");
        assert_eq!(tensor.shape(), subset.shape());
        let expected: Vec<u16> = reader.read(&subset).expect("reads");
        assert!(on.bytes(&tensor) == bytes_of(&expected), "{subset}");
    }
    let shape = [3, 4, 5];
    let origins: Vec<_> = (0..7)
        .map(|_| {
            std::iter::zip(SHAPE, shape)
                .map(|(extent, len)| numbers.below((extent - len + 1) as usize) as u64)
                .collect::<Vec<_>>()
        })
        .collect();
    let tensor = reader.read_boxes_device(&origins, &shape).expect("reads");
    assert_eq!(tensor.shape(), [7, 3, 4, 5]);
    assert_eq!(tensor.strides(), [120, 40, 10, 2]);
    let mut expected = vec![0_u16; 7 * 60];
    reader
        .read_boxes(&origins, &shape, &mut expected)
        .expect("reads");
    assert!(on.bytes(&tensor) == bytes_of(&expected), "{origins:?}");
}

/// Compares boxes of an array with the inner codecs `codecs`, in memory and in files.
pub(super) fn compare_chain(
    on: OnDevice,
    options: &Options,
    codecs: &Value,
    seed: u64,
) -> DeviceMetrics {
    let mut numbers = Numbers::new(seed);
    let options = options.clone().with_device_decode(true);
    let store = Arc::new(MemoryStore::new());
    fill(&store, codecs);
    let array = array_of(&store, codecs, options.clone(), on.engines.clone());
    let reader = ArrayReader::builder(&array).build().expect("suits");
    compare(&on, &reader, &mut numbers);
    let counts = on.counts();
    assert!(counts.subchunks_read > 0, "{codecs}");
    drop((reader, array));

    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    fill(&files, codecs);
    let array = array_of(&files, codecs, options, on.engines.clone());
    let reader = ArrayReader::builder(&array).on_filesystem(&files).build();
    compare(&on, &reader.expect("suits"), &mut numbers);
    drop(array);
    on.end();
    counts
}

#[test]
fn boxes_of_every_chain() {
    for (number, (codecs, is_for_device)) in chains().into_iter().enumerate() {
        for schedule in [Schedule::Eager, Schedule::Latest, Schedule::Priority(3)] {
            let on = OnDevice::new(schedule);
            let counts = compare_chain(on, &options(), &codecs, number as u64);
            if is_for_device {
                assert_eq!(counts.subchunks_read_on_host, 0, "{codecs}: {counts:?}");
            }
        }
    }
}

/// Without consent, and for data that are not trusted, no frame reaches the device.
#[test]
fn frames_need_consent() {
    let codecs = json!([bytes("little"), zstd()]);
    for (options, why) in [
        (options(), "with_device_decode"),
        (
            options().with_device_decode(true).with_untrusted_data(true),
            "not trusted",
        ),
    ] {
        let on = OnDevice::new(Schedule::Latest);
        let store = Arc::new(MemoryStore::new());
        fill(&store, &codecs);
        let array = array_of(&store, &codecs, options, on.engines.clone());
        let reader = ArrayReader::builder(&array).build().expect("suits");
        let explained = reader.explain();
        assert!(
            explained.contains("decoded by the host, and copied") && explained.contains(why),
            "{explained}"
        );
        compare(&on, &reader, &mut Numbers::new(1));
        let counts = on.counts();
        assert_eq!(counts.subchunks_read_on_host, counts.subchunks_read);
        drop((reader, array));
        on.end();
    }
}

/// A damaged subchunk is the error that the host has, or becomes fill values.
#[test]
fn damage_is_that_of_the_host() {
    for codecs in [
        json!([bytes("little"), zstd()]),
        json!([bytes("little"), { "name": "crc32c" }]),
    ] {
        let on = OnDevice::new(Schedule::Latest);
        let store = Arc::new(MemoryStore::new());
        let options = options().with_device_decode(true);
        fill(&store, &codecs);
        let array = array_of(&store, &codecs, options, on.engines.clone());
        let key = StoreKey::new("array/c/1/0/0").unwrap();
        let mut shard = store.get(&key).unwrap().expect("stored").to_vec();
        // The header of a frame, or an element.
        shard[1] ^= 0xff;
        store.set(&key, shard.into()).unwrap();
        let subset = array.subset_all();
        let strict = ArrayReader::builder(&array).build().expect("suits");
        let by_host = strict
            .read::<u16>(&subset)
            .expect_err("damaged")
            .to_string();
        let by_device = strict.read_device(&subset).expect_err("damaged");
        assert!(matches!(by_device, ReaderError::Damaged(_)), "{by_device}");
        assert_eq!(by_device.to_string(), by_host);
        let filling = ArrayReader::builder(&array)
            .with_damaged_as_fill_value(true)
            .build();
        let filling = filling.expect("suits");
        let expected: Vec<u16> = filling.read(&subset).expect("reads");
        let tensor = filling.read_device(&subset).expect("reads");
        assert!(on.bytes(&tensor) == bytes_of(&expected));
        assert_eq!(filling.metrics().damaged, 2, "once by each");
        drop((tensor, strict, filling, array));
        on.end();
    }
}

/// A shard that was replaced after its index was kept: the elements are those of the new one.
#[test]
fn a_shard_that_was_replaced() {
    let on = OnDevice::new(Schedule::Latest);
    let store = Arc::new(MemoryStore::new());
    let codecs = json!([bytes("little")]);
    fill(&store, &codecs);
    let array = array_of(&store, &codecs, options(), on.engines.clone());
    let reader = ArrayReader::builder(&array).build().expect("suits");
    let subset = ArraySubset::from(vec![0..8, 1..15, 1..17]);
    for value in [9_u16, 5, 9, 7] {
        // Nine is the fill value: subchunks come and go.
        let start = ArraySubset::from(vec![0..4, 0..5, 0..6]);
        array
            .store_array_subset(&start, vec![value; 120])
            .expect("stores");
        let tensor = reader.read_device(&subset).expect("reads");
        let expected: Vec<u16> = array.retrieve_array_subset(&subset).expect("reads");
        assert!(on.bytes(&tensor) == bytes_of(&expected), "{value}");
    }
    assert!(reader.metrics().replaced > 0);
    drop((reader, array));
    on.end();
}

/// An array without a device that somebody asked for.
#[test]
fn nobody_has_asked_for_a_device() {
    let store = Arc::new(MemoryStore::new());
    let codecs = json!([bytes("little")]);
    let options = options();
    let engines = Engines::of_process(&options);
    fill(&store, &codecs);
    let array = array_of(&store, &codecs, options, engines);
    let reader = ArrayReader::builder(&array).build().expect("suits");
    let error = reader
        .read_device(&array.subset_all())
        .expect_err("no device");
    let text = error.to_string();
    assert!(
        text.contains("memory of a device") && text.contains("with_devices"),
        "{text}"
    );
    assert!(!reader.explain().contains("memory of a device"));
}

/// Boxes without elements, and boxes outside of the array.
#[test]
fn boxes_that_are_empty_or_outside() {
    let on = OnDevice::new(Schedule::Eager);
    let store = Arc::new(MemoryStore::new());
    let array = array_of(
        &store,
        &json!([bytes("little")]),
        options(),
        on.engines.clone(),
    );
    fill(&store, &json!([bytes("little")]));
    let reader = ArrayReader::builder(&array).build().expect("suits");
    let tensor = reader.read_device(&[3..3, 0..5, 0..5]).expect("empty");
    assert_eq!((tensor.shape(), tensor.size()), (&[0, 5, 5][..], 0));
    drop(tensor);
    let none: [[u64; 3]; 0] = [];
    let tensor = reader.read_boxes_device(&none, &[2, 2, 2]).expect("empty");
    assert_eq!((tensor.shape(), tensor.size()), (&[0, 2, 2, 2][..], 0));
    let wide = reader.read_boxes_device(&none, &[2]);
    assert!(matches!(wide, Err(ReaderError::OutOfBounds { .. })));
    let outside = reader.read_device(&[0..22, 0..5, 0..5]);
    assert!(matches!(outside, Err(ReaderError::OutOfBounds { .. })));
    drop((tensor, reader, array));
    on.end();
}
