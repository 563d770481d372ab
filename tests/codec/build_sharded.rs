//! `build_sharded`, compared with `ArrayBuilder::build`.

use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::chunk_key_encoding::V2ChunkKeyEncoding;
use zarrs::array::codec::{
    Crc32cCodec, ShardingCodecBuilder, TransposeCodec, TransposeOrder, ZstdCodec,
};
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_codec::CodecSpecificOptions;
use zarrs_cuda::{Options, WriteStrategy, build_sharded, explain};

fn builder() -> ArrayBuilder {
    ArrayBuilder::new(vec![20, 24], vec![8, 12], data_type::uint16(), 7_u16)
}

/// A builder with everything that a builder may have.
fn everything() -> ArrayBuilder {
    let mut builder = builder();
    builder
        .subchunk_shape(vec![4, 6])
        .array_to_array_codecs(vec![transposed()])
        .bytes_to_bytes_codecs(vec![
            Arc::new(ZstdCodec::new(3, true)),
            Arc::new(Crc32cCodec::new()),
        ])
        .attributes(serde_json::Map::from_iter([("unit".into(), "K".into())]))
        .dimension_names(Some(["y", "x"]))
        .chunk_key_encoding(V2ChunkKeyEncoding::new_dot());
    builder
}

fn transposed() -> Arc<TransposeCodec> {
    Arc::new(TransposeCodec::new(TransposeOrder::new(&[1, 0]).unwrap()))
}

/// Codecs around shards and inside of them, as only a codec that is given can be.
fn given() -> ArrayBuilder {
    let four = vec![NonZeroU64::new(4).unwrap(); 2];
    let mut sharding = ShardingCodecBuilder::new(four, &data_type::uint16());
    sharding.bytes_to_bytes_codecs(vec![Arc::new(ZstdCodec::new(1, false))]);
    let mut builder = builder();
    builder
        .array_to_array_codecs(vec![transposed()])
        .array_to_bytes_codec(sharding.build_arc())
        .bytes_to_bytes_codecs(vec![Arc::new(Crc32cCodec::new())]);
    builder
}

#[test]
fn an_array_has_all_that_the_builder_has() {
    for make in [everything, given] {
        let (theirs, ours) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
        let expected = make().build(theirs.clone(), "/a").unwrap();
        let array = build_sharded(make(), ours.clone(), "/a").unwrap();
        assert_eq!(array.metadata(), expected.metadata());
        assert!(explain(&array).is_ok() && explain(&expected).is_err());
        array.store_metadata().unwrap();
        let elements: Vec<u16> = (0..20 * 24).collect();
        array
            .store_array_subset(&array.subset_all(), &elements)
            .unwrap();
        // Zarrs' own codec reads the array, from the metadata that were stored.
        let again = Array::open(ours, "/a").unwrap();
        assert!(explain(&again).is_err());
        let read: Vec<u16> = again.retrieve_array_subset(&again.subset_all()).unwrap();
        assert_eq!(read, elements);
    }
}

#[test]
fn options_of_the_builder_are_the_codec_s() {
    let options = Options::default().with_write_strategy(WriteStrategy::Append);
    let mut builder = everything();
    builder.codec_specific_options(CodecSpecificOptions::default().with_option(options));
    let said = |builder| {
        let array = build_sharded(builder, Arc::new(MemoryStore::new()), "/a").unwrap();
        explain(&array).unwrap().to_string()
    };
    assert_ne!(said(builder), said(everything()));
}

#[test]
fn an_array_without_shards_is_refused() {
    let error = build_sharded(builder(), Arc::new(MemoryStore::new()), "/a").unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("/a is not sharded") && said.contains("subchunk_shape"),
        "{said}"
    );
}
