//! Data types whose elements have no fixed size. zarrs' own codec, inside ours, encodes and decodes
//! them. Strings and bytes can be written and read. Optional types are rejected with zarrs' error.

use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::codec::{ShardingCodecOptions, ShardingIndexLocation, SubchunkWriteOrder};
use zarrs::array::{
    Array, ArrayBuilder, ArrayBytes, ArraySubset, DataType, Element, FillValue, Indexer, data_type,
};
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{ReadableStorageTraits, StoreKey, WritableStorageTraits};
use zarrs_codec::{
    ArrayPartialEncoderTraits, ArrayToBytesCodecTraits, CodecError, CodecOptions,
    CodecSpecificOptions, StoragePartialEncoder,
};
use zarrs_cuda::{Backend, CudaShardingCodec, Options};

use zarrs_cuda_testing::index::{EMPTY, IndexLayout};
use zarrs_cuda_testing::{Shards, codecs};

/// Shards of 4 × 6 elements of a type of any kind.
fn shards(data_type: DataType, codecs: Vec<Value>, index: IndexLayout) -> Shards {
    Shards {
        shape: vec![4, 6],
        subchunk: vec![2, 3],
        data_type,
        fill: b"none".to_vec(),
        codecs,
        index,
    }
}

/// Shards of strings and of bytes, with and without a compressor, and with the index at either end.
fn variable() -> Vec<Shards> {
    let start = IndexLayout {
        location: ShardingIndexLocation::Start,
        big_endian: true,
        checksum: false,
    };
    let mut all = Vec::new();
    for index in [IndexLayout::default(), start] {
        for (data_type, name) in [
            (data_type::string(), "vlen-utf8"),
            (data_type::bytes(), "vlen-bytes"),
        ] {
            let vlen = json!({ "name": name });
            let zstd = codecs::zstd(1, true);
            all.push(shards(data_type.clone(), vec![vlen.clone()], index));
            all.push(shards(data_type, vec![vlen, zstd], index));
        }
    }
    all
}

/// Elements of several lengths, some of them empty. The second and the last subchunk are empty.
fn elements() -> Vec<Vec<u8>> {
    zarrs_cuda_testing::all_indices(&[4, 6])
        .map(|i| match (i[0] / 2, i[1] / 3) {
            (0 | 1, 1) => b"none".to_vec(),
            _ => {
                "abcdefghi".repeat(3).into_bytes()[..usize::try_from(i[0] * i[1]).unwrap()].to_vec()
            }
        })
        .collect()
}

fn to_array_bytes(elements: &[Vec<u8>]) -> ArrayBytes<'static> {
    Vec::<u8>::into_array_bytes(&data_type::bytes(), elements.to_vec()).unwrap()
}

fn from_array_bytes(bytes: ArrayBytes<'_>) -> Result<Vec<Vec<u8>>, CodecError> {
    let (bytes, offsets) = bytes.into_variable()?.into_parts();
    let elements = offsets
        .windows(2)
        .map(|pair| bytes[pair[0]..pair[1]].to_vec());
    Ok(elements.collect())
}

fn encode(shards: &Shards, codec: &dyn ArrayToBytesCodecTraits) -> Result<Vec<u8>, CodecError> {
    encode_elements(shards, codec, &elements())
}

fn encode_elements(
    shards: &Shards,
    codec: &dyn ArrayToBytesCodecTraits,
    elements: &[Vec<u8>],
) -> Result<Vec<u8>, CodecError> {
    let encoded = codec.encode(
        to_array_bytes(elements),
        &shards.chunk_shape(),
        &shards.data_type,
        &shards.fill_value(),
        &CodecOptions::default(),
    );
    encoded.map(std::borrow::Cow::into_owned)
}

fn decode(
    shards: &Shards,
    codec: &dyn ArrayToBytesCodecTraits,
    encoded: &[u8],
) -> Result<Vec<Vec<u8>>, CodecError> {
    from_array_bytes(codec.decode(
        encoded.into(),
        &shards.chunk_shape(),
        &shards.data_type,
        &shards.fill_value(),
        &CodecOptions::default(),
    )?)
}

