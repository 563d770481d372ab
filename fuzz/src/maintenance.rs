//! `inspect`, `recover` and `compact` on any bytes, and on shards with torn updates.

use std::sync::{Arc, Mutex, PoisonError};

use arbitrary::{Result, Unstructured};
use zarrs::array::{ArrayBytes, ArraySubset};
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, ReadableWritableStorage,
    StorageError, StoreKey, StorePrefix, WritableStorageTraits,
};
use zarrs_codec::{ArrayPartialEncoderTraits, ArrayToBytesCodecTraits, StoragePartialEncoder};
use zarrs_cuda::maintenance::{RecoveryOutcome, ShardFormat, SubchunkState};
use zarrs_cuda::{CudaShardingCodec, Error, Options, WriteStrategy};

use crate::case::Case;
use crate::harm::harmed;
use crate::memory::limited;
use crate::outcome::{Outcome, is_too_long, of_ours};
use zarrs_cuda_testing::Rng;

/// Inspects any bytes as a shard, recovers it, and compacts it.
pub fn maintenance(input: &[u8]) {
    let _too_short = judge(&mut Unstructured::new(input));
}

fn judge(u: &mut Unstructured<'_>) -> Result<()> {
    let Some((case, ours, encoded)) = Case::with_shard(u)? else {
        return Ok(());
    };
    if u.ratio(1, 2)? {
        let harmed = harmed(u, &case, &encoded)?;
        check(&case, &ours, &harmed);
        return Ok(());
    }
    let torn = Torn::new(u, &case, &ours, &encoded)?;
    if u.ratio(1, 4)? {
        // The torn shard is changed further.
        let stored = torn.stored.unwrap_or_default();
        let harmed = harmed(u, &case, &stored)?;
        check(&case, &ours, &harmed);
        return Ok(());
    }
    torn.check(&case, &ours);
    Ok(())
}

/// The shard with these bytes, and the operations on it.
struct Subject<'a> {
    case: &'a Case,
    ours: &'a Arc<CudaShardingCodec>,
    format: ShardFormat,
    key: StoreKey,
    store: MemoryStore,
}

impl<'a> Subject<'a> {
    fn new(case: &'a Case, ours: &'a Arc<CudaShardingCodec>, bytes: &[u8]) -> Self {
        let shards = &case.shards;
        let format = ShardFormat::new(
            ours.clone(),
            shards.chunk_shape(),
            shards.data_type.clone(),
            shards.fill_value(),
        );
        let subject = Self {
            case,
            ours,
            format: format.unwrap(),
            key: StoreKey::new("shard").unwrap(),
            store: MemoryStore::new(),
        };
        let bytes = Bytes::copy_from_slice(bytes);
        subject.store.set(&subject.key, bytes).unwrap();
        subject
    }

    fn stored(&self) -> Option<Bytes> {
        self.store.get(&self.key).unwrap()
    }

    /// Reads each subchunk separately.
    fn subchunks(&self) -> Vec<Outcome> {
        let shards = &self.case.shards;
        let stored = self.stored();
        let corners = zarrs_cuda_testing::all_indices(&shards.shape).filter(|indices| {
            let axes = indices.iter().zip(&shards.subchunk);
            axes.into_iter().all(|(index, extent)| index % extent == 0)
        });
        corners
            .map(|corner| {
                let ranges: Vec<_> = corner
                    .iter()
                    .zip(&shards.subchunk)
                    .map(|(start, extent)| *start..start + extent)
                    .collect();
                let subset = ArraySubset::new_with_ranges(&ranges);
                let Some(stored) = &stored else {
                    let elements = usize::try_from(subset.num_elements()).unwrap();
                    return Ok(shards.fill.repeat(elements));
                };
                let (ours, options) = (self.ours.clone(), &self.case.options);
                of_ours(|| shards.partial_decode(ours, stored, &subset, options))
            })
            .collect()
    }

