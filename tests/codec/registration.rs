//! The promises of `register`: which arrays get this crate's codec, with which options, and when.
//!
//! A registration affects the whole process, so two of these tests run in processes of their own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::{Value, json};
use zarrs::array::codec::{ShardingCodec, ShardingCodecOptions, SubchunkWriteOrder};
use zarrs::array::{Array, ArrayBuilder, ArrayMetadata, ArraySubset, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_codec::{
    Codec, CodecRuntimePluginV3, CodecSpecificOptions, register_codec_v3, unregister_codec_v3,
};
use zarrs_cuda::reader::ArrayReader;
use zarrs_cuda::{Backend, CudaShardingCodecBuilder, Error, Options, explain, register};

use crate::{alone, in_its_own_process};

/// The metadata of an array of 8 × 8 elements in four shards, whose subchunks use `codecs`.
fn metadata(codecs: &Value) -> ArrayMetadata {
    metadata_with_index(codecs, &json!([little(), { "name": "crc32c" }]))
}

fn metadata_with_index(codecs: &Value, index_codecs: &Value) -> ArrayMetadata {
    serde_json::from_value(json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": [8, 8],
        "data_type": "uint16",
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [4, 4] } },
        "chunk_key_encoding": { "name": "default", "configuration": { "separator": "/" } },
        "fill_value": 0,
        "codecs": [{
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [2, 2],
                "codecs": codecs,
                "index_codecs": index_codecs,
                "index_location": "end",
            },
        }],
    }))
    .unwrap()
}

fn little() -> Value {
    json!({ "name": "bytes", "configuration": { "endian": "little" } })
}

fn plain() -> ArrayMetadata {
    metadata(&json!([little()]))
}

/// Nested sharding, which reads zarrs' registry again while it is locked.
fn nested() -> ArrayMetadata {
    let inner = json!({
        "chunk_shape": [1, 2],
        "codecs": [little()],
        "index_codecs": [little(), { "name": "crc32c" }],
    });
    metadata(&json!([{ "name": "sharding_indexed", "configuration": inner }]))
}

fn open(metadata: ArrayMetadata) -> Array<MemoryStore> {
    open_in(&Arc::new(MemoryStore::new()), metadata)
}

fn open_in(store: &Arc<MemoryStore>, metadata: ArrayMetadata) -> Array<MemoryStore> {
    Array::new_with_metadata(store.clone(), "/array", metadata).unwrap()
}

fn elements() -> Vec<u16> {
    (1..=64).collect()
}

/// Writes the whole array, and reads it and a part of it.
fn check_round_trip(array: &Array<MemoryStore>) {
    let all = array.subset_all();
    array
        .store_array_subset(&all, elements().as_slice())
        .unwrap();
    check_elements(array);
}

fn check_elements(array: &Array<MemoryStore>) {
    let read = |subset: &ArraySubset| array.retrieve_array_subset::<Vec<u16>>(subset).unwrap();
    assert_eq!(read(&array.subset_all()), elements());
    assert_eq!(
        read(&ArraySubset::new_with_ranges(&[3..5, 2..4])),
        [27, 28, 35, 36]
    );
}

/// Whether arrays that are opened now get our codec.
fn opened_now_is_ours() -> bool {
    let ours = explain(&open(plain()));
    assert!(ours.is_ok() || matches!(ours, Err(Error::ForeignCodec { .. })));
    ours.is_ok()
}

/// Arrays opened before, during and after the registration: only the second ones get our codec, and
/// keep it.
#[test]
fn from_register_to_drop() {
    let _alone = alone();
    let before = open(plain());
    assert!(explain(&before).is_err());

    let registration = register(Options::default()).unwrap();
    let during = open(plain());
    assert!(explain(&during).is_ok());
    assert!(explain(&before).is_err(), "it keeps the codec that it has");

    drop(registration);
    assert!(explain(&open(plain())).is_err());
    assert!(explain(&during).is_ok(), "it keeps the codec that it has");
    check_round_trip(&before);
    check_round_trip(&during);
}

