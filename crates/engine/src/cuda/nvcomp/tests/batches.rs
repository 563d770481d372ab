//! Batches on the simulated device: chunks survive a round trip, and a failed chunk does not affect
//! the others.

use super::*;
use crate::cuda::driver::simulation::{Config, Rule, Schedule, Simulation};
use crate::cuda::driver::{
    Access, DeviceSpan, Driver, DriverError, Fault, PinnedMemory, PinnedSpan, PinnedUse, Site,
    Span, StreamId,
};
use std::cell::RefCell;
use std::process::Command;
use std::{env, slice};
use zarrs_cuda_nvcomp_stand_in::{FAILS, FAILURES};

const SITE: Site = Site("nvCOMP test");

/// A stream, and device memory that is freed at the end.
struct Bench<'a> {
    driver: &'a dyn Driver,
    stream: StreamId,
    device: RefCell<Vec<DeviceSpan>>,
    pinned: RefCell<Vec<PinnedMemory>>,
}

impl<'a> Bench<'a> {
    fn new(driver: &'a dyn Driver) -> Self {
        driver.enter().unwrap();
        Self {
            driver,
            stream: driver.create_stream().unwrap(),
            device: RefCell::default(),
            pinned: RefCell::default(),
        }
    }

    fn allocate(&self, len: usize) -> DeviceSpan {
        let span = DeviceSpan {
            memory: self.driver.allocate(len.max(1)).unwrap(),
            offset: 0,
            len,
        };
        self.device.borrow_mut().push(span);
        span
    }

    fn staging(&self, len: usize) -> PinnedSpan {
        let pinned = self
            .driver
            .allocate_pinned(len.max(1), PinnedUse::FromDevice);
        let memory = pinned.unwrap();
        self.pinned.borrow_mut().push(memory);
        PinnedSpan {
            memory,
            offset: 0,
            len,
        }
    }

    fn write(&self, to: DeviceSpan, bytes: &[u8]) {
        assert_eq!(to.len, bytes.len());
        let staging = self.staging(to.len);
        self.driver.host_access(staging, Access::Write).unwrap();
        // SAFETY: as many bytes were allocated just now; both live until the bench ends.
        unsafe {
            let first = staging.memory.0.as_ptr();
            first.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.driver
                .copy(self.stream, Span::Pinned(staging), Span::Device(to))
                .unwrap();
        }
    }

    fn table(&self, numbers: impl IntoIterator<Item = u64>) -> DeviceSpan {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_ne_bytes).collect();
        let span = self.allocate(bytes.len());
        self.write(span, &bytes);
        span
    }

    fn read(&self, from: DeviceSpan) -> Result<Vec<u8>, DriverError> {
        let staging = self.staging(from.len);
        // SAFETY: both live until the bench ends.
        unsafe {
            self.driver
                .copy(self.stream, Span::Device(from), Span::Pinned(staging))?;
        }
        self.driver.synchronize_stream(self.stream, SITE)?;
        self.driver.host_access(staging, Access::Read)?;
        // SAFETY: the copy is complete.
        let bytes = unsafe { slice::from_raw_parts(staging.memory.0.as_ptr(), from.len) };
        Ok(bytes.to_vec())
    }

    fn numbers(&self, from: DeviceSpan) -> Result<Vec<u64>, DriverError> {
        let bytes = self.read(from)?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|&word| u64::from_ne_bytes(word)).collect())
    }

    fn statuses(&self, from: DeviceSpan) -> Result<Vec<i32>, DriverError> {
        let bytes = self.read(from)?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|&word| i32::from_ne_bytes(word)).collect())
    }

    /// Returns slots of these lengths. Each begins at a multiple of `alignment`, but not at a
    /// multiple of twice the alignment.
    fn slots(&self, lengths: &[usize], alignment: usize) -> Vec<DeviceSpan> {
        let mut end = alignment;
        let mut offsets = Vec::new();
        for len in lengths {
            offsets.push(end);
            end = (end + len).next_multiple_of(2 * alignment) + alignment;
        }
        let DeviceSpan { memory, .. } = self.allocate(end);
        let spans = offsets.iter().zip(lengths);
        spans
            .map(|(&offset, &len)| DeviceSpan {
                memory,
                offset,
                len,
            })
            .collect()
    }

    fn finish(self) {
        self.driver.synchronize_stream(self.stream, SITE).unwrap();
        // SAFETY: the stream is empty.
        unsafe {
            for span in self.device.into_inner() {
                self.driver.free(span.memory).unwrap();
            }
            for memory in self.pinned.into_inner() {
                self.driver.free_pinned(memory).unwrap();
            }
        }
        self.driver.destroy_stream(self.stream).unwrap();
        self.driver.leave().unwrap();
    }
}

