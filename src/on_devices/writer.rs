//! Whole writers on simulated devices, with failing devices and stores. The array is right, or an
//! error explains the failure. The finished part is right in either case.

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ListableStorageTraits, ReadableStorageTraits};
use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::*;
use crate::codec::CudaShardingCodec;
use crate::options::{Backend, Options};
use crate::plan::{EngineRule, Engines};
use crate::writer::{ArrayWriter, WriterError};
use zarrs_cuda_engine::cuda::driver::Fault as DeviceFault;
use zarrs_cuda_engine::fakes::Numbers;
use zarrs_cuda_engine::fakes::simulation::Inject;
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty};

type Store = Arc<Faulty<MemoryStore>>;

#[derive(Clone, Debug)]
struct Case {
    shape: [u64; 3],
    shard: Vec<u64>,
    subchunk: Vec<u64>,
    codecs: Value,
    compresses: bool,
    index_location: &'static str,
    epochs: Option<usize>,
    backend: Backend,
    elements: Vec<u16>,
}

impl Case {
    fn any(numbers: &mut Numbers) -> Self {
        let mut between = |first: usize, last: usize| first + numbers.below(last - first + 1);
        let subchunk = [between(1, 3), between(1, 5), between(1, 6)];
        let per_shard = [between(1, 4), between(1, 3), between(1, 3)];
        let shape = [between(1, 20), between(1, 11), between(1, 13)].map(|n| n as u64);
        let bytes = |endian| json!({ "name": "bytes", "configuration": { "endian": endian } });
        let zstd = json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
        let transpose = json!({ "name": "transpose", "configuration": { "order": [2, 0, 1] } });
        let (codecs, compresses) = match between(0, 4) {
            0 => (json!([bytes("little")]), false),
            1 => (json!([bytes("little"), { "name": "crc32c" }]), false),
            2 => (json!([transpose, bytes("big")]), false),
            3 => (json!([bytes("little"), zstd]), true),
            _ => (json!([bytes("big"), zstd, { "name": "crc32c" }]), true),
        };
        let shard = std::iter::zip(subchunk, per_shard).map(|(sub, per)| (sub * per) as u64);
        let mut value = 0_u16;
        let elements = (0..shape.iter().product::<u64>())
            .map(|_| {
                // Some subchunks hold only the fill value.
                if between(0, 30) == 0 {
                    value = between(0, 3) as u16;
                }
                value
            })
            .collect();
        Self {
            shard: shard.collect(),
            subchunk: subchunk.map(|n| n as u64).to_vec(),
            shape,
            codecs,
            compresses,
            index_location: ["end", "start"][between(0, 1)],
            epochs: [None, Some(1), Some(2), Some(8)][between(0, 3)],
            backend: [Backend::Auto, Backend::Cuda][between(0, 1)],
            elements,
        }
    }

    fn array<S>(
        &self,
        store: &Arc<S>,
        slices: u64,
        backend: Backend,
        engines: Engines,
    ) -> Array<S> {
        let configuration = json!({
            "chunk_shape": self.subchunk,
            "codecs": self.codecs,
            "index_codecs": [
                { "name": "bytes", "configuration": { "endian": "little" } },
                { "name": "crc32c" },
            ],
            "index_location": self.index_location,
        });
        let configuration = serde_json::from_value(configuration).expect("valid");
        let options = Options::default()
            .with_backend(backend)
            .with_device_memory(1 << 30)
            .with_pinned_memory(1 << 30)
            .with_device_timeout(std::time::Duration::from_millis(20))
            .with_nvcomp(StandIn::Six.path());
        let codec = CudaShardingCodec::new_with_configuration(&configuration, options)
            .expect("a known chain")
            .with_engines(engines);
        let mut shape = self.shape.to_vec();
        shape[0] = slices;
        ArrayBuilder::new(shape, self.shard.clone(), data_type::uint16(), 0_u16)
            .array_to_bytes_codec(Arc::new(codec))
            .build(store.clone(), "/array")
            .expect("valid")
    }

