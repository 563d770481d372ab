//! Frames into slots: the part of decompression that runs on a device.
//!
//! ```text
//! encoded bytes -> streams, each where nvCOMP may read it      split
//! encoded bytes -> chunks that are stored as they are          split
//! streams -> slots, or shuffled slots; sizes and statuses      nvCOMP
//! chunks -> their places in these slots                        gather, where nvCOMP could not write them there
//! shuffled slots -> slots                                      unshuffle, where Blosc did
//! slots -> CRC-32                                              crc32, for gzip
//! ```
//!
//! The host has found the streams (`compressed_frame_parts`), and writes the tables that nvCOMP reads, since
//! the host knows all addresses. The results of the chunks are copied to the host with the batch. If a chunk
//! could not be decompressed, or does not match its frame, the host decodes the shard.

use super::arena::Region;
use super::compressed_frame_parts::{CompressedFramePart, CompressedFrameParts};
use super::counters::TimedStage;
use super::decompression::apart::Apart;
use super::decompression::{Buffers, CRC32, NUMBER, Prepared, STATUS};
use super::driver::{DeviceSpan, DriverError, Span};
use super::kernels::chunk_tables::Chunking;
use super::kernels::crc32::crc32;
use super::kernels::shuffle::unshuffle;
use super::kernels::spans::{Lengths, Slots};
use super::kernels::split;
use super::lane::NO_ANSWER;
use super::nvcomp::DecompressBatch;
use super::session::{Session, Timed};
use crate::contract::EngineError;

/// Removes the first `len` bytes from the region `rest`, and returns them as a region.
fn take(rest: &mut Region, len: usize) -> Region {
    let (part, behind) = rest.split_at(len);
    *rest = behind;
    part
}

/// Returns the offset and the number of the bytes in each slot of `stride` bytes, where `len` bytes from `offset` on
/// are copied to slots that follow one another.
fn in_slots(offset: u64, len: usize, stride: usize) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..len).step_by(stride.max(1));
    starts.map(move |start| {
        let size = stride.min(len - start);
        (offset + start as u64, size as u64)
    })
}

/// The regions of the tables of a batch.
struct Tables {
    /// Tables with one number for each slot of a stream: the offset of the slot's bytes in the encoded bytes, and
    /// their number.
    offsets: Region,
    sizes: Region,
    /// Tables with one number for each stream: its length, its address for nvCOMP, the address of its chunk, and
    /// the length of its chunk.
    lengths: Region,
    inputs: Region,
    outputs: Region,
    capacities: Region,
    /// Tables with one number for each step of the slots: the offset of the step's bytes in the encoded bytes,
    /// and their number. Both numbers are 0 in a chunk that is stored compressed.
    raw_offsets: Region,
    raw_sizes: Region,
    /// The [tables](Apart::tables) of chunks that are decompressed apart.
    run_offsets: Region,
    run_sources: Region,
}

impl Tables {
    fn new(
        mut region: Region,
        stream_slots: usize,
        streams: usize,
        steps: usize,
        runs: [usize; 2],
    ) -> Self {
        let mut next = |count: usize| take(&mut region, count * NUMBER);
        Self {
            offsets: next(stream_slots),
            sizes: next(stream_slots),
            lengths: next(streams),
            inputs: next(streams),
            outputs: next(streams),
            capacities: next(streams),
            raw_offsets: next(steps),
            raw_sizes: next(steps),
            run_offsets: take(&mut region, runs[0]),
            run_sources: take(&mut region, runs[1]),
        }
    }
}

/// The regions of the results of a batch: sizes and statuses of chunks, and checksums of subchunks.
struct Results {
    all: Region,
    sizes: Region,
    statuses: Region,
    checksums: Region,
}

impl Results {
    fn new(region: Region, streams: usize, checksums: usize) -> Self {
        let mut rest = region;
        let sizes = take(&mut rest, streams * NUMBER);
        let statuses = take(&mut rest, streams * STATUS);
        let checksums = take(&mut rest, checksums * CRC32);
        Self {
            all: region.part(0..sizes.len + statuses.len + checksums.len),
            sizes,
            statuses,
            checksums,
        }
    }
}

/// A chunk of a stored subchunk.
#[derive(Clone, Copy)]
struct Chunk {
    /// The number of the subchunk in its batch, and the number of the chunk in its subchunk.
    subchunk: usize,
    number: usize,
    part: CompressedFramePart,
}

/// The decompressor of a shard in a lane.
#[derive(Clone, Copy)]
pub(super) struct Decompression<'a> {
    pub(super) prepared: &'a Prepared,
    pub(super) parts: &'a CompressedFrameParts,
}

