//! Shards that are truncated, corrupted or made up. Every way of reading one returns an error or
//! data. None panics, or allocates memory that the array's own metadata do not justify.
//!
//! If checksums cover the index and the subchunks, returned data are right.

mod claims;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{ArrayBytes, ArraySubset, CodecChain, Element, FillValue, Indexer, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::storage_adapter::sync_to_async::{
    SyncToAsyncSpawnBlocking, SyncToAsyncStorageAdapter,
};
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    AsyncReadableStorage, AsyncWritableStorageTraits, ReadableStorage, StoreKey,
    WritableStorageTraits,
};
use zarrs_codec::{
    ArrayToBytesCodecTraits, AsyncStoragePartialDecoder, CodecError, CodecOptions,
    StoragePartialDecoder,
};
use zarrs_cuda::CudaShardingCodec;

use zarrs_cuda_testing::allocations::{self, Watching};
use zarrs_cuda_testing::index::{EMPTY, IndexLayout};
use zarrs_cuda_testing::{Rng, Shards, chunk_shape, codecs, panics};

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Runs blocking work on the calling thread.
struct Inline;

impl SyncToAsyncSpawnBlocking for Inline {
    fn spawn_blocking<F, R>(&self, f: F) -> impl Future<Output = R> + Send
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        std::future::ready(f())
    }
}

/// The result of reading a shard: its elements, or an error.
type Outcome = Result<Vec<u8>, String>;

/// Reads in one way. A panic that arrives here is a failure, whichever code it came from.
fn outcome(what: &str, read: impl FnOnce() -> Result<Vec<u8>, CodecError>) -> Outcome {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            panic!("{what} panicked: {}", message.unwrap_or_default())
        }
    }
}

/// A valid shard, and its known properties.
#[derive(Clone)]
struct Target {
    name: String,
    shards: Shards,
    ours: Arc<CudaShardingCodec>,
    elements: Vec<u8>,
    encoded: Vec<u8>,
    /// Checksums cover every byte.
    covered: bool,
}

impl Target {
    /// The same target for attacks that exchange subchunks, which no checksum detects.
    fn shuffled(&self) -> Self {
        Self {
            covered: false,
            ..self.clone()
        }
    }
}

/// A small array of subchunks in two rows. One subchunk is empty.
fn target(name: &str, codecs: Vec<Value>, checked: bool, index: IndexLayout) -> Target {
    let bits = name == "packbits";
    let shards = Shards {
        shape: vec![4, 4],
        subchunk: vec![2, 2],
        data_type: if bits {
            data_type::bool()
        } else {
            data_type::uint16()
        },
        fill: if bits { vec![0] } else { vec![7, 0] },
        codecs,
        index,
    };
    let mut rng = Rng(1);
    let elements: Vec<u8> = zarrs_cuda_testing::all_indices(&shards.shape)
        .flat_map(|indices| {
            if shards.subchunk_of(&indices) == 1 {
                shards.fill.clone()
            } else if bits {
                vec![rng.byte() & 1]
            } else {
                vec![rng.byte() & 3, 0]
            }
        })
        .collect();
    let ours = shards.ours();
    let encoded = shards.encode(ours.as_ref(), &elements, &CodecOptions::default());
    Target {
        name: format!("{name}, {index:?}"),
        covered: checked && index.checksum,
        ours,
        elements,
        encoded: encoded.unwrap(),
        shards,
    }
}

