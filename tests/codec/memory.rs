//! The peak memory of encoding and reading, beyond the input and the output. Encoding takes at most
//! the encoded size, and a few subchunks per thread; a reader its budget, and a few subchunks per
//! thread.

use std::borrow::Cow;
use std::fs;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::{
    ArrayBuilder, ArrayBytes, ArrayToBytesCodecTraits, CodecOptions, FillValue, data_type,
};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::reader::{ArrayReader, Output};
use zarrs_cuda::{CudaShardingCodec, Options};
use zarrs_cuda_testing::Rng;

use crate::in_its_own_process;

const EDGE: u64 = 256;
const SUBCHUNK: u64 = 32;

/// A line of `/proc/self/status`, in bytes.
pub(crate) fn status(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kibibytes = line.split_whitespace().nth(1).unwrap();
    kibibytes.parse::<usize>().unwrap() * 1024
}

/// Runs `f`. Returns by how much the resident memory grew at most, and the result of `f`.
pub(crate) fn peak<T>(f: impl FnOnce() -> T) -> (usize, T) {
    // Resets the peak (proc(5)).
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS:");
    let result = f();
    (status("VmHWM:").saturating_sub(before), result)
}

#[test]
fn encoding_needs_little_more_than_its_output() {
    let test = "encoding_needs_little_more_than_its_output";
    in_its_own_process(module_path!(), test, encode_with_compressors);
}

fn encode_with_compressors() {
    let elements: Vec<u8> = (0..EDGE * EDGE * EDGE)
        .flat_map(|i: u64| {
            ((i / 7) as u16 ^ (i.wrapping_mul(2_654_435_761) >> 20) as u16 & 31).to_le_bytes()
        })
        .collect();
    let shape = [NonZeroU64::new(EDGE).unwrap(); 3];
    let options = CodecOptions::default();
    let compressors: [Value; 4] = [
        json!([]),
        json!([{ "name": "crc32c" }]),
        json!([{ "name": "zstd", "configuration": { "level": 1, "checksum": false } }]),
        json!([{ "name": "gzip", "configuration": { "level": 1 } }]),
    ];
    for compressor in compressors {
        let mut codecs = vec![json!({ "name": "bytes", "configuration": { "endian": "little" } })];
        codecs.extend(compressor.as_array().unwrap().iter().cloned());
        let configuration = serde_json::from_value(json!({
            "chunk_shape": [SUBCHUNK, SUBCHUNK, SUBCHUNK],
            "codecs": codecs,
            "index_codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
        }))
        .unwrap();
        let codec =
            CudaShardingCodec::new_with_configuration(&configuration, Options::default()).unwrap();
        let encode = || {
            let input = ArrayBytes::new_flen(Cow::Borrowed(elements.as_slice()));
            codec
                .encode(
                    input,
                    &shape,
                    &data_type::uint16(),
                    &FillValue::from(0_u16),
                    &options,
                )
                .unwrap()
                .into_owned()
        };
        // The first call creates the contexts and buffers of the threads.
        drop(encode());
        let (peak, encoded) = peak(encode);

        let subchunk = usize::try_from(SUBCHUNK.pow(3)).unwrap() * 2;
        let threads = rayon_threads();
        let few_subchunks = threads * 16 * subchunk;
        // Two huge pages at the ends of the output, and some more.
        let slack = 2 * (2 << 20) + (2 << 20);
        let allowed = 2 * encoded.len() + few_subchunks + slack;
        assert!(
            peak <= allowed,
            "{compressor}: {peak} bytes for a shard of {}, allowed {allowed}",
            encoded.len()
        );
        if compressor == json!([]) {
            assert!(peak <= encoded.len() + few_subchunks + slack, "{peak}");
        }
    }
}

/// One subchunk takes long. The others are encoded meanwhile, and wait for their offsets.
#[test]
fn a_queue_behind_a_slow_subchunk_holds_only_encoded_bytes() {
    let test = "a_queue_behind_a_slow_subchunk_holds_only_encoded_bytes";
    in_its_own_process(module_path!(), test, encode_behind_a_slow_subchunk);
}