fn addresses(spans: &[DeviceSpan]) -> impl Iterator<Item = u64> {
    spans.iter().map(|span| span.memory.0 + span.offset as u64)
}

fn sizes(spans: &[DeviceSpan]) -> impl Iterator<Item = u64> {
    spans.iter().map(|span| span.len as u64)
}

/// The arguments for nvCOMP to compress `chunks`, and the places of its results.
struct Compressing {
    requirements: Requirements,
    tables: [DeviceSpan; 3],
    inputs: Vec<DeviceSpan>,
    outputs: Vec<DeviceSpan>,
    temp: DeviceSpan,
    output_sizes: DeviceSpan,
    statuses: DeviceSpan,
}

impl Compressing {
    fn new(bench: &Bench<'_>, compressor: &Compressor, chunks: &[Vec<u8>]) -> Self {
        let lengths: Vec<usize> = chunks.iter().map(Vec::len).collect();
        let most = lengths.iter().copied().max().unwrap_or(0);
        let requirements = compressor
            .requirements(chunks.len(), most, lengths.iter().sum())
            .unwrap();
        let inputs = bench.slots(&lengths, requirements.alignments.input);
        for (span, chunk) in inputs.iter().zip(chunks) {
            bench.write(*span, chunk);
        }
        let outputs = bench.slots(
            &vec![requirements.max_output; chunks.len()],
            requirements.alignments.output,
        );
        let temp = bench.slots(&[requirements.temp], requirements.alignments.temp);
        Self {
            tables: [
                bench.table(addresses(&inputs)),
                bench.table(sizes(&inputs)),
                bench.table(addresses(&outputs)),
            ],
            inputs,
            outputs,
            temp: temp[0],
            output_sizes: bench.allocate(chunks.len() * 8),
            statuses: bench.allocate(chunks.len() * 4),
            requirements,
        }
    }

    fn batch(&self) -> CompressBatch<'_> {
        let [input_pointers, input_sizes, output_pointers] = self.tables;
        CompressBatch {
            requirements: &self.requirements,
            chunks: self.inputs.len(),
            input_pointers,
            input_sizes,
            output_pointers,
            inputs: &self.inputs,
            outputs: &self.outputs,
            temp: self.temp,
            output_sizes: self.output_sizes,
            statuses: self.statuses,
        }
    }
}

/// Compresses `chunks`, and returns the compressed chunks, or `None` for each failed one.
fn compress(
    bench: &Bench<'_>,
    compressor: &Compressor,
    chunks: &[Vec<u8>],
) -> Result<Vec<Option<Vec<u8>>>, DriverError> {
    let compressing = Compressing::new(bench, compressor, chunks);
    // SAFETY: all of it lives until the bench ends, and is as the batch says.
    unsafe { compressor.compress(bench.driver, bench.stream, &compressing.batch())? };
    if chunks.is_empty() {
        return Ok(Vec::new());
    }
    let sizes = bench.numbers(compressing.output_sizes)?;
    let statuses = bench.statuses(compressing.statuses)?;
    let results = compressing.outputs.iter().zip(sizes).zip(statuses);
    results
        .map(|((slot, size), status)| {
            let right = (1..=slot.len as u64).contains(&size);
            if status != 0 || !right {
                return Ok(None);
            }
            let len = usize::try_from(size).unwrap();
            bench.read(DeviceSpan { len, ..*slot }).map(Some)
        })
        .collect()
}