/// Chains of every kind, and whether they have a checksum.
fn chains() -> Vec<(String, Vec<Value>, bool)> {
    let little = || codecs::bytes("little");
    let mut chains = vec![
        ("none", vec![little()], false),
        ("big", vec![codecs::bytes("big")], false),
        (
            "transpose",
            vec![codecs::transpose(&[1, 0]), little()],
            false,
        ),
        ("crc32c", vec![little(), codecs::crc32c()], true),
        ("zstd", vec![little(), codecs::zstd(3, false)], false),
        (
            "zstd with checksum",
            vec![little(), codecs::zstd(3, true)],
            true,
        ),
        ("gzip", vec![little(), codecs::gzip(6)], true),
        (
            "zstd, crc32c",
            vec![little(), codecs::zstd(3, false), codecs::crc32c()],
            true,
        ),
        (
            "crc32c, zstd",
            vec![little(), codecs::crc32c(), codecs::zstd(3, false)],
            true,
        ),
        (
            "gzip, zstd",
            vec![little(), codecs::gzip(6), codecs::zstd(3, false)],
            true,
        ),
        ("packbits", vec![codecs::packbits()], false),
        ("xor", vec![little(), codecs::xor()], false),
        ("shuffle", vec![little(), codecs::shuffle(2)], false),
        (
            "sharding",
            vec![codecs::sharding(&[1, 2], &[little()])],
            false,
        ),
        (
            "sharding of crc32c",
            vec![codecs::sharding(&[1, 2], &[little(), codecs::crc32c()])],
            true,
        ),
        (
            "sharding of zstd, zstd",
            vec![
                codecs::sharding(&[1, 2], &[little(), codecs::zstd(3, false)]),
                codecs::zstd(1, false),
            ],
            false,
        ),
        (
            "reshape",
            vec![
                json!({ "name": "reshape", "configuration": { "shape": [-1] } }),
                little(),
            ],
            false,
        ),
    ]
    .into_iter()
    .map(|(name, codecs, checked)| (name.to_string(), codecs, checked))
    .collect::<Vec<_>>();
    for cname in codecs::BLOSC_COMPRESSORS {
        let blosc = codecs::blosc(cname, 5, "shuffle", 2);
        chains.push((format!("blosc {cname}"), vec![little(), blosc], false));
    }
    let lz4 = || codecs::blosc("lz4", 5, "shuffle", 2);
    for (name, codecs, checked) in [
        (
            "adler32, blosc",
            vec![little(), codecs::adler32(), lz4()],
            true,
        ),
        (
            "sharding, blosc",
            vec![codecs::sharding(&[1, 2], &[little()]), lz4()],
            false,
        ),
        ("zlib", vec![little(), codecs::zlib()], true),
        ("pcodec", vec![codecs::pcodec()], false),
    ] {
        chains.push((name.to_string(), codecs, checked));
    }
    let blosc = codecs::blosc("lz4", 5, "bitshuffle", 2);
    let blosc = vec![little(), blosc, codecs::crc32c()];
    chains.push(("blosc lz4, crc32c".to_string(), blosc, true));
    chains
}

/// The index at the end with and without a checksum, and at the start without one.
fn layouts() -> [IndexLayout; 3] {
    let end = IndexLayout::default();
    [
        end,
        IndexLayout {
            checksum: false,
            ..end
        },
        IndexLayout {
            location: ShardingIndexLocation::Start,
            checksum: false,
            big_endian: true,
        },
    ]
}

fn targets() -> impl Iterator<Item = Target> {
    layouts().into_iter().flat_map(|index| {
        chains()
            .into_iter()
            .map(move |(name, codecs, checked)| target(&name, codecs, checked, index))
    })
}

/// Which ways of reading to try.
#[derive(Clone, Copy, PartialEq)]
enum Effort {
    /// The ways that treat the bytes differently.
    Usual,
    /// All ways, also over files.
    Thorough,
}

/// Attacks shards. Only one may exist, since the largest allocation is measured for the whole
/// process.
struct Attacker {
    _alone: MutexGuard<'static, ()>,
    directory: TempDir,
    /// The number of attacks that ended with an error, and the number that ended with data.
    errors: usize,
    data: usize,
}

impl Attacker {
    fn new() -> Self {
        panics::watch();
        Self {
            _alone: crate::alone(),
            directory: tempfile::tempdir().unwrap(),
            errors: 0,
            data: 0,
        }
    }

    /// Reads `hostile` in place of `target`'s shard, in every way.
    fn attack(&mut self, target: &Target, hostile: &[u8], effort: Effort, what: &str) {
        allocations::reset();
        let what = format!("{} ({what})", target.name);

        // Writes a new file each time, without a store: otherwise each attack would wait for the
        // disk.
        let file = self.directory.path().join("shard");
        if effort == Effort::Thorough {
            std::fs::write(&file, hostile).unwrap();
        }
        let decoded = self.read(target, hostile, effort, &what);
        if effort == Effort::Thorough {
            std::fs::remove_file(file).unwrap();
        }

        let largest = allocations::largest();
        let limit = 16 * (target.elements.len() + hostile.len()) + (1 << 20);
        assert!(largest <= limit, "{what}: an allocation of {largest} bytes");
        panics::assert_none(&what);
        match decoded {
            Ok(_) => self.data += 1,
            Err(_) => self.errors += 1,
        }
    }