    /// Appends everything. Retries failures at most `tries` times.
    fn write(
        &self,
        array: &Array<Faulty<MemoryStore>>,
        numbers: &mut Numbers,
        mut tries: usize,
        begin: impl FnOnce(),
    ) -> Result<(), WriterError> {
        let mut builder =
            ArrayWriter::builder(array).with_metadata_interval(std::time::Duration::ZERO);
        if let Some(epochs) = self.epochs {
            builder = builder.with_epochs_per_batch(epochs);
        }
        let mut writer = builder.build()?;
        begin();
        let bytes: Vec<u8> = self.elements.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let mut again = |error| -> Result<(), WriterError> {
            tries = tries.checked_sub(1).ok_or(error)?;
            Ok(())
        };
        loop {
            let done = usize::try_from(writer.progress().appended_bytes).expect("small");
            if done == bytes.len() {
                break;
            }
            if numbers.below(20) == 0
                && let Err(error) = writer.flush()
            {
                again(error)?;
            }
            let len = (numbers.below(200) + 1).min(bytes.len() - done);
            if let Err(error) = writer.append_bytes(&bytes[done..done + len]) {
                again(error)?;
                if let Err(error) = writer.flush() {
                    again(error)?;
                }
            }
        }
        loop {
            match writer.finish() {
                Ok(report) => {
                    assert_eq!(report.finished_slices, self.shape[0]);
                    return Ok(());
                }
                Err(error) => again(error)?,
            }
        }
    }

    /// Checks the slices that the metadata covers. Returns their number.
    fn check(&self, store: &Store) -> u64 {
        let read = Array::open(store.inner().clone(), "/array").expect("metadata");
        let slices = read.shape()[0];
        let array = self.array(
            store.inner(),
            slices,
            Backend::Host,
            Engines::of_process(&Options::default()),
        );
        let read: Vec<u16> = array
            .retrieve_array_subset(&array.subset_all())
            .expect("readable");
        assert!(read == self.elements[..read.len()], "{self:?}");
        slices
    }

    /// Checks that the shards are byte for byte those of the host.
    fn check_bytes(&self, store: &Store) {
        let host = Arc::new(MemoryStore::new());
        let array = self.array(
            &host,
            self.shape[0],
            Backend::Host,
            Engines::of_process(&Options::default()),
        );
        array
            .store_array_subset(&array.subset_all(), self.elements.clone())
            .expect("stored");
        let shards = |store: &MemoryStore| {
            let mut keys = store.list().expect("a list");
            keys.retain(|key| !key.as_str().ends_with("zarr.json"));
            keys.sort();
            keys.into_iter()
                .map(|key| (store.get(&key).expect("a shard"), key))
                .collect::<Vec<_>>()
        };
        assert!(shards(&host) == shards(store.inner()), "{self:?}");
    }
}

/// Runs one writer. Nothing fails, or one operation of the device, the whole device, or the store.
fn check(seed: u64) {
    let mut numbers = Numbers::new(seed);
    let case = Case::any(&mut numbers);
    let simulation = simulation(schedule_of(seed));
    let store: Store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let operation = numbers.below(150);
    let mut breaks = false;
    match seed % 5 {
        1 => simulation.inject(Inject::Failed {
            operation,
            fault: DeviceFault::Refused,
        }),
        2 => simulation.inject(Inject::Refused {
            launch: operation / 6,
        }),
        3 if seed.is_multiple_of(3) => {
            breaks = true;
            simulation.inject(Inject::Sticky { operation });
        }
        _ => {}
    }
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
    let array = case.array(&store, 0, case.backend, engines);
    array.store_metadata().expect("stored");
    let first = numbers.below(8);
    let fault = [Fault::Refused, Fault::Denied][numbers.below(2)];
    // The store fails only after the writer was built.
    let begin = || {
        if seed % 5 == 4 {
            let fails = first..first + 2;
            store.fail(move |request| fails.contains(&request.number).then_some(fault));
        }
    };
    let written = case.write(&array, &mut numbers, 8, begin);
    store.work();
    let slices = case.check(&store);
    match written {
        Ok(()) => {
            assert_eq!(slices, case.shape[0], "seed {seed}");
            if !case.compresses {
                case.check_bytes(&store);
            }
        }
        // Only a device fault may be the reason, and only if the backend has no fallback.
        Err(error) => assert!(
            case.backend == Backend::Cuda && (1..4).contains(&(seed % 5)),
            "seed {seed}: {error}"
        ),
    }
    drop(array);
    drop(devices);
    let violations = simulation.violations();
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    assert_eq!(simulation.uploads_read(), 0, "seed {seed}");
    if !breaks && simulation.failed().is_empty() {
        assert_eq!(simulation.live(), Live::default(), "seed {seed}");
    }
}

