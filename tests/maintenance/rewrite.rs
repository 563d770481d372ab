//! `ShardFormat::rewrite`, compared with decoding and encoding everything.

use std::fs::File;
use std::io::{Read, Seek};
use std::sync::Arc;

use serde_json::Value;
use zarrs::array::codec::ShardingIndexLocation::{End, Start};
use zarrs::array::{Array, ArrayBuilder, ArrayBytes, ArraySubset, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{Bytes, ReadableStorageTraits, StoreKey, WritableStorageTraits};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};
use zarrs_cuda::maintenance::{RecoveryOutcome, ShardFormat, StoredShard};
use zarrs_cuda::{Options, WriteStrategy, recover};
use zarrs_cuda_testing::index::{EMPTY, IndexLayout};
use zarrs_cuda_testing::{Rng, Shards, codecs, effort};

const SHAPE: [u64; 2] = [8, 12];
const SUBCHUNK: [u64; 2] = [4, 4];

fn shards(codecs: Vec<Value>, rng: &mut Rng) -> Shards {
    Shards {
        shape: SHAPE.to_vec(),
        subchunk: SUBCHUNK.to_vec(),
        data_type: data_type::uint16(),
        fill: vec![0, 0],
        codecs,
        index: IndexLayout {
            location: if rng.one_in(2) { Start } else { End },
            big_endian: false,
            checksum: !rng.one_in(4),
        },
    }
}

fn chains() -> Vec<Vec<Value>> {
    let little = || codecs::bytes("little");
    vec![
        vec![little()],
        vec![codecs::bytes("big"), codecs::crc32c()],
        vec![little(), codecs::zstd(1, true)],
        vec![codecs::transpose(&[1, 0]), little(), codecs::gzip(1)],
        vec![codecs::sharding(
            &[2, 2],
            &[little(), codecs::zstd(1, false)],
        )],
        // The engines do not know this one.
        vec![little(), codecs::bz2()],
    ]
}

fn format_of(shards: &Shards) -> ShardFormat {
    let (data_type, fill_value) = (shards.data_type.clone(), shards.fill_value());
    ShardFormat::new(shards.ours(), shards.chunk_shape(), data_type, fill_value).unwrap()
}

fn options() -> CodecOptions {
    CodecOptions::default()
}

/// Some elements, of which whole subchunks may be the fill value.
fn elements(len: usize, rng: &mut Rng) -> Vec<u16> {
    let empty = rng.one_in(3);
    let element = |_| {
        if empty { 0 } else { rng.below(4) as u16 }
    };
    (0..len).map(element).collect()
}

fn a_box(rng: &mut Rng) -> (ArraySubset, Vec<u16>) {
    let subset = ArraySubset::from(SHAPE.map(|extent| rng.range(extent)).to_vec());
    let elements = elements(subset.num_elements_usize(), rng);
    (subset, elements)
}

fn bytes_of(elements: &[u16]) -> Vec<u8> {
    elements.iter().flat_map(|e| e.to_ne_bytes()).collect()
}

fn boxes_of(boxes: &[(ArraySubset, Vec<u16>)]) -> Vec<(ArraySubset, ArrayBytes<'static>)> {
    boxes
        .iter()
        .map(|(subset, elements)| (subset.clone(), ArrayBytes::new_flen(bytes_of(elements))))
        .collect()
}

/// An array of one shard in memory, and its elements.
struct Subject {
    shards: Shards,
    store: Arc<MemoryStore>,
    array: Array<MemoryStore>,
    elements: Vec<u16>,
}

fn key() -> StoreKey {
    StoreKey::new("a/c/0/0").unwrap()
}

impl Subject {
    fn new(chain: Vec<Value>, strategy: WriteStrategy, rng: &mut Rng) -> Self {
        let shards = shards(chain, rng);
        let options = Options::default().with_write_strategy(strategy);
        let codec = Arc::new((*shards.ours()).clone().with_options(options));
        let mut builder = ArrayBuilder::new(
            SHAPE.to_vec(),
            SHAPE.to_vec(),
            shards.data_type.clone(),
            0_u16,
        );
        builder.array_to_bytes_codec(codec);
        let store = Arc::new(MemoryStore::new());
        let array = builder.build(store.clone(), "/a").unwrap();
        let elements = vec![0; (SHAPE[0] * SHAPE[1]) as usize];
        Self {
            shards,
            store,
            array,
            elements,
        }
    }