    fn read(&self, target: &Target, hostile: &[u8], effort: Effort, what: &str) -> Outcome {
        let Target { shards, ours, .. } = target;
        let options = CodecOptions::default().with_concurrent_target(1);
        let decoded = outcome(what, || shards.decode(ours.as_ref(), hostile, &options));
        if let Ok(decoded) = &decoded {
            assert_eq!(decoded.len(), target.elements.len(), "{what}");
            assert!(
                !target.covered || *decoded == target.elements,
                "{what}: wrong data in spite of checksums"
            );
        }

        // All ways of reading a whole shard agree.
        let agree = |way: &str, other: &Outcome| match (&decoded, other) {
            (Ok(decoded), Ok(other)) => assert_eq!(decoded, other, "{what}: {way}"),
            (Err(_), Err(_)) => {}
            (decoded, other) => panic!("{what}: decode {decoded:?}, {way} {other:?}"),
        };
        let into = outcome(what, || shards.decode_into(ours.clone(), hostile, &options));
        agree("decode_into", &into);
        let whole = ArraySubset::new_with_shape(shards.shape.clone());
        agree("a reader", &by_reader(target, hostile, &whole, what));
        let whole: Box<dyn Indexer> = Box::new(whole);
        for (way, partial) in self.partial(target, hostile, whole.as_ref(), effort, what) {
            agree(&way, &partial);
        }

        // Parts may be readable even if the whole is not. If the whole is readable, they must
        // match.
        let [middle, start] = boxes(&shards.shape);
        let few = few(&shards.shape);
        let parts: [(&dyn Indexer, _); 3] = [
            (&middle, Some(&middle)),
            (&start, Some(&start)),
            (&few, None),
        ];
        for (part, subset) in parts {
            let partial = self.partial(target, hostile, part, effort, what);
            let first = partial[0].1.clone();
            if let Some(read) = subset.map(|subset| by_reader(target, hostile, subset, what)) {
                // Each may read more of a subchunk than is wanted, and find that missing.
                assert!(
                    read == first || decoded.is_err() && (read.is_err() || first.is_err()),
                    "{what}: partial_decode {:?}, a reader {:?}",
                    first.map(|_| ()),
                    read.map(|_| ())
                );
            }
            for (way, partial) in partial {
                match (&decoded, &partial) {
                    (Ok(decoded), Ok(partial)) => {
                        assert_eq!(*partial, shards.slice(decoded, part), "{what}: {way}");
                    }
                    (Ok(_), Err(error)) => panic!("{what}: {way}: {error}"),
                    (Err(_), Ok(partial)) if target.covered => {
                        let right = shards.slice(&target.elements, part);
                        assert_eq!(*partial, right, "{what}: {way}");
                    }
                    (Err(_), _) => {}
                }
                assert_eq!(partial.is_ok(), first.is_ok(), "{what}: {way}");
            }
        }

        Self::compact(target, hostile, &decoded, what);
        Self::update(target, hostile, &decoded, what);
        decoded
    }

    /// Reads through partial decoders over stores of all kinds.
    fn partial(
        &self,
        target: &Target,
        hostile: &[u8],
        indexer: &dyn Indexer,
        effort: Effort,
        what: &str,
    ) -> Vec<(String, Outcome)> {
        let mut outcomes = Vec::new();
        let key = StoreKey::new("shard").unwrap();

        let memory = Arc::new(MemoryStore::new());
        memory.set(&key, hostile.to_vec().into()).unwrap();
        let sync = outcome(what, || partial(target, memory.clone(), &key, indexer));
        outcomes.push(("partial_decode".to_string(), sync));
        if effort == Effort::Thorough {
            // This store panics on reads beyond the end.
            let memory = Arc::new(SyncToAsyncStorageAdapter::new(memory, Inline));
            let asynchronous = outcome(what, || {
                futures::executor::block_on(async_partial(target, memory, &key, indexer))
            });
            outcomes.push((
                "async partial_decode by an adapter".to_string(),
                asynchronous,
            ));
        }

        let memory = Arc::new(AsyncMemoryStore::new());
        let asynchronous = outcome(what, || {
            futures::executor::block_on(async {
                memory.set(&key, hostile.to_vec().into()).await.unwrap();
                async_partial(target, memory, &key, indexer).await
            })
        });
        outcomes.push(("async partial_decode".to_string(), asynchronous));

        if effort == Effort::Thorough {
            let files = Arc::new(FilesystemStore::new(self.directory.path()).unwrap());
            let sync = outcome(what, || partial(target, files.clone(), &key, indexer));
            outcomes.push(("partial_decode of a file".to_string(), sync));

            let files = Arc::new(SyncToAsyncStorageAdapter::new(files, Inline));
            let asynchronous = outcome(what, || {
                futures::executor::block_on(async_partial(target, files, &key, indexer))
            });
            outcomes.push(("async partial_decode of a file".to_string(), asynchronous));

            let bytes = outcome(what, || {
                let options = CodecOptions::default();
                let ours = target.ours.clone();
                target
                    .shards
                    .partial_decode(ours, hostile, indexer, &options)
            });
            outcomes.push(("partial_decode of bytes".to_string(), bytes));
        }
        outcomes
    }

