//! Tests of errors that occurred once.
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::codec::ShardingCodec;
use zarrs::array::{
    ArrayBuilder, ArrayBytes, ArrayIndices, ArraySubset, FillValue, Indexer, data_type,
};
use zarrs::storage::ReadableStorageTraits;
use zarrs::storage::store::MemoryStore;
use zarrs_codec::{
    ArrayCodecTraits, ArrayToBytesCodecTraits, BytesPartialDecoderTraits, CodecError, CodecOptions,
    CodecTraits,
};
use zarrs_cuda::{CudaShardingCodec, Options, WriteStrategy};

fn codec(subchunk: &[u64], codecs: &Value, index_codecs: &Value) -> CudaShardingCodec {
    let configuration = serde_json::from_value(json!({
        "chunk_shape": subchunk, "codecs": codecs, "index_codecs": index_codecs,
    }))
    .unwrap();
    CudaShardingCodec::new_with_configuration(&configuration, Options::default()).unwrap()
}

fn little() -> Value {
    json!({ "name": "bytes", "configuration": { "endian": "little" } })
}

fn shape(shape: &[u64]) -> Vec<NonZeroU64> {
    shape.iter().map(|&n| NonZeroU64::new(n).unwrap()).collect()
}

fn partial_decode(
    codec: CudaShardingCodec,
    shard: Vec<u8>,
    shape: &[NonZeroU64],
    indexer: &dyn Indexer,
) -> Result<Vec<u8>, CodecError> {
    let input: Arc<dyn BytesPartialDecoderTraits> = Arc::new(shard);
    let (data_type, fill_value) = (data_type::uint8(), FillValue::from(0_u8));
    let options = CodecOptions::default();
    Arc::new(codec)
        .partial_decoder(input, shape, &data_type, &fill_value, &options)?
        .partial_decode(indexer, &options)
        .and_then(|bytes| Ok(bytes.into_fixed()?.into_owned()))
}

/// A part of a large subchunk was read without the checksum that covers the whole subchunk.
#[test]
fn a_checksum_covers_reads_of_a_part() {
    let codec = codec(
        &[64, 64, 64],
        &json!([little(), { "name": "crc32c" }]),
        &json!([little()]),
    );
    let shape = shape(&[64, 64, 128]);
    let elements = ArrayBytes::new_flen(vec![1_u8; 64 * 64 * 128]);
    let (data_type, fill_value) = (data_type::uint8(), FillValue::from(0_u8));
    let mut shard = codec
        .encode(
            elements,
            &shape,
            &data_type,
            &fill_value,
            &CodecOptions::default(),
        )
        .unwrap()
        .into_owned();
    let part = ArraySubset::new_with_ranges(&[0..1, 0..1, 0..4]);
    let read = partial_decode(codec.clone(), shard.clone(), &shape, &part);
    assert_eq!(read.unwrap(), [1; 4]);
    shard[0] ^= 1;
    let point: Vec<ArrayIndices> = vec![vec![9, 9, 9]];
    for indexer in [&part as &dyn Indexer, &point] {
        let read = partial_decode(codec.clone(), shard.clone(), &shape, indexer);
        assert!(matches!(read, Err(CodecError::InvalidChecksum)), "{read:?}");
    }
}

/// A Blosc frame with blocks larger than its content was decoded if the buffer was large enough, as
/// before another codec. zarrs rejects it.
#[test]
fn blocks_of_blosc_are_not_larger_than_the_content() {
    let blosc = |cname: &str| {
        json!({ "name": "blosc", "configuration": {
            "cname": cname, "clevel": 5, "shuffle": "noshuffle", "typesize": 1, "blocksize": 0,
        } })
    };
    let codecs = json!([little(), blosc("zstd"), blosc("lz4")]);
    let codec = codec(&[1], &codecs, &json!([little()]));
    let shape = shape(&[1]);
    let whole = ArraySubset::new_with_ranges(&[0..1]);
    let mut shard = codec
        .encode(
            ArrayBytes::new_flen(vec![214_u8]),
            &shape,
            &data_type::uint8(),
            &FillValue::from(0_u8),
            &CodecOptions::default(),
        )
        .unwrap()
        .into_owned();
    let read = partial_decode(codec.clone(), shard.clone(), &shape, &whole);
    assert_eq!(read.unwrap(), [214]);
    // The size of a block in the header of the outer frame.
    assert_eq!(shard[8..12], [17, 0, 0, 0]);
    shard[8] = 142;
    let read = partial_decode(codec, shard, &shape, &whole);
    assert!(read.is_err(), "{read:?}");
}