    /// Writes a box as an update of the stored shard.
    fn update(&mut self, (subset, new): &(ArraySubset, Vec<u16>)) {
        let options = options().with_experimental_partial_encoding(true);
        self.array
            .store_array_subset_opt(subset, new, &options)
            .unwrap();
        self.apply((subset, new));
    }

    /// The naive oracle.
    fn apply(&mut self, (subset, new): (&ArraySubset, &[u16])) {
        for (at, element) in subset.indices().into_iter().zip(new) {
            self.elements[(at[0] * SHAPE[1] + at[1]) as usize] = *element;
        }
    }

    fn stored(&self) -> Option<Bytes> {
        self.store.get(&key()).unwrap()
    }

    /// The elements of a shard, which zarrs' own codec decodes.
    fn decoded(&self, shard: &[u8]) -> Vec<u16> {
        let decoded = self.shards.stock().decode(
            shard.into(),
            &self.shards.chunk_shape(),
            &self.shards.data_type,
            &self.shards.fill_value(),
            &options(),
        );
        let decoded = decoded.unwrap().into_fixed().unwrap();
        let (elements, _) = decoded.as_chunks::<2>();
        elements.iter().map(|e| u16::from_ne_bytes(*e)).collect()
    }
}

fn subchunks<'s>(format: &ShardFormat, shard: &'s [u8]) -> Vec<Option<&'s [u8]>> {
    let size = shard.len() as u64;
    let range = format.index_range(size).unwrap();
    let index = &shard[range.start as usize..range.end as usize];
    let extents = format.decode_index(index, size).unwrap();
    let extents = extents.into_iter();
    extents
        .map(|extent| extent.map(|e| &shard[e.start as usize..e.end as usize]))
        .collect()
}

fn file_of(bytes: &[u8]) -> File {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn content(mut file: File) -> Vec<u8> {
    let mut content = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut content).unwrap();
    content
}

const STRATEGIES: [WriteStrategy; 3] = [
    WriteStrategy::Auto,
    WriteStrategy::Append,
    WriteStrategy::InPlace,
];

/// After any updates of the stored shard, any boxes give what they should, from a file and from memory.
#[test]
fn any_boxes_of_any_shard() {
    let chains = chains();
    let (mut erased, mut kept) = (0, 0);
    for seed in effort::seeds(300) {
        let rng = &mut Rng(seed);
        let chain = chains[seed as usize % chains.len()].clone();
        let strategy = STRATEGIES[rng.below(3) as usize];
        let mut subject = Subject::new(chain, strategy, rng);
        for _ in 0..rng.below(4) {
            subject.update(&a_box(rng));
        }
        let stored = subject.stored();
        let format = format_of(&subject.shards);
        let boxes: Vec<_> = (0..rng.below(4)).map(|_| a_box(rng)).collect();
        let given = boxes_of(&boxes);
        let from = stored.clone().map(StoredShard::Bytes);
        let rewritten = format.rewrite(from, given.clone(), &options()).unwrap();
        let before = stored.as_deref().map(|stored| subchunks(&format, stored));
        for (subset, new) in &boxes {
            subject.apply((subset, new));
        }

        let from = stored
            .as_deref()
            .map(|stored| StoredShard::File(file_of(stored)));
        let of_file = format.rewrite(from, given.clone(), &options()).unwrap();
        let Some(rewritten) = rewritten else {
            assert!(subject.elements.iter().all(|e| *e == 0), "seed {seed}");
            assert!(of_file.is_none());
            erased += 1;
            continue;
        };
        let shard = rewritten.to_bytes().unwrap();
        assert_eq!(shard.len() as u64, rewritten.size());
        for rewritten in [rewritten, of_file.unwrap()] {
            let mut file = tempfile::tempfile().unwrap();
            rewritten.write_to(&mut file).unwrap();
            assert!(content(file) == shard && rewritten.to_bytes().unwrap() == shard);
        }
        assert_eq!(subject.decoded(&shard), subject.elements, "seed {seed}");
        // It is dense, and what no box meets has the same bytes.
        let after = subchunks(&format, &shard);
        let used: usize = after.iter().flatten().map(|bytes| bytes.len()).sum();
        assert_eq!(used as u64 + format.index_len(), shard.len() as u64);
        for (number, before) in before.into_iter().flatten().enumerate() {
            let origin = [number as u64 / 3 * 4, number as u64 % 3 * 4];
            let subchunk = ArraySubset::new_with_start_shape(origin.to_vec(), SUBCHUNK.to_vec());
            let subchunk = subchunk.unwrap();
            let is_met =
                |(subset, _): &(ArraySubset, _)| !subset.overlap(&subchunk).unwrap().is_empty();
            if !boxes.iter().any(is_met) {
                assert_eq!(before, after[number], "seed {seed}, subchunk {number}");
                kept += 1;
            }
        }
    }
    assert!(erased > 0 && kept > 100, "{erased} erased, {kept} kept");
}

