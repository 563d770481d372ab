//! Shards that a device compresses and the host's libraries read. As in `bodies`, they have full
//! size on a GPU and are small on the simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::{fs, iter, thread};

use blosc_src::blosc_cbuffer_validate;
use serde_json::{Map, Value, json};

use crate::contract::{
    BloscStage, Chain, Cname, EncodedShard, Engine, EngineError, KnownChain, ShardJob, Shuffle,
    Stage,
};
use crate::cuda::HighestLevels;
use crate::cuda::driver::Driver;
use crate::cuda::{Compressors, CudaEngine, DeviceLimits, Devices, Tuning, check_chain};
use crate::fallback::WithFallback;
use crate::host::HostEngine;
use crate::layout::SubchunkGrid;

/// The size of the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Scale {
    /// A few MiB.
    Large,
    /// A few hundred KiB.
    Medium,
    /// A few KiB.
    Small,
}

/// A device, its compressor library, and the parameters of its engine.
#[derive(Clone, Debug)]
pub(in crate::cuda) struct Setup {
    pub(in crate::cuda) devices: Arc<Devices>,
    compressors: Compressors,
    tuning: Tuning,
    scale: Scale,
    /// Whether subchunks on which the compressor fails are only reported.
    reports: bool,
}

impl Setup {
    pub(in crate::cuda) fn new(
        driver: Arc<dyn Driver>,
        compressors: Compressors,
        tuning: Tuning,
        scale: Scale,
    ) -> Self {
        Self {
            devices: Devices::new(vec![driver]),
            compressors,
            tuning,
            scale,
            reports: false,
        }
    }

    /// Returns this setup for a compressor that nobody has seen at work: the tests print how many subchunks it
    /// fails on, and do not fail. The host has compressed these subchunks.
    pub(in crate::cuda) fn reporting(self) -> Self {
        Self {
            reports: true,
            ..self
        }
    }

    fn engine(&self, chain: &KnownChain) -> CudaEngine {
        let limits = DeviceLimits {
            devices: None,
            device_memory: None,
            pinned_memory: 1 << 30,
            idle: None,
            ..DeviceLimits::default()
        };
        CudaEngine::new(self.devices.clone(), limits, self.tuning)
            .for_chain(chain, self.compressors.clone())
    }

    /// Asserts that `shards` shards were encoded on the device, and none of their subchunks on the
    /// host.
    fn assert_all_on_the_device(&self, shards: usize) {
        let metrics = self.devices.counters.snapshot();
        assert_eq!(metrics.shards_encoded, shards as u64);
        let on_host = metrics.subchunks_on_host;
        if self.reports {
            println!("nvCOMP failed on {on_host} subchunks");
        } else {
            assert_eq!(on_host, 0, "nvCOMP failed on subchunks");
        }
    }
}

/// The content of a subchunk. It suits elements of any size.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// A smooth field of 16-bit values with noise in the lowest bits.
    Field,
    /// Incompressible bytes.
    Noise,
    Constant,
    /// The fill value.
    Empty,
    Words,
    Zeros,
    /// Noise, then words.
    Half,
}

const CONTENTS: [Content; 7] = [
    Content::Field,
    Content::Noise,
    Content::Constant,
    Content::Empty,
    Content::Words,
    Content::Zeros,
    Content::Half,
];

impl Content {
    /// Returns `len` bytes of this content, which depend on `seed`.
    fn bytes(self, len: usize, seed: usize, fill_value: &[u8]) -> Vec<u8> {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed as u64 + 1);
        let mut noise = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let word = |i: usize| b"shard subchunk lane epoch "[(i + i / 97 + seed) % 26];
        match self {
            Self::Field => (0..len)
                .map(|i| match i % 2 {
                    0 => ((i / 64 * 32 + seed) as u8 & !31) | (noise() & 31),
                    _ => (8 + i / 2048 % 4) as u8,
                })
                .collect(),
            Self::Noise => iter::repeat_with(noise).take(len).collect(),
            Self::Constant => vec![seed as u8 | 1; len],
            Self::Empty => fill_value.iter().copied().cycle().take(len).collect(),
            Self::Words => (0..len).map(word).collect(),
            Self::Zeros => vec![0; len],
            Self::Half => (0..len)
                .map(|i| if i < len / 2 { noise() } else { word(i) })
                .collect(),
        }
    }
}