/// Consecutive subchunks of the shard. Their encoded bytes are on the device or are being copied to the
/// device.
#[derive(Clone, Copy)]
pub(super) struct Subchunks {
    /// The number of the batch.
    pub(super) batch: usize,
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Decompression<'_> {
    /// Returns the buffers that the kernels of a batch use.
    fn buffers<'s>(
        session: &'s Session<'_>,
        subchunks: Subchunks,
    ) -> Result<&'s Buffers, DriverError> {
        let (workspace, _) = session.workspace(session.batch(subchunks.batch));
        let none = || session.refused("decompressing", &"the lane has no decompressor");
        workspace.decompression.as_ref().ok_or_else(none)
    }

    fn chunking(&self) -> Chunking {
        self.parts.layout.chunking
    }

    /// Returns the chunks of the stored subchunks among `subchunks`, which count from the first of `subchunks`.
    fn chunks(&self, subchunks: Subchunks) -> impl Iterator<Item = Chunk> {
        (0..subchunks.count).flat_map(move |subchunk| {
            let parts = self.parts.of_subchunk(subchunks.first + subchunk);
            parts.iter().enumerate().map(move |(number, part)| Chunk {
                subchunk,
                number,
                part: *part,
            })
        })
    }

    /// Returns the chunks that are stored compressed.
    fn streams(&self, subchunks: Subchunks) -> impl Iterator<Item = Chunk> {
        self.chunks(subchunks).filter(|chunk| !chunk.part.raw)
    }

    fn num_streams(&self, subchunks: Subchunks) -> usize {
        self.streams(subchunks).count()
    }

    fn tables(&self, buffers: &Buffers, session: &Session<'_>, subchunks: Subchunks) -> Tables {
        let steps = if self.parts.layout.raw {
            subchunks.count * self.chunking().steps()
        } else {
            0
        };
        let in_slots = |chunk: Chunk| chunk.part.len.div_ceil(buffers.stream_stride);
        let stream_slots = self.streams(subchunks).map(in_slots).sum();
        let region = session.batch(subchunks.batch).tables;
        let runs = buffers
            .apart
            .map(|apart| apart.table_bytes(subchunks.count));
        let runs = runs.flatten().unwrap_or_default();
        let streams = self.num_streams(subchunks);
        Tables::new(region, stream_slots, streams, steps, runs)
    }

    fn results(&self, subchunks: Subchunks, region: Region) -> Results {
        let checksums = if self.parts.checksums.is_empty() {
            0
        } else {
            subchunks.count
        };
        Results::new(region, self.num_streams(subchunks), checksums)
    }

    /// Returns the slots that get the content of `slots` before Blosc's shuffle is undone.
    fn shuffled(&self, session: &Session<'_>, buffers: &Buffers, slots: Slots) -> Slots {
        let span = match self.parts.layout.shuffle {
            Some(_) => session.lane.device(buffers.shuffled),
            None => slots.span,
        };
        Slots { span, ..slots }
    }

    /// Returns the places to which the chunks of `slots` are decompressed: the steps of `slots`, which lie one
    /// after the other.
    fn chunk_slots(&self, session: &Session<'_>, buffers: &Buffers, slots: Slots) -> Slots {
        let steps = self.chunking().steps();
        let count = slots.count * steps;
        match buffers.apart {
            Some(Apart { region, stride, .. }) => Slots {
                span: session.lane.device(region),
                stride,
                count,
            },
            None => Slots {
                span: self.shuffled(session, buffers, slots).span,
                stride: slots.stride / steps,
                count,
            },
        }
    }

    /// Zeroes the slots of chunks and the shuffled slots before the first batch, since kernels read the slots by
    /// whole words, and gather bytes behind the chunks.
    pub(super) fn prepare(session: &Session<'_>) -> Result<(), DriverError> {
        let lane = session.lane;
        for (workspace, stream) in std::iter::zip(&session.sizing.workspaces, lane.kernel_streams) {
            if let Some(buffers) = &workspace.decompression {
                lane.zero(*stream, buffers.shuffled)?;
                if let Some(apart) = &buffers.apart {
                    lane.zero(*stream, apart.region)?;
                }
            }
        }
        Ok(())
    }

    /// Copies the tables of a batch to the device. `offsets` are the offsets of the encoded subchunks in the
    /// encoded bytes of the batch.
    pub(super) fn upload(
        &self,
        session: &Session<'_>,
        subchunks: Subchunks,
        offsets: &[u64],
        slots: Slots,
    ) -> Result<(), DriverError> {
        let lane = session.lane;
        let chunking = self.chunking();
        let buffers = Self::buffers(session, subchunks)?;
        let chunk_slots = self.chunk_slots(session, buffers, slots);
        let place = |chunk: Chunk| {
            offsets.get(chunk.subchunk).copied().unwrap_or(0) + chunk.part.start as u64
        };
        let address = |span: DeviceSpan, at: usize| span.memory.0 + (span.offset + at) as u64;
        let streams = lane.device(buffers.streams);
        let stride = buffers.stream_stride;

        let (mut stream_offsets, mut stream_sizes) = (Vec::new(), Vec::new());
        let (mut lengths, mut inputs) = (Vec::new(), Vec::new());
        for stream in self.streams(subchunks) {
            inputs.push(address(streams, stream_offsets.len() * stride));
            lengths.push(stream.part.len as u64);
            for (offset, size) in in_slots(place(stream), stream.part.len, stride) {
                stream_offsets.push(offset);
                stream_sizes.push(size);
            }
        }
        let mut numbers = [stream_offsets, stream_sizes, lengths, inputs].concat();
        let step = |chunk: Chunk| {
            let before = chunking.chunk(chunk.number).start / chunking.step();
            chunk.subchunk * chunking.steps() + before
        };
        let output = |stream| address(chunk_slots.span, step(stream) * chunk_slots.stride);
        numbers.extend(self.streams(subchunks).map(output));
        let capacity = |stream: Chunk| chunking.chunk(stream.number).len() as u64;
        numbers.extend(self.streams(subchunks).map(capacity));
        if self.parts.layout.raw {
            let mut raw = vec![(0, 0); chunk_slots.count];
            for chunk in self.chunks(subchunks).filter(|chunk| chunk.part.raw) {
                let steps = raw.iter_mut().skip(step(chunk));
                let pieces = in_slots(place(chunk), chunk.part.len, chunk_slots.stride);
                steps.zip(pieces).for_each(|(step, piece)| *step = piece);
            }
            numbers.extend(raw.iter().map(|(offset, _)| offset));
            numbers.extend(raw.iter().map(|(_, size)| size));
        }
        if let Some(apart) = &buffers.apart {
            numbers.extend(apart.tables(chunking, slots));
        }
        let regions = session.batch(subchunks.batch);
        let from = lane.write_values(
            lane.pinned_in(regions.table_of_chunks),
            numbers.iter().map(|number| number.to_le_bytes()),
        )?;
        let to = lane.device(regions.tables.part(0..from.len));
        lane.copy(lane.up, Span::Pinned(from), Span::Device(to))?;
        session.counters.add_to_device(from.len);
        Ok(())
    }

    /// Enqueues all steps that decompress the encoded bytes in `dense` to `slots`.
    pub(super) fn decompress(
        &self,
        session: &Session<'_>,
        subchunks: Subchunks,
        dense: DeviceSpan,
        slots: Slots,
        timed: &mut Vec<Timed>,
    ) -> Result<(), DriverError> {
        let lane = session.lane;
        let driver = lane.driver;
        let regions = session.batch(subchunks.batch);
        let buffers = Self::buffers(session, subchunks)?;
        let tables = self.tables(buffers, session, subchunks);
        let (_, stream) = session.workspace(regions);
        let results = self.results(subchunks, regions.results);
        let chunk_slots = self.chunk_slots(session, buffers, slots);
        let streams = Slots {
            span: lane.device(buffers.streams),
            stride: buffers.stream_stride,
            count: tables.offsets.len / NUMBER,
        };
        let mut run = |stage, work: &dyn Fn() -> Result<(), DriverError>| {
            session.run(stream, stage, timed, work)
        };

        // SAFETY: the spans are regions of the lane. The kernels on them run in one stream, after the copies
        // to them.
        run(TimedStage::Split, &|| unsafe {
            let (offsets, sizes) = (lane.device(tables.offsets), lane.device(tables.sizes));
            split::split(driver, stream, dense, offsets, sizes, streams)?;
            if self.parts.layout.raw {
                let offsets = lane.device(tables.raw_offsets);
                let sizes = lane.device(tables.raw_sizes);
                split::split(driver, stream, dense, offsets, sizes, chunk_slots)?;
            }
            Ok(())
        })?;

        let batch = DecompressBatch {
            requirements: &buffers.requirements,
            chunks: tables.lengths.len / NUMBER,
            input_pointers: lane.device(tables.inputs),
            input_sizes: lane.device(tables.lengths),
            output_pointers: lane.device(tables.outputs),
            output_capacities: lane.device(tables.capacities),
            inputs: &[streams.filled()],
            outputs: &[chunk_slots.filled()],
            temp: lane.device(buffers.temp),
            output_sizes: lane.device(results.sizes),
            statuses: lane.device(results.statuses),
        };
        // Chunks that nvCOMP leaves without a result count as failed.
        lane.fill(stream, results.all, NO_ANSWER)?;
        // SAFETY: the spans are regions of the lane, and the kernels on them run in one stream. `upload`
        // wrote the tables: each stream has its own slots, and the chunks lie within the slots and do not
        // overlap. Both begin at multiples of nvCOMP's alignments, by which `Buffers` and `Prepared` chose
        // the strides. `Options::with_device_decode` asks its caller that a compressor wrote the streams;
        // everything that can be checked without decompressing them was checked.
        run(TimedStage::Decompress, &|| unsafe {
            self.prepared
                .decompressor
                .decompress(driver, stream, &batch)
        })?;

        let shuffled = self.shuffled(session, buffers, slots);
        if let Some(apart) = &buffers.apart {
            // SAFETY: as for splitting. `upload` wrote the tables for these slots.
            run(TimedStage::Decompress, &|| unsafe {
                let tables = [tables.run_offsets, tables.run_sources].map(|of| lane.device(of));
                apart.gather(driver, stream, chunk_slots, tables, shuffled)
            })?;
        }
        if let Some((shuffle, blocks)) = self.parts.layout.shuffle {
            // SAFETY: as for splitting.
            run(TimedStage::Shuffle, &|| unsafe {
                unshuffle(driver, stream, shuffle, shuffled, slots, blocks)
            })?;
        }
        if results.checksums.len > 0 {
            let lengths = Lengths::All(self.chunking().bytes);
            let stored = Some(lane.device(regions.stored));
            let checksums = lane.device(results.checksums);
            // SAFETY: as for splitting.
            run(TimedStage::Decompress, &|| unsafe {
                crc32(driver, stream, slots, lengths, stored, checksums)
            })?;
        }
        Ok(())
    }

    /// Enqueues the copy of the chunks' results to pinned memory.
    pub(super) fn download(
        &self,
        session: &Session<'_>,
        subchunks: Subchunks,
    ) -> Result<(), DriverError> {
        let lane = session.lane;
        let regions = session.batch(subchunks.batch);
        let from = self.results(subchunks, regions.results).all;
        let to = lane.pinned_out(regions.answer_of_chunks.part(0..from.len));
        session.counters.add_from_device(from.len);
        lane.clear_answer(to)?;
        lane.copy(lane.down, Span::Device(lane.device(from)), Span::Pinned(to))
    }

    /// Checks the results of the chunks, which are in pinned memory.
    ///
    /// # Errors
    /// [`EngineError::Unsuitable`] if a chunk could not be decompressed, or does not match its
    /// frame.
    pub(super) fn check(
        &self,
        session: &Session<'_>,
        subchunks: Subchunks,
    ) -> Result<(), EngineError> {
        match self.failed(session, subchunks)?.first() {
            None => Ok(()),
            Some((_, reason)) => Err(EngineError::Unsuitable(reason.to_string())),
        }
    }

    /// Returns the subchunks that the device could not decompress, each once, with the reason. They count from
    /// the first of `subchunks`, whose results are in pinned memory.
    pub(super) fn failed(
        &self,
        session: &Session<'_>,
        subchunks: Subchunks,
    ) -> Result<Vec<(usize, &'static str)>, DriverError> {
        let lane = session.lane;
        let answer = session.batch(subchunks.batch).answer_of_chunks;
        let results = self.results(subchunks, answer);
        let read = |region: Region| lane.read(lane.pinned_out(region));
        let mut failed: Vec<(usize, &'static str)> = Vec::new();
        let mut note = |subchunk: usize, reason| {
            if failed.last().is_none_or(|(last, _)| *last != subchunk) {
                failed.push((subchunk, reason));
            }
        };
        let (sizes, statuses) = (read(results.sizes)?, read(results.statuses)?);
        let found = std::iter::zip(sizes.as_chunks::<8>().0, statuses.as_chunks::<4>().0);
        for (stream, (size, status)) in self.streams(subchunks).zip(found) {
            let expected = self.chunking().chunk(stream.number).len() as u64;
            if i32::from_le_bytes(*status) != 0 || u64::from_le_bytes(*size) != expected {
                note(stream.subchunk, "nvCOMP could not decompress a chunk");
            }
        }
        if results.checksums.len > 0 {
            let found = read(results.checksums)?.as_chunks::<4>().0;
            let mut wrong = Vec::new();
            for Chunk { subchunk, .. } in self.chunks(subchunks) {
                let expected = self.parts.checksums[subchunks.first + subchunk];
                if found.get(subchunk).map(|found| u32::from_le_bytes(*found)) != Some(expected) {
                    wrong.push(subchunk);
                }
            }
            wrong.retain(|subchunk| failed.iter().all(|(failed, _)| failed != subchunk));
            let reason = "the CRC-32 of a gzip member is not that of its content";
            failed.extend(wrong.into_iter().map(|subchunk| (subchunk, reason)));
        }
        Ok(failed)
    }
}