fn partial_decode(
    shards: &Shards,
    codec: Arc<dyn ArrayToBytesCodecTraits>,
    encoded: &[u8],
    indexer: &dyn Indexer,
) -> Result<Vec<Vec<u8>>, CodecError> {
    let options = CodecOptions::default();
    let decoder = codec.partial_decoder(
        Arc::new(encoded.to_vec()),
        &shards.chunk_shape(),
        &shards.data_type,
        &shards.fill_value(),
        &options,
    )?;
    assert_eq!(decoder.data_type().size(), shards.data_type.size());
    assert!(decoder.exists().unwrap() && decoder.supports_partial_decode());
    from_array_bytes(decoder.partial_decode(indexer, &options)?)
}

fn async_partial_decode(
    shards: &Shards,
    codec: Arc<dyn ArrayToBytesCodecTraits>,
    encoded: &[u8],
    indexer: &dyn Indexer,
) -> Result<Vec<Vec<u8>>, CodecError> {
    let options = CodecOptions::default();
    futures::executor::block_on(async {
        let decoder = codec
            .async_partial_decoder(
                Arc::new(encoded.to_vec()),
                &shards.chunk_shape(),
                &shards.data_type,
                &shards.fill_value(),
                &options,
            )
            .await?;
        assert_eq!(decoder.data_type().size(), shards.data_type.size());
        assert!(decoder.exists().await.unwrap() && decoder.supports_partial_decode());
        from_array_bytes(decoder.partial_decode(indexer, &options).await?)
    })
}

fn slice(indexer: &dyn Indexer) -> Vec<Vec<u8>> {
    let elements = elements();
    let indices = indexer.iter_indices();
    indices
        .map(|i| elements[usize::try_from(i[0] * 6 + i[1]).unwrap()].clone())
        .collect()
}

/// Our codec writes the same bytes as zarrs', and each reads the other's shards, whole and in
/// parts.
#[test]
fn strings_and_bytes() {
    for shards in variable() {
        let (ours, stock) = (shards.ours(), shards.stock());
        let by_ours = encode(&shards, ours.as_ref()).unwrap();
        assert_eq!(by_ours, encode(&shards, stock.as_ref()).unwrap());
        let entries = shards.index.entries(&by_ours, 4);
        assert_eq!(entries.iter().filter(|entry| **entry == EMPTY).count(), 2);
        assert_eq!(
            decode(&shards, ours.as_ref(), &by_ours).unwrap(),
            elements()
        );
        assert_eq!(
            decode(&shards, stock.as_ref(), &by_ours).unwrap(),
            elements()
        );

        let indexers: [Box<dyn Indexer>; 4] = [
            Box::new(ArraySubset::new_with_ranges(&[0..4, 0..6])),
            Box::new(ArraySubset::new_with_ranges(&[1..3, 1..5])),
            Box::new(ArraySubset::new_with_ranges(&[0..2, 4..6])),
            // Only in nonempty subchunks: zarrs cannot find single elements in empty ones.
            Box::new(vec![vec![3, 1], vec![0, 0], vec![1, 2], vec![3, 1]]),
        ];
        for indexer in &indexers {
            let indexer = indexer.as_ref();
            let expected = slice(indexer);
            let part = partial_decode(&shards, ours.clone(), &by_ours, indexer);
            assert_eq!(part.unwrap(), expected);
            let part = async_partial_decode(&shards, ours.clone(), &by_ours, indexer);
            assert_eq!(part.unwrap(), expected);
        }
    }
}

