//! `register` and `Registration`: when zarrs uses this crate's codec, and when it does not.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use zarrs::array::codec::{
    BytesCodec, ShardingCodecBuilder, ShardingCodecOptions, SubchunkWriteOrder,
};
use zarrs::array::{Array, ArrayBuilder, ArrayError, CodecSpecificOptions, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_codec::{
    ArrayToBytesCodecTraits, Codec, CodecRuntimePluginV3, register_codec_v3, unregister_codec_v3,
};
use zarrs_cuda::{Backend, CudaShardingCodecBuilder, Error, Options, explain, register};

/// Registration is one for the process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sharded array that is made from metadata, as `Array::open` does it.
fn from_metadata(store: &Arc<MemoryStore>) -> Array<MemoryStore> {
    let mut builder = ArrayBuilder::new(vec![16, 16], vec![8, 8], data_type::uint16(), 0_u16);
    builder.subchunk_shape(vec![4, 4]);
    let metadata = builder.build_metadata().unwrap();
    Array::new_with_metadata(store.clone(), "/array", metadata.into()).unwrap()
}

fn is_ours(array: &Array<MemoryStore>) -> bool {
    match explain(array) {
        Ok(_) => true,
        Err(Error::ForeignCodec { codec }) => {
            assert_eq!(codec, "sharding_indexed");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_registration_is_in_force_until_it_is_dropped() {
    let _alone = alone();
    let store = Arc::new(MemoryStore::new());
    let before = from_metadata(&store);
    assert!(!is_ours(&before));

    for _ in 0..3 {
        let registration = register(Options::default()).unwrap();
        let during = from_metadata(&store);
        assert!(is_ours(&during));
        assert!(!is_ours(&before), "an open array keeps its codec");
        assert!(matches!(
            register(Options::default()),
            Err(Error::AlreadyRegistered)
        ));
        drop(registration);
        assert!(is_ours(&during), "an open array keeps its codec");
        assert!(!is_ours(&from_metadata(&store)));
    }
}

#[test]
fn opening_and_building_from_an_array_go_through_it() {
    let _alone = alone();
    let _registration = register(Options::default()).unwrap();
    let store = Arc::new(MemoryStore::new());
    let array = from_metadata(&store);
    array.store_metadata().unwrap();
    assert!(is_ours(&Array::open(store.clone(), "/array").unwrap()));
    let copy = ArrayBuilder::from_array(&array)
        .build(store.clone(), "/copy")
        .unwrap();
    assert!(is_ours(&copy));
    // What the documentation says of the builder.
    let built = ArrayBuilder::new(vec![16, 16], vec![8, 8], data_type::uint16(), 0_u16)
        .subchunk_shape(vec![4, 4])
        .build(store, "/built")
        .unwrap();
    assert!(!is_ours(&built));
}

#[test]
fn options_reach_the_codec_from_registration_and_per_array() {
    let _alone = alone();
    let _registration = register(Options::default().with_backend(Backend::Host)).unwrap();
    let array = from_metadata(&Arc::new(MemoryStore::new()));
    assert!(explain(&array).unwrap().why.contains("asked for"));

    let auto = CodecSpecificOptions::default().with_option(Options::default());
    let array = array.with_codec_specific_options(&auto);
    assert!(!explain(&array).unwrap().why.contains("asked for"));

    for order in [SubchunkWriteOrder::C, SubchunkWriteOrder::Unordered] {
        let order = CodecSpecificOptions::default()
            .with_option(ShardingCodecOptions::default().with_subchunk_write_order(order));
        let array = from_metadata(&Arc::new(MemoryStore::new()));
        let array = array.with_codec_specific_options(&order);
        assert!(is_ours(&array));
        array.store_chunk(&[0, 0], vec![7_u16; 64]).unwrap();
        assert_eq!(
            array.retrieve_chunk::<Vec<u16>>(&[0, 0]).unwrap(),
            vec![7; 64]
        );
    }
}

#[test]
fn the_cuda_backend_is_an_error_that_says_why() {
    let _alone = alone();
    let error = register(Options::default().with_backend(Backend::Cuda)).unwrap_err();
    assert!(matches!(error, Error::BackendUnavailable { .. }));
    assert!(error.to_string().contains("no CUDA engine"), "{error}");

    // The failed registration has changed nothing.
    let _registration = register(Options::default()).unwrap();
    let array = from_metadata(&Arc::new(MemoryStore::new()));
    array.store_chunk(&[0, 0], vec![7_u16; 64]).unwrap();
    let cuda =
        CodecSpecificOptions::default().with_option(Options::default().with_backend(Backend::Cuda));
    let array = array.with_codec_specific_options(&cuda);
    let says_why = |error: ArrayError| {
        let error = error.to_string();
        assert!(error.contains("no CUDA engine"), "{error}");
    };
    says_why(array.store_chunk(&[0, 0], vec![8_u16; 64]).unwrap_err());
    says_why(array.retrieve_chunk::<Vec<u16>>(&[0, 0]).unwrap_err());
    assert!(matches!(
        explain(&array),
        Err(Error::BackendUnavailable { .. })
    ));
}

#[test]
fn a_codec_that_zarrs_finds_first_is_an_error() {
    let _alone = alone();
    // Our entry may be in the registry already, before any other: then it comes first, and another
    // one does no harm. So look at both orders in a registry that starts empty.
    zarrs_codec::CODEC_RUNTIME_REGISTRY_V3.clear();
    let third_party = || {
        register_codec_v3(CodecRuntimePluginV3::new(
            |name| name == "sharding_indexed",
            |_| Ok(Codec::ArrayToBytes(Arc::new(BytesCodec::little()))),
        ))
    };
    let first = third_party();
    assert!(matches!(
        register(Options::default()),
        Err(Error::NameTaken)
    ));
    assert!(unregister_codec_v3(&first));

    let registration = register(Options::default()).unwrap();
    let second = third_party();
    assert!(is_ours(&from_metadata(&Arc::new(MemoryStore::new()))));
    drop(registration);
    let registration = register(Options::default()).unwrap();
    assert!(is_ours(&from_metadata(&Arc::new(MemoryStore::new()))));
    drop(registration);
    assert!(unregister_codec_v3(&second));
}

#[test]
fn a_nested_codec_of_zarrs_becomes_ours() {
    let data_type = data_type::uint16();
    let shape = |edge: u64| vec![edge.try_into().unwrap(); 2];
    let nested = ShardingCodecBuilder::new(shape(2), &data_type).build_arc();
    let codec = CudaShardingCodecBuilder::new(shape(4), &data_type)
        .array_to_bytes_codec(nested)
        .build_arc()
        .unwrap();
    let array = ArrayBuilder::new(vec![16, 16], vec![8, 8], data_type, 0_u16)
        .array_to_bytes_codec(codec)
        .build(Arc::new(MemoryStore::new()), "/array")
        .unwrap();
    let explanation = explain(&array).unwrap().to_string();
    assert!(explanation.contains("sharding_indexed"), "{explanation}");
    let elements: Vec<u16> = (0..64).collect();
    array.store_chunk(&[1, 1], &elements).unwrap();
    assert_eq!(array.retrieve_chunk::<Vec<u16>>(&[1, 1]).unwrap(), elements);
}

/// zarrs holds its registry's lock while it creates a codec, and nested codecs take it again.
#[test]
fn opening_from_many_threads_while_registering_does_not_deadlock() {
    let _alone = alone();
    // As in a new process: the first registration takes the lock for writing.
    zarrs_codec::CODEC_RUNTIME_REGISTRY_V3.clear();
    let data_type = data_type::uint16();
    let shape = |edge: u64| vec![edge.try_into().unwrap(); 2];
    let nested: Arc<dyn ArrayToBytesCodecTraits> =
        ShardingCodecBuilder::new(shape(2), &data_type).build_arc();
    let sharded = ShardingCodecBuilder::new(shape(4), &data_type)
        .array_to_bytes_codec(nested)
        .build_arc();
    let metadata = ArrayBuilder::new(vec![16, 16], vec![8, 8], data_type, 0_u16)
        .array_to_bytes_codec(sharded)
        .build_metadata()
        .unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let (done, finished) = mpsc::channel();
    for _ in 0..8 {
        let (stop, done, metadata) = (stop.clone(), done.clone(), metadata.clone());
        thread::spawn(move || {
            let store = Arc::new(MemoryStore::new());
            while !stop.load(Ordering::Relaxed) {
                Array::new_with_metadata(store.clone(), "/array", metadata.clone().into()).unwrap();
            }
            done.send(()).unwrap();
        });
    }
    {
        let stop = stop.clone();
        thread::spawn(move || {
            for _ in 0..500 {
                let registration = register(Options::default()).unwrap();
                thread::yield_now();
                drop(registration);
            }
            stop.store(true, Ordering::Relaxed);
            done.send(()).unwrap();
        });
    }
    for _ in 0..9 {
        finished
            .recv_timeout(Duration::from_secs(60))
            .expect("a thread hangs");
    }
}
