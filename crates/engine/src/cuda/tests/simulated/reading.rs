//! Subchunks into the memory of a device.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use zarrs_cuda_nvcomp_stand_in::StandIn;
use zarrs_cuda_testing::effort;

use super::compression::{blosc, compressors, with};
use super::decompression::is_for_device;
use super::stream::sites::sites_of;
use super::wrong_results::{Change, Operation, alter, flip, lost};
use super::*;
use crate::contract::{BoxToPlace, Cname, DeviceArray, EncodedBytes, EncodedShard, Shuffle};
use crate::cuda::driver::{DeviceSpan, PinnedSpan, PinnedUse, Site, Span};
use crate::cuda::read::{CudaReads, DeviceBuffer, Next, SubchunkToPlace};
use crate::cuda::{Compressors, DeviceMetrics, ReadSlabs};
use crate::fakes::OWN;
use crate::layout::strides;

/// Names of waits of these tests begin so.
const DONE: Site = Site("test: bytes of a device for the test");

const ZSTD: Stage = Stage::Zstd {
    level: 1,
    checksum: false,
};

/// Numbers that look like random ones.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    /// Returns a number below `end`, which is at least 1.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Boxes of a shard that are read to an array with an axis for the boxes and gaps between rows.
#[derive(Debug)]
pub(super) struct Boxes {
    pub(super) shape: Vec<usize>,
    pub(super) starts: Vec<Vec<usize>>,
    pub(super) strides: Vec<usize>,
    pub(super) len: usize,
}

impl Boxes {
    pub(super) fn any(shard: &Shard, dice: &mut Dice) -> Self {
        let extents = shard.grid.shard();
        let shape: Vec<usize> = extents
            .iter()
            .map(|&extent| 1 + dice.below(extent))
            .collect();
        let count = 1 + dice.below(4);
        let starts = (0..count).map(|_| {
            let each = std::iter::zip(extents, &shape);
            each.map(|(extent, len)| dice.below(extent - len + 1))
                .collect()
        });
        let starts: Vec<Vec<usize>> = starts.collect();
        let gaps: Vec<usize> = shape.iter().map(|_| dice.below(3)).collect();
        let mut padded: Vec<usize> = vec![count];
        padded.extend(std::iter::zip(&shape, &gaps).map(|(extent, gap)| extent + gap));
        let size = shard.grid.element_size();
        Self {
            strides: strides(&padded, size),
            len: padded.iter().product::<usize>() * size,
            shape,
            starts,
        }
    }

    /// The whole shard, densely.
    pub(super) fn whole(shard: &Shard) -> Self {
        let mut shape = vec![1];
        shape.extend(shard.grid.shard());
        Self {
            strides: strides(&shape, shard.grid.element_size()),
            len: shard.grid.shard_bytes(),
            shape: shard.grid.shard().to_vec(),
            starts: vec![vec![0; shard.grid.shard().len()]],
        }
    }

    /// Copies the boxes to `array`, one element after the other.
    pub(super) fn copy(&self, shard: &Shard, array: &mut [u8]) {
        let size = shard.grid.element_size();
        let in_shard = strides(shard.grid.shard(), size);
        for (number, start) in self.starts.iter().enumerate() {
            for element in 0..self.shape.iter().product() {
                let (mut rest, mut from, mut to) = (element, 0, number * self.strides[0]);
                for axis in (0..self.shape.len()).rev() {
                    let at = rest % self.shape[axis];
                    rest /= self.shape[axis];
                    from += (start[axis] + at) * in_shard[axis];
                    to += at * self.strides[axis + 1];
                }
                array[to..to + size].copy_from_slice(&shard.elements[from..from + size]);
            }
        }
    }

    /// Returns the boxes of each subchunk of the shard, by its number.
    pub(super) fn of_subchunks(&self, shard: &Shard) -> Vec<Vec<BoxToPlace>> {
        let (grid, mut boxes) = (&shard.grid, vec![Vec::new(); shard.grid.num_subchunks()]);
        for (number, start) in self.starts.iter().enumerate() {
            for subchunk in grid.numbers_in(start, &self.shape) {
                let origin = grid.origin(subchunk);
                let mut placed = BoxToPlace {
                    start: Vec::new(),
                    shape: Vec::new(),
                    target: number * self.strides[0],
                };
                for axis in 0..origin.len() {
                    let first = origin[axis].max(start[axis]);
                    let end =
                        (origin[axis] + grid.subchunk()[axis]).min(start[axis] + self.shape[axis]);
                    placed.start.push(first - origin[axis]);
                    placed.shape.push(end - first);
                    placed.target += (first - start[axis]) * self.strides[axis + 1];
                }
                boxes[subchunk].push(placed);
            }
        }
        boxes
    }
}