/// An update of the stored shard that was torn at any byte is recovered as `recover` does it.
#[test]
fn interrupted_updates() {
    let (mut recovered, mut unknown, mut erased) = (0, 0, 0);
    for seed in effort::seeds(60) {
        let rng = &mut Rng(seed);
        let chain = vec![codecs::bytes("little"), codecs::zstd(1, true)];
        let mut subject = Subject::new(chain, WriteStrategy::Append, rng);
        for _ in 0..=rng.below(2) {
            subject.update(&a_box(rng));
        }
        let old = subject.stored().unwrap_or_default();
        subject.update(&a_box(rng));
        let Some(new) = subject.stored() else {
            continue;
        };
        let format = format_of(&subject.shards);
        let given = boxes_of(&[a_box(rng)]);
        for end in old.len().min(new.len()).max(1)..=new.len() {
            // The update grew the shard up to here. An index at the start is written last.
            let mut torn = new[..end].to_vec();
            if subject.shards.index.location == Start && end < new.len() {
                let len = (format.index_len() as usize).min(end);
                torn[..len].fill(0);
                let old = &old[..len.min(old.len())];
                torn[..old.len()].copy_from_slice(old);
            }
            let torn = Bytes::from(torn);
            let store = MemoryStore::new();
            store.set(&key(), torn.clone()).unwrap();
            let recovery = recover(&store, &key(), &format).unwrap();
            let rewritten = format.rewrite(
                Some(StoredShard::Bytes(torn.clone())),
                given.clone(),
                &options(),
            );
            match recovery.outcome {
                RecoveryOutcome::Unrecoverable { .. } => {
                    rewritten.unwrap_err();
                    unknown += 1;
                    continue;
                }
                RecoveryOutcome::Erased => erased += 1,
                RecoveryOutcome::Undone | RecoveryOutcome::Completed => recovered += 1,
                _ => {}
            }
            let from = store.get(&key()).unwrap().map(StoredShard::Bytes);
            let expected = format.rewrite(from, given.clone(), &options()).unwrap();
            let bytes = |shard: Option<zarrs_cuda::maintenance::RewrittenShard>| {
                shard.map(|shard| shard.to_bytes().unwrap())
            };
            assert!(
                bytes(rewritten.unwrap_or_else(|e| panic!("seed {seed}, {end} bytes: {e}")))
                    == bytes(expected),
                "seed {seed}, {end} bytes"
            );
        }
    }
    println!("{recovered} recovered, {erased} erased, {unknown} unknown");
    assert!(recovered > 100);
}