#[test]
fn arrays_are_right_whatever_fails() {
    for seed in zarrs_cuda_testing::effort::seeds(50) {
        check(seed);
    }
}

/// `Backend::Cuda` has no fallback: a launch that fails once is an error.
#[test]
fn only_auto_falls_back() {
    for backend in [Backend::Auto, Backend::Cuda] {
        let case = Case {
            backend,
            ..small_case()
        };
        let simulation = simulation(Schedule::Eager);
        simulation.inject(Inject::Refused { launch: 0 });
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let engines = Engines::of_devices(devices, EngineRule::ALL, Tuning::TINY);
        let store: Store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
        let array = case.array(&store, 0, backend, engines);
        array.store_metadata().expect("stored");
        let written = case.write(&array, &mut Numbers::new(0), 0, || {});
        assert_eq!(written.is_ok(), backend == Backend::Auto, "{written:?}");
    }
}

/// A device that returned wrong data stops a writer, also if the host could go on. The slices below the wrong
/// ones are right, and the error says which slices were not compared.
#[test]
fn a_wrong_result_stops_a_writer() {
    for backend in [Backend::Auto, Backend::Cuda] {
        let case = Case {
            backend,
            ..small_case()
        };
        let simulation = simulation(Schedule::Eager);
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
        let store: Store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
        let array = case.array(&store, 0, backend, engines);
        array.store_metadata().expect("stored");
        let mut gathers = 0;
        simulation.alter(move |name, _, _, bytes| {
            gathers += usize::from(name == "gather");
            if name == "gather" && gathers == 3 {
                bytes[5] ^= 1;
            }
        });
        let written = case.write(&array, &mut Numbers::new(0), 5, || {});
        let error = written.expect_err("the third batch is wrong").to_string();
        for part in [
            "the slices 4 to 5, counted from the first of its stream",
            "subchunk 0 is wrong",
            "encodes nothing more",
        ] {
            assert!(error.contains(part), "{backend}: {error}");
        }
        assert!(case.check(&store) <= 4);
        assert_eq!(devices.counters.snapshot().mismatches, 1);
        assert!(simulation.violations().is_empty());
    }
}