/// Index entries that overlap made a small shard ask for gigabytes.
#[test]
fn overlapping_extents_do_not_multiply() {
    const SUBCHUNKS: usize = 2048;
    let codec = codec(
        &[1],
        &json!([little(), { "name": "zstd", "configuration": { "level": 1, "checksum": false } }]),
        &json!([little()]),
    );
    let mut shard = vec![0_u8; 1 << 20];
    for _ in 0..SUBCHUNKS {
        shard.extend(0_u64.to_le_bytes());
        shard.extend((1_u64 << 20).to_le_bytes());
    }
    let all = ArraySubset::new_with_shape(vec![SUBCHUNKS as u64]);
    let read = partial_decode(codec, shard, &shape(&[SUBCHUNKS as u64]), &all);
    assert!(read.unwrap_err().to_string().contains("expected at most"));
}

/// Index codecs were tested with a shape that a transpose does not fit.
#[test]
fn index_codecs_may_transpose() {
    let order = json!({ "name": "transpose", "configuration": { "order": [2, 0, 1] } });
    let codec = codec(&[2, 2], &json!([little()]), &json!([order, little()]));
    let shape = shape(&[4, 6]);
    let elements: Vec<u8> = (0..24).collect();
    let (data_type, fill_value) = (data_type::uint8(), FillValue::from(0_u8));
    let options = CodecOptions::default();
    let input = ArrayBytes::new_flen(Cow::Borrowed(elements.as_slice()));
    let shard = codec
        .encode(input, &shape, &data_type, &fill_value, &options)
        .unwrap();
    let decoded = codec
        .decode(shard, &shape, &data_type, &fill_value, &options)
        .unwrap();
    assert_eq!(*decoded.into_fixed().unwrap(), *elements);
}

/// A variable-size index codec is rejected when the codec is created.
#[test]
fn index_codecs_may_not_compress() {
    let gzip = json!({ "name": "gzip", "configuration": { "level": 1 } });
    let configuration = serde_json::from_value(json!({
        "chunk_shape": [2], "codecs": [little()], "index_codecs": [little(), gzip],
    }))
    .unwrap();
    let error = CudaShardingCodec::new_with_configuration(&configuration, Options::default());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("variable size"), "{error}");
}

/// Products of huge extents overflowed in functions that zarrs calls before it decodes.
#[test]
fn huge_shapes_are_errors() {
    for (shard, subchunk) in [
        (vec![1 << 61], vec![1 << 61]),
        (vec![1 << 40, 1 << 40], vec![1 << 8, 1 << 8]),
        (vec![u64::MAX], vec![1]),
        (vec![6], vec![4]),
    ] {
        let codec = codec(&subchunk, &json!([little()]), &json!([little()]));
        let shape = shape(&shard);
        let (data_type, fill_value) = (data_type::float64(), FillValue::from(0_f64));
        let options = CodecOptions::default();
        assert!(
            codec
                .encoded_representation(&shape, &data_type, &fill_value)
                .is_err()
        );
        let decoded = codec.decode(
            vec![0; 64].into(),
            &shape,
            &data_type,
            &fill_value,
            &options,
        );
        assert!(decoded.is_err());
        // The result is a number or an error, but no panic.
        let _either = codec.recommended_concurrency(&shape, &data_type);
    }
}