fn decoding(library: StandIn, decode: bool) -> Compressors {
    Compressors {
        decode,
        ..with(library)
    }
}

pub(super) fn reads_on(
    simulation: &Arc<Simulation>,
    library: StandIn,
    shard: &Shard,
    decode: bool,
) -> Result<(CudaEngine, CudaReads), EngineError> {
    let engine = engine_on(simulation).for_chain(&shard.chain, decoding(library, decode));
    let engine = engine.with_times(true);
    let reads = engine.clone().reads(0, &shard.grid, &shard.chain)?;
    Ok((engine, reads))
}

/// Runs `copy` between pinned memory and the memory of a tensor, and waits for it.
pub(super) fn copied(
    simulation: &Simulation,
    buffer: &DeviceBuffer,
    bytes: &mut [u8],
    up: bool,
) -> Result<(), EngineError> {
    let driver: &dyn Driver = simulation;
    driver.enter()?;
    let stream = driver.create_stream()?;
    let len = bytes.len();
    let memory = driver.allocate_pinned(len.max(1), PinnedUse::Both)?;
    let pinned = PinnedSpan {
        memory,
        offset: 0,
        len,
    };
    let device: DeviceSpan = driver.adopt(buffer.pointer(), len)?;
    // SAFETY: the memory lives until the stream was synchronised, and nothing else uses it.
    unsafe {
        if up {
            driver.host_access(pinned, crate::cuda::driver::Access::Write)?;
            memory
                .0
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), len);
            driver.copy(stream, Span::Pinned(pinned), Span::Device(device))?;
        } else {
            driver.copy(stream, Span::Device(device), Span::Pinned(pinned))?;
        }
        driver.synchronize_stream(stream, DONE)?;
        driver.host_access(pinned, crate::cuda::driver::Access::Read)?;
        if !up {
            bytes
                .as_mut_ptr()
                .copy_from_nonoverlapping(memory.0.as_ptr(), len);
        }
        driver.free_pinned(memory)?;
    }
    driver.destroy_stream(stream)?;
    driver.leave()?;
    Ok(())
}

/// The memory from which a device gets encoded subchunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    Host,
    Slabs,
    /// Both, in turns.
    Mixed,
}

/// Returns the encoded subchunks, each in its own memory, or several in one slab, with bytes of nobody between some.
fn in_memory(
    slabs: Option<&ReadSlabs>,
    encoded: &EncodedShard,
    memory: Memory,
) -> Vec<EncodedBytes> {
    const TOGETHER: usize = 3;
    let mut all = Vec::new();
    for (group, extents) in encoded.extents.chunks(TOGETHER).enumerate() {
        let of = |extent: &Option<Range<usize>>| extent.clone().unwrap_or(0..0);
        let gap = group % 2 * 5;
        let len: usize = extents.iter().map(|extent| of(extent).len() + gap).sum();
        let in_slab = memory == Memory::Slabs || memory == Memory::Mixed && group % 3 != 0;
        let slab = slabs.filter(|_| in_slab).and_then(|slabs| slabs.take(len));
        let Some(mut slab) = slab else {
            let bytes = extents
                .iter()
                .map(|extent| encoded.bytes[of(extent)].to_vec());
            all.extend(bytes.map(EncodedBytes::new));
            continue;
        };
        let (mut at, mut places) = (0, Vec::new());
        for extent in extents {
            let bytes = &encoded.bytes[of(extent)];
            slab.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            places.push(at..at + bytes.len());
            at += bytes.len() + gap;
        }
        let slab = EncodedBytes::new(slab);
        all.extend(places.into_iter().map(|place| slab.part(place).unwrap()));
    }
    all
}

/// Reads the boxes of an encoded shard to `buffer`.
pub(super) fn read_to(
    reads: &CudaReads,
    shard: &Shard,
    encoded: &EncodedShard,
    boxes: &Boxes,
    buffer: &DeviceBuffer,
) -> Result<(), EngineError> {
    read_from(reads, (shard, encoded), boxes, buffer, Memory::Mixed)
}

