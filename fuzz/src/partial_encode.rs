//! Partial writes of shards. Afterwards zarrs must read the expected elements.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use zarrs::array::{ArrayBytes, Indexer};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ReadableStorageTraits, ReadableWritableStorage, StoreKey, WritableStorageTraits,
};
use zarrs_codec::{
    ArrayPartialEncoderTraits, ArrayToBytesCodecTraits, CodecError, StoragePartialEncoder,
};
use zarrs_cuda::maintenance::{RecoveryOutcome, ShardFormat};
use zarrs_cuda::{CudaShardingCodec, Options};

use crate::case::{Case, STRATEGIES};
use crate::harm::harmed;
use crate::outcome::is_too_long;
use zarrs_cuda_testing::Rng;

/// Writes parts of shards of any chain.
pub fn partial_encode(input: &[u8]) {
    let _too_short = judge(&mut Unstructured::new(input));
}

/// The object before the writes.
#[derive(arbitrary::Arbitrary, Clone, Copy, Debug, PartialEq)]
enum Start {
    Absent,
    Valid,
    Harmed,
}

fn judge(u: &mut Unstructured<'_>) -> Result<()> {
    let Some((case, ours, encoded)) = Case::with_shard(u)? else {
        return Ok(());
    };
    let shards = &case.shards;
    let key = StoreKey::new("shard").unwrap();
    let store = Arc::new(MemoryStore::new());
    let set = |bytes: &[u8]| store.set(&key, Bytes::copy_from_slice(bytes)).unwrap();
    let start = u.arbitrary()?;
    let mut model = match start {
        Start::Absent => Ok(shards.fill.repeat(shards.num_elements())),
        Start::Valid => {
            set(&encoded);
            Ok(case.elements.clone())
        }
        Start::Harmed => {
            let harmed = harmed(u, &case, &encoded)?;
            set(&harmed);
            case.decoded(&ours, &harmed)
        }
    };
    for _ in 0..u.int_in_range(1..=6)? {
        let step = step(u, &case, &ours, store.clone(), &key)?;
        let before = store.get(&key).unwrap();
        let done = step.act();
        let after = store.get(&key).unwrap();
        let shown = || format!("{step:?} of {}, {shards:?}", shards.json());
        if let Err(error) = done {
            if case.may_refuse_lengths() {
                assert_eq!(before, after, "{error}: {}", shown());
                return Ok(());
            }
            // Only a harmed shard may make a write fail.
            assert_eq!(start, Start::Harmed, "{error}: {}", shown());
            let error = error.to_string();
            // An update validates the checksums of an index even if reads do not.
            let may_refuse = model.is_err()
                || !case.validates()
                || error.contains("reaches into")
                || is_too_long(&Err(error.clone()));
            assert!(may_refuse, "{error}: {}", shown());
            assert_eq!(before, after, "{error}: {}", shown());
            return Ok(());
        }
        let decoded = after.as_deref().map_or_else(
            || Ok(shards.fill.repeat(shards.num_elements())),
            |stored| case.decoded(&ours, stored),
        );
        step.apply(&case, &mut model);
        match (&model, &decoded) {
            (Ok(model), Ok(decoded)) => assert_eq!(model, decoded, "{}", shown()),
            (Ok(_), Err(error)) => panic!("{error} after {}", shown()),
            // The write may have replaced the broken subchunk. The elements are then known again.
            (Err(_), _) => model = decoded,
        }
        let Ok(model) = &model else {
            return Ok(());
        };
        if let Some(stored) = &after {
            let by_zarrs = case.decoded_by_zarrs(stored);
            assert_eq!(by_zarrs.as_ref(), Ok(model), "zarrs, {}", shown());
            if start != Start::Harmed {
                check_stored(&case, &ours, stored, model);
            }
        }
    }
    Ok(())
}