/// A shard, its chain, and the content of its subchunks.
#[derive(Debug)]
struct Subject {
    grid: SubchunkGrid,
    chain: KnownChain,
    fill_value: Vec<u8>,
    elements: Vec<u8>,
    /// The subchunks that hold only the fill value.
    empty: BTreeSet<usize>,
}

impl Subject {
    /// `counts` subchunks of `subchunk` elements with `element` bytes each. They have the
    /// `contents` in turn.
    fn new(
        (subchunk, counts, element): (&[u64], &[u64], usize),
        chain: KnownChain,
        contents: &[Content],
    ) -> Self {
        let shard: Vec<u64> = iter::zip(subchunk, counts).map(|(s, c)| s * c).collect();
        let grid = SubchunkGrid::new(&shard, subchunk, element).unwrap();
        // Below 2⁵³, so that every language's JSON numbers can represent the fill value.
        let fill_value: Vec<u8> = [0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC5, 0, 0][..element].to_vec();
        let mut this = Self {
            chain,
            elements: vec![0; grid.shard_bytes()],
            empty: BTreeSet::new(),
            grid,
            fill_value,
        };
        for number in 0..this.grid.num_subchunks() {
            let content = contents[number % contents.len()];
            let bytes = content.bytes(this.grid.subchunk_bytes(), number, &this.fill_value);
            if bytes.chunks(element).all(|value| value == this.fill_value) {
                this.empty.insert(number);
            }
            this.place(number, &bytes);
        }
        this
    }