    fn recover(&self) -> zarrs_cuda::maintenance::Recovery {
        let before = self.stored();
        let inspected = zarrs_cuda::inspect(&self.store, &self.key, &self.format).unwrap();
        assert_eq!(self.stored(), before, "inspect changes nothing");
        let recovery = zarrs_cuda::recover(&self.store, &self.key, &self.format).unwrap();
        assert!(!recovery.to_string().is_empty());
        if let Some(inspected) = inspected {
            assert!(!inspected.to_string().is_empty());
            assert_eq!(inspected.recovery, recovery.outcome, "{inspected}");
            assert!(inspected.live <= inspected.size, "{inspected}");
        } else {
            assert_eq!(recovery.outcome, RecoveryOutcome::Absent);
        }
        let changes_nothing = matches!(
            recovery.outcome,
            RecoveryOutcome::Absent
                | RecoveryOutcome::Intact
                | RecoveryOutcome::Unrecoverable { .. }
        );
        assert_eq!(self.stored() == before, changes_nothing, "{recovery}");
        recovery
    }
}

/// Checks that recovery and compaction change nothing by mistake, and that a second recovery
/// changes nothing.
fn check(case: &Case, ours: &Arc<CudaShardingCodec>, bytes: &[u8]) {
    let subject = Subject::new(case, ours, bytes);
    let shown = || format!("{}, {:?}", case.shards.json(), case.shards);
    let before = subject.subchunks();
    let limit = case.most_memory(bytes.len());
    let recovery = limited(limit, "recovering a shard", || subject.recover());
    if recovery.outcome == RecoveryOutcome::Intact {
        assert_eq!(subject.subchunks(), before, "{}", shown());
    }
    let recovered = subject.stored();
    let again = subject.recover();
    match &recovery.outcome {
        RecoveryOutcome::Erased => assert_eq!(again.outcome, RecoveryOutcome::Absent),
        RecoveryOutcome::Unrecoverable { .. } => assert_eq!(again.outcome, recovery.outcome),
        // The bytes may form another record, which shows only after the first one is gone.
        RecoveryOutcome::Undone | RecoveryOutcome::Completed => {}
        _ => assert_eq!(again.outcome, RecoveryOutcome::Intact, "{}", shown()),
    }
    if again.outcome == RecoveryOutcome::Intact {
        assert_eq!(subject.stored(), recovered);
    }

    // The report of recovery agrees with reads.
    let now = subject.subchunks();
    if !again.subchunks.is_empty() {
        for (number, (state, read)) in again.subchunks.iter().zip(&now).enumerate() {
            let agree = match state {
                // Partial reads do not check the other entries of the index.
                SubchunkState::Unreadable { reason } => {
                    let is_for_all = reason.contains("the index is invalid");
                    read.is_err() || is_for_all || !case.validates()
                }
                _ => read.is_ok() || is_too_long(read),
            };
            assert!(
                agree,
                "subchunk {number} is {state:?}, {read:?}: {}",
                shown()
            );
        }
    }

    // Compaction keeps readable subchunks.
    let size = subject.stored().map_or(0, |stored| stored.len());
    let compaction = limited(limit, "compacting a shard", || {
        zarrs_cuda::compact(&subject.store, &subject.key, &subject.format)
    });
    match compaction {
        Ok(Some(compaction)) => {
            let stored = subject.stored().map_or(0, |stored| stored.len());
            assert_eq!(compaction.before, size as u64, "{}", shown());
            assert_eq!(compaction.after, stored as u64, "{}", shown());
            assert!(stored <= size, "{}", shown());
            let after = subject.subchunks();
            let pairs = now.iter().zip(&after).enumerate();
            for (number, (now, after)) in pairs {
                let kept = now.is_err() || now == after;
                assert!(kept, "subchunk {number}: {now:?}, {after:?}: {}", shown());
            }
        }
        Ok(None) => assert_eq!(subject.stored(), None),
        Err(error) => {
            let is_intact = again.outcome == RecoveryOutcome::Intact;
            let pending = matches!(error, Error::UpdatePending { .. });
            assert_eq!(pending, !is_intact, "{error}: {}", shown());
            // If the shard is intact and all subchunks are readable, compaction does not fail.
            assert!(
                !is_intact || now.iter().any(Result::is_err),
                "{error}: {}",
                shown()
            );
            assert_eq!(subject.stored().map_or(0, |stored| stored.len()), size);
        }
    }
}