    /// Compacts a shard, and checks that it decodes to the same elements.
    fn compact(target: &Target, hostile: &[u8], decoded: &Outcome, what: &str) {
        let Target { shards, ours, .. } = target;
        let options = CodecOptions::default();
        let compacted = outcome(what, || {
            let compacted = ours.compact(
                hostile.into(),
                &shards.chunk_shape(),
                &shards.data_type,
                &shards.fill_value(),
                &options,
            )?;
            Ok(compacted.map_or_else(|| hostile.to_vec(), std::borrow::Cow::into_owned))
        });
        if let Ok(compacted) = compacted {
            assert!(compacted.len() <= hostile.len(), "{what}");
            let again = outcome(what, || shards.decode(ours.as_ref(), &compacted, &options));
            assert_eq!(again.ok(), decoded.clone().ok(), "{what}: compacted");
        } else {
            assert!(decoded.is_err(), "{what}: cannot be compacted");
        }
    }

    /// Updates a shard. The update succeeds if the subchunk that it touches can be decoded.
    /// Otherwise it is refused, and the shard is unchanged.
    fn update(target: &Target, hostile: &[u8], decoded: &Outcome, what: &str) {
        let Target { shards, ours, .. } = target;
        let options = CodecOptions::default();
        let value = Arc::new(Mutex::new(Some(hostile.to_vec())));
        let element = shards.fill.clone();
        let last: Vec<_> = shards.shape.iter().map(|d| d - 1..*d).collect();
        let subset = ArraySubset::new_with_ranges(&last);
        let updated = outcome(what, || {
            let encoder = ours.clone().partial_encoder(
                value.clone(),
                &shards.chunk_shape(),
                &shards.data_type,
                &shards.fill_value(),
                &options,
            )?;
            encoder.partial_encode(&subset, &ArrayBytes::from(element.clone()), &options)?;
            Ok(vec![])
        });
        // The lock is poisoned if a read beyond the end panicked.
        let value = value.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Err(error) = &updated {
            // A subchunk that overlaps the index may be readable, but is not updated. Nor does an
            // update work after a read beyond the end has poisoned this value.
            let reaches = [
                "reaches into the shard's index",
                "a codec or store panicked",
            ]
            .iter()
            .any(|text| error.contains(text));
            assert!(decoded.is_err() || reaches, "{what}: {error}");
            assert_eq!(value.as_deref(), Some(hostile), "{what}: not updated");
            return;
        }
        let all = shards.fill.repeat(shards.num_elements());
        let shard = value.map_or(Ok(all.clone()), |value| {
            shards.decode(ours.as_ref(), &value, &options)
        });
        if let Ok(decoded) = decoded {
            let mut expected = decoded.clone();
            let last = expected.len() - element.len();
            expected[last..].copy_from_slice(&element);
            assert_eq!(shard.unwrap(), expected, "{what}: updated");
        } else if let Ok(shard) = shard {
            // The update erased the only broken subchunk.
            let last = shard.len() - element.len();
            assert_eq!(shard[last..], element, "{what}: updated");
        }
    }
}

/// A box in the middle of a shard, and a box at its start.
fn boxes(shape: &[u64]) -> [ArraySubset; 2] {
    let middle: Vec<_> = shape.iter().map(|d| d / 2 - 1..d / 2 + 1).collect();
    let start: Vec<_> = shape.iter().map(|d| 0..d / 2).collect();
    [middle, start].map(|ranges| ArraySubset::new_with_ranges(&ranges))
}

/// A few elements of a shard.
fn few(shape: &[u64]) -> Vec<Vec<u64>> {
    let last: Vec<u64> = shape.iter().map(|d| d - 1).collect();
    vec![last.clone(), vec![0; shape.len()], last]
}

/// Reads a box of the array that is this shard with an `ArrayReader`.
fn by_reader(target: &Target, hostile: &[u8], subset: &ArraySubset, what: &str) -> Outcome {
    let Target { shards, ours, .. } = target;
    outcome(what, || {
        let options = CodecOptions::default();
        let read = shards.read(ours.clone(), hostile, subset, &options);
        read.unwrap()
            .map_err(|error| CodecError::Other(error.to_string()))
    })
}

/// Reads the elements that `indexer` selects from the shard under `key`.
fn partial(
    target: &Target,
    storage: ReadableStorage,
    key: &StoreKey,
    indexer: &dyn Indexer,
) -> Result<Vec<u8>, CodecError> {
    let Target { shards, ours, .. } = target;
    let options = CodecOptions::default();
    let input = Arc::new(StoragePartialDecoder::new(storage, key.clone()));
    let decoder = ours.clone().partial_decoder(
        input,
        &shards.chunk_shape(),
        &shards.data_type,
        &shards.fill_value(),
        &options,
    )?;
    let decoded = decoder.partial_decode(indexer, &options)?;
    Ok(decoded.into_fixed()?.into_owned())
}

