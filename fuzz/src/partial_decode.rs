//! Parts of shards, read in every way. Each result must be the same part of the whole shard.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use zarrs::array::{ArraySubset, Indexer};
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{AsyncWritableStorageTraits, StoreKey, WritableStorageTraits};
use zarrs_codec::{ArrayToBytesCodecTraits, AsyncStoragePartialDecoder, StoragePartialDecoder};
use zarrs_cuda::CudaShardingCodec;

use crate::case::Case;
use crate::harm::harmed;
use crate::memory::limited;
use crate::outcome::{Outcome, assert_agree, is_too_long, of_ours};

/// Reads parts of any bytes as a shard of any chain.
pub fn partial_decode(input: &[u8]) {
    let _too_short = judge(&mut Unstructured::new(input));
}

fn judge(u: &mut Unstructured<'_>) -> Result<()> {
    let Some((case, ours, encoded)) = Case::with_shard(u)? else {
        return Ok(());
    };
    let harmed = harmed(u, &case, &encoded)?;
    let shards = &case.shards;
    let decoded = case.decoded(&ours, &harmed);

    // The whole shard is readable in parts if, and only if, it can be decoded.
    let whole = ArraySubset::new_with_shape(shards.shape.clone());
    let read = limited(case.most_memory(harmed.len()), "a partial decoder", || {
        read_as_part(&case, &ours, &harmed, &whole)
    });
    if is_too_long(&read) {
        return Ok(());
    }
    assert_agree(("decode", &decoded), ("all of it as a part", &read));
    let by_reader = |subset: &ArraySubset| {
        limited(case.most_memory(harmed.len()), "a reader", || {
            let read = shards.read(ours.clone(), &harmed, subset, &case.options);
            Some(read?.map_err(|error| error.to_string()))
        })
    };
    if let Some(read) = by_reader(&whole) {
        assert_agree(("decode", &decoded), ("a reader", &read));
    }

    let subset = case.subset(u)?;
    let part = limited(case.most_memory(harmed.len()), "a partial decoder", || {
        read_as_part(&case, &ours, &harmed, &subset)
    });
    if let Some(read) = by_reader(&subset) {
        assert_agree(("a part", &part), ("the part by a reader", &read));
    }
    for _ in 0..u.int_in_range(1..=3)? {
        let part = case.indexer(u)?;
        let read = limited(case.most_memory(harmed.len()), "a partial decoder", || {
            read_as_part(&case, &ours, &harmed, part.as_ref())
        });
        // A part may be readable even if the whole shard is not.
        if let Ok(decoded) = &decoded {
            let expected = Ok(shards.slice(decoded, part.as_ref()));
            assert_agree(("a part of the whole", &expected), ("the part", &read));
        }
    }
    Ok(())
}

/// Reads a part from bytes, from a blocking store, and from an asynchronous one. All must agree.
fn read_as_part(
    case: &Case,
    ours: &Arc<CudaShardingCodec>,
    encoded: &[u8],
    part: &dyn Indexer,
) -> Outcome {
    let (shards, options) = (&case.shards, &case.options);
    let bytes = of_ours(|| shards.partial_decode(ours.clone(), encoded, part, options));
    let (shape, fill_value) = (shards.chunk_shape(), shards.fill_value());
    let key = StoreKey::new("shard").unwrap();
    let stored = of_ours(|| {
        let store = Arc::new(MemoryStore::new());
        store.set(&key, encoded.to_vec().into())?;
        let input = Arc::new(StoragePartialDecoder::new(store, key.clone()));
        let data_type = &shards.data_type;
        let ours = ours.clone();
        let decoder = ours.partial_decoder(input, &shape, data_type, &fill_value, options)?;
        let decoded = decoder.partial_decode(part, options)?;
        Ok(decoded.into_fixed()?.into_owned())
    });
    assert_agree(("from bytes", &bytes), ("from a store", &stored));
    let awaited = futures::executor::block_on(async {
        let store = Arc::new(AsyncMemoryStore::new());
        store.set(&key, encoded.to_vec().into()).await?;
        let input = Arc::new(AsyncStoragePartialDecoder::new(store, key.clone()));
        let data_type = &shards.data_type;
        let ours = ours.clone();
        let decoder = ours
            .async_partial_decoder(input, &shape, data_type, &fill_value, options)
            .await?;
        let decoded = decoder.partial_decode(part, options).await?;
        Ok(decoded.into_fixed()?.into_owned())
    });
    let awaited = of_ours(|| awaited);
    assert_agree(
        ("from bytes", &bytes),
        ("from an asynchronous store", &awaited),
    );
    bytes
}