#[test]
fn what_is_refused() {
    let rng = &mut Rng(effort::seed());
    let plain = vec![codecs::bytes("little")];
    let shards = Shards {
        index: IndexLayout {
            location: End,
            big_endian: false,
            checksum: true,
        },
        ..shards(plain, rng)
    };
    let format = format_of(&shards);
    let len = SUBCHUNK.iter().product::<u64>() * 2;
    let shard = |entries: [[u64; 2]; 6]| {
        let mut shard: Vec<u8> = (0..5 * len).map(|n| n as u8).collect();
        shard.extend(shards.index.encode(&entries));
        shard
    };
    let rewrite = |shard: Vec<u8>, boxes: &[_]| {
        format.rewrite(
            Some(StoredShard::Bytes(shard.into())),
            boxes.to_vec(),
            &options(),
        )
    };
    let at = |start: u64| [start, len];
    // Two subchunks share their bytes: that is kept.
    let entries = [at(0), EMPTY, at(0), at(3 * len), at(len), EMPTY];
    let shared = rewrite(shard(entries), &[]).unwrap().unwrap();
    assert_eq!(shared.size(), 3 * len + format.index_len());
    let bytes = shared.to_bytes().unwrap();
    let index = &bytes[3 * len as usize..];
    let extents = format.decode_index(index, shared.size()).unwrap();
    let range = |n: u64| Some(n * len..(n + 1) * len);
    assert_eq!(
        extents,
        [range(0), None, range(0), range(1), range(2), None]
    );

    let overlapping = [at(0), EMPTY, at(len / 2), at(3 * len), EMPTY, EMPTY];
    let error = rewrite(shard(overlapping), &[]).unwrap_err().to_string();
    assert!(
        error.contains("overlap in the stored shard, at bytes 0..32 and 16..48"),
        "{error}"
    );
    let outside = [at(0), EMPTY, at(100 * len), at(3 * len), EMPTY, EMPTY];
    rewrite(shard(outside), &[]).unwrap_err();
    let mut damaged = shard(entries);
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    rewrite(damaged, &[]).unwrap_err();
    rewrite(vec![1; 10], &[]).unwrap_err();

    let beyond = ArraySubset::from(vec![0..SHAPE[0] + 1, 0..1]);
    let elements = ArrayBytes::new_flen(vec![0; 2 * (SHAPE[0] + 1) as usize]);
    rewrite(shard(entries), &[(beyond, elements)]).unwrap_err();

    // A box and its elements fit each other, or nothing is written.
    for len in [1, 3] {
        let elements = ArrayBytes::new_flen(vec![0; 2 * len]);
        let two = ArraySubset::from(vec![0..1, 0..2]);
        rewrite(shard(entries), &[(two, elements)]).unwrap_err();
    }
    let nothing = ArraySubset::from(vec![0..0, 0..3]);
    let none = ArrayBytes::new_flen(Vec::new());
    let same = rewrite(shard(entries), &[(nothing, none)])
        .unwrap()
        .unwrap();
    assert!(same.to_bytes().unwrap() == bytes);
    let error = rewrite(Vec::new(), &[]).unwrap_err().to_string();
    assert!(error.contains("Recovery is not possible"), "{error}");

    // A file is not written over itself.
    let mut file = file_of(&shard(entries));
    let stored = StoredShard::File(file.try_clone().unwrap());
    let rewritten = format.rewrite(Some(stored), [], &options()).unwrap();
    let error = rewritten.unwrap().write_to(&mut file).unwrap_err();
    assert!(
        error.to_string().contains("cannot be written over itself"),
        "{error}"
    );
    assert!(content(file) == shard(entries));
    // A file that became shorter is an error.
    let file = file_of(&shard(entries));
    let stored = StoredShard::File(file.try_clone().unwrap());
    let rewritten = format
        .rewrite(Some(stored), [], &options())
        .unwrap()
        .unwrap();
    file.set_len(len).unwrap();
    rewritten.to_bytes().unwrap_err();
}

/// Each box changes the same large subchunk: earlier versions of it do not add up.
#[test]
fn many_boxes_of_one_subchunk() {
    let rng = &mut Rng(effort::seed());
    let chain = vec![codecs::bytes("little"), codecs::crc32c()];
    let shards = Shards {
        shape: vec![512, 1024],
        subchunk: vec![512, 512],
        ..shards(chain, rng)
    };
    let format = format_of(&shards);
    let mut elements = vec![0_u16; 512 * 1024];
    let boxes: Vec<_> = (1..60_u16)
        .map(|n| {
            let (row, column) = (rng.below(512), rng.below(600));
            elements[(row * 1024 + column) as usize] = n;
            let one = ArraySubset::from(vec![row..row + 1, column..column + 1]);
            (one, ArrayBytes::new_flen(n.to_ne_bytes().to_vec()))
        })
        .collect();
    let rewritten = format.rewrite(None, boxes, &options()).unwrap().unwrap();
    let decoded = shards.stock().decode(
        rewritten.to_bytes().unwrap().into(),
        &shards.chunk_shape(),
        &shards.data_type,
        &shards.fill_value(),
        &options(),
    );
    let decoded = decoded.unwrap().into_fixed().unwrap();
    assert!(*decoded == bytes_of(&elements));
}