/// Decompresses `chunks` into slots of `lengths` bytes. Returns the status, the size and the slot's
/// content of each chunk.
fn decompress(
    bench: &Bench<'_>,
    decompressor: &Decompressor,
    chunks: &[Vec<u8>],
    lengths: &[usize],
) -> Result<Vec<(i32, u64, Vec<u8>)>, DriverError> {
    let most = lengths.iter().copied().max().unwrap_or(0);
    let requirements = decompressor
        .requirements(chunks.len(), most, lengths.iter().sum())
        .unwrap();
    let Alignments {
        input,
        output,
        temp,
    } = requirements.alignments;
    let compressed: Vec<usize> = chunks.iter().map(Vec::len).collect();
    let inputs = bench.slots(&compressed, input);
    for (span, chunk) in inputs.iter().zip(chunks) {
        bench.write(*span, chunk);
    }
    let outputs = bench.slots(lengths, output);
    let batch = DecompressBatch {
        requirements: &requirements,
        chunks: chunks.len(),
        input_pointers: bench.table(addresses(&inputs)),
        input_sizes: bench.table(sizes(&inputs)),
        output_pointers: bench.table(addresses(&outputs)),
        output_capacities: bench.table(sizes(&outputs)),
        inputs: &inputs,
        outputs: &outputs,
        temp: bench.slots(&[requirements.temp], temp)[0],
        output_sizes: bench.allocate(chunks.len() * 8),
        statuses: bench.allocate(chunks.len() * 4),
    };
    // SAFETY: all of it lives until the bench ends, and is as the batch says.
    unsafe { decompressor.decompress(bench.driver, bench.stream, &batch)? };
    if chunks.is_empty() {
        return Ok(Vec::new());
    }
    let sizes = bench.numbers(batch.output_sizes)?;
    let statuses = bench.statuses(batch.statuses)?;
    let results = outputs.iter().zip(sizes).zip(statuses);
    results
        .map(|((slot, size), status)| Ok((status, size, bench.read(*slot)?)))
        .collect()
}

/// Decompresses a chunk with the host's libraries.
fn decode(format: Format, compressed: &[u8], len: usize) -> Vec<u8> {
    match format {
        Format::Zstd => {
            let mut bytes = Vec::with_capacity(len + 1);
            zstd_safe::decompress(&mut bytes, compressed).unwrap();
            bytes
        }
        Format::Deflate { .. } => {
            let mut bytes = vec![0; len + 1];
            let mut decompressor = libdeflater::Decompressor::new();
            let written = decompressor
                .deflate_decompress(compressed, &mut bytes)
                .unwrap();
            bytes.truncate(written);
            bytes
        }
        Format::Lz4 => lz4_flex::block::decompress(compressed, len + 1).unwrap(),
    }
}

/// Compresses a chunk with the host's libraries.
fn encode(format: Format, chunk: &[u8]) -> Vec<u8> {
    match format {
        Format::Zstd => {
            let mut bytes = Vec::with_capacity(zstd_safe::compress_bound(chunk.len()));
            zstd_safe::compress(&mut bytes, chunk, 3).unwrap();
            bytes
        }
        Format::Deflate { .. } => {
            let level = libdeflater::CompressionLvl::new(6).unwrap();
            let mut compressor = libdeflater::Compressor::new(level);
            let mut bytes = vec![0; compressor.deflate_compress_bound(chunk.len())];
            let written = compressor.deflate_compress(chunk, &mut bytes).unwrap();
            bytes.truncate(written);
            bytes
        }
        Format::Lz4 => lz4_flex::block::compress(chunk),
    }
}