/// The same, asynchronously.
async fn async_partial(
    target: &Target,
    storage: AsyncReadableStorage,
    key: &StoreKey,
    indexer: &dyn Indexer,
) -> Result<Vec<u8>, CodecError> {
    let Target { shards, ours, .. } = target;
    let options = CodecOptions::default();
    let input = Arc::new(AsyncStoragePartialDecoder::new(storage, key.clone()));
    let decoder = ours
        .clone()
        .async_partial_decoder(
            input,
            &shards.chunk_shape(),
            &shards.data_type,
            &shards.fill_value(),
            &options,
        )
        .await?;
    let decoded = decoder.partial_decode(indexer, &options).await?;
    Ok(decoded.into_fixed()?.into_owned())
}

/// The valid shards themselves.
#[test]
fn unharmed() {
    let mut attacker = Attacker::new();
    for target in targets() {
        let encoded = target.encoded.clone();
        attacker.attack(&target, &encoded, Effort::Thorough, "unharmed");
    }
    assert_eq!(attacker.errors, 0);
}

/// Shards cut at every length, from either side.
#[test]
fn truncated() {
    let mut attacker = Attacker::new();
    for target in targets() {
        for len in 0..target.encoded.len() {
            let effort = if len % 8 == 0 {
                Effort::Thorough
            } else {
                Effort::Usual
            };
            let (what, head) = (format!("the first {len} bytes"), &target.encoded[..len]);
            attacker.attack(&target, head, effort, &what);
            if len % 8 == 1 {
                let tail = &target.encoded[target.encoded.len() - len..];
                let what = format!("the last {len} bytes");
                attacker.attack(&target.shuffled(), tail, effort, &what);
            }
        }
    }
    assert!(attacker.errors > 0);
}

/// Shards with every single bit flipped.
#[test]
fn flipped() {
    let mut attacker = Attacker::new();
    // Decoding after the index is the same for every layout, so one layout is enough for most
    // chains.
    let few = ["none", "crc32c", "zstd", "sharding"];
    let end = layouts()[0];
    let most = chains().into_iter().map(|chain| (chain, end));
    let others = layouts().into_iter().skip(1).flat_map(|index| {
        let chains = chains().into_iter();
        chains
            .filter(|(name, ..)| few.contains(&name.as_str()))
            .map(move |chain| (chain, index))
    });
    for ((name, codecs, checked), index) in most.chain(others) {
        let target = target(&name, codecs, checked, index);
        for bit in 0..8 * target.encoded.len() {
            let mut hostile = target.encoded.clone();
            hostile[bit / 8] ^= 1 << (bit % 8);
            attacker.attack(&target, &hostile, Effort::Usual, &format!("bit {bit}"));
        }
    }
    assert!(attacker.errors > 0 && attacker.data > 0);
}

/// Additional bytes before and after the shard.
#[test]
fn extended() {
    let mut attacker = Attacker::new();
    for target in targets() {
        for (before, after) in [(0, 1), (0, 100), (1, 0), (100, 0), (7, 7)] {
            let mut hostile = vec![0xEE; before];
            hostile.extend(&target.encoded);
            hostile.resize(hostile.len() + after, 0xEE);
            let what = format!("{before} bytes before, {after} behind");
            attacker.attack(&target.shuffled(), &hostile, Effort::Thorough, &what);
        }
    }
}

/// Random bytes.
#[test]
fn noise() {
    let mut attacker = Attacker::new();
    let mut rng = Rng(5);
    for target in targets() {
        for len in [0, 1, 16, 64, 68, 100, 1000] {
            for byte in [0, 1, 0x7F, 0xFF] {
                let what = format!("{len} bytes of {byte}");
                attacker.attack(&target, &vec![byte; len], Effort::Thorough, &what);
            }
            let noise: Vec<u8> = (0..len).map(|_| rng.byte()).collect();
            attacker.attack(&target, &noise, Effort::Thorough, "noise");
        }
    }
}