/// A shard with gaps is compacted to the same bytes as by zarrs.
#[test]
fn compacting() {
    let options = CodecOptions::default();
    for shards in variable() {
        let (ours, stock) = (shards.ours(), shards.stock());
        let encoded = encode(&shards, ours.as_ref()).unwrap();
        let subchunks = shards.index.subchunks(&encoded, 4);
        let gaps = subchunks.into_iter().map(|bytes| (3, bytes));
        let with_gaps = shards.index.shard(&gaps.collect::<Vec<_>>());
        let compact = |codec: &dyn ArrayToBytesCodecTraits, encoded: &[u8]| {
            let compacted = codec.compact(
                encoded.to_vec().into(),
                &shards.chunk_shape(),
                &shards.data_type,
                &shards.fill_value(),
                &options,
            );
            compacted.unwrap().map(std::borrow::Cow::into_owned)
        };
        assert_eq!(
            compact(ours.as_ref(), &with_gaps),
            compact(stock.as_ref(), &with_gaps)
        );
        assert_eq!(compact(ours.as_ref(), &with_gaps), Some(encoded.clone()));
        assert_eq!(compact(ours.as_ref(), &encoded), None);
    }
}

/// Our partial encoder of the shard at `key`.
fn partial_encoder(
    shards: &Shards,
    store: &Arc<MemoryStore>,
    key: &StoreKey,
) -> Arc<dyn ArrayPartialEncoderTraits> {
    let storage: zarrs::storage::ReadableWritableStorage = store.clone();
    shards
        .ours()
        .partial_encoder(
            Arc::new(StoragePartialEncoder::new(storage, key.clone())),
            &shards.chunk_shape(),
            &shards.data_type,
            &shards.fill_value(),
            &CodecOptions::default(),
        )
        .unwrap()
}

/// Partial writes of elements that are longer or shorter than the old ones.
#[test]
fn partial_encoding() {
    let options = CodecOptions::default();
    for shards in variable() {
        let store = Arc::new(MemoryStore::new());
        let key = StoreKey::new("shard").unwrap();
        let encoder = partial_encoder(&shards, &store, &key);
        let mut model = vec![b"none".to_vec(); 24];
        for (rows, columns, element) in [
            (0..4, 0..6, "a rather long element"),
            (1..3, 2..5, ""),
            (0..2, 0..3, "none"),
            (3..4, 5..6, "x"),
            (0..4, 0..6, "none"),
        ] {
            let subset = ArraySubset::new_with_ranges(&[rows, columns]);
            for i in subset.indices() {
                model[usize::try_from(i[0] * 6 + i[1]).unwrap()] = element.into();
            }
            let written = vec![element.into(); subset.num_elements_usize()];
            let written = to_array_bytes(&written);
            encoder.partial_encode(&subset, &written, &options).unwrap();
            match store.get(&key).unwrap() {
                Some(stored) => {
                    let stock = shards.stock();
                    assert_eq!(decode(&shards, stock.as_ref(), &stored).unwrap(), model);
                }
                None => assert_eq!(model, vec![b"none".to_vec(); 24]),
            }
        }
    }
}

/// The strings "aa" and "" have the same bytes as "a" twice, but are different elements. zarrs'
/// codec takes them for the fill value; ours does not, whole or in part.
#[test]
fn strings_that_add_up_to_fill_values() {
    let options = CodecOptions::default();
    let vlen = vec![json!({ "name": "vlen-utf8" })];
    let shards = Shards {
        fill: b"a".to_vec(),
        ..shards(data_type::string(), vlen, IndexLayout::default())
    };
    let mut model = vec![b"a".to_vec(); 24];
    model[..2].clone_from_slice(&[b"aa".to_vec(), vec![]]);
    let encoded = encode_elements(&shards, shards.stock().as_ref(), &model).unwrap();
    let decoded = decode(&shards, shards.stock().as_ref(), &encoded).unwrap();
    assert_eq!(decoded, vec![b"a".to_vec(); 24], "zarrs has changed");
    let encoded = encode_elements(&shards, shards.ours().as_ref(), &model).unwrap();
    assert_eq!(
        decode(&shards, shards.stock().as_ref(), &encoded).unwrap(),
        model
    );

    let store = Arc::new(MemoryStore::new());
    let key = StoreKey::new("shard").unwrap();
    let encoder = partial_encoder(&shards, &store, &key);
    let subset = ArraySubset::new_with_ranges(&[0..1, 0..2]);
    let written = to_array_bytes(&model[..2]);
    encoder.partial_encode(&subset, &written, &options).unwrap();
    let stored = store.get(&key).unwrap().unwrap();
    assert_eq!(
        decode(&shards, shards.stock().as_ref(), &stored).unwrap(),
        model
    );
}