fn encode_behind_a_slow_subchunk() {
    const SUBCHUNKS: usize = 128;
    const SUBCHUNK: usize = 4 << 20;
    let mut elements = vec![0_u8; SUBCHUNKS * SUBCHUNK];
    let mut state = 1_u32;
    for (i, element) in elements.iter_mut().enumerate() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = (state >> 28) as u8;
        *element = if i < SUBCHUNK {
            noise
        } else {
            1 + (i / SUBCHUNK) as u8
        };
    }
    let configuration = serde_json::from_value(json!({
        "chunk_shape": [SUBCHUNK],
        "codecs": [
            { "name": "bytes" },
            { "name": "zstd", "configuration": { "level": 19, "checksum": false } },
        ],
        "index_codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
    }))
    .unwrap();
    let codec =
        CudaShardingCodec::new_with_configuration(&configuration, Options::default()).unwrap();
    let shape = [NonZeroU64::new(elements.len() as u64).unwrap()];
    let (peak, encoded) = peak(|| {
        let input = ArrayBytes::new_flen(Cow::Borrowed(elements.as_slice()));
        let (fill_value, options) = (FillValue::from(0_u8), CodecOptions::default());
        codec
            .encode(input, &shape, &data_type::uint8(), &fill_value, &options)
            .unwrap()
            .into_owned()
    });
    // A zstd context at level 19 has 90 MiB.
    let contexts = rayon_threads() * (100 << 20);
    let few_subchunks = (4 + 4 * rayon_threads()) * SUBCHUNK;
    assert!(
        peak <= 2 * encoded.len() + few_subchunks + contexts,
        "{peak} bytes for a shard of {}",
        encoded.len()
    );
}

/// Elements that no codec compresses, read with a budget that is much smaller than they are.
#[test]
fn a_reader_keeps_within_its_budget() {
    let test = "a_reader_keeps_within_its_budget";
    in_its_own_process(module_path!(), test, read_with_budgets);
}

fn read_with_budgets() {
    const MIB: usize = 1 << 20;
    // Four shards of 32 MiB, with subchunks of 512 KiB.
    let (shape, shard, subchunk) = ([512, 512, 256], [256, 256, 256], [64, 64, 64]);
    let subchunk_bytes = 64 * 64 * 64 * 2;
    let mut rng = Rng(5);
    let mut elements: Vec<u8> = std::iter::repeat_with(|| rng.next().to_ne_bytes())
        .take(128 * MIB / 8)
        .flatten()
        .collect();
    let shared = Path::new("/dev/shm");
    let folder = if shared.is_dir() {
        tempfile::tempdir_in(shared).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    };
    let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    for (number, compressor) in [
        json!([]),
        json!([{ "name": "zstd", "configuration": { "level": 1, "checksum": false } }]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut codecs = vec![json!({ "name": "bytes", "configuration": { "endian": "little" } })];
        codecs.extend(compressor.as_array().unwrap().iter().cloned());
        let configuration = serde_json::from_value(json!({
            "chunk_shape": subchunk,
            "codecs": codecs,
            "index_codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
        }))
        .unwrap();
        let codec =
            CudaShardingCodec::new_with_configuration(&configuration, Options::default()).unwrap();
        let array = ArrayBuilder::new(shape, shard, data_type::uint16(), 0_u16)
            .array_to_bytes_codec(Arc::new(codec))
            .build(store.clone(), &format!("/{number}"))
            .unwrap();
        array.store_metadata().unwrap();
        let whole = array.subset_all();
        array
            .store_array_subset(&whole, ArrayBytes::from(elements.as_slice()))
            .unwrap();
        for (budget, in_files) in [(8 * MIB, false), (32 * MIB, false), (8 * MIB, true)] {
            let mut builder = ArrayReader::builder(&array).with_memory(budget);
            if in_files {
                builder = builder.on_filesystem(&store);
            }
            let reader = builder.build().unwrap();
            let mut read = || {
                let output = Output::contiguous(&mut elements);
                reader.read_bytes_into(&whole, output).unwrap();
            };
            // The first call starts threads, and touches the output.
            read();
            let (peak, ()) = peak(read);
            let few_subchunks = (4 + 4 * rayon_threads()) * subchunk_bytes;
            let allowed = budget + few_subchunks + 4 * MIB;
            println!("{compressor}, files {in_files}: {peak} of {allowed} bytes");
            assert!(
                peak <= allowed,
                "{compressor}, files {in_files}: {peak} bytes with a budget of {budget}"
            );
        }
    }
}

fn rayon_threads() -> usize {
    CodecOptions::default().concurrent_target().max(1)
}