/// The host encodes a shard on which a device was wrong, and all later ones.
#[test]
fn the_host_encodes_shards_after_a_wrong_result() {
    let case = Case {
        backend: Backend::Auto,
        ..small_case()
    };
    let simulation = simulation(Schedule::Eager);
    simulation.alter(|name, _, _, bytes| {
        if name == "gather" {
            bytes[5] ^= 1;
        }
    });
    let devices = Devices::new(vec![simulation as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
    let store: Store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let array = case.array(&store, case.shape[0], case.backend, engines);
    array.store_metadata().expect("stored");
    array
        .store_array_subset(&array.subset_all(), case.elements.clone())
        .expect("the host has it");
    assert_eq!(case.check(&store), case.shape[0]);
    case.check_bytes(&store);
    let metrics = devices.counters.snapshot();
    // Shards that were under way together are all found wrong.
    assert!((1..=4).contains(&metrics.mismatches), "{metrics:?}");
    assert_eq!(metrics.shards_encoded, 0);
}

fn small_case() -> Case {
    Case {
        shape: [8, 6, 8],
        shard: vec![4, 3, 8],
        subchunk: vec![2, 3, 4],
        codecs: json!([{ "name": "bytes", "configuration": { "endian": "little" } }]),
        compresses: false,
        index_location: "end",
        epochs: Some(1),
        backend: Backend::Cuda,
        elements: (1..=8 * 6 * 8).collect(),
    }
}

/// The device hangs while it reads a tensor. The error names the memory of the tensor.
#[cfg(feature = "dlpack")]
#[test]
fn a_tensor_on_a_device_that_hangs() {
    use zarrs_cuda_engine::cuda::driver::{DeviceSpan, Site};
    use zarrs_cuda_testing::tensors::{DeviceType, Tensor};

    let taken = Site("synchronise: an application's bytes before it writes them");
    let simulation = Arc::new(Simulation::new(Config {
        schedule: Schedule::Latest,
        hangs_at: Some(taken),
        ..Config::default()
    }));
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices, EngineRule::ALL, Tuning::TINY);
    let store: Store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let case = small_case();
    let array = case.array(&store, 0, case.backend, engines);
    array.store_metadata().expect("stored");
    let mut writer = ArrayWriter::builder(&array).build().expect("a device");

    let driver: &dyn Driver = &*simulation;
    driver.enter().expect("a device");
    let stream = driver.create_stream().expect("a stream");
    let len = 6 * 8 * 2;
    let memory = driver.allocate(len).expect("memory");
    let all = DeviceSpan {
        memory,
        offset: 0,
        len,
    };
    // SAFETY: the memory is never freed.
    unsafe { driver.fill(stream, all, 1) }.expect("filled");
    driver.leave().expect("a device");
    let mut tensor = Tensor::of_uint16(&[1, 6, 8], usize::try_from(memory.0).expect("small"));
    tensor.device = (DeviceType::Cuda, 0);
    // SAFETY: the memory is never freed, and `stream` is the stream that writes the elements.
    let appended = unsafe { writer.append_dlpack(&tensor.view(), stream.0) };
    let error = appended.expect_err("the device hangs");
    assert!(error.device_may_read(), "{error}");
    let named = format!(
        "{len} bytes at {:#x}: do not write, reuse or free it",
        memory.0
    );
    assert!(error.to_string().contains(&named), "{error}");
    // The slice is lost. Nothing waits for the device any more.
    drop((writer, array));
    assert!(simulation.violations().is_empty());
    assert_eq!(simulation.live().entered, 0);
}

/// Tensors on the device are copied there, or to the host if the host encodes. The copy is complete when the
/// call returns.
#[cfg(feature = "dlpack")]
#[test]
fn tensors_on_the_device() {
    for backend in [Backend::Cuda, Backend::Host] {
        append_tensors(backend);
    }
}

#[cfg(feature = "dlpack")]
fn append_tensors(backend: Backend) {
    use zarrs_cuda_engine::cuda::driver::{Access, DeviceSpan, PinnedSpan, PinnedUse, Site, Span};
    use zarrs_cuda_testing::tensors::{DeviceType, Tensor};

    const MADE: Site = Site("application: its tensor is made");
    const OFFSET: usize = 24;
    let case = Case {
        backend,
        ..small_case()
    };
    let bytes: Vec<u8> = case.elements.iter().flat_map(|n| n.to_ne_bytes()).collect();
    let simulation = simulation(Schedule::Latest);
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
    let store: Store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let array = case.array(&store, 0, case.backend, engines);
    array.store_metadata().expect("stored");
    let mut writer = ArrayWriter::builder(&array)
        .with_epochs_per_batch(1)
        .build()
        .expect("a device");

    let driver: &dyn Driver = &*simulation;
    driver.enter().expect("a device");
    let stream = driver.create_stream().expect("a stream");
    let pinned = driver
        .allocate_pinned(bytes.len(), PinnedUse::ToDevice)
        .expect("memory");
    let memory = driver.allocate(OFFSET + bytes.len()).expect("memory");
    driver.leave().expect("a device");
    let mut tensor = Tensor::of_uint16(&[3, 6, 8], usize::try_from(memory.0).expect("small"));
    tensor.device = (DeviceType::Cuda, 0);
    tensor.byte_offset = OFFSET as u64;
    // The tensors reuse one buffer: each is read before `append_dlpack` returns.
    for (part, slices) in bytes.chunks(3 * 96).zip([3, 3, 2]) {
        driver.enter().expect("a device");
        let staging = PinnedSpan {
            memory: pinned,
            offset: 0,
            len: part.len(),
        };
        driver
            .host_access(staging, Access::Write)
            .expect("accessible");
        let to = DeviceSpan {
            memory,
            offset: OFFSET,
            len: part.len(),
        };
        // SAFETY: the pinned memory is as long, and both memories are live.
        unsafe {
            pinned
                .0
                .as_ptr()
                .copy_from_nonoverlapping(part.as_ptr(), part.len());
            driver
                .copy(stream, Span::Pinned(staging), Span::Device(to))
                .expect("copied");
        }
        driver.leave().expect("a device");
        tensor.shape = vec![slices, 6, 8];
        // While the application captures its stream, nothing of the writer may wait for it.
        simulation.capture(stream, true);
        let before = writer.progress().appended_bytes;
        // SAFETY: as below.
        let captured = unsafe { writer.append_dlpack(&tensor.view(), stream.0) };
        let error = captured.expect_err("captured");
        assert!(matches!(error, WriterError::Unsupported { .. }), "{error}");
        assert!(
            error.to_string().contains("captured into a graph"),
            "{error}"
        );
        assert_eq!(writer.progress().appended_bytes, before);
        simulation.capture(stream, false);
        // SAFETY: the memory lives until it is freed below, and `stream` is the stream that writes
        // the elements.
        let appended = unsafe { writer.append_dlpack(&tensor.view(), stream.0) };
        appended.expect("appended");
        driver.enter().expect("a device");
        driver.synchronize_stream(stream, MADE).expect("made");
        driver.leave().expect("a device");
    }
    // The writer cannot read a tensor on another device.
    tensor.device = (DeviceType::Cuda, 1);
    // SAFETY: as above.
    let elsewhere = unsafe { writer.append_dlpack(&tensor.view(), stream.0) };
    let error = elsewhere.expect_err("another device").to_string();
    let parts = match backend {
        Backend::Host => &["there is no CUDA device 1"][..],
        _ => &["on CUDA device 1,", "on device 0:", "`.with_device(1)`"],
    };
    for part in parts {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(
        writer.finish().expect("stored").finished_slices,
        case.shape[0]
    );
    assert_eq!(case.check(&store), case.shape[0]);
    case.check_bytes(&store);

    driver.enter().expect("a device");
    driver.destroy_stream(stream).expect("empty");
    // SAFETY: all of it has been read.
    unsafe {
        driver.free_pinned(pinned).expect("freed");
        driver.free(memory).expect("freed");
    }
    driver.leave().expect("a device");
    drop((writer, array, devices));
    assert_clean(&simulation);
}

/// The device waits for the stream of an application. The next full batch is submitted meanwhile.
#[test]
fn a_full_batch_is_submitted_while_the_device_works_on_another() {
    use std::time::{Duration, Instant};
    use zarrs_cuda_engine::cuda::driver::{DeviceSpan, Site};

    use crate::writer::DeviceSlice;

    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::yield_now();
        }
    };
    let mut case = small_case();
    case.elements[..96].fill(0x0303);
    let bytes: Vec<u8> = case.elements.iter().flat_map(|n| n.to_ne_bytes()).collect();
    // An epoch.
    let len = 2 * 6 * 8 * 2;
    let simulation = simulation(Schedule::Latest);
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
    let store: Store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let array = case.array(&store, 0, case.backend, engines);
    array.store_metadata().expect("stored");
    let mut writer = ArrayWriter::builder(&array)
        .with_epochs_per_batch(1)
        .build()
        .expect("a device");

    let driver: &dyn Driver = &*simulation;
    driver.enter().expect("a device");
    let stream = driver.create_stream().expect("a stream");
    let memory = driver.allocate(len).expect("memory");
    let all = DeviceSpan {
        memory,
        offset: 0,
        len,
    };
    simulation.stall(stream, true);
    // SAFETY: the memory is freed after the device has used it.
    unsafe { driver.fill(stream, all, 3) }.expect("no fault");
    driver.leave().expect("a device");
    let slice = DeviceSlice {
        device: 0,
        pointer: memory.0,
        len,
        stream: stream.0,
    };
    // SAFETY: the memory is freed after the writer has finished.
    let taken = unsafe { writer.append_device(&slice) }.expect("appended");
    let answered = Site("synchronise: the offsets of a stream's batch");
    until("the writer waits for the device", &|| {
        simulation.waits().contains(&answered)
    });
    writer.append_bytes(&bytes[len..2 * len]).expect("appended");
    until("two batches are under way", &|| {
        writer.progress().batches_encoding == 2
    });
    simulation.stall(stream, false);
    taken.wait().expect("no fault");
    writer.append_bytes(&bytes[2 * len..]).expect("appended");
    let report = writer.finish().expect("stored");
    assert_eq!(report.finished_slices, case.shape[0]);
    assert_eq!(case.check(&store), case.shape[0]);
    case.check_bytes(&store);
    driver.enter().expect("a device");
    driver.destroy_stream(stream).expect("empty");
    // SAFETY: all of it has been read.
    unsafe { driver.free(memory) }.expect("freed");
    driver.leave().expect("a device");
    drop((taken, writer, array, devices));
    assert_clean(&simulation);
}