/// Reads the boxes of an encoded shard from `memory` to `buffer`.
pub(super) fn read_from(
    reads: &CudaReads,
    (shard, encoded): (&Shard, &EncodedShard),
    boxes: &Boxes,
    buffer: &DeviceBuffer,
    memory: Memory,
) -> Result<(), EngineError> {
    let mut subchunks: Vec<SubchunkToPlace> = Vec::new();
    let slabs = reads.slabs()?;
    let bytes = in_memory(slabs.as_ref(), encoded, memory);
    for (number, placed) in boxes.of_subchunks(shard).into_iter().enumerate() {
        if placed.is_empty() {
            continue;
        }
        subchunks.push(match &encoded.extents[number] {
            None => CudaReads::fill(number, placed),
            Some(_) => reads.prepare((number, number), bytes[number].clone(), placed, true)?,
        });
    }
    drop(bytes);
    // Sometimes the next subchunk is not there yet.
    let (mut subchunks, mut asked) = (subchunks.into_iter(), 0);
    let mut next = |wait: bool| {
        asked += 1;
        if asked % 29 == 0 && !wait {
            return Next::NotYet;
        }
        let next = subchunks.next();
        next.map_or(Next::End, |subchunk| Next::Subchunk(Box::new(subchunk)))
    };
    let array = DeviceArray {
        pointer: buffer.pointer(),
        len: boxes.len,
        strides: boxes.strides[1..].to_vec(),
    };
    // SAFETY: nothing else uses the buffer, in which all boxes lie.
    unsafe { reads.read(&shard.job(), &array, &mut next, &mut |_, error| Err(error)) }
}

/// Reads a whole shard with a compressor on `engine`, and drops the elements.
pub(super) fn whole_shard(engine: CudaEngine) -> Result<(), EngineError> {
    let shard = Shard::new(0).compressed(1, ZSTD, 1);
    let engine = engine.for_chain(&shard.chain, decoding(StandIn::Six, true));
    let reads = engine.reads(0, &shard.grid, &shard.chain)?;
    let boxes = Boxes::whole(&shard);
    let buffer = reads.allocate(boxes.len)?;
    read_to(&reads, &shard, &encoded_by_host(&shard), &boxes, &buffer)
}

/// Reads the boxes of an encoded shard, and compares them with the elements.
pub(super) fn read(
    simulation: &Simulation,
    reads: &CudaReads,
    shard: &Shard,
    encoded: &EncodedShard,
    boxes: &Boxes,
) -> Result<(), EngineError> {
    let memory = Memory::Mixed;
    read_and_compare(simulation, reads, (shard, encoded), boxes, memory)
}

/// Reads the boxes of an encoded shard from `memory`, and compares them with the elements.
pub(super) fn read_and_compare(
    simulation: &Simulation,
    reads: &CudaReads,
    (shard, encoded): (&Shard, &EncodedShard),
    boxes: &Boxes,
    memory: Memory,
) -> Result<(), EngineError> {
    let buffer = reads.allocate(boxes.len)?;
    let mut expected = vec![0xcc; boxes.len];
    copied(simulation, &buffer, &mut expected, true)?;
    boxes.copy(shard, &mut expected);
    read_from(reads, (shard, encoded), boxes, &buffer, memory)?;
    let mut found = vec![0; boxes.len];
    copied(simulation, &buffer, &mut found, false)?;
    assert!(found == expected, "wrong elements of {boxes:?}");
    Ok(())
}

/// Waits until dropped memory is freed, and asserts that nothing is left.
pub(super) fn assert_all_freed(simulation: &Simulation) {
    let begin = Instant::now();
    while simulation.live() != Live::default() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_clean(simulation);
}

pub(super) fn encoded_by_host(shard: &Shard) -> EncodedShard {
    HostEngine
        .encode(&shard.job(), &shard.elements, 3, 5)
        .expect("encodes")
}

/// Reads some boxes of a shard. Returns the counts of subchunks.
fn check(shard: &Shard, schedule: Schedule, seed: u64, decode: bool) -> DeviceMetrics {
    let simulation = simulation(schedule);
    let (engine, reads) = reads_on(&simulation, StandIn::Six, shard, decode).expect("reads");
    let encoded = encoded_by_host(shard);
    let mut dice = Dice(seed);
    read(&simulation, &reads, shard, &encoded, &Boxes::whole(shard)).expect("reads");
    for _ in 0..3 {
        let boxes = Boxes::any(shard, &mut dice);
        read(&simulation, &reads, shard, &encoded, &boxes).expect("reads");
    }
    let counts = engine.counters().snapshot();
    drop((engine, reads));
    assert_all_freed(&simulation);
    counts
}

#[test]
fn boxes_of_every_chain() {
    for seed in effort::seeds(6) {
        for kind in 0..7 {
            let mut shard = Shard::of_kind(kind);
            let counts = check(&shard, schedule_of(seed), seed, false);
            assert_eq!(counts.subchunks_read_on_host, 0);
            shard.chain.order = vec![2, 0, 1];
            check(&shard, schedule_of(seed), seed, false);
        }
    }
}

