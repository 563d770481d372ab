//! Sequences of updates that failed elsewhere.

use std::sync::Arc;

use serde_json::json;
use zarrs::array::{Array, ArrayBytes, FillValue, Indexer, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    ReadableStorageTraits, ReadableWritableStorage, StoreKey, WritableStorageTraits,
};
use zarrs_codec::{ArrayToBytesCodecTraits, StoragePartialEncoder};
use zarrs_cuda::WriteStrategy;

use super::Location;
use super::case::{Case, Element, LOCATIONS, STRATEGIES, Values, chain_named};
use super::step::subset;
use super::subject::{Setting, Subject};
use zarrs_cuda_testing::stores::watched::Watched;

/// Writes subchunks 0, 1 and 2, fills 1 and 2 with the fill value, and writes 3. A partial encoder
/// that then writes less than the object holds leaves the old index at its end.
fn write_fill_write(
    subject: &Subject,
    array: &Array<Watched>,
) -> Result<(Vec<Element>, Vec<Element>), String> {
    let case = &subject.case;
    let mut model = vec![case.fill(); case.num_elements()];
    let writes = [
        (0..1, Values::Any(1)),
        (1..2, Values::Any(3)),
        (2..3, Values::Any(4)),
        (1..3, Values::Fill),
        (3..4, Values::Any(2)),
    ];
    for (subchunks, values) in writes {
        let elements = subchunks.start * 4..subchunks.end * 4;
        let written = values.elements(case, elements.clone().count());
        let bytes = case.to_bytes(&written);
        let subset = subset(&[elements.start as u64..elements.end as u64]);
        model.splice(elements, written);
        array
            .store_chunk_subset_opt(&[0], &subset, bytes, &subject.options())
            .map_err(|error| error.to_string())?;
    }
    let read = subject.stock().retrieve_chunk::<ArrayBytes>(&[0]);
    let read = read.map_err(|error| error.to_string())?;
    Ok((case.parse(read), model))
}

fn case(location: Location) -> Case {
    Case {
        shape: vec![32],
        subchunk: vec![4],
        ..Case::new(chain_named("none"), location)
    }
}

#[test]
fn the_sequence_that_corrupts_shards_of_zarrs() {
    // Shows that the test detects the corruption.
    let subject = Subject::new(&case(Location::End), Setting::default());
    let error = write_fill_write(&subject, subject.stock()).unwrap_err();
    assert!(error.contains("checksum is invalid"), "{error}");

    for location in LOCATIONS {
        for strategy in STRATEGIES {
            let subject = Subject::new(&case(location), Setting::default());
            let (read, model) = write_fill_write(&subject, subject.ours(strategy)).unwrap();
            assert_eq!(read, model, "{strategy:?}, index at the {location:?}");
        }
    }
}

/// zarrs' partial encoder rejects indexers that are not subsets.
#[test]
fn points_that_repeat() {
    let options = zarrs_codec::CodecOptions::default();
    let points = vec![vec![5], vec![30], vec![6], vec![5]];
    let bytes = || ArrayBytes::from([1_u16, 2, 3, 4].map(u16::to_ne_bytes).concat());
    let stock = Subject::new(&case(Location::End), Setting::default());
    let encoder = stock.stock().partial_encoder(&[0], &options).unwrap();
    let refused = encoder.partial_encode(&points, &bytes(), &options);
    assert!(refused.is_err());

    for strategy in STRATEGIES {
        let subject = Subject::new(&case(Location::End), Setting::default());
        let encoder = subject.ours(strategy).partial_encoder(&[0], &options);
        let encoder = encoder.unwrap();
        encoder.partial_encode(&points, &bytes(), &options).unwrap();
        let mut model = vec![9_u16; 32];
        (model[30], model[6], model[5]) = (2, 3, 4);
        let read = subject.stock().retrieve_chunk::<Vec<u16>>(&[0]).unwrap();
        assert_eq!(read, model, "{strategy:?}");
    }
}