/// Index entries that overflow, overlap, point beyond the end or into the index, or have one word
/// of the "empty" pair. All have a valid checksum.
#[test]
fn index_entries() {
    let mut attacker = Attacker::new();
    for target in targets() {
        let index = target.shards.index;
        let valid = index.entries(&target.encoded, 4);
        let len = target.encoded.len() as u64;
        let index_size = index.size(4) as u64;
        let index_start = match index.location {
            ShardingIndexLocation::Start => 0,
            ShardingIndexLocation::End => len - index_size,
        };
        let [offset, size] = valid[0];
        let made_up = [
            [u64::MAX - 1, 4],
            [u64::MAX - 1, 1],
            [u64::MAX - 1, 2],
            [4, u64::MAX - 1],
            [1, u64::MAX - 1],
            [2, u64::MAX - 1],
            [u64::MAX, 0],
            [u64::MAX, 4],
            [u64::MAX, size],
            [0, u64::MAX],
            [offset, u64::MAX],
            [1 << 63, 1 << 63],
            [(1 << 63) - 1, 1],
            [(1 << 63) - 1, 1 << 62],
            [1 << 63, size],
            [offset + (1 << 32), size],
            [offset, size + (1 << 32)],
            [offset, 1 << 20],
            [offset, 1 << 30],
            [offset, 1 << 40],
            [offset, 1 << 62],
            [len, 0],
            [len, 1],
            [len - 1, 1],
            [len - 1, 2],
            [len + 1, 0],
            [0, 0],
            [0, 1],
            [0, len],
            [0, len + 1],
            [offset, 0],
            [offset, size - 1],
            [offset, size + 1],
            [offset + 1, size],
            [index_start, index_size],
            [index_start, size],
            EMPTY,
            valid[2],
            valid[3],
        ];
        for (number, entry) in made_up.into_iter().enumerate() {
            for subchunk in [0, 1, 3] {
                let mut entries = valid.clone();
                entries[subchunk] = entry;
                let hostile = index.replace(&target.encoded, &entries);
                let what = format!("entry {subchunk} is {entry:?}");
                let effort = if number % 4 == 0 {
                    Effort::Thorough
                } else {
                    Effort::Usual
                };
                attacker.attack(&target.shuffled(), &hostile, effort, &what);
            }
            let hostile = index.replace(&target.encoded, &[entry; 4]);
            let what = format!("all entries are {entry:?}");
            attacker.attack(&target.shuffled(), &hostile, Effort::Thorough, &what);
        }
    }
    assert!(attacker.errors > 0 && attacker.data > 0);
}

/// A frame of `len` zeros, as `codecs` would encode it.
fn frame(codecs: &[Value], len: usize) -> Vec<u8> {
    let metadata: Vec<_> = codecs
        .iter()
        .map(|codec| serde_json::from_value(codec.clone()).unwrap())
        .collect();
    let chain = CodecChain::from_metadata(&metadata).unwrap();
    let encoded = chain.encode(
        ArrayBytes::from(vec![0; len]),
        &chunk_shape(&[len as u64]),
        &data_type::uint8(),
        &FillValue::from(0_u8),
        &CodecOptions::default(),
    );
    encoded.unwrap().into_owned()
}

/// Valid subchunks of the wrong decoded length, up to far more than fits.
#[test]
fn wrong_lengths() {
    let mut attacker = Attacker::new();
    let index = IndexLayout::default();
    for (name, codecs, _) in chains() {
        let array_codecs = [
            "transpose",
            "packbits",
            "shuffle",
            "sharding",
            "reshape",
            "pcodec",
        ];
        if array_codecs.iter().any(|codec| name.starts_with(codec)) {
            continue;
        }
        let target = target(&name, codecs.clone(), false, index);
        let expected = target.elements.len() / 4;
        for len in [1, expected - 1, expected + 1, 2 * expected, 4096, 5 << 20] {
            let frame = frame(&codecs, len);
            if frame.len() > 1 << 20 {
                continue;
            }
            let mut subchunks = index.subchunks(&target.encoded, 4);
            subchunks[2] = Some(frame);
            let subchunks: Vec<_> = subchunks.into_iter().map(|bytes| (0, bytes)).collect();
            let hostile = index.shard(&subchunks);
            let errors = attacker.errors;
            let what = format!("{len} bytes in a subchunk");
            attacker.attack(&target, &hostile, Effort::Thorough, &what);
            assert_eq!(attacker.errors, errors + 1, "{name}: {what}");
        }
    }
}

/// Subchunks of more than 64 KiB. They are read in part, unless a checksum covers the whole
/// subchunk.
#[test]
fn large_subchunks() {
    let mut attacker = Attacker::new();
    let little = || codecs::bytes("little");
    let nested = codecs::sharding(&[25, 50], &[little()]);
    let chains = [
        vec![little()],
        vec![codecs::transpose(&[1, 0]), little()],
        vec![little(), codecs::crc32c()],
        vec![codecs::packbits()],
        vec![nested.clone()],
        vec![nested, codecs::crc32c()],
        vec![codecs::sharding(
            &[25, 50],
            &[little(), codecs::zstd(1, false)],
        )],
    ];
    for (codecs, index) in chains
        .into_iter()
        .flat_map(|c| layouts().map(|i| (c.clone(), i)))
    {
        let mut rng = Rng(2);
        let shards = Shards {
            shape: vec![100, 100],
            subchunk: vec![50, 100],
            data_type: data_type::complex128(),
            fill: vec![0; 16],
            codecs,
            index,
        };
        let elements: Vec<u8> = (0..16 * shards.num_elements())
            .map(|_| rng.byte())
            .collect();
        let ours = shards.ours();
        let encoded = shards.encode(ours.as_ref(), &elements, &CodecOptions::default());
        let encoded = encoded.unwrap();
        let target = Target {
            name: format!("{:?}", shards.codecs),
            covered: index.checksum && shards.codecs.last() == Some(&codecs::crc32c()),
            ours,
            elements,
            encoded: encoded.clone(),
            shards,
        };
        attacker.attack(&target, &encoded, Effort::Thorough, "unharmed");
        assert_eq!(attacker.errors, 0);

        let valid = index.entries(&encoded, 2);
        let [offset, size] = valid[0];
        for entry in [
            [offset, size - 1],
            [offset, size + 1],
            [offset, 70_000],
            [offset + 1, size],
            [offset, 2 * size],
            [offset, encoded.len() as u64],
            [offset, 1 << 40],
            [valid[1][0], 1 << 17],
            valid[1],
        ] {
            let hostile = index.replace(&encoded, &[entry, valid[1]]);
            let what = format!("entry 0 is {entry:?}");
            attacker.attack(&target.shuffled(), &hostile, Effort::Thorough, &what);
        }
        for cut in [1, 16, 1000, 70_000, 100_000] {
            let hostile = &encoded[..encoded.len() - cut];
            attacker.attack(
                &target,
                hostile,
                Effort::Thorough,
                &format!("{cut} bytes cut"),
            );
        }
        // Positions near the end, where the index of a nested shard is.
        for position in (0..12).map(|k| usize::try_from(offset + size).unwrap() - 1 - 11 * k) {
            let mut hostile = encoded.clone();
            hostile[position] ^= 0x10;
            attacker.attack(&target, &hostile, Effort::Thorough, "a bit flipped");
        }
        attacker.errors = 0;
    }
}

