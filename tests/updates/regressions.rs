//! Sequences that went wrong elsewhere.

use std::sync::Arc;

use serde_json::json;
use zarrs::array::{Array, ArrayBytes, FillValue, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ReadableStorageTraits, ReadableWritableStorage, StoreKey, WritableStorageTraits,
};
use zarrs_codec::{ArrayToBytesCodecTraits, StoragePartialEncoder};
use zarrs_cuda::WriteStrategy;

use crate::Location;
use crate::case::{Case, Element, LOCATIONS, STRATEGIES, Values, chain_named};
use crate::common::watched::Watched;
use crate::step::subset;
use crate::subject::{Setting, Subject};

/// Write subchunks 0, 1 and 2, fill 1 and 2 with the fill value, and write 3: a partial encoder that
/// then writes less than the object has leaves the old index as its end.
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
    Ok((case.from_bytes(read), model))
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
    // So that it is known that this finds it.
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

/// zarrs' partial encoder refuses indexers that are not subsets.
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

/// A write of nothing, of too much and of what lies outside changes nothing.
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

/// The strategy that needs a bound is refused where there is none, in words that say so.
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
    assert!(error.contains("slots") && error.contains("bound"), "{error}");
    assert_eq!(subject.object(0), None);
}

/// zarrs' sharding writes optional types, and does not read them: parts of them cannot be changed.
#[test]
fn optional_types_cannot_be_updated() {
    let options = zarrs_codec::CodecOptions::default();
    let mut shards = Case::new(chain_named("none"), Location::End).shards();
    let codecs = &shards.codecs;
    let configuration = json!({ "mask_codecs": codecs, "data_codecs": codecs });
    shards.codecs = vec![json!({ "name": "zarrs.optional", "configuration": configuration })];
    shards.data_type = data_type::optional(data_type::uint8());
    let fill_value = FillValue::new_optional_null();
    let stored = shards.stock().encode(
        ArrayBytes::from(vec![1; 96]).with_optional_mask(vec![1; 96]),
        &shards.chunk_shape(),
        &shards.data_type,
        &fill_value,
        &options,
    );
    let stored: Bytes = stored.unwrap().into_owned().into();
    let store = Arc::new(MemoryStore::new());
    let key = StoreKey::new("shard").unwrap();
    store.set(&key, stored.clone()).unwrap();
    let storage: ReadableWritableStorage = store.clone();
    let encoder = shards.ours().partial_encoder(
        Arc::new(StoragePartialEncoder::new(storage, key.clone())),
        &shards.chunk_shape(),
        &shards.data_type,
        &fill_value,
        &options,
    );
    let written = encoder.and_then(|encoder| {
        let bytes = ArrayBytes::from(vec![1; 6]).with_optional_mask(vec![1; 6]);
        encoder.partial_encode(&subset(&[0..2, 0..3]), &bytes, &options)
    });
    assert!(written.is_err());
    assert_eq!(store.get(&key).unwrap(), Some(stored));
}