/// Chunks of one length: constant, noise, a ramp, words, and half of each.
fn contents(len: usize) -> Vec<Vec<u8>> {
    let mut state = len as u32 + 1;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let random: Vec<u8> = (0..len).map(|_| noise()).collect();
    let words: Vec<u8> = (0..len)
        .map(|i| b"shard subchunk lane epoch "[(i + i / 97) % 26])
        .collect();
    let half = [&words[..len / 2], &random[len / 2..]].concat();
    let ramp = (0..len).map(|i| (i / 2 % 256) as u8).collect();
    vec![vec![7; len], random, ramp, words, half]
}

fn batches() -> Vec<Vec<Vec<u8>>> {
    let mixed = [
        1, 2, 3, 12, 13, 255, 256, 257, 1023, 4095, 4096, 4097, 65_535,
    ];
    vec![
        Vec::new(),
        vec![vec![9]],
        contents(1),
        contents(2),
        contents(65_536),
        mixed.into_iter().flat_map(contents).collect(),
    ]
}

const SCHEDULES: [Schedule; 3] = [Schedule::Eager, Schedule::Latest, Schedule::Priority(3)];

fn simulations() -> impl Iterator<Item = Simulation> {
    SCHEDULES.into_iter().map(|schedule| {
        Simulation::new(Config {
            schedule,
            ..Config::default()
        })
    })
}

#[track_caller]
fn assert_no_violations(simulation: &Simulation) {
    let violations = simulation.violations();
    assert!(violations.is_empty(), "{violations:#?}");
}

/// Checks that the host's libraries decompress nvCOMP's chunks, and that nvCOMP decompresses its
/// own chunks and the host's.
pub(crate) fn check_round_trips(driver: &dyn Driver, nvcomp: &Nvcomp, format: Format) {
    let compressor = nvcomp.compressor(format).unwrap();
    let decompressor = nvcomp.decompressor(format).unwrap();
    for chunks in batches() {
        let bench = Bench::new(driver);
        let lengths: Vec<usize> = chunks.iter().map(Vec::len).collect();
        let theirs = compress(&bench, &compressor, &chunks).unwrap();
        assert_eq!(theirs.len(), chunks.len());
        let theirs: Vec<_> = theirs.into_iter().map(Option::unwrap).collect();
        for (chunk, compressed) in chunks.iter().zip(&theirs) {
            let decoded = decode(format, compressed, chunk.len());
            assert!(decoded == *chunk, "{format}: {} bytes", chunk.len());
        }
        let ours: Vec<_> = chunks.iter().map(|chunk| encode(format, chunk)).collect();
        for compressed in [theirs, ours] {
            let found = decompress(&bench, &decompressor, &compressed, &lengths).unwrap();
            assert_eq!(found.len(), chunks.len());
            for (chunk, (status, size, bytes)) in chunks.iter().zip(&found) {
                assert_eq!((*status, *size), (0, chunk.len() as u64), "{format}");
                assert!(bytes == chunk, "{format}: {} bytes", chunk.len());
            }
        }
        bench.finish();
    }
}

/// Returns whether equal chunks are compressed to equal bytes, at any place in any batch.
pub(crate) fn is_deterministic(driver: &dyn Driver, nvcomp: &Nvcomp, format: Format) -> bool {
    let compressor = nvcomp.compressor(format).unwrap();
    let bench = Bench::new(driver);
    let chunks: Vec<_> = [5000, 65_536].into_iter().flat_map(contents).collect();
    let reversed: Vec<_> = chunks.iter().rev().cloned().collect();
    let twice = [chunks, reversed].concat();
    let first = compress(&bench, &compressor, &twice).unwrap();
    let again = compress(&bench, &compressor, &twice).unwrap();
    assert!(first.iter().all(Option::is_some), "{format}");
    bench.finish();
    first.iter().eq(first.iter().rev()) && first == again
}

/// Returns for each length of a chunk whether zstd's frame states the content size.
pub(crate) fn content_sizes(
    driver: &dyn Driver,
    nvcomp: &Nvcomp,
    lengths: impl IntoIterator<Item = usize>,
) -> Vec<bool> {
    let compressor = nvcomp.compressor(Format::Zstd).unwrap();
    let bench = Bench::new(driver);
    let chunks: Vec<_> = lengths.into_iter().map(|len| vec![1; len]).collect();
    let frames = compress(&bench, &compressor, &chunks).unwrap();
    let sized = |frame: &[u8]| zstd_safe::get_frame_content_size(frame).unwrap().is_some();
    let found = frames.iter().map(|frame| sized(frame.as_ref().unwrap()));
    let found = found.collect();
    bench.finish();
    found
}