/// Shards without dimensions: one element in one subchunk.
#[test]
fn no_dimensions() {
    let _attacker = Attacker::new();
    let options = CodecOptions::default();
    for index in layouts() {
        for codecs in [
            vec![codecs::bytes("big")],
            vec![codecs::bytes("little"), codecs::zstd(1, true)],
            vec![codecs::bytes("little"), codecs::xor()],
        ] {
            let shards = Shards {
                shape: vec![],
                subchunk: vec![],
                data_type: data_type::uint16(),
                fill: vec![0, 0],
                codecs,
                index,
            };
            let ours = shards.ours();
            let encoded = shards.encode(ours.as_ref(), &[1, 2], &options).unwrap();
            let whole = ArraySubset::new_with_ranges(&[]);
            let point = vec![Vec::<u64>::new(); 2];
            let read = |encoded: &[u8]| {
                let decoded = outcome("decode", || shards.decode(ours.as_ref(), encoded, &options));
                let into = outcome("decode_into", || {
                    shards.decode_into(ours.clone(), encoded, &options)
                });
                let partial = |indexer: &dyn Indexer| {
                    let ours = ours.clone();
                    outcome("partial_decode", || {
                        shards.partial_decode(ours, encoded, indexer, &options)
                    })
                };
                assert_eq!(into.ok(), decoded.clone().ok());
                assert_eq!(partial(&whole).ok(), decoded.clone().ok());
                let twice = decoded.clone().map(|element| element.repeat(2));
                assert_eq!(partial(&point).ok(), twice.ok());
                decoded
            };
            assert_eq!(read(&encoded).unwrap(), [1, 2]);
            for len in 0..encoded.len() {
                assert!(read(&encoded[..len]).is_err());
            }
            for bit in 0..8 * encoded.len() {
                let mut hostile = encoded.clone();
                hostile[bit / 8] ^= 1 << (bit % 8);
                let decoded = read(&hostile);
                assert!(decoded.is_err() || decoded.unwrap().len() == 2);
            }
        }
    }
}

/// Shapes whose products overflow, or exceed any machine's memory. Nothing is allocated for them,
/// and the few possible operations work.
#[test]
fn huge_shapes() {
    let _attacker = Attacker::new();
    let most = u64::MAX;
    for (shape, subchunk) in [
        (vec![most], vec![1]),
        (vec![most], vec![most]),
        (vec![most, most], vec![1, 1]),
        (vec![most, most], vec![most, most]),
        (vec![most; 5], vec![most; 5]),
        (vec![1 << 32, 1 << 32], vec![1, 1]),
        (vec![1 << 32, 1 << 32], vec![1 << 32, 1 << 32]),
        (vec![1 << 32, 1 << 31], vec![1 << 16, 1 << 16]),
        (vec![1 << 61], vec![1]),
        (vec![1 << 61], vec![1 << 61]),
        (vec![1 << 60], vec![1 << 50]),
        (vec![1 << 59], vec![1]),
        (vec![1 << 58], vec![1]),
        (vec![1 << 50], vec![1]),
    ] {
        for codecs in [
            vec![codecs::bytes("little")],
            vec![codecs::bytes("little"), codecs::zstd(1, false)],
            vec![codecs::bytes("little"), codecs::xor()],
        ] {
            for index in layouts() {
                read_huge(&Shards {
                    shape: shape.clone(),
                    subchunk: subchunk.clone(),
                    data_type: data_type::uint16(),
                    fill: vec![7, 0],
                    codecs: codecs.clone(),
                    index,
                });
            }
        }
    }
    panics::assert_none("our own code");
}