/// A partial decoder needed 24 bytes for a subchunk; zarrs' needs 16.
#[test]
fn a_partial_decoder_holds_as_much_as_that_of_zarrs() {
    let big = json!({ "name": "bytes", "configuration": { "endian": "big" } });
    let transpose = json!({ "name": "transpose", "configuration": { "order": [1, 0] } });
    let crc32c = json!({ "name": "crc32c" });
    for index_codecs in [
        json!([little(), crc32c]),
        json!([big, crc32c, crc32c]),
        json!([transpose, little()]),
    ] {
        let ours = Arc::new(codec(&[2], &json!([little()]), &index_codecs));
        let zarrs = ours.as_any().downcast_ref::<ShardingCodec>().unwrap();
        let zarrs = Arc::new(zarrs.clone());
        let shape = shape(&[200]);
        let (data_type, fill_value) = (data_type::uint8(), FillValue::from(0_u8));
        let options = CodecOptions::default();
        let elements = ArrayBytes::new_flen(vec![1_u8; 200]);
        let shard = ours.encode(elements, &shape, &data_type, &fill_value, &options);
        let shard = shard.unwrap().into_owned();
        let shard_len = shard.len();
        let input: Arc<dyn BytesPartialDecoderTraits> = Arc::new(shard);
        let held = |codec: Arc<dyn ArrayToBytesCodecTraits>| {
            codec
                .partial_decoder(input.clone(), &shape, &data_type, &fill_value, &options)
                .unwrap()
                .size_held()
        };
        assert_eq!(held(ours), shard_len + 16 * 100, "{index_codecs}");
        assert_eq!(held(zarrs), shard_len + 16 * 100, "{index_codecs}");
    }
}

/// With this many subchunks, the index is a separate piece of a write.
#[test]
fn shards_of_many_subchunks_are_updated() {
    const SUBCHUNKS: u64 = 20_000;
    let zstd = json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
    let strategies = [
        WriteStrategy::Auto,
        WriteStrategy::Append,
        WriteStrategy::InPlace,
        WriteStrategy::Slots,
    ];
    for strategy in strategies {
        for location in ["start", "end"] {
            let configuration = serde_json::from_value(json!({
                "chunk_shape": [8],
                "codecs": [little(), zstd],
                "index_codecs": [little(), { "name": "crc32c" }],
                "index_location": location,
            }))
            .unwrap();
            let options = Options::default().with_write_strategy(strategy);
            let ours = CudaShardingCodec::new_with_configuration(&configuration, options).unwrap();
            let zarrs = ShardingCodec::new_with_configuration(&configuration).unwrap();
            let store = Arc::new(MemoryStore::new());
            let len = 8 * SUBCHUNKS;
            let mut builder = ArrayBuilder::new(vec![len], vec![len], data_type::uint8(), 0_u8);
            builder.array_to_bytes_codec(Arc::new(ours));
            let array = builder.build(store.clone(), "/").unwrap();
            let mut expected: Vec<u8> = (0..len).map(|i| 1 + (i / 8 % 100) as u8).collect();
            array.store_chunk(&[0], &expected).unwrap();
            let partially = CodecOptions::default().with_experimental_partial_encoding(true);
            // Two updates of one subchunk, one of two subchunks, and one that makes a whole
            // subchunk empty.
            for (start, values) in [
                (80_000, vec![200_u8]),
                (80_003, vec![201, 202]),
                (159_990, vec![203; 9]),
                (7, vec![204, 205]),
                (800, vec![0; 8]),
                (80_001, vec![206]),
            ] {
                let end = start + values.len() as u64;
                expected[start as usize..end as usize].copy_from_slice(&values);
                let subset = [start..end];
                array
                    .store_chunk_subset_opt(&[0], &subset, values.as_slice(), &partially)
                    .unwrap();
                let read: Vec<u8> = array.retrieve_chunk_subset(&[0], &subset).unwrap();
                assert_eq!(read, values);
            }
            let shard = store.get(&array.chunk_key(&[0])).unwrap().unwrap();
            let decoded = zarrs
                .decode(
                    Cow::Owned(shard.to_vec()),
                    &shape(&[len]),
                    &data_type::uint8(),
                    &FillValue::from(0_u8),
                    &CodecOptions::default(),
                )
                .unwrap();
            let decoded = decoded.into_fixed().unwrap();
            assert!(*decoded == *expected, "{strategy:?} {location}");
        }
    }
}
