//! Data types that zarrs' own sharding codec handles: variable-length ones work, optional ones give
//! zarrs' own error.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use zarrs::array::{Array, ArrayBuilder, ArraySubset, DataType, FillValue, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_cuda::{CudaShardingCodecBuilder, explain};

/// The same array twice on one store: through our codec, and through zarrs'.
fn pair(data_type: &DataType, fill_value: FillValue) -> (Array<MemoryStore>, Array<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    let subchunk = vec![2.try_into().unwrap(); 2];
    let codec = CudaShardingCodecBuilder::new(subchunk, data_type)
        .build_arc()
        .unwrap();
    let builder = || {
        ArrayBuilder::new(
            vec![8, 8],
            vec![4, 4],
            data_type.clone(),
            fill_value.clone(),
        )
    };
    let ours = builder()
        .array_to_bytes_codec(codec)
        .build(store.clone(), "/array")
        .unwrap();
    let zarrs = builder()
        .subchunk_shape(vec![2, 2])
        .build(store, "/array")
        .unwrap();
    assert_eq!(
        serde_json::to_string(ours.metadata()).unwrap(),
        serde_json::to_string(zarrs.metadata()).unwrap()
    );
    (ours, zarrs)
}

/// Strings of different lengths; some subchunks of one shard are empty.
fn strings() -> Vec<String> {
    (0..64)
        .map(|i| match i % 8 {
            0..2 => String::new(),
            n => "ñ".repeat(n) + &i.to_string(),
        })
        .collect()
}

#[test]
fn strings_go_both_ways() {
    let (ours, zarrs) = pair(&data_type::string(), FillValue::from(""));
    let (elements, all) = (strings(), ArraySubset::new_with_shape(vec![8, 8]));
    for (writer, reader) in [(&ours, &zarrs), (&zarrs, &ours), (&ours, &ours)] {
        writer
            .erase_chunks(&ArraySubset::new_with_shape(vec![2, 2]))
            .unwrap();
        writer.store_array_subset(&all, &elements).unwrap();
        let read: Vec<String> = reader.retrieve_array_subset(&all).unwrap();
        assert_eq!(read, elements);
        let part = ArraySubset::new_with_ranges(&[1..6, 3..7]);
        let read: Vec<String> = reader.retrieve_array_subset(&part).unwrap();
        let expected: Vec<String> = (1..6)
            .flat_map(|i| (3..7).map(move |j| (i, j)))
            .map(|(i, j)| elements[i * 8 + j].clone())
            .collect();
        assert_eq!(read, expected);
    }
    // Part of a shard.
    let changed = ArraySubset::new_with_ranges(&[2..5, 2..5]);
    let words = vec!["changed".to_string(); 9];
    ours.store_array_subset(&changed, &words).unwrap();
    let read: Vec<String> = zarrs.retrieve_array_subset(&changed).unwrap();
    assert_eq!(read, words);
}

#[test]
fn bytes_go_both_ways() {
    let (ours, zarrs) = pair(&data_type::bytes(), FillValue::new(vec![]));
    let elements: Vec<Vec<u8>> = (0..16_u8).map(|i| vec![i; usize::from(i % 5)]).collect();
    for (writer, reader) in [(&ours, &zarrs), (&zarrs, &ours)] {
        writer.store_chunk(&[1, 0], &elements).unwrap();
        let read: Vec<Vec<u8>> = reader.retrieve_chunk(&[1, 0]).unwrap();
        assert_eq!(read, elements);
    }
}

#[test]
fn equal_strings_give_equal_shards() {
    let shard = || {
        let (ours, _) = pair(&data_type::string(), FillValue::from(""));
        let all = ArraySubset::new_with_shape(vec![8, 8]);
        ours.store_array_subset(&all, &strings()).unwrap();
        ours.retrieve_encoded_chunk(&[1, 1]).unwrap().unwrap()
    };
    let first = shard();
    assert!((0..20).all(|_| shard() == first));
}

#[test]
fn the_plan_says_who_does_it() {
    let (ours, _) = pair(&data_type::string(), FillValue::from(""));
    let explanation = explain(&ours).unwrap();
    assert_eq!(explanation.engine, "zarrs");
    assert_eq!(explanation.subchunk_bytes, None);
}

/// A shard of strings whose index points outside is an error, where zarrs' decoder would panic.
#[test]
fn a_hostile_index_is_an_error() {
    let (ours, _) = pair(&data_type::string(), FillValue::from(""));
    ours.store_chunk(&[0, 0], &strings()[..16]).unwrap();
    let shard = ours.retrieve_encoded_chunk(&[0, 0]).unwrap().unwrap();
    let index = shard.len() - 4 * 16 - 4;
    for word in 0..8 {
        let mut hostile = shard.to_vec();
        hostile[index + 8 * word..index + 8 * word + 8]
            .copy_from_slice(&(u64::MAX - 1).to_le_bytes());
        let checksum = crc32c::crc32c(&hostile[index..index + 64]);
        hostile[index + 64..].copy_from_slice(&checksum.to_le_bytes());
        // SAFETY: these are no bytes that the array would write; that is the point.
        #[allow(unsafe_code)]
        unsafe {
            ours.store_encoded_chunk(&[0, 0], hostile.into()).unwrap();
        }
        assert!(ours.retrieve_chunk::<Vec<String>>(&[0, 0]).is_err());
        let part = ArraySubset::new_with_ranges(&[0..3, 0..3]);
        assert!(
            ours.retrieve_chunk_subset::<Vec<String>>(&[0, 0], &part)
                .is_err()
        );
    }
}

#[test]
fn optional_types_give_zarrs_error() {
    let data_type = data_type::uint16().to_optional();
    let (ours, zarrs) = pair(&data_type, FillValue::from(None::<u16>));
    let elements: Vec<Option<u16>> = (0..16).map(|i| (i % 3 > 0).then_some(i)).collect();
    let error = |array: &Array<MemoryStore>| {
        array
            .store_chunk(&[0, 0], &elements)
            .map_err(|error| error.to_string())
    };
    assert_eq!(error(&ours), error(&zarrs));
    let read = |array: &Array<MemoryStore>| {
        array
            .retrieve_chunk::<Vec<Option<u16>>>(&[0, 0])
            .map_err(|error| error.to_string())
    };
    assert_eq!(read(&ours), read(&zarrs));
}