fn read_huge(shards: &Shards) {
    let options = CodecOptions::default();
    let what = format!("{:?} of {:?}", shards.shape, shards.subchunk);
    let ours = shards.ours();
    let (shape, fill_value) = (shards.chunk_shape(), shards.fill_value());
    for hostile in [vec![], vec![0xFF; 16], vec![0; 1000]] {
        let failed = |way: &str, outcome: Outcome| assert!(outcome.is_err(), "{what}: {way}");
        let decode = outcome(&what, || shards.decode(ours.as_ref(), &hostile, &options));
        failed("decode", decode);
        let encode = outcome(&what, || shards.encode(ours.as_ref(), &hostile, &options));
        failed("encode", encode);
        let _either = outcome(&what, || {
            let compacted = ours.compact(
                hostile.clone().into(),
                &shape,
                &shards.data_type,
                &fill_value,
                &options,
            );
            compacted.map(|_| vec![])
        });

        // One element, in an array whose index may be small.
        let origin = vec![0..1; shape.len()];
        let origin = ArraySubset::new_with_ranges(&origin);
        let partial = outcome(&what, || {
            shards.partial_decode(ours.clone(), &hostile, &origin, &options)
        });
        if let Ok(element) = partial {
            assert_eq!(element, shards.fill, "{what}");
        }
        let _either = outcome(&what, || {
            shards.async_partial_decode(ours.clone(), &hostile, &origin, &options)
        });
        let whole = ArraySubset::new_with_shape(shards.shape.clone());
        let partial = outcome(&what, || {
            shards.partial_decode(ours.clone(), &hostile, &whole, &options)
        });
        failed("partial_decode", partial);
    }
    let _either = outcome(&what, || {
        let bound = ours.encoded_representation(&shape, &shards.data_type, &fill_value);
        bound.map(|_| vec![])
    });
    let _either = outcome(&what, || {
        let explanation = ours.explain(&shape, &shards.data_type, &fill_value);
        Ok(explanation.map_or_else(|_| vec![], |e| e.to_string().into_bytes()))
    });
}

/// zarrs decodes variable-length elements. Its panics become errors.
#[test]
fn strings() {
    let _attacker = Attacker::new();
    let options = CodecOptions::default();
    for index in layouts() {
        let shards = Shards {
            shape: vec![4],
            subchunk: vec![2],
            data_type: data_type::string(),
            fill: vec![],
            codecs: vec![json!({ "name": "vlen-utf8" })],
            index,
        };
        let ours = shards.ours();
        let (shape, fill_value) = (shards.chunk_shape(), shards.fill_value());
        let strings = ["one", "two", "", "four"].map(String::from);
        let elements = String::into_array_bytes(&shards.data_type, strings.to_vec()).unwrap();
        let encoded = ours
            .encode(elements, &shape, &shards.data_type, &fill_value, &options)
            .unwrap();
        let attack = |hostile: &[u8]| {
            let what = format!("{hostile:?}");
            let flat = |bytes: ArrayBytes<'_>| {
                let (bytes, offsets) = bytes.into_variable()?.into_parts();
                assert_eq!(offsets.last(), bytes.len());
                Ok(bytes.into_owned())
            };
            let decoded = outcome(&what, || {
                let data_type = &shards.data_type;
                flat(ours.decode(hostile.into(), &shape, data_type, &fill_value, &options)?)
            });
            let _either = outcome(&what, || {
                let decoder = ours.clone().partial_decoder(
                    Arc::new(hostile.to_vec()),
                    &shape,
                    &shards.data_type,
                    &fill_value,
                    &options,
                )?;
                let subset = ArraySubset::new_with_ranges(&[1..3]);
                flat(decoder.partial_decode(&subset, &options)?)
            });
            let _either = outcome(&what, || {
                futures::executor::block_on(async {
                    let input = Arc::new(hostile.to_vec());
                    let decoder = ours
                        .clone()
                        .async_partial_decoder(
                            input,
                            &shape,
                            &shards.data_type,
                            &fill_value,
                            &options,
                        )
                        .await?;
                    let subset = ArraySubset::new_with_ranges(&[1..3]);
                    flat(decoder.partial_decode(&subset, &options).await?)
                })
            });
            decoded
        };
        assert_eq!(attack(&encoded).unwrap(), b"onetwofour");
        for len in 0..encoded.len() {
            let _either = attack(&encoded[..len]);
        }
        for bit in 0..8 * encoded.len() {
            let mut hostile = encoded.to_vec();
            hostile[bit / 8] ^= 1 << (bit % 8);
            let _either = attack(&hostile);
        }
    }
    panics::assert_none("our own code");
}