/// Checks that a shard made by valid writes is intact, and keeps its elements if it is compacted.
fn check_stored(case: &Case, ours: &Arc<CudaShardingCodec>, stored: &Bytes, model: &[u8]) {
    let shards = &case.shards;
    let format = ShardFormat::new(
        ours.clone(),
        shards.chunk_shape(),
        shards.data_type.clone(),
        shards.fill_value(),
    );
    let (format, key) = (format.unwrap(), StoreKey::new("shard").unwrap());
    let store = MemoryStore::new();
    store.set(&key, stored.clone()).unwrap();
    let inspected = zarrs_cuda::inspect(&store, &key, &format).unwrap().unwrap();
    assert_eq!(inspected.recovery, RecoveryOutcome::Intact, "{inspected}");
    assert_eq!(inspected.index_problem, None, "{inspected}");
    zarrs_cuda::compact(&store, &key, &format).unwrap();
    let compacted = store.get(&key).unwrap();
    let decoded = compacted.map_or_else(
        || Ok(shards.fill.repeat(shards.num_elements())),
        |compacted| case.decoded(ours, &compacted),
    );
    assert_eq!(decoded.as_deref(), Ok(model), "compacted: {inspected}");
}

/// A write with its own encoder.
struct Step {
    encoder: Arc<dyn ArrayPartialEncoderTraits>,
    /// The place and the values; `None` to erase.
    write: Option<(Box<dyn Indexer>, Vec<u8>)>,
    case: Case,
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some((indexer, values)) = &self.write else {
            return f.write_str("erase");
        };
        let indices: Vec<_> = indexer.iter_indices().collect();
        write!(f, "{:?}: {indices:?} = {values:?}", self.case.strategy)
    }
}

fn step(
    u: &mut Unstructured<'_>,
    case: &Case,
    ours: &Arc<CudaShardingCodec>,
    store: Arc<MemoryStore>,
    key: &StoreKey,
) -> Result<Step> {
    let shards = &case.shards;
    let strategy = if u.ratio(1, 2)? {
        case.strategy
    } else {
        *u.choose(&STRATEGIES)?
    };
    let options = Options::default().with_write_strategy(strategy);
    let ours = Arc::new((**ours).clone().with_options(options));
    let storage: ReadableWritableStorage = store;
    let encoder = ours.partial_encoder(
        Arc::new(StoragePartialEncoder::new(storage, key.clone())),
        &shards.chunk_shape(),
        &shards.data_type,
        &shards.fill_value(),
        &case.options,
    );
    let write = if u.ratio(1, 16)? {
        None
    } else {
        let subset: Box<dyn Indexer> = if u.ratio(1, 4)? {
            // No point occurs twice: the result would be undefined.
            let mut points = Vec::new();
            for _ in 0..u.int_in_range(1..=6)? {
                let point = shards.shape.iter().map(|d| u.int_in_range(0..=d - 1));
                points.push(point.collect::<Result<Vec<u64>>>()?);
            }
            points.sort();
            points.dedup();
            Box::new(points)
        } else {
            Box::new(case.subset(u)?)
        };
        let seed = u.arbitrary::<u8>()?;
        let mut rng = Rng(seed.into());
        let values = (0..subset.len()).flat_map(|_| match seed % 4 {
            0 => shards.fill.clone(),
            _ => case.data_type.element(&mut rng),
        });
        let values = values.collect();
        Some((subset, values))
    };
    Ok(Step {
        encoder: encoder.unwrap(),
        write,
        case: Case {
            strategy,
            ..case.clone()
        },
    })
}

impl Step {
    fn act(&self) -> std::result::Result<(), CodecError> {
        match &self.write {
            None => self.encoder.erase(),
            Some((indexer, values)) => {
                let values = ArrayBytes::from(values.clone());
                self.encoder
                    .partial_encode(indexer.as_ref(), &values, &self.case.options)
            }
        }
    }

    fn apply(&self, case: &Case, model: &mut std::result::Result<Vec<u8>, String>) {
        let shards = &case.shards;
        let Some((indexer, values)) = &self.write else {
            *model = Ok(shards.fill.repeat(shards.num_elements()));
            return;
        };
        let Ok(model) = model else {
            return;
        };
        let size = shards.element_size();
        for (indices, value) in indexer.iter_indices().zip(values.chunks(size)) {
            let axes = indices.iter().zip(&shards.shape);
            let number = axes.fold(0, |number, (i, d)| number * d + i);
            let start = usize::try_from(number).unwrap() * size;
            model[start..start + size].copy_from_slice(value);
        }
    }
}