/// A second registration is an error while the first is active, and changes nothing.
#[test]
fn registering_twice() {
    let _alone = alone();
    let registration = register(Options::default().with_backend(Backend::Host)).unwrap();
    let again = register(Options::default());
    assert!(matches!(again, Err(Error::AlreadyRegistered)), "{again:?}");
    let why = explain(&open(plain())).unwrap().why;
    assert_eq!(
        why, "the options asked for the host",
        "the options of the first"
    );
    drop(registration);
    for _ in 0..3 {
        let registration = register(Options::default()).unwrap();
        assert!(opened_now_is_ours());
        drop(registration);
        assert!(!opened_now_is_ours());
    }
}

/// If many threads register at once, one succeeds.
#[test]
fn registering_from_many_threads() {
    let _alone = alone();
    let registered = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| register(Options::default())))
            .collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.filter_map(Result::ok).collect::<Vec<_>>()
    });
    assert_eq!(registered.len(), 1);
    // Another thread may drop a registration.
    std::thread::spawn(|| drop(registered)).join().unwrap();
    assert!(!opened_now_is_ours());
}

/// Each registration has its own options. Arrays keep the options with which they were opened.
#[test]
fn options_of_a_registration() {
    let _alone = alone();
    let open_with = |options| {
        let _registration = register(options).unwrap();
        open(plain())
    };
    let host = open_with(Options::default().with_backend(Backend::Host));
    let auto = open_with(Options::default().with_huge_pages(false));
    assert_eq!(
        explain(&host).unwrap().why,
        "the options asked for the host"
    );
    assert_ne!(
        explain(&auto).unwrap().why,
        "the options asked for the host"
    );
    check_round_trip(&host);
    check_round_trip(&auto);
}