    /// Copies the elements of a subchunk, in C order, to their places in the shard.
    fn place(&mut self, number: usize, bytes: &[u8]) {
        let (shard, subchunk) = (self.grid.shard(), self.grid.subchunk());
        let element = self.grid.element_size();
        let origin = self.grid.origin(number);
        let last = shard.len() - 1;
        for (row, bytes) in bytes.chunks(subchunk[last] * element).enumerate() {
            let (mut at, mut stride, mut rest) = (origin[last], shard[last], row);
            for axis in (0..last).rev() {
                at += (origin[axis] + rest % subchunk[axis]) * stride;
                rest /= subchunk[axis];
                stride *= shard[axis];
            }
            self.elements[at * element..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Returns a row of subchunks with `bytes` bytes each.
    fn row_of(bytes: usize, chain: KnownChain, contents: &[Content]) -> Self {
        let (subchunk, counts) = ([bytes as u64], [contents.len() as u64]);
        Self::new((&subchunk, &counts, 1), chain, contents)
    }

    fn job(&self) -> ShardJob<'_> {
        ShardJob {
            grid: &self.grid,
            chain: Chain::Known(&self.chain),
            fill_value: &self.fill_value,
            store_empty: false,
            validate_checksums: true,
            threads: NonZeroUsize::new(2).unwrap(),
            huge_pages: true,
        }
    }

    fn encode(&self, engine: &dyn Engine) -> Result<EncodedShard, EngineError> {
        engine.encode(&self.job(), &self.elements, 3, 5)
    }

    /// Checks the layout of `encoded` and the format of every frame, and that the host's libraries
    /// decode the right elements.
    fn check(&self, encoded: &EncodedShard) {
        let stages = &self.chain.stages;
        let mut end = 3;
        for (number, extent) in encoded.extents.iter().enumerate() {
            assert_eq!(extent.is_none(), self.empty.contains(&number), "{stages:?}");
            if let Some(extent) = extent {
                assert_eq!(extent.start, end, "{stages:?}");
                end = extent.end;
                self.check_frame(&encoded.bytes[extent.clone()]);
            }
        }
        assert_eq!(end, encoded.bytes.len(), "{stages:?}");
        let decoded = HostEngine.decode(&self.job(), &encoded.bytes, &encoded.extents);
        let decoded = decoded.unwrap_or_else(|error| panic!("{stages:?}: {error}"));
        assert!(decoded == self.elements, "{stages:?}: other elements");
    }

    /// Checks what decoding does not show: the sizes in the frame, and that no bytes follow its
    /// end.
    fn check_frame(&self, encoded: &[u8]) {
        let stages = &self.chain.stages;
        let place = stages.iter().position(|stage| !stage.is_fixed_size());
        let place = place.unwrap();
        let frame = &encoded[..encoded.len() - 4 * (stages.len() - place - 1)];
        let content = self.grid.subchunk_bytes() + 4 * place;
        match &stages[place] {
            Stage::Zstd { .. } => {
                let size = zstd_safe::get_frame_content_size(frame).unwrap();
                assert_eq!(size, Some(content as u64), "{stages:?}");
                let len = zstd_safe::find_frame_compressed_size(frame);
                assert_eq!(len, Ok(frame.len()), "{stages:?}");
            }
            Stage::Gzip { .. } => {
                let mut decoded = vec![0; content];
                let mut decompressor = libdeflater::Decompressor::new();
                let len = decompressor.gzip_decompress(frame, &mut decoded).unwrap();
                assert_eq!(len, content, "{stages:?}");
                // The decoder stops at the end of the member, whose last bytes must end the frame.
                let crc = libdeflater::crc32(&decoded).to_le_bytes();
                let trailer = [crc, u32::try_from(content).unwrap().to_le_bytes()].concat();
                assert!(frame.ends_with(&trailer), "{stages:?}");
            }
            Stage::Blosc(blosc) => {
                let mut len = 0;
                // SAFETY: the pointer and the length describe `frame`; the function writes one
                // integer.
                let invalid = unsafe {
                    blosc_cbuffer_validate(frame.as_ptr().cast(), frame.len(), &raw mut len)
                };
                assert_eq!((invalid, len), (0, content), "{stages:?}");
                let typesize = u8::try_from(blosc.typesize).unwrap_or(1);
                assert_eq!(frame[3], typesize, "{stages:?}");
                let compressor = match blosc.cname {
                    Cname::Lz4 => 1,
                    _ => 4,
                };
                // Except in frames that are plain copies.
                assert!(frame[2] & 2 != 0 || frame[2] >> 5 == compressor);
            }
            Stage::Crc32c => unreachable!("a checksum is no compressor"),
        }
    }
}

fn plain(axes: usize, stages: Vec<Stage>) -> KnownChain {
    KnownChain {
        order: (0..axes).collect(),
        swap: 1,
        stages,
    }
}

fn zstd(level: i32) -> Stage {
    Stage::Zstd {
        level,
        checksum: false,
    }
}

fn blosc(cname: Cname, shuffle: Shuffle, typesize: usize, blocksize: usize) -> Stage {
    let highest = HighestLevels::default();
    let level = match cname {
        Cname::Zstd => highest.blosc_zstd,
        _ => highest.blosc_lz4,
    };
    Stage::Blosc(BloscStage {
        cname,
        level,
        shuffle,
        typesize,
        blocksize,
    })
}

/// Returns every compressor with every choice that it has. Blosc has several blocks in a subchunk.
fn compressors(scale: Scale) -> Vec<Stage> {
    let groups = match scale {
        Scale::Large => 100,
        Scale::Medium => 20,
        Scale::Small => 1,
    };
    let mut stages = vec![zstd(1), zstd(3)];
    stages.extend([1, 6, 9].map(|level| Stage::Gzip { level }));
    for cname in [Cname::Lz4, Cname::Zstd] {
        for shuffle in [Shuffle::None, Shuffle::Byte, Shuffle::Bit] {
            for typesize in [1, 2, 4, 8, 3] {
                for blocksize in [0, typesize * 16 * groups] {
                    stages.push(blosc(cname, shuffle, typesize, blocksize));
                }
            }
        }
    }
    stages
}

/// Returns every compressor combined in turn with other features of a chain: checksums before and
/// after, other orders of axes, and reversed bytes.
fn subjects(scale: Scale) -> Vec<Subject> {
    let stages = compressors(scale).into_iter().enumerate();
    stages
        .map(|(number, stage)| {
            let element = [2, 4, 1, 8][number % 4];
            // Short enough for gzip's limit, or longer than a Blosc block.
            let (rows, columns, bytes) = match (scale, number % 5) {
                (Scale::Small, 4) => (2, 5, 64),
                (Scale::Small, _) => (2, 3, 16),
                (Scale::Medium, 4) => (8, 32, 64),
                (Scale::Medium, _) => (8, 16, 64),
                (Scale::Large, 0 | 3) if !matches!(stage, Stage::Gzip { .. }) => (24, 40, 256),
                (Scale::Large, _) => (16, 24, 128),
            };
            let subchunk = [rows, columns, bytes / element as u64];
            let crc32c = |count| iter::repeat_n(Stage::Crc32c, count);
            let chain = KnownChain {
                order: [[0, 1, 2], [2, 1, 0], [0, 2, 1]][number % 3].to_vec(),
                swap: if number % 7 < 3 { element } else { 1 },
                stages: crc32c(number % 2)
                    .chain([stage])
                    .chain(crc32c(number / 2 % 3))
                    .collect(),
            };
            Subject::new((&subchunk, &[3, 2, 4], element), chain, &CONTENTS)
        })
        .collect()
}

/// Returns a chain of each format that nvCOMP writes.
fn formats(scale: Scale) -> Vec<Subject> {
    let subjects = subjects(scale).into_iter().enumerate();
    let of_each = subjects.filter(|(number, subject)| {
        let blosc = |stage: &Stage| matches!(stage, Stage::Blosc(_));
        *number < 5 || (subject.chain.stages.iter().any(blosc) && number % 8 == 7)
    });
    of_each.map(|(_, subject)| subject).collect()
}

/// Every chain with a compressor.
pub(in crate::cuda) fn every_chain(setup: &Setup) {
    let subjects = subjects(setup.scale);
    for subject in &subjects {
        let encoded = subject.encode(&setup.engine(&subject.chain));
        let stages = &subject.chain.stages;
        subject.check(&encoded.unwrap_or_else(|error| panic!("{stages:?}: {error}")));
    }
    setup.assert_all_on_the_device(subjects.len());
}

/// Decodes on the device the shards that the device compressed, and then those that the host
/// compressed. Returns how many of each the device decoded, and why the host decoded the others.
pub(in crate::cuda) fn decompressed(setup: &Setup) -> ([u64; 2], BTreeMap<String, u64>) {
    let mut setup = setup.clone();
    setup.compressors.decode = true;
    let subjects = subjects(setup.scale);
    let come_back = |by_host: bool| {
        for subject in &subjects {
            let engine = setup.engine(&subject.chain);
            let encoder: &dyn Engine = if by_host { &HostEngine } else { &engine };
            let EncodedShard { bytes, extents } = subject.encode(encoder).unwrap();
            let engine = WithFallback::strict(engine);
            let decoded = engine.decode(&subject.job(), &bytes, &extents).unwrap();
            let stages = &subject.chain.stages;
            assert!(decoded == subject.elements, "{stages:?}: other elements");
        }
        setup.devices.counters.snapshot()
    };
    let ours = come_back(false).shards_decoded;
    let metrics = come_back(true);
    let on_host: u64 = metrics.fallbacks.values().sum();
    assert_eq!(metrics.shards_decoded + on_host, 2 * subjects.len() as u64);
    ([ours, metrics.shards_decoded - ours], metrics.fallbacks)
}

/// Subchunks of one byte, and of a few.
pub(in crate::cuda) fn short_subchunks(setup: &Setup) {
    let mut shards = 0;
    for bytes in [1, 2, 3, 15, 16, 17] {
        for stage in [
            zstd(1),
            Stage::Gzip { level: 6 },
            blosc(Cname::Lz4, Shuffle::None, 1, 0),
            blosc(Cname::Lz4, Shuffle::Byte, 2, 0),
            blosc(Cname::Zstd, Shuffle::Bit, 1, 0),
            blosc(Cname::Zstd, Shuffle::Byte, 8, 0),
        ] {
            for before in [0, 1] {
                let mut stages = vec![Stage::Crc32c; before];
                stages.push(stage.clone());
                let contents = CONTENTS.repeat(5);
                let subject = Subject::row_of(bytes, plain(1, stages), &contents);
                let encoded = subject.encode(&setup.engine(&subject.chain));
                subject.check(&encoded.unwrap_or_else(|error| panic!("{stage:?}: {error}")));
                shards += 1;
            }
        }
    }
    setup.assert_all_on_the_device(shards);
}

/// Returns the longest chunks that nvCOMP accepts, and one byte more: bytes, stages, and whether
/// they fit.
fn limits(scale: Scale) -> Vec<(usize, Vec<Stage>, bool)> {
    let gzip = || vec![Stage::Gzip { level: 1 }];
    let after_crc32c = || vec![Stage::Crc32c, Stage::Gzip { level: 9 }];
    let lz4 = |blocksize| vec![blosc(Cname::Lz4, Shuffle::None, 1, blocksize)];
    let mut limits = vec![
        (65_535, gzip(), true),
        (65_536, gzip(), true),
        (65_537, gzip(), false),
        (65_532, after_crc32c(), true),
        (65_533, after_crc32c(), false),
    ];
    if scale == Scale::Large {
        limits.extend([
            (16_000_000, vec![zstd(1)], true),
            (16_000_001, vec![zstd(1)], false),
            ((1 << 24) - 1, lz4(1 << 24), true),
            (1 << 24, lz4(1 << 24), true),
            ((1 << 24) + 16, lz4((1 << 24) + 16), false),
        ]);
    }
    limits
}

/// Encodes chunks of the longest length that nvCOMP accepts. Longer chunks stay on the host.
pub(in crate::cuda) fn longest_chunks(setup: &Setup) {
    let mut shards = 0;
    for (bytes, stages, fits) in limits(setup.scale) {
        let contents = [Content::Noise, Content::Words, Content::Constant];
        let subject = Subject::row_of(bytes, plain(1, stages), &contents);
        let stages = &subject.chain.stages;
        match (subject.encode(&setup.engine(&subject.chain)), fits) {
            (Ok(encoded), true) => {
                subject.check(&encoded);
                shards += 1;
            }
            (Err(EngineError::Unsuitable(reason)), false) => {
                assert!(reason.contains("at most"), "{stages:?}: {reason}");
            }
            (result, _) => panic!("{bytes} bytes, {stages:?}: {:?}", result.map(|_| "encoded")),
        }
    }
    setup.assert_all_on_the_device(shards);
}

/// Checks the large subjects without a GPU: a device would accept them, and the host's frames pass
/// the same checks.
pub(in crate::cuda) fn check_large_on_the_host() {
    let subjects = subjects(Scale::Large);
    let on_device = |subject: &Subject| {
        check_chain(&subject.grid, &subject.chain, HighestLevels::default()).is_ok()
    };
    assert!(subjects.iter().all(on_device));
    let lengths = || subjects.iter().map(|subject| subject.elements.len());
    assert!(lengths().min().unwrap() > 1 << 20 && lengths().max().unwrap() > 4 << 20);
    for subject in &subjects {
        subject.check(&subject.encode(&HostEngine).unwrap());
    }
    for (bytes, stages, fits) in limits(Scale::Large) {
        let subject = Subject::row_of(bytes, plain(1, stages), &[Content::Zeros]);
        assert_eq!(on_device(&subject), fits, "{bytes}: {:?}", subject.chain);
    }
}

/// Encodes all of `subjects` on `threads` threads, each `rounds` times and in another order.
/// Returns the numbers of the subjects with their encoded shards.
fn together(
    setup: &Setup,
    subjects: &[Subject],
    threads: usize,
    rounds: usize,
) -> Vec<(usize, EncodedShard)> {
    let barrier = Barrier::new(threads);
    let work = |thread: usize| {
        barrier.wait();
        let number = |i: usize| (i + thread * 3) % subjects.len();
        let numbers = (0..subjects.len() * rounds).map(number);
        numbers
            .map(|number| {
                let subject = &subjects[number];
                let encoded = subject.encode(&setup.engine(&subject.chain));
                (number, encoded.unwrap())
            })
            .collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Shards of several chains in several lanes at once.
pub(in crate::cuda) fn several_lanes(setup: &Setup, threads: usize, rounds: usize) {
    let subjects = formats(setup.scale);
    let encoded = together(setup, &subjects, threads, rounds);
    assert_eq!(encoded.len(), subjects.len() * threads * rounds);
    for (number, encoded) in &encoded {
        subjects[*number].check(encoded);
    }
    setup.assert_all_on_the_device(encoded.len());
}

/// Returns the chains whose encoded bytes differ between runs: alone, alone again, and among
/// others.
pub(in crate::cuda) fn that_differ(setup: &Setup, threads: usize) -> BTreeSet<String> {
    let subjects = formats(setup.scale);
    let alone = together(setup, &subjects, 1, 1);
    let more = [
        together(setup, &subjects, 1, 1),
        together(setup, &subjects, threads, 1),
    ];
    let of_alone = |number| alone.iter().find(|(of, _)| *of == number).unwrap();
    more.iter()
        .flatten()
        .filter(|(number, encoded)| {
            let (_, first) = of_alone(*number);
            encoded.bytes != first.bytes || encoded.extents != first.extents
        })
        .map(|(number, _)| describe(&subjects[*number]))
        .collect()
}

/// Returns the chains whose encoded bytes depend on the size of batches.
pub(in crate::cuda) fn that_depend_on_batches(
    setup: &Setup,
    compressed_batch: usize,
) -> BTreeSet<String> {
    let other = Setup {
        tuning: Tuning {
            compressed_batch,
            ..setup.tuning
        },
        ..setup.clone()
    };
    let subjects = formats(setup.scale);
    let encode = |setup: &Setup, subject: &Subject| {
        let encoded = subject.encode(&setup.engine(&subject.chain)).unwrap();
        subject.check(&encoded);
        encoded.bytes
    };
    subjects
        .iter()
        .filter(|subject| encode(setup, subject) != encode(&other, subject))
        .map(describe)
        .collect()
}

fn describe(subject: &Subject) -> String {
    let stages = subject.chain.stages.iter();
    let stages: Vec<_> = stages.map(ToString::to_string).collect();
    stages.join(", ")
}

/// Writes an array of one shard for every chain to `folder`, for other implementations to read:
/// `NAME/zarr.json`, `NAME/c.0.0.0`, the values in `NAME.raw` (little-endian, C order), and all
/// metadata in `cases.json`.
pub(in crate::cuda) fn export(setup: &Setup, folder: &Path) -> Vec<String> {
    let scale = match setup.scale {
        Scale::Large => Scale::Medium,
        scale => scale,
    };
    let mut cases = Map::new();
    for (number, subject) in subjects(scale).iter().enumerate() {
        let name = format!("{number:03}");
        let encoded = subject.with_index(&setup.engine(&subject.chain));
        let metadata = subject.metadata();
        let array = folder.join(&name);
        fs::create_dir_all(&array).unwrap();
        fs::write(array.join("zarr.json"), metadata.to_string()).unwrap();
        fs::write(array.join("c.0.0.0"), encoded).unwrap();
        fs::write(folder.join(format!("{name}.raw")), &subject.elements).unwrap();
        cases.insert(name, metadata);
    }
    let list = Value::Object(cases.clone()).to_string();
    fs::write(folder.join("cases.json"), list).unwrap();
    cases.into_iter().map(|(name, _)| name).collect()
}

impl Subject {
    /// Returns the encoded shard with its index at the end.
    fn with_index(&self, engine: &dyn Engine) -> Vec<u8> {
        let encoded = engine.encode(&self.job(), &self.elements, 0, 0).unwrap();
        let mut index = Vec::new();
        for extent in &encoded.extents {
            let entry = extent.as_ref().map_or([u64::MAX; 2], |extent| {
                [extent.start as u64, extent.len() as u64]
            });
            index.extend(entry.map(u64::to_le_bytes).concat());
        }
        let checksum = crc32c::crc32c(&index).to_le_bytes();
        [&encoded.bytes[..], &index, &checksum].concat()
    }

    /// The metadata of an array whose only shard is this one.
    fn metadata(&self) -> Value {
        let element = self.grid.element_size();
        let mut fill_value = [0; 8];
        fill_value[..element].copy_from_slice(&self.fill_value);
        let endian = if self.chain.swap > 1 { "big" } else { "little" };
        let bytes = json!({ "name": "bytes", "configuration": { "endian": endian } });
        let transpose = json!({
            "name": "transpose", "configuration": { "order": self.chain.order },
        });
        let stages = self.chain.stages.iter().map(configuration);
        let codecs: Vec<_> = [transpose, bytes].into_iter().chain(stages).collect();
        json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": self.grid.shard(),
            "data_type": format!("uint{}", 8 * element),
            "chunk_grid": {
                "name": "regular", "configuration": { "chunk_shape": self.grid.shard() },
            },
            "chunk_key_encoding": { "name": "default", "configuration": { "separator": "." } },
            "fill_value": u64::from_le_bytes(fill_value),
            "codecs": [{ "name": "sharding_indexed", "configuration": {
                "chunk_shape": self.grid.subchunk(),
                "codecs": codecs,
                "index_codecs": [
                    { "name": "bytes", "configuration": { "endian": "little" } },
                    { "name": "crc32c" },
                ],
                "index_location": "end",
            }}],
        })
    }
}

/// Returns the codec in the metadata of an array.
fn configuration(stage: &Stage) -> Value {
    let configuration = match stage {
        Stage::Crc32c => return json!({ "name": "crc32c" }),
        Stage::Zstd { level, checksum } => json!({ "level": level, "checksum": checksum }),
        Stage::Gzip { level } => json!({ "level": level }),
        Stage::Blosc(blosc) => json!({
            "cname": blosc.cname.as_str(),
            "clevel": blosc.level,
            "shuffle": match blosc.shuffle {
                Shuffle::None => "noshuffle",
                Shuffle::Byte => "shuffle",
                Shuffle::Bit => "bitshuffle",
            },
            "typesize": blosc.typesize,
            "blocksize": blosc.blocksize,
        }),
    };
    json!({ "name": stage.name(), "configuration": configuration })
}

/// Checks that broken frames are detected. Libraries decode some of them all the same.
#[test]
fn frames_that_are_not_as_they_should_be_are_seen() {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    let seen = |stage: Stage, change: &dyn Fn(&mut Vec<u8>)| {
        let subject = Subject::row_of(1000, plain(1, vec![stage]), &[Content::Words]);
        let mut frame = subject.encode(&HostEngine).unwrap().bytes.split_off(3);
        subject.check_frame(&frame);
        change(&mut frame);
        let check = AssertUnwindSafe(|| subject.check_frame(&frame));
        assert!(catch_unwind(check).is_err(), "{:?}", subject.chain);
    };
    let lz4 = || blosc(Cname::Lz4, Shuffle::Byte, 2, 0);
    for stage in [zstd(1), Stage::Gzip { level: 6 }, lz4()] {
        seen(stage, &|frame| frame.push(0));
    }
    seen(zstd(1), &|frame| {
        let mut context = zstd_safe::CCtx::create();
        let unsized_frames = zstd_safe::CParameter::ContentSizeFlag(false);
        context.set_parameter(unsized_frames).unwrap();
        let content = Content::Words.bytes(1000, 0, &[0xC0]);
        frame.resize(zstd_safe::compress_bound(1000), 0);
        let len = context.compress2(&mut frame[..], &content).unwrap();
        frame.truncate(len);
    });
    seen(lz4(), &|frame| frame[3] = 4);
    seen(lz4(), &|frame| frame[2] ^= 0xa0);
}