/// Arrays of strings, written and read with both codecs.
#[test]
fn arrays_of_strings() {
    for shards in variable() {
        let is_string = shards.codecs[0]["name"] == "vlen-utf8";
        if !is_string {
            continue;
        }
        let build = |codec: Arc<dyn ArrayToBytesCodecTraits>, store: &Arc<MemoryStore>| {
            ArrayBuilder::new(vec![7, 9], vec![4, 6], data_type::string(), "none")
                .array_to_bytes_codec(codec)
                .build(store.clone(), "/array")
                .unwrap()
        };
        let write = |array: &Array<MemoryStore>, seed: usize| {
            let strings: Vec<String> = (0..63).map(|i| "ab".repeat(i * seed % 5)).collect();
            array
                .store_array_subset(&array.subset_all(), strings.as_slice())
                .unwrap();
            let part = vec!["part".to_string(); 12];
            array
                .store_array_subset(&[2..6, 4..7], part.as_slice())
                .unwrap();
        };
        let read = |array: &Array<MemoryStore>| {
            let all = array.retrieve_array_subset::<Vec<String>>(&array.subset_all());
            let part = array.retrieve_array_subset::<Vec<String>>(&[1..5, 3..8]);
            let chunk = array.retrieve_chunk::<Vec<String>>(&[1, 1]);
            (all.unwrap(), part.unwrap(), chunk.unwrap())
        };
        let stores = [MemoryStore::new(), MemoryStore::new()].map(Arc::new);
        for (seed, store) in (2..).zip(&stores) {
            let (ours, stock) = (build(shards.ours(), store), build(shards.stock(), store));
            let [writer, reader] = if seed == 2 {
                [&ours, &stock]
            } else {
                [&stock, &ours]
            };
            write(writer, seed);
            assert_eq!(read(reader), read(writer));
            assert_eq!(read(reader).0[2 * 9 + 4], "part");
        }
    }
}

/// The explanation says that zarrs does the work.
#[test]
fn explained() {
    for shards in variable() {
        let (shape, fill_value) = (shards.chunk_shape(), shards.fill_value());
        let explanation = shards
            .ours()
            .explain(&shape, &shards.data_type, &fill_value);
        let text = explanation.unwrap().to_string();
        assert!(
            text.contains("zarrs") && text.contains("no fixed size"),
            "{text}"
        );
    }
}

/// zarrs' own codec handles these types. A request for a device fails with an error that says so.
#[test]
fn a_device_is_no_place_for_them() {
    for shards in variable() {
        let options = Options::default().with_backend(Backend::Cuda);
        let is_usable = zarrs_cuda::check_backend(&options).is_ok();
        let cuda = CudaShardingCodec::clone(&shards.ours()).with_options(options);
        let encoded = encode(&shards, shards.ours().as_ref()).unwrap();
        for error in [
            encode(&shards, &cuda).unwrap_err(),
            decode(&shards, &cuda, &encoded).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(
                text.contains("the CUDA backend cannot be used") && text.contains("no fixed size"),
                "{text}"
            );
        }
        let part = ArraySubset::new_with_ranges(&[1..3, 1..5]);
        let read = partial_decode(&shards, Arc::new(cuda), &encoded, &part);
        if is_usable {
            assert_eq!(read.unwrap(), slice(&part));
        } else {
            let text = read.unwrap_err().to_string();
            assert!(text.contains("the CUDA backend cannot be used"), "{text}");
        }
    }
}