#[test]
fn boxes_of_every_compressor() {
    for (number, stage) in compressors().into_iter().enumerate() {
        let (before, after) = (number % 2, number / 2 % 3);
        for schedule in [Schedule::Eager, Schedule::Latest] {
            for shard in [Shard::of_kind(number), Shard::larger()] {
                let is_larger = shard.grid.subchunk_bytes() == 512;
                let shard = shard.compressed(before, stage.clone(), after);
                let counts = check(&shard, schedule, number as u64, true);
                // C-Blosc does not compress the small ones.
                if is_larger && is_for_device(&stage, StandIn::Six) {
                    assert_eq!(counts.subchunks_read_on_host, 0, "{:?}", shard.chain);
                }
                let counts = check(&shard, schedule, number as u64, false);
                assert_eq!(counts.subchunks_read_on_host, counts.subchunks_read);
            }
        }
    }
}

/// Shards whose frames have blocks of different sizes: each layout gets a lane of its own.
#[test]
fn frames_of_several_layouts() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::with(0, Empty::First(0), false);
    let of_block = |blocksize| {
        let stage = blosc(Cname::Zstd, Shuffle::Byte, 2, blocksize);
        Shard::with(0, Empty::First(0), false).compressed(0, stage, 0)
    };
    let first = of_block(0);
    let (engine, reads) = reads_on(&simulation, StandIn::Six, &first, true).expect("reads");
    let (a, b) = (encoded_by_host(&first), encoded_by_host(&of_block(128)));
    let mut mixed = EncodedShard {
        bytes: Vec::new(),
        extents: Vec::new(),
    };
    for number in 0..shard.grid.num_subchunks() {
        let from = if number / 5 % 2 == 0 { &a } else { &b };
        let start = mixed.bytes.len();
        let extent = from.extents[number].clone().expect("stored");
        mixed.bytes.extend(&from.bytes[extent]);
        mixed.extents.push(Some(start..mixed.bytes.len()));
    }
    read(&simulation, &reads, &first, &mixed, &Boxes::whole(&first)).expect("reads");
    drop((engine, reads));
    assert_all_freed(&simulation);
}

/// C-Blosc stores noise as it is, so the host decodes some of the subchunks of a batch whose shuffle the device undoes.
#[test]
fn noise_among_shuffled_blocks() {
    let mut shard = Shard::larger();
    let mut dice = Dice(5);
    let size = shard.grid.shard().to_vec();
    for (element, bytes) in shard.elements.chunks_mut(2).enumerate() {
        let (z, y, x) = (
            element / (size[1] * size[2]),
            element / size[2] % size[1],
            element % size[2],
        );
        if (z / 4 + y / 8 + x / 8) % 2 == 0 {
            bytes.fill_with(|| dice.below(256) as u8);
        }
    }
    for (cname, shuffle) in [
        (Cname::Zstd, Shuffle::Byte),
        (Cname::Zstd, Shuffle::Bit),
        (Cname::Lz4, Shuffle::Byte),
    ] {
        let shard = Shard {
            elements: shard.elements.clone(),
            ..Shard::larger()
        };
        let shard = shard.compressed(0, blosc(cname, shuffle, 2, 0), 1);
        for schedule in [Schedule::Eager, Schedule::Latest] {
            let counts = check(&shard, schedule, 3, true);
            assert!(counts.subchunks_read_on_host > 0, "{counts:?}");
            if cname == Cname::Zstd {
                assert!(counts.subchunks_read_on_host < counts.subchunks_read);
            }
        }
    }
}

/// The host decodes frames for which the library has no decompressor.
#[test]
fn frames_without_a_decompressor() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::larger().compressed(0, Stage::Gzip { level: 1 }, 0);
    let library = StandIn::Incomplete;
    let (engine, reads) = reads_on(&simulation, library, &shard, true).expect("reads");
    let encoded = encoded_by_host(&shard);
    for seed in 0..3 {
        let boxes = Boxes::any(&shard, &mut Dice(seed));
        read(&simulation, &reads, &shard, &encoded, &boxes).expect("reads");
    }
    let counts = engine.counters().snapshot();
    assert_eq!(counts.subchunks_read_on_host, counts.subchunks_read);
    assert!(!counts.fallbacks.is_empty());
    drop((engine, reads));
    assert_all_freed(&simulation);
}