/// A missing device is an error, and nothing is registered.
#[test]
fn a_backend_that_is_not_there() {
    let _alone = alone();
    let refused = register(no_device());
    match refused {
        Err(Error::BackendUnavailable { backend, reason }) => {
            assert_eq!(backend, Backend::Cuda);
            assert!(reason.contains("CUDA"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!opened_now_is_ours());
    drop(register(Options::default()).unwrap());
}

/// `explain` names the codec of an array that is not ours.
#[test]
fn explaining_somebody_elses_array() {
    let _alone = alone();
    let _registration = register(Options::default()).unwrap();
    let store = Arc::new(MemoryStore::new());
    let mut builder = ArrayBuilder::new(vec![8, 8], vec![4, 4], data_type::uint16(), 0_u16);
    let unsharded = builder.build(store.clone(), "/unsharded").unwrap();
    // The builder creates zarrs' own codec, even while ours is registered.
    let stock = builder
        .subchunk_shape(vec![2, 2])
        .build(store.clone(), "/stock")
        .unwrap();
    for (array, name, text) in [
        (&unsharded, "bytes", "is not sharded"),
        (&stock, "sharding_indexed", "zarrs' own `sharding_indexed`"),
    ] {
        let error = explain(array).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        match error {
            Error::ForeignCodec { codec } => assert_eq!(codec, name),
            other => panic!("{other:?}"),
        }
    }
    // The workaround that the documentation shows.
    let metadata = builder.build_metadata().unwrap();
    let ours = Array::new_with_metadata(store, "/ours", metadata.into()).unwrap();
    assert!(explain(&ours).is_ok());
}

/// The explanation of an array.
#[test]
fn explaining_our_array() {
    let _alone = alone();
    let registration = register(Options::default()).unwrap();
    let transposed = json!([
        { "name": "transpose", "configuration": { "order": [1, 0] } },
        { "name": "bytes", "configuration": { "endian": "big" } },
        { "name": "zstd", "configuration": { "level": 3, "checksum": false } },
    ]);
    let explanation = explain(&open(metadata(&transposed))).unwrap();
    assert_eq!(explanation.engine, "host");
    assert_eq!(explanation.shard, [4, 4]);
    assert_eq!(explanation.subchunk, [2, 2]);
    assert_eq!(explanation.num_subchunks, 4);
    assert_eq!(explanation.subchunk_bytes, Some(8));
    let text = explanation.to_string();
    for part in ["[1, 0]", "zstd level 3", "index of 68 bytes"] {
        assert!(text.contains(part), "{text}");
    }
    let nested = explain(&open(nested())).unwrap().to_string();
    assert!(nested.contains("no fast path"), "{nested}");
    drop(registration);
}

fn with_backend(backend: Backend) -> CodecSpecificOptions {
    CodecSpecificOptions::default().with_option(Options::default().with_backend(backend))
}

/// Options for one array, set in every way. A missing backend is an error, with the reason, when
/// whole shards are written or read. The host reads parts.
#[test]
fn options_of_one_array() {
    let _alone = alone();
    let store = Arc::new(MemoryStore::new());
    let array = {
        let _registration = register(Options::default()).unwrap();
        open_in(&store, plain())
    };
    check_round_trip(&array);
    let codec = CudaShardingCodecBuilder::new(vec![2.try_into().unwrap(); 2], &data_type::uint16())
        .build_arc()
        .unwrap();
    let built = ArrayBuilder::new(vec![8, 8], vec![4, 4], data_type::uint16(), 0_u16)
        .array_to_bytes_codec(codec)
        .codec_specific_options(with_no_device())
        .build(store.clone(), "/array")
        .unwrap();
    let mut set = open_in_registered(&store);
    set.set_codec_specific_options(&with_no_device());
    let with = open_in_registered(&store).with_codec_specific_options(&with_no_device());

    for cuda in [built, set, with] {
        assert!(matches!(
            explain(&cuda),
            Err(Error::BackendUnavailable { .. })
        ));
        let written = cuda.store_chunk(&[0, 0], &[1_u16; 16][..]);
        let error = written.unwrap_err().to_string();
        assert!(error.contains("the CUDA backend cannot be used"), "{error}");
        let read = cuda.retrieve_chunk::<Vec<u16>>(&[0, 0]);
        let error = read.unwrap_err().to_string();
        assert!(error.contains("the CUDA backend cannot be used"), "{error}");
        let part = cuda.retrieve_array_subset::<Vec<u16>>(&[0..1, 0..3]);
        let error = part.unwrap_err().to_string();
        assert!(error.contains("the CUDA backend cannot be used"), "{error}");
        let changed = cuda.store_array_subset(&[0..1, 0..3], &[1_u16, 2, 3]);
        let error = changed.unwrap_err().to_string();
        assert!(error.contains("the CUDA backend cannot be used"), "{error}");
        let reader = ArrayReader::builder(&cuda).build();
        let error = reader.unwrap_err().to_string();
        assert!(error.contains("the CUDA backend cannot be used"), "{error}");

        let host = cuda.with_codec_specific_options(&with_backend(Backend::Host));
        assert_eq!(
            explain(&host).unwrap().why,
            "the options asked for the host"
        );
        check_round_trip(&host);
        // Options of other codecs do not change ours.
        let others = CodecSpecificOptions::default().with_option(5_u8);
        let host = host.with_codec_specific_options(&others);
        assert_eq!(
            explain(&host).unwrap().why,
            "the options asked for the host"
        );
    }
}

/// CUDA on a device that no machine has.
fn no_device() -> Options {
    Options::default()
        .with_backend(Backend::Cuda)
        .with_devices([4096])
}

fn with_no_device() -> CodecSpecificOptions {
    CodecSpecificOptions::default().with_option(no_device())
}

fn open_in_registered(store: &Arc<MemoryStore>) -> Array<MemoryStore> {
    let _registration = register(Options::default()).unwrap();
    open_in(store, plain())
}

/// zarrs' own sharding options are accepted. Subchunks lie in C order with all of them.
#[test]
fn zarrs_options_for_sharding() {
    let _alone = alone();
    let store = Arc::new(MemoryStore::new());
    let array = open_in_registered(&store);
    check_round_trip(&array);
    let expected = array.retrieve_encoded_chunk(&[1, 0]).unwrap().unwrap();
    for order in [
        SubchunkWriteOrder::C,
        SubchunkWriteOrder::Unordered,
        SubchunkWriteOrder::Random,
    ] {
        let options = ShardingCodecOptions::default().with_subchunk_write_order(order);
        let options = CodecSpecificOptions::default().with_option(options);
        let array = open_in_registered(&store).with_codec_specific_options(&options);
        assert!(explain(&array).is_ok());
        check_round_trip(&array);
        let encoded = array.retrieve_encoded_chunk(&[1, 0]).unwrap().unwrap();
        assert_eq!(encoded, expected, "{order:?}");
    }
}

/// A configuration that cannot work is an error on opening the array.
#[test]
fn invalid_configurations() {
    let _alone = alone();
    let _registration = register(Options::default()).unwrap();
    let gzip = json!({ "name": "gzip", "configuration": { "level": 1 } });
    let unknown = json!({ "name": "test.nobody_knows_it" });
    for (metadata, reason) in [
        (
            metadata_with_index(&json!([little()]), &json!([little(), gzip])),
            "invalid index codecs",
        ),
        (metadata(&json!([little(), unknown])), "nobody_knows_it"),
        (metadata(&json!([])), "missing array to bytes codec"),
    ] {
        let store = Arc::new(MemoryStore::new());
        let array = Array::new_with_metadata(store, "/array", metadata);
        let error = array.err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// Opens arrays with nested sharding while other threads register and unregister continuously. No
/// thread waits for ever, and each array can be read with the codec that it got.
#[test]
fn opening_while_registering_does_not_deadlock() {
    let _alone = alone();
    // The first call writes to zarrs' registry. As documented, it must precede the others.
    drop(register(Options::default()).unwrap());
    let store = Arc::new(MemoryStore::new());
    check_round_trip(&open_in(&store, nested()));

    const THREADS: usize = 4;
    const TIMES: usize = 200;
    let (finished, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let done = AtomicBool::new(false);
        let open_and_check = || {
            let array = open_in(&store, nested());
            check_elements(&array);
            explain(&array).is_ok()
        };
        let ours = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let registration = register(Options::default()).unwrap();
                    std::thread::yield_now();
                    drop(registration);
                    std::thread::yield_now();
                }
            });
            let openers: Vec<_> = (0..THREADS)
                .map(|_| scope.spawn(|| (0..TIMES).filter(|_| open_and_check()).count()))
                .collect();
            let ours = openers.into_iter().map(|thread| thread.join().ok());
            let ours: Vec<Option<usize>> = ours.collect();
            done.store(true, Ordering::Relaxed);
            ours
        });
        finished.send(ours).unwrap();
    });
    let ours = wait.recv_timeout(Duration::from_mins(1));
    let ours = ours.expect("it is deadlocked");
    let ours: Option<usize> = ours.into_iter().sum();
    let ours = ours.expect("an array was read wrong");
    assert!(
        ours > 0 && ours < THREADS * TIMES,
        "{ours} arrays were ours"
    );
}