/// Runs of subchunks that the system copies, between changed ones, to a file behind other bytes.
#[test]
fn long_runs_from_file_to_file() {
    for (location, seed) in [Start, End, Start, End].into_iter().zip(effort::seeds(4)) {
        let rng = &mut Rng(seed);
        let shards = Shards {
            shape: vec![64, 4096],
            subchunk: vec![64, 128],
            index: IndexLayout {
                location,
                big_endian: false,
                checksum: true,
            },
            ..shards(vec![codecs::bytes("little")], rng)
        };
        let format = format_of(&shards);
        let mut elements: Vec<u16> = (0..64 * 4096).map(|_| rng.next() as u16 | 1).collect();
        let encode = |elements: &[u16]| {
            let encoded = shards.ours().encode(
                ArrayBytes::new_flen(bytes_of(elements)),
                &shards.chunk_shape(),
                &shards.data_type,
                &shards.fill_value(),
                &options(),
            );
            encoded.unwrap().into_owned()
        };
        let stored = encode(&elements);
        // Subchunks of 16 KiB: one change, and long and short runs around it.
        let boxes: Vec<_> = [5, 7, 31]
            .map(|number: u64| {
                elements[number as usize * 128] = 0;
                let one = ArraySubset::from(vec![0..1, number * 128..number * 128 + 1]);
                (one, ArrayBytes::new_flen(vec![0; 2]))
            })
            .into();
        let file = StoredShard::File(file_of(&stored));
        let rewritten = format.rewrite(Some(file), boxes, &options());
        let rewritten = rewritten.unwrap().unwrap();
        let mut output = file_of(b"before");
        rewritten.write_to(&mut output).unwrap();
        let expected = encode(&elements);
        assert!(
            content(output) == [&b"before"[..], &expected].concat(),
            "{location:?}"
        );
        assert!(rewritten.to_bytes().unwrap() == expected);
    }
}

#[test]
fn an_index_for_which_there_is_no_memory() {
    let rng = &mut Rng(effort::seed());
    let shards = Shards {
        shape: vec![1 << 42, 1],
        subchunk: vec![1, 1],
        ..shards(vec![codecs::bytes("little")], rng)
    };
    let one = ArraySubset::from(vec![0..1, 0..1]);
    let boxes = [(one, ArrayBytes::new_flen(vec![1; 2]))];
    let error = format_of(&shards)
        .rewrite(None, boxes, &options())
        .unwrap_err();
    assert!(error.to_string().contains("memory"), "{error}");
}

/// A file whose update was interrupted is recovered unless another process has its lock, and is no output.
#[test]
fn the_file_of_an_interrupted_update() {
    let rng = &mut Rng(effort::seed());
    let chain = || vec![codecs::bytes("little")];
    let mut subject = loop {
        let subject = Subject::new(chain(), WriteStrategy::Append, rng);
        if subject.shards.index.location == End {
            break subject;
        }
    };
    let one = |element: u16| (ArraySubset::from(vec![0..1, 0..1]), vec![element]);
    subject.update(&one(1));
    let old = subject.stored().unwrap();
    subject.update(&one(2));
    let new = subject.stored().unwrap();
    let torn = new.slice(..old.len().midpoint(new.len()));
    let format = format_of(&subject.shards);
    let file = file_of(&torn);
    file.lock().unwrap();
    // Another open file, as another process has it.
    let other = || {
        File::open(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&file)
        ))
    };
    let error = format.rewrite(Some(StoredShard::File(other().unwrap())), [], &options());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("another process is updating the shard"),
        "{error}"
    );
    file.unlock().unwrap();
    let rewritten = format.rewrite(Some(StoredShard::File(other().unwrap())), [], &options());
    let rewritten = rewritten.unwrap().unwrap();
    assert_eq!(subject.decoded(&rewritten.to_bytes().unwrap())[0], 1);
    let mut file = file;
    rewritten.write_to(&mut file).unwrap_err();
}