#[test]
fn what_is_compressed_comes_back() {
    for library in [StandIn::Six, StandIn::Five] {
        let nvcomp = open(library);
        for format in FORMATS {
            for simulation in simulations() {
                check_round_trips(&simulation, &nvcomp, format);
                assert_no_violations(&simulation);
            }
        }
    }
}

#[test]
fn equal_chunks_are_compressed_equally() {
    let nvcomp = open(StandIn::Six);
    for format in FORMATS {
        let simulation = Simulation::eager();
        assert!(is_deterministic(&simulation, &nvcomp, format), "{format}");
        assert_no_violations(&simulation);
    }
}

#[test]
fn most_frames_of_the_stand_in_have_no_content_size() {
    let found = content_sizes(&Simulation::eager(), &open(StandIn::Six), 100..140);
    assert_eq!(found.iter().filter(|&&sized| sized).count(), 10);
}

#[test]
fn failed_chunks_are_told_and_harm_no_other() {
    for format in FORMATS {
        for (library, failing) in [(StandIn::Six, false), (StandIn::Failing, true)] {
            let compressor = open(library).compressor(format).unwrap();
            let simulation = Simulation::eager();
            let bench = Bench::new(&simulation);
            let mut chunks: Vec<_> = [100, 65_536, 300].into_iter().flat_map(contents).collect();
            for kind in 0..FAILURES {
                let chunk = format!("{FAILS}{kind} whatever follows");
                chunks.insert(usize::from(kind) * 5, chunk.into_bytes());
            }
            let compressed = compress(&bench, &compressor, &chunks).unwrap();
            let mut failures = 0;
            for (i, (chunk, compressed)) in chunks.iter().zip(&compressed).enumerate() {
                // Every kind of failure is found, even an error status with a plausible size.
                let fails = chunk.starts_with(FAILS.as_bytes()) || (failing && i % 3 == 2);
                failures += usize::from(fails);
                assert_eq!(compressed.is_none(), fails, "{format}: chunk {i}");
                if let Some(compressed) = compressed {
                    assert!(
                        decode(format, compressed, chunk.len()) == *chunk,
                        "{format}"
                    );
                }
            }
            assert!(failures >= 4 && failures < chunks.len());
            bench.finish();
            assert_no_violations(&simulation);
        }
    }
}

#[test]
fn chunks_that_are_not_decompressed_are_told() {
    for format in FORMATS {
        let simulation = Simulation::eager();
        let bench = Bench::new(&simulation);
        let chunks = contents(1000);
        let compressed: Vec<_> = chunks.iter().map(|chunk| encode(format, chunk)).collect();
        // Every third chunk fails. The others do not.
        let failing = open(StandIn::Failing).decompressor(format).unwrap();
        let found = decompress(&bench, &failing, &compressed, &[1000; 5]).unwrap();
        for (i, (status, size, bytes)) in found.iter().enumerate() {
            let right = (*status, *size) == (0, 1000);
            assert_eq!(right, i != 2, "{format}");
            assert_eq!(*bytes == chunks[i], i != 2, "{format}");
        }
        // Two slots are too small.
        let decompressor = open(StandIn::Six).decompressor(format).unwrap();
        let lengths = [1000, 999, 1000, 1, 1000];
        let found = decompress(&bench, &decompressor, &compressed, &lengths).unwrap();
        for (i, (status, size, _)) in found.iter().enumerate() {
            let right = (*status, *size) == (0, 1000);
            assert_eq!(right, lengths[i] == 1000, "{format}");
        }
        bench.finish();
        assert_no_violations(&simulation);
    }
}