/// A shard after some updates, the last of which was interrupted.
struct Torn {
    strategy: WriteStrategy,
    /// The stored bytes after the last update was torn.
    stored: Option<Bytes>,
    /// All elements before the last update, and after it.
    before: Vec<u8>,
    after: Vec<u8>,
    /// Whether the shard existed before the last update.
    existed: bool,
    /// Whether subchunks are shards that can be written in part.
    is_nested: bool,
}

impl Torn {
    fn new(
        u: &mut Unstructured<'_>,
        case: &Case,
        ours: &Arc<CudaShardingCodec>,
        encoded: &[u8],
    ) -> Result<Self> {
        let shards = &case.shards;
        let store = Arc::new(Counting::default());
        let key = StoreKey::new("shard").unwrap();
        let mut elements = shards.fill.repeat(shards.num_elements());
        if u.arbitrary()? {
            let encoded = Bytes::copy_from_slice(encoded);
            store.inner.set(&key, encoded).unwrap();
            elements.clone_from(&case.elements);
        }
        let options = Options::default().with_write_strategy(case.strategy);
        let codec = Arc::new((**ours).clone().with_options(options));
        let storage: ReadableWritableStorage = store.clone();
        let encoder = codec
            .partial_encoder(
                Arc::new(StoragePartialEncoder::new(storage, key.clone())),
                &shards.chunk_shape(),
                &shards.data_type,
                &shards.fill_value(),
                &case.options,
            )
            .unwrap();
        for _ in 0..u.int_in_range(0..=3)? {
            let written = write(u, case, &*encoder, &mut elements)?;
            assert!(written.is_ok() || case.may_refuse_lengths(), "{written:?}");
            if written.is_err() {
                return Err(arbitrary::Error::IncorrectFormat);
            }
        }
        let before = elements.clone();
        let existed = store.inner.get(&key).unwrap().is_some();
        // The update stops after a random number of bytes and calls.
        let budget = u.int_in_range(0..=1200)?;
        *store.budget() = Some(budget);
        let _torn = write(u, case, &*encoder, &mut elements)?;
        Ok(Self {
            strategy: case.strategy,
            stored: store.inner.get(&key).unwrap(),
            before,
            after: elements,
            existed,
            is_nested: shards.json().to_string().contains("chunk_shape\":[")
                && shards
                    .codecs
                    .iter()
                    .any(|c| c["name"] == "sharding_indexed"),
        })
    }

    /// Checks the promises of `docs/reference/updates.md`.
    fn check(self, case: &Case, ours: &Arc<CudaShardingCodec>) {
        let shards = &case.shards;
        let shown = || format!("{:?}, {}, {shards:?}", self.strategy, shards.json());
        let Some(stored) = &self.stored else {
            return;
        };
        if stored.is_empty() {
            return;
        }
        let subject = Subject::new(case, ours, stored);
        let recovery = subject.recover();
        assert!(
            !matches!(recovery.outcome, RecoveryOutcome::Unrecoverable { .. }),
            "{recovery}: {}",
            shown()
        );
        let whole = |elements: &[u8]| {
            let expected = Subject::subchunks_of(case, elements);
            expected.into_iter().map(Ok).collect::<Vec<Outcome>>()
        };
        let (before, after) = (whole(&self.before), whole(&self.after));
        let now = subject.subchunks();
        let is_atomic = self.strategy == WriteStrategy::Append;
        if is_atomic {
            assert!(now == before || now == after, "{now:?}: {}", shown());
        }
        for (number, now) in now.iter().enumerate() {
            let untouched = before[number] == after[number];
            // Written subchunks may be lost if they are updated in place, and a new shard may be
            // lost entirely.
            let right = if untouched && self.existed && !self.is_nested {
                *now == before[number]
            } else {
                true
            };
            assert!(right, "subchunk {number}: {now:?}: {}", shown());
        }
    }
}

