//! Partial encoders of one process on one shard, in every order in which the calls of their store can
//! take effect. They begin where there is no shard, or where there is one.
//!
//! The store is like zarrs' store in memory: each range of one write takes effect by itself.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use zarrs::array::{ArrayBytes, ArrayBytesRaw, ArraySubset, DataType, FillValue, data_type};
use zarrs_codec::{
    ArrayToBytesCodecTraits, AsyncBytesPartialDecoderTraits, AsyncBytesPartialEncoderTraits,
    CodecError, CodecOptions,
};
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{OffsetBytesIterator, StorageError};

use super::*;
use crate::codec::CudaShardingCodec;
use crate::options::{Options, WriteStrategy};

/// Elements of a subchunk.
const LEN: u64 = 2;
/// Subchunks of a shard.
const SUBCHUNKS: u64 = 3;

/// Tests run at the same time, and their shards have the same names for turns: an encoder must not wait
/// for one of another exploration.
static EXPLORING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    EXPLORING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key() -> StoreKey {
    StoreKey::new("shard").unwrap()
}

/// A shard of the store, as zarrs gives it to a codec.
struct Handle(Seat);

#[async_trait::async_trait]
impl AsyncBytesPartialDecoderTraits for Handle {
    async fn exists(&self) -> std::result::Result<bool, StorageError> {
        Ok(self.0.size(&key()).await?.is_some())
    }

    fn size_held(&self) -> usize {
        0
    }

    async fn partial_decode_many<'a>(
        &'a self,
        ranges: ByteRangeIterator<'a>,
        _: &CodecOptions,
    ) -> std::result::Result<Option<Vec<ArrayBytesRaw<'a>>>, CodecError> {
        let read = self.0.get_ranges(&key(), ranges.collect()).await?;
        let owned = |bytes: Bytes| Cow::Owned(bytes.to_vec());
        Ok(read.map(|read| read.into_iter().map(owned).collect()))
    }

    fn supports_partial_decode(&self) -> bool {
        true
    }
}

#[async_trait::async_trait]
impl AsyncBytesPartialEncoderTraits for Handle {
    fn into_dyn_decoder(self: Arc<Self>) -> Arc<dyn AsyncBytesPartialDecoderTraits> {
        self
    }

    async fn erase(&self) -> std::result::Result<(), CodecError> {
        Ok(self.0.erase(&key()).await?)
    }

    async fn partial_encode_many<'a>(
        &'a self,
        ranges: OffsetBytesIterator<'a, ArrayBytesRaw<'_>>,
        _: &CodecOptions,
    ) -> std::result::Result<(), CodecError> {
        let ranges: Vec<_> = ranges
            .map(|(offset, bytes)| (offset, Bytes::from(bytes.into_owned())))
            .collect();
        for range in ranges {
            self.0.set_ranges(&key(), vec![range]).await?;
        }
        Ok(())
    }

    fn supports_partial_encode(&self) -> bool {
        true
    }
}

/// Shards of `uint8`, of three subchunks.
#[derive(Clone)]
struct Shards {
    codec: Arc<CudaShardingCodec>,
    shape: Vec<NonZeroU64>,
    data_type: DataType,
    fill_value: FillValue,
}

impl Shards {
    fn new(strategy: WriteStrategy, location: &str, inner: &serde_json::Value) -> Self {
        let configuration = json!({
            "chunk_shape": [LEN],
            "codecs": inner,
            "index_codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }, { "name": "crc32c" }],
            "index_location": location,
        });
        let configuration = serde_json::from_value(configuration).unwrap();
        let options = Options::default()
            .with_write_strategy(strategy)
            .with_turn_limit(Duration::from_hours(1));
        let codec = CudaShardingCodec::new_with_configuration(&configuration, options);
        Self {
            codec: Arc::new(codec.unwrap()),
            shape: vec![NonZeroU64::new(SUBCHUNKS * LEN).unwrap()],
            data_type: data_type::uint8(),
            fill_value: FillValue::from(0_u8),
        }
    }

    /// Stores the elements `at`.
    async fn store(
        self,
        seat: Seat,
        at: std::ops::Range<u64>,
        elements: Vec<u8>,
    ) -> std::result::Result<(), CodecError> {
        let options = CodecOptions::default();
        let encoder = self.codec.async_partial_encoder(
            Arc::new(Handle(seat)),
            &self.shape,
            &self.data_type,
            &self.fill_value,
            &options,
        );
        let subset = ArraySubset::new_with_ranges(&[at]);
        let encoder = encoder.await?;
        let elements = ArrayBytes::from(elements);
        encoder.partial_encode(&subset, &elements, &options).await
    }

    /// Returns the elements of a stored shard.
    fn elements(&self, objects: &Objects) -> std::result::Result<Vec<u8>, String> {
        let Some(object) = objects.get(&key()) else {
            return Err("there is no shard".to_owned());
        };
        let object = Cow::Borrowed(&object[..]);
        let options = CodecOptions::default();
        let (shape, fill_value) = (&self.shape, &self.fill_value);
        let decoded = self
            .codec
            .decode(object, shape, &self.data_type, fill_value, &options);
        let decoded = decoded.and_then(|bytes| Ok(bytes.into_fixed()?.into_owned()));
        decoded.map_err(|error| format!("the shard is broken: {error}"))
    }