/// Returns the reason why the call refuses a changed batch before anything is enqueued.
fn refusal(change: impl Fn(&mut CompressBatch<'_>)) -> String {
    let compressor = open(StandIn::Six).compressor(Format::Lz4).unwrap();
    let simulation = Simulation::eager();
    let bench = Bench::new(&simulation);
    let compressing = Compressing::new(&bench, &compressor, &contents(100));
    let mut batch = compressing.batch();
    change(&mut batch);
    // SAFETY: refused, or as the batch says.
    let refused = unsafe { compressor.compress(&simulation, bench.stream, &batch) };
    let error = refused.unwrap_err();
    assert_eq!((error.fault, error.device), (Fault::Refused, Some(0)));
    let operation = "compress 5 lz4 chunks of at most 100 bytes with nvCOMP 6.0.0 and ";
    assert!(error.operation.starts_with(operation), "{error}");
    bench.finish();
    assert_no_violations(&simulation);
    error.reason
}

#[test]
fn batches_that_do_not_fit_are_refused() {
    assert_eq!(
        refusal(|batch| batch.temp.len -= 1),
        format!("there are {} bytes of temporary memory", 5 * 124 + 62 + 12)
    );
    let reason = refusal(|batch| batch.temp.offset += 8);
    assert!(reason.ends_with("not at a multiple of 16"), "{reason}");
    let reason = refusal(|batch| batch.outputs = &batch.outputs[1..]);
    assert!(reason.starts_with("the output slots have "), "{reason}");
    type Table = for<'a, 'b> fn(&'a mut CompressBatch<'b>) -> &'a mut DeviceSpan;
    let tables: [(&str, Table, usize); 5] = [
        ("input pointers", |batch| &mut batch.input_pointers, 8),
        ("input sizes", |batch| &mut batch.input_sizes, 8),
        ("output pointers", |batch| &mut batch.output_pointers, 8),
        ("output sizes", |batch| &mut batch.output_sizes, 8),
        ("statuses", |batch| &mut batch.statuses, 4),
    ];
    for (name, table, size) in tables {
        assert_eq!(
            refusal(|batch| table(batch).len -= 1),
            format!("the table of {name} has {} bytes", 5 * size - 1)
        );
        assert_eq!(
            refusal(|batch| table(batch).offset = 2),
            format!("the table of {name} begins at byte 2")
        );
    }
}

#[test]
fn more_chunks_than_were_asked_about_are_refused() {
    let compressor = open(StandIn::Six).compressor(Format::Lz4).unwrap();
    let smaller = compressor.requirements(4, 100, 400).unwrap();
    let simulation = Simulation::eager();
    let bench = Bench::new(&simulation);
    let compressing = Compressing::new(&bench, &compressor, &contents(100));
    let batch = CompressBatch {
        requirements: &smaller,
        ..compressing.batch()
    };
    // SAFETY: refused.
    let refused = unsafe { compressor.compress(&simulation, bench.stream, &batch) };
    assert_eq!(
        refused.unwrap_err().reason,
        "the requirements are those of 4 chunks"
    );
    // Fewer chunks are no error: there is enough memory.
    let batch = CompressBatch {
        chunks: 3,
        ..compressing.batch()
    };
    // SAFETY: as the batch says.
    unsafe { compressor.compress(&simulation, bench.stream, &batch) }.unwrap();
    let sizes = DeviceSpan {
        len: 24,
        ..compressing.output_sizes
    };
    let sizes = bench.numbers(sizes).unwrap();
    assert!(sizes.iter().all(|&size| size > 0 && size < 200));
    bench.finish();
    assert_no_violations(&simulation);
}

/// Returns nvCOMP's error for a batch whose requirements or addresses are wrong.
fn answer(change: impl Fn(&Bench<'_>, &mut Compressing)) -> String {
    let compressor = open(StandIn::Six).compressor(Format::Lz4).unwrap();
    let simulation = Simulation::eager();
    let bench = Bench::new(&simulation);
    let mut compressing = Compressing::new(&bench, &compressor, &contents(100));
    change(&bench, &mut compressing);
    // SAFETY: the stand-in checks its arguments before it uses them.
    let error = unsafe {
        compressor
            .compress(&simulation, bench.stream, &compressing.batch())
            .and_then(|()| simulation.synchronize_stream(bench.stream, SITE))
            .unwrap_err()
    };
    assert_eq!(error.fault, Fault::Refused);
    bench.finish();
    assert_no_violations(&simulation);
    error.reason
}

#[test]
fn the_library_is_strict() {
    let small = answer(|_, compressing| compressing.requirements.temp -= 1);
    let expected = "nvCOMP compresses lz4: compress 5 lz4 chunks of at most 100 bytes with nvCOMP \
                    6.0.0 and 694 bytes of temporary memory: status 10: an argument is wrong";
    assert!(small.ends_with(expected), "{small}");

    let unaligned = |table: usize| {
        answer(move |bench, compressing| {
            let spans = [&compressing.inputs, &[][..], &compressing.outputs][table];
            let shifted = addresses(spans).enumerate();
            let shifted = shifted.map(|(i, address)| address + 2 * u64::from(i == 3));
            compressing.tables[table] = bench.table(shifted);
        })
    };
    for table in [0, 2] {
        let reason = unaligned(table);
        assert!(reason.ends_with("status 17: not aligned"), "{reason}");
    }
    let long = answer(|bench, compressing| {
        compressing.tables[1] = bench.table([100, 100, 101, 100, 100]);
    });
    assert!(
        long.ends_with("status 20: a chunk has the wrong length"),
        "{long}"
    );
}

/// Returns the rules that a call breaks if it touches other memory than its spans.
fn broken(change: impl Fn(&mut Compressing)) -> Vec<Rule> {
    let compressor = open(StandIn::Six).compressor(Format::Zstd).unwrap();
    let simulation = Simulation::eager();
    let bench = Bench::new(&simulation);
    let mut compressing = Compressing::new(&bench, &compressor, &contents(100));
    change(&mut compressing);
    // SAFETY: the simulation checks the spans that are declared.
    let called = unsafe {
        compressor
            .compress(&simulation, bench.stream, &compressing.batch())
            .and_then(|()| simulation.synchronize_stream(bench.stream, SITE))
    };
    called.unwrap_err();
    simulation.violations().iter().map(|v| v.rule).collect()
}

#[test]
fn spans_are_checked() {
    // The slots are written to their ends.
    let rules = broken(|compressing| compressing.outputs[2].offset -= 1);
    assert_eq!(rules, [Rule::Guard]);
    // The bytes between two chunks were never written.
    let rules = broken(|compressing| compressing.inputs[2].len += 1);
    assert_eq!(rules, [Rule::Uninitialised]);
    // Neither were the results.
    let rules = broken(|compressing| compressing.tables[1] = compressing.output_sizes);
    assert_eq!(rules, [Rule::Uninitialised]);
}

#[test]
fn corrupt_input_ends_the_process() {
    const VARIABLE: &str = "ZARRS_CUDA_TEST_CORRUPT";
    let corrupt = |format: Format| {
        let mut chunk = encode(format, &contents(1000).swap_remove(3));
        chunk.truncate(chunk.len() / 2);
        chunk
    };
    if let Ok(number) = env::var(VARIABLE) {
        let format = FORMATS[number.parse::<usize>().unwrap()];
        let decompressor = open(StandIn::Six).decompressor(format).unwrap();
        let simulation = Simulation::eager();
        let bench = Bench::new(&simulation);
        let _ = decompress(&bench, &decompressor, &[corrupt(format)], &[1000]);
        return;
    }
    for number in 0..FORMATS.len() {
        let output = Command::new(env::current_exe().unwrap())
            .args(["corrupt_input_ends_the_process", "--nocapture"])
            .env(VARIABLE, number.to_string())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{message}");
        let expected = "stand-in for nvCOMP: corrupt ";
        assert!(message.contains(expected), "{message}");
    }
}