/// A leaked registration stays active.
#[test]
fn leak() {
    in_its_own_process(module_path!(), "leak", leaks);
}

fn leaks() {
    register(Options::default()).unwrap().leak();
    assert!(opened_now_is_ours());
    let again = register(Options::default());
    assert!(matches!(again, Err(Error::AlreadyRegistered)), "{again:?}");
    std::thread::spawn(|| assert!(opened_now_is_ours()))
        .join()
        .unwrap();
}

/// Another crate's entry for the name, which zarrs finds first, is an error while it exists. A
/// later entry is not found while ours is active.
#[test]
fn name_taken() {
    in_its_own_process(module_path!(), "name_taken", takes_the_name);
}

fn takes_the_name() {
    static THEIRS: AtomicUsize = AtomicUsize::new(0);
    let theirs = || {
        register_codec_v3(CodecRuntimePluginV3::new(
            |name| name == "sharding_indexed",
            |metadata| {
                THEIRS.fetch_add(1, Ordering::Relaxed);
                let configuration = metadata.to_typed_configuration()?;
                let codec = ShardingCodec::new_with_configuration(&configuration)?;
                Ok(Codec::ArrayToBytes(Arc::new(codec)))
            },
        ))
    };
    let before = theirs();
    for _ in 0..2 {
        let taken = register(Options::default());
        assert!(matches!(taken, Err(Error::NameTaken)), "{taken:?}");
    }
    assert!(!opened_now_is_ours());
    assert_eq!(THEIRS.load(Ordering::Relaxed), 1);

    assert!(unregister_codec_v3(&before));
    let registration = register(Options::default()).unwrap();
    assert!(opened_now_is_ours());

    let after = theirs();
    assert!(opened_now_is_ours());
    assert_eq!(THEIRS.load(Ordering::Relaxed), 1);
    drop(registration);
    assert!(!opened_now_is_ours());
    assert_eq!(
        THEIRS.load(Ordering::Relaxed),
        2,
        "ours is off, theirs is next"
    );

    let registration = register(Options::default()).unwrap();
    assert!(opened_now_is_ours(), "ours is still the first");
    drop(registration);
    assert!(unregister_codec_v3(&after));
}