/// Empty writes, writes with too many elements, and writes outside of the shard change nothing.
#[test]
fn writes_of_nothing_and_outside() {
    let options = zarrs_codec::CodecOptions::default();
    for strategy in STRATEGIES {
        let subject = Subject::new(&case(Location::End), Setting::default());
        let stored = Values::Any(3).elements(&subject.case, 32);
        let bytes = subject.case.to_bytes(&stored);
        subject.stock().store_chunk(&[0], bytes).unwrap();
        let before = subject.object(0);
        let encoder = subject.ours(strategy).partial_encoder(&[0], &options);
        let encoder = encoder.unwrap();
        let two = || ArrayBytes::from(vec![0_u8; 4]);
        let nothing = subset(&[7..7]);
        let empty = ArrayBytes::from(vec![]);
        encoder.partial_encode(&nothing, &empty, &options).unwrap();
        assert!(encoder.partial_encode(&nothing, &two(), &options).is_err());
        for outside in [subset(&[31..33]), subset(&[32..34])] {
            assert!(encoder.partial_encode(&outside, &two(), &options).is_err());
        }
        let points = vec![vec![0], vec![32]];
        assert!(encoder.partial_encode(&points, &two(), &options).is_err());
        let three = subset(&[0..3]);
        assert!(encoder.partial_encode(&three, &two(), &options).is_err());
        let square = subset(&[0..1, 0..2]);
        assert!(encoder.partial_encode(&square, &two(), &options).is_err());
        assert_eq!(subject.object(0), before, "{strategy:?}");
    }
}

/// The strategy that needs a bound is refused without one, with an error that says so.
#[test]
fn slots_without_a_bound() {
    let case = Case::new(chain_named("no bound"), Location::End);
    let subject = Subject::new(&case, Setting::default());
    let array = subject.ours(WriteStrategy::Slots);
    let subset = subset(&[0..4, 0..4]);
    let options = subject.options();
    let error = array
        .store_chunk_subset_opt(&[0, 0], &subset, vec![1_u16; 16], &options)
        .unwrap_err()
        .to_string();
    let error = error.to_lowercase();
    assert!(
        error.contains("slots") && error.contains("how large"),
        "{error}"
    );
    assert_eq!(subject.object(0), None);
}

/// zarrs' sharding codec writes optional types, but cannot read them. So the stored bytes are
/// compared with the bytes that zarrs would store.
#[test]
fn optional_types() {
    let options = zarrs_codec::CodecOptions::default();
    let mut shards = Case::new(chain_named("none"), Location::End).shards();
    let codecs = &shards.codecs;
    let configuration = json!({ "mask_codecs": codecs, "data_codecs": codecs });
    shards.codecs = vec![json!({ "name": "zarrs.optional", "configuration": configuration })];
    shards.data_type = data_type::optional(data_type::uint8());
    let (shape, data_type) = (shards.chunk_shape(), shards.data_type.clone());
    let fill_value = FillValue::new_optional_null();
    let encode = |elements: &[Option<u8>]| {
        let encoded = shards.stock().encode(
            optional(elements),
            &shape,
            &data_type,
            &fill_value,
            &options,
        );
        encoded.unwrap().into_owned()
    };
    let mut model: Vec<Option<u8>> = (0..96).map(|i| (i % 3 > 0).then_some(i)).collect();
    let store = Arc::new(MemoryStore::new());
    let key = StoreKey::new("shard").unwrap();
    store.set(&key, encode(&model).into()).unwrap();
    let storage: ReadableWritableStorage = store.clone();
    let handle = Arc::new(StoragePartialEncoder::new(storage, key.clone()));
    let encoder = shards
        .ours()
        .partial_encoder(handle, &shape, &data_type, &fill_value, &options)
        .unwrap();

    let row = [Some(1), None, Some(3), Some(4), None, Some(6)];
    let writes: [(Box<dyn Indexer>, &[usize]); 3] = [
        (Box::new(subset(&[2..3, 2..8])), &[26, 27, 28, 29, 30, 31]),
        // A whole subchunk of missing values, and single elements, one of which occurs twice.
        (Box::new(subset(&[4..8, 4..8])), &[]),
        (
            Box::new(vec![vec![7, 11], vec![0, 0], vec![7, 11], vec![3, 3]]),
            &[95, 0, 95, 39],
        ),
    ];
    for (indexer, numbers) in writes {
        let mut elements = row[..numbers.len().min(6)].to_vec();
        for (number, element) in numbers.iter().zip(&elements) {
            model[*number] = *element;
        }
        if numbers.is_empty() {
            elements = vec![None; 16];
            for row in 4..8 {
                model[12 * row + 4..12 * row + 8].fill(None);
            }
        }
        let bytes = optional(&elements);
        encoder.partial_encode(&*indexer, &bytes, &options).unwrap();
        let stored = store.get(&key).unwrap().unwrap();
        let subchunks = |shard: &[u8]| shards.index.subchunks(shard, 6);
        assert_eq!(subchunks(&stored), subchunks(&encode(&model)));
    }
}