/// Reads shards of some kinds, also with subchunks on which the compressor fails.
fn without(removed: Option<Site>, schedule: Schedule) -> Result<BTreeSet<Site>, String> {
    let mut sites = BTreeSet::new();
    for (library, shard) in [
        (StandIn::Six, Shard::new(1)),
        (StandIn::Six, Shard::new(0).compressed(1, ZSTD, 1)),
        (StandIn::Failing, Shard::new(0).compressed(0, ZSTD, 0)),
    ] {
        let simulation = Arc::new(Simulation::new(Config {
            schedule,
            removed,
            ..Config::default()
        }));
        sites.extend(sites_of(&simulation, || {
            let (engine, reads) = reads_on(&simulation, library, &shard, true)?;
            let encoded = encoded_by_host(&shard);
            for seed in 0..3 {
                for memory in [Memory::Host, Memory::Slabs] {
                    let (shard, boxes) = ((&shard, &encoded), Boxes::whole(&shard));
                    read_and_compare(&simulation, &reads, shard, &boxes, memory)?;
                }
                let boxes = Boxes::any(&shard, &mut Dice(seed));
                read(&simulation, &reads, &shard, &encoded, &boxes)?;
            }
            drop((engine, reads));
            Ok(())
        })?);
    }
    Ok(sites)
}

#[test]
fn without_any_one_wait_record_or_synchronisation_a_read_fails() {
    let schedules = [Schedule::Latest, Schedule::Eager, Schedule::Priority(5)];
    let mut sites = BTreeSet::new();
    for schedule in schedules {
        sites.extend(without(None, schedule).expect("the engine as it is"));
    }
    // A lane that is idle has nothing to wait for when it is given up.
    let is_other = |site: &Site| *site == DONE || site.0.starts_with("give up a lane");
    sites.retain(|site| !site.0.starts_with(OWN) && !is_other(site));
    for site in sites {
        let failed = schedules
            .iter()
            .find_map(|schedule| without(Some(site), *schedule).err());
        match failed {
            Some(what) => println!("without \"{}\": {what}", site.0),
            None => panic!("reads do not need \"{}\"", site.0),
        }
    }
}

/// The host decodes the subchunks on which the device fails, and their elements are the same.
#[test]
fn subchunks_that_fail_are_decoded_by_the_host() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let simulation = simulation(schedule);
        let shard = Shard::with(0, Empty::First(0), false).compressed(0, ZSTD, 0);
        let (engine, reads) = reads_on(&simulation, StandIn::Failing, &shard, true).expect("reads");
        let encoded = encoded_by_host(&shard);
        read(&simulation, &reads, &shard, &encoded, &Boxes::whole(&shard)).expect("reads");
        let counts = engine.counters().snapshot();
        assert!(counts.subchunks_read_on_host > 0, "{counts:?}");
        drop((engine, reads));
        assert_all_freed(&simulation);
    }
}

/// A device that places wrong elements, or has wrong ones, is found out and not used again.
#[test]
fn wrong_elements_are_noticed() {
    let zstd = || Shard::with(0, Empty::First(0), false).compressed(0, ZSTD, 0);
    let cases: [(&str, Shard, Operation, Change); 6] = [
        ("upload", Shard::new(0), ("up", 0, Some(384), 0), flip::<60>),
        // A slab without gaps between its three subchunks.
        (
            "slab",
            Shard::with(0, Empty::First(0), false),
            ("up", 0, Some(360), 0),
            flip::<60>,
        ),
        ("split", Shard::new(0), ("split", 0, None, 1), lost),
        ("place", Shard::new(0), ("place", 0, None, 0), flip::<8>),
        ("place, lost", Shard::new(0), ("place", 0, None, 0), lost),
        ("decompressor", zstd(), ("nvCOMP", 2, None, 0), flip::<9>),
    ];
    for (what, shard, operation, change) in cases {
        let simulation = simulation(Schedule::Eager);
        alter(&simulation, operation, change);
        let (engine, reads) = reads_on(&simulation, StandIn::Six, &shard, true).expect("reads");
        let encoded = encoded_by_host(&shard);
        let memory = if what == "slab" {
            Memory::Slabs
        } else {
            Memory::Host
        };
        let (of, boxes) = ((&shard, &encoded), Boxes::whole(&shard));
        let found = read_and_compare(&simulation, &reads, of, &boxes, memory);
        let error = found.expect_err(what);
        let text = error.to_string();
        assert!(text.contains("in the memory of a device"), "{what}: {text}");
        let again = read(&simulation, &reads, &shard, &encoded, &Boxes::whole(&shard));
        let text = again.expect_err(what).to_string();
        assert!(text.contains("is not used any more"), "{what}: {text}");
        assert_eq!(engine.counters().snapshot().mismatches, 1, "{what}");
    }
}