/// Neither zarrs nor our codec can read shards of optional types. The errors are the same.
#[test]
fn optional_types() {
    for (data_type, data) in [
        (data_type::uint8(), ArrayBytes::from(vec![1; 24])),
        (data_type::string(), to_array_bytes(&elements())),
    ] {
        let optional = data_type::optional(data_type.clone());
        let mut shards = shards(optional.clone(), vec![], IndexLayout::default());
        let mask = json!([{ "name": "packbits", "configuration": {} }]);
        let inner = if data_type.is_fixed() {
            codecs::bytes("little")
        } else {
            json!({ "name": "vlen-utf8" })
        };
        let configuration = json!({ "mask_codecs": mask, "data_codecs": [inner] });
        shards.codecs = vec![json!({ "name": "zarrs.optional", "configuration": configuration })];
        let fill_value = FillValue::new_optional_null();
        let options = CodecOptions::default();
        let shape = shards.chunk_shape();

        let outcomes = |codec: Arc<dyn ArrayToBytesCodecTraits>| {
            let bytes = data.clone().with_optional_mask(vec![1; 24]);
            let encoded = codec.encode(bytes, &shape, &optional, &fill_value, &options);
            let encoded = encoded.map(std::borrow::Cow::into_owned);
            // An empty shard.
            let shard = shards.index.encode(&[EMPTY; 4]);
            let decoded = codec.decode((&shard).into(), &shape, &optional, &fill_value, &options);
            let decoder = codec.clone().partial_decoder(
                Arc::new(shard.clone()),
                &shape,
                &optional,
                &fill_value,
                &options,
            );
            let decoder = decoder.unwrap();
            let subset = ArraySubset::new_with_ranges(&[0..1, 0..1]);
            let part = decoder.partial_decode(&subset, &options);
            (
                encoded.map_err(|error| error.to_string()),
                decoded.unwrap_err().to_string(),
                part.unwrap_err().to_string(),
            )
        };
        assert_eq!(outcomes(shards.ours()), outcomes(shards.stock()));
    }
}

/// zarrs' sharding options reach the codec that does the work. It still writes in C order.
#[test]
fn zarrs_options_for_sharding() {
    for shards in variable() {
        let order = SubchunkWriteOrder::Unordered;
        let options = ShardingCodecOptions::default().with_subchunk_write_order(order);
        let options = CodecSpecificOptions::default().with_option(options);
        let ours: Arc<dyn ArrayToBytesCodecTraits> = shards.ours();
        let unordered = ours.with_codec_specific_options(&options);
        for _ in 0..5 {
            let encoded = encode(&shards, unordered.as_ref()).unwrap();
            assert_eq!(encoded, encode(&shards, shards.stock().as_ref()).unwrap());
        }
    }
}

/// A missing shard reads as the fill value.
#[test]
fn a_missing_shard() {
    let options = CodecOptions::default();
    for shards in variable() {
        let key = StoreKey::new("shard").unwrap();
        let subset = ArraySubset::new_with_ranges(&[1..3, 1..3]);
        let store = MemoryStore::new();
        store
            .set(&StoreKey::new("other").unwrap(), vec![].into())
            .unwrap();
        let input = zarrs_codec::StoragePartialDecoder::new(Arc::new(store), key.clone());
        let decoder = shards
            .ours()
            .partial_decoder(
                Arc::new(input),
                &shards.chunk_shape(),
                &shards.data_type,
                &shards.fill_value(),
                &options,
            )
            .unwrap();
        let decoded = decoder.partial_decode(&subset, &options).unwrap();
        assert_eq!(
            from_array_bytes(decoded).unwrap(),
            vec![b"none".to_vec(); 4]
        );

        futures::executor::block_on(async {
            let store = Arc::new(AsyncMemoryStore::new());
            let input = zarrs_codec::AsyncStoragePartialDecoder::new(store, key);
            let decoder = shards
                .ours()
                .async_partial_decoder(
                    Arc::new(input),
                    &shards.chunk_shape(),
                    &shards.data_type,
                    &shards.fill_value(),
                    &options,
                )
                .await
                .unwrap();
            let decoded = decoder.partial_decode(&subset, &options).await.unwrap();
            assert_eq!(
                from_array_bytes(decoded).unwrap(),
                vec![b"none".to_vec(); 4]
            );
        });
    }
}