fn optional(elements: &[Option<u8>]) -> ArrayBytes<'static> {
    let values: Vec<u8> = elements.iter().map(|e| e.unwrap_or(0)).collect();
    let mask: Vec<u8> = elements.iter().map(|e| u8::from(e.is_some())).collect();
    ArrayBytes::from(values).with_optional_mask(mask)
}

/// zarrs takes a subchunk for empty if the bytes of its strings, concatenated, are repetitions of
/// the fill value.
#[test]
fn strings_that_add_up_to_the_fill_value() {
    let case = Case::new(chain_named("strings"), Location::End);
    for strategy in STRATEGIES {
        if strategy == WriteStrategy::Slots {
            continue; // strings have no bound
        }
        let subject = Subject::new(&case, Setting::default());
        let array = subject.ours(strategy);
        for (column, string) in [(0, ""), (1, "nonenone"), (6, "")] {
            let ranges = subset(&[0..1, column..column + 1]);
            array
                .store_chunk_subset_opt(&[0, 0], &ranges, vec![string], &subject.options())
                .unwrap();
        }
        let read: Vec<String> = subject.stock().retrieve_chunk(&[0, 0]).unwrap();
        assert_eq!([&read[0], &read[1], &read[6]], ["", "nonenone", ""]);
        assert!(read.iter().skip(7).all(|string| string == "none"));
    }
}

/// zarrs' shards grow with every write. Ours reuse unused bytes where that is safe. An update then
/// grows the shard by a record and an index at most.
#[test]
fn unused_bytes_are_used_again() {
    const UPDATES: usize = 40;
    for location in LOCATIONS {
        let case = Case {
            shape: vec![512],
            subchunk: vec![128],
            ..Case::new(chain_named("zstd"), location)
        };
        let index = case.index.size(4);
        let grown = |strategy| {
            let subject = Subject::new(&case, Setting::default());
            let stored = Values::Any(0).elements(&case, 512);
            let bytes = case.to_bytes(&stored);
            subject.stock().store_chunk(&[0], bytes).unwrap();
            let before = subject.object(0).unwrap().len();
            for seed in 0..UPDATES {
                let bytes = case.to_bytes(&Values::Any(seed as u64).elements(&case, 128));
                subject
                    .ours(strategy)
                    .store_chunk_subset_opt(&[0], &subset(&[128..256]), bytes, &subject.options())
                    .unwrap();
            }
            subject.object(0).unwrap().len() - before
        };
        // The values are incompressible: 256 bytes, and a frame around them.
        let data = 256;
        assert!(grown(WriteStrategy::Append) >= UPDATES * (64 + index + data));
        let auto = grown(WriteStrategy::Auto);
        let most = match location {
            Location::Start => 0,
            Location::End => UPDATES * (64 + index),
        };
        assert!(
            auto <= most + 4 * data,
            "{auto} bytes, index at the {location:?}"
        );
        assert_eq!(grown(WriteStrategy::InPlace), 0);
    }
}
