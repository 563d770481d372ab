//! Slots into frames: the part of compression that runs on a device.
//!
//! ```text
//! slots -> shuffled slots                              shuffle, where Blosc does
//! slots -> tables of chunks                            chunks
//! chunks -> streams, their sizes and statuses          nvCOMP
//! slots -> CRC-32                                      crc32, for gzip
//! streams -> frames, their sizes and outcomes          frames
//! ```
//!
//! All steps run in one CUDA stream, in buffers that one batch uses at a time. The host does not wait in
//! between. So subchunks that are not stored are compressed, too, as chunks of one byte, and their streams
//! are not used. A subchunk on which nvCOMP fails gets no frame, and its outcome says so.

use super::compression::{Buffers, CompressedFrameFormat, Prepared};
use super::counters::TimedStage;
use super::driver::{DeviceSpan, DriverError, StreamId};
use super::kernels::chunk_tables::{ChunkTables, chunk_tables};
use super::kernels::compressed_frames::{
    CompressedFrames, Streams, frame_blosc, frame_gzip, frame_zstd,
};
use super::kernels::crc32::crc32;
use super::kernels::shuffle::shuffle;
use super::kernels::spans::{Lengths, Slots, sub_span};
use super::lane::NO_ANSWER;
use super::nvcomp::CompressBatch;
use super::session::{Session, Timed};

/// Enqueues the compression of `slots`, some subchunks at a time, and adds the measured stages to `timed`.
/// `outcomes` has a `u32` for each subchunk.
pub(super) fn compress(
    session: &Session<'_>,
    prepared: &Prepared,
    (buffers, stream): (&Buffers, StreamId),
    slots: Slots,
    stored: Option<DeviceSpan>,
    outcomes: DeviceSpan,
    timed: &mut Vec<Timed>,
) -> Result<CompressedFrames, DriverError> {
    for first in (0..slots.count).step_by(buffers.at_once) {
        let some = first..slots.count.min(first + buffers.at_once);
        let flags = |span| sub_span(span, some.start * 4..some.end * 4);
        compress_some(
            session,
            prepared,
            (&buffers.part(&some), stream),
            slots.part(&some),
            stored.map(flags),
            flags(outcomes),
            timed,
        )?;
    }
    Ok(frames(
        session,
        &buffers.part(&(0..slots.count)),
        slots.count,
        outcomes,
    ))
}

/// Returns the regions of the frames of `count` subchunks, with their `outcomes`.
fn frames(
    session: &Session<'_>,
    buffers: &Buffers,
    count: usize,
    outcomes: DeviceSpan,
) -> CompressedFrames {
    let lane = session.lane;
    CompressedFrames {
        slots: Slots {
            span: lane.device(buffers.frames),
            stride: buffers.frame_stride,
            count,
        },
        sizes: lane.device(buffers.sizes),
        framed: lane.device(buffers.framed),
        outcomes,
    }
}

/// Enqueues the compression of as many subchunks as are compressed at once. The arguments are those of
/// [`compress`].
fn compress_some(
    session: &Session<'_>,
    prepared: &Prepared,
    (buffers, stream): (&Buffers, StreamId),
    slots: Slots,
    stored: Option<DeviceSpan>,
    outcomes: DeviceSpan,
    timed: &mut Vec<Timed>,
) -> Result<(), DriverError> {
    let lane = session.lane;
    let driver = lane.driver;
    let compression = &prepared.compression;
    let chunking = compression.chunking;
    let mut run =
        |stage, work: &dyn Fn() -> Result<(), DriverError>| session.run(stream, stage, timed, work);

    let mut inputs = slots;
    if let Some((shuffle_of, blocks)) = compression.shuffled() {
        inputs.span = lane.device(buffers.shuffled);
        // SAFETY: the spans are regions of the lane, and the kernels on them run in one stream.
        run(TimedStage::Shuffle, &|| unsafe {
            shuffle(driver, stream, shuffle_of, slots, inputs, blocks)
        })?;
    }

    let streams = Streams {
        slots: Slots {
            span: lane.device(buffers.streams),
            stride: buffers.stream_stride,
            count: slots.count * chunking.blocks(),
        },
        most: buffers.requirements.max_output,
        sizes: lane.device(buffers.output_sizes),
        statuses: lane.device(buffers.statuses),
    };
    let tables = ChunkTables {
        input_pointers: lane.device(buffers.input_pointers),
        input_sizes: lane.device(buffers.input_sizes),
        output_pointers: lane.device(buffers.output_pointers),
    };
    let batch = CompressBatch {
        requirements: &buffers.requirements,
        chunks: streams.slots.count,
        input_pointers: tables.input_pointers,
        input_sizes: tables.input_sizes,
        output_pointers: tables.output_pointers,
        inputs: &[inputs.filled()],
        outputs: &[streams.slots.filled()],
        temp: lane.device(buffers.temp),
        output_sizes: streams.sizes,
        statuses: streams.statuses,
    };
    // Chunks that nvCOMP leaves without a result count as failed. This overwrites the results of an earlier
    // batch.
    lane.fill(stream, buffers.output_sizes, NO_ANSWER)?;
    lane.fill(stream, buffers.statuses, NO_ANSWER)?;
    // SAFETY: the spans are regions of the lane, and the kernels on them run in one stream. `chunk_tables`
    // writes tables of the chunks in the slots, and of the slots for streams, at multiples of nvCOMP's
    // alignments. By these alignments, `Buffers` and `Sizing` chose the strides, and `Prepared` checked the
    // blocks.
    run(TimedStage::Compress, &|| unsafe {
        chunk_tables(
            driver,
            stream,
            inputs,
            chunking,
            stored,
            streams.slots,
            tables,
        )?;
        prepared.compressor.compress(driver, stream, &batch)
    })?;

    let frames = frames(session, buffers, slots.count, outcomes);
    // SAFETY: the spans are regions of the lane, and the kernels on them run in one stream.
    run(TimedStage::Frame, &|| unsafe {
        match compression.frame {
            CompressedFrameFormat::Zstd => {
                frame_zstd(driver, stream, streams, chunking.bytes, stored, frames)
            }
            CompressedFrameFormat::Gzip => {
                let checksums = lane.device(buffers.checksums);
                let lengths = Lengths::All(chunking.bytes);
                crc32(driver, stream, slots, lengths, stored, checksums)?;
                let content = (chunking.bytes, checksums);
                frame_gzip(driver, stream, streams, content, stored, frames)
            }
            CompressedFrameFormat::Blosc(format) => {
                frame_blosc(driver, stream, format, inputs, streams, stored, frames)
            }
        }
    })
}