impl Subject<'_> {
    /// The elements of each subchunk.
    fn subchunks_of(case: &Case, elements: &[u8]) -> Vec<Vec<u8>> {
        let shards = &case.shards;
        let mut subchunks = vec![Vec::new(); shards.num_subchunks()];
        let elements = elements.chunks(shards.element_size());
        for (element, indices) in elements.zip(zarrs_cuda_testing::all_indices(&shards.shape)) {
            subchunks[shards.subchunk_of(&indices)].extend(element);
        }
        subchunks
    }
}

/// Writes a part, to the shard and to `elements`.
fn write(
    u: &mut Unstructured<'_>,
    case: &Case,
    encoder: &dyn ArrayPartialEncoderTraits,
    elements: &mut [u8],
) -> Result<std::result::Result<(), zarrs_codec::CodecError>> {
    let shards = &case.shards;
    let subset = case.subset(u)?;
    let seed = u.arbitrary::<u8>()?;
    let mut rng = Rng(seed.into());
    let size = shards.element_size();
    let mut values = Vec::new();
    for indices in &subset.indices() {
        let value = match seed % 4 {
            0 => shards.fill.clone(),
            _ => case.data_type.element(&mut rng),
        };
        let axes = indices.iter().zip(&shards.shape);
        let number = axes.fold(0, |number, (i, d)| number * d + i);
        let start = usize::try_from(number).unwrap() * size;
        elements[start..start + size].copy_from_slice(&value);
        values.extend(value);
    }
    let values = ArrayBytes::from(values);
    Ok(encoder.partial_encode(&subset, &values, &case.options))
}

/// A store in which the process dies after a number of bytes. Each call counts as one byte.
#[derive(Debug, Default)]
struct Counting {
    inner: MemoryStore,
    budget: Mutex<Option<usize>>,
}

impl Counting {
    fn budget(&self) -> std::sync::MutexGuard<'_, Option<usize>> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of `len` bytes are still written.
    fn spend(&self, len: usize) -> usize {
        match &mut *self.budget() {
            None => len,
            Some(budget) => {
                let spent = len.min(*budget);
                *budget = budget.saturating_sub(len);
                spent
            }
        }
    }

    fn is_dead(&self) -> bool {
        *self.budget() == Some(0)
    }

    fn died() -> StorageError {
        StorageError::Other("the process died".to_string())
    }
}

impl ReadableStorageTraits for Counting {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> std::result::Result<MaybeBytesIterator<'a>, StorageError> {
        self.inner.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> std::result::Result<Option<u64>, StorageError> {
        self.inner.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Counting {
    fn set(&self, key: &StoreKey, value: Bytes) -> std::result::Result<(), StorageError> {
        if self.is_dead() {
            return Err(Self::died());
        }
        let spent = self.spend(value.len());
        self.inner.set(key, value.slice(..spent))?;
        if spent == value.len() {
            return Ok(());
        }
        Err(Self::died())
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'_>,
    ) -> std::result::Result<(), StorageError> {
        for (offset, value) in offset_values {
            if self.is_dead() {
                return Err(Self::died());
            }
            let spent = self.spend(value.len());
            let part = [(offset, value.slice(..spent))];
            self.inner
                .set_partial_many(key, Box::new(part.into_iter()))?;
            if spent < value.len() {
                return Err(Self::died());
            }
        }
        Ok(())
    }

    fn erase(&self, key: &StoreKey) -> std::result::Result<(), StorageError> {
        if self.is_dead() {
            return Err(Self::died());
        }
        self.inner.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> std::result::Result<(), StorageError> {
        self.inner.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}