    /// Returns a store that has a shard with `elements`.
    fn stored(&self, elements: &[u8]) -> Objects {
        let options = CodecOptions::default();
        let (shape, fill_value) = (&self.shape, &self.fill_value);
        let elements = ArrayBytes::from(elements.to_vec());
        let shard = self
            .codec
            .encode(elements, shape, &self.data_type, fill_value, &options);
        [(key(), shard.unwrap().into_owned().into())].into()
    }
}

/// The elements that a writer stores, and their place.
type StoredElements = (std::ops::Range<u64>, &'static [u8]);

/// Returns a writer for each of `parts`, with the codec of the same place in `writers`. None of them may
/// fail, and all parts must be there in the end.
fn scenario<'a>(
    writers: &'a [Shards],
    before: Objects,
    initial: [u8; 6],
    parts: &'a [StoredElements],
) -> Scenario<'a> {
    let mut expected = initial.to_vec();
    for (at, elements) in parts {
        expected[at.start as usize..at.end as usize].copy_from_slice(elements);
    }
    let mut scenario = Scenario::new(before, move |ending| {
        if let Some(failed) = ending.log.first() {
            return Err(format!("{failed:?}"));
        }
        let elements = writers[0].elements(ending.objects)?;
        if elements == expected {
            Ok(())
        } else {
            Err(format!("{elements:?} is stored, and not {expected:?}"))
        }
    })
    .who_share_memory();
    for (number, ((at, elements), writer)) in parts.iter().zip(writers).enumerate() {
        scenario = scenario.actor(move |seat| async move {
            let stored = writer
                .clone()
                .store(seat.clone(), at.clone(), elements.to_vec());
            if let Err(error) = stored.await {
                seat.failed(number, &error);
            }
        });
    }
    scenario
}

const STRATEGIES: [WriteStrategy; 4] = [
    WriteStrategy::Auto,
    WriteStrategy::Append,
    WriteStrategy::InPlace,
    WriteStrategy::Slots,
];

fn zstd() -> serde_json::Value {
    let zstd = json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
    json!([{ "name": "bytes" }, zstd])
}

/// Explores `parts` for each kind of shard, from an absent one and from one that is there.
fn each_kind(parts: &[StoredElements]) {
    let (mut schedules, mut states) = (0, 0);
    for strategy in STRATEGIES {
        for location in ["start", "end"] {
            for inner in [json!([{ "name": "bytes" }]), zstd()] {
                let shards = Shards::new(strategy, location, &inner);
                let elements = [1, 2, 3, 4, 0, 0];
                let stored = (shards.stored(&elements), elements);
                for (before, elements) in [(Objects::new(), [0; 6]), stored] {
                    let writers = vec![shards.clone(); parts.len()];
                    let explored = scenario(&writers, before, elements, parts).explore();
                    let explored = explored.unwrap_or_else(|violation| panic!("{violation}"));
                    // Each may be the first, and the others may look before or after it has written.
                    assert!(explored.schedules >= 4, "{explored:?}");
                    schedules += explored.schedules;
                    states += explored.states;
                }
            }
        }
    }
    println!("{parts:?}: {schedules} schedules, {states} states");
}

#[test]
fn writers_of_different_subchunks() {
    let _alone = alone();
    each_kind(&[(0..2, &[7, 8]), (4..6, &[9, 10])]);
}

#[test]
fn writers_of_one_subchunk() {
    let _alone = alone();
    each_kind(&[(2..3, &[7]), (3..4, &[8])]);
}

#[test]
fn three_writers_and_no_shard() {
    let _alone = alone();
    let parts: &[StoredElements] = &[(0..2, &[7, 8]), (2..4, &[9, 10]), (4..6, &[11, 12])];
    for strategy in STRATEGIES {
        let writers = vec![Shards::new(strategy, "end", &zstd()); 3];
        let explored = scenario(&writers, Objects::new(), [0; 6], parts).explore();
        let explored = explored.unwrap_or_else(|violation| panic!("{violation}"));
        println!("{strategy:?}: {explored:?}");
    }
}

/// Encoders that do not share turns when they create a shard, as those of two processes, lose data: the
/// exploration finds it.
#[test]
fn without_turns_data_are_lost() {
    let _alone = alone();
    let parts: &[StoredElements] = &[(0..2, &[7, 8]), (4..6, &[9, 10])];
    for strategy in STRATEGIES {
        for location in ["start", "end"] {
            let one = Shards::new(strategy, location, &zstd());
            // The stored shard does not say which elements are missing.
            let mut other = one.clone();
            other.fill_value = FillValue::from(1_u8);
            let explored = scenario(&[one, other], Objects::new(), [0; 6], parts).explore();
            let lost = explored.expect_err("both find no shard, and then both create one");
            assert!(!lost.what.contains("wait for each other"), "{lost}");
        }
    }
}
