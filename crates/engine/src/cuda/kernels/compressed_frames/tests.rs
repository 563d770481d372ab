//! Helpers for the tests of all formats: batches of streams from the host's libraries and of failed
//! streams.

mod blosc;
mod gzip;
mod zstd;

pub(crate) use blosc::check_blosc;
pub(crate) use gzip::check_gzip;
pub(crate) use zstd::check_zstd;

use super::{CompressedFrames, FrameOutcome, Streams};
use crate::cuda::driver::{DeviceSpan, Driver, DriverError, StreamId};
use crate::cuda::kernels::spans::testing::*;
use crate::cuda::kernels::testing::run as on;
use proptest::prelude::*;

/// The claim of a stand-in for the compressor about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StandInReport {
    /// The stream is complete.
    Done,
    /// An error status.
    Status(i32),
    /// A size of zero.
    Nothing,
    /// A size that exceeds the largest allowed one by this many bytes.
    Above(u64),
    /// The largest size that the number can hold.
    Everything,
}

fn claims() -> impl Strategy<Value = StandInReport> {
    prop_oneof![
        12 => Just(StandInReport::Done),
        1 => (1..20i32).prop_map(StandInReport::Status),
        1 => (i32::MIN..0).prop_map(StandInReport::Status),
        1 => Just(StandInReport::Nothing),
        1 => (1..40u64).prop_map(StandInReport::Above),
        1 => Just(StandInReport::Everything),
    ]
}

/// The compressor's output.
#[derive(Clone, Debug, Default)]
struct Batch {
    /// For each subchunk, its streams and the claims about them.
    streams: Vec<Vec<(Vec<u8>, StandInReport)>>,
    /// A flag for each subchunk, where there are flags.
    stored: Option<Vec<bool>>,
    /// Bytes by which slots exceed the longest stream or frame, before the slots are rounded up.
    room: (usize, usize),
}

/// The result of framing a subchunk.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Frame(Vec<u8>),
    Elided,
    Failed,
}

impl Batch {
    /// Returns one stream for each subchunk.
    fn of(streams: Vec<(Vec<u8>, StandInReport)>) -> Self {
        Self {
            streams: streams.into_iter().map(|stream| vec![stream]).collect(),
            ..Self::default()
        }
    }

    fn is_stored(&self, i: usize) -> bool {
        self.stored.as_ref().is_none_or(|stored| stored[i])
    }

    fn all_done(&self, i: usize) -> bool {
        self.streams[i]
            .iter()
            .all(|(stream, claim)| *claim == StandInReport::Done && !stream.is_empty())
    }

    /// Returns the expected outcome of a subchunk. `frame` is its frame if nothing failed.
    fn outcome(&self, i: usize, frame: Option<Vec<u8>>) -> Outcome {
        match frame {
            _ if !self.is_stored(i) => Outcome::Elided,
            Some(frame) if self.all_done(i) => Outcome::Frame(frame),
            _ => Outcome::Failed,
        }
    }

    /// Lets `launch` make frames of at most `bound` bytes. It may also read `extra`.
    ///
    /// Checks that the bytes behind a frame are unchanged.
    fn frame(
        &self,
        driver: &dyn Driver,
        bound: usize,
        extra: &[u8],
        launch: impl FnOnce(
            StreamId,
            Streams,
            Option<DeviceSpan>,
            CompressedFrames,
            DeviceSpan,
        ) -> Result<(), DriverError>,
    ) -> Vec<Outcome> {
        let streams: Vec<_> = self.streams.iter().flatten().collect();
        let longest = streams.iter().map(|(stream, _)| stream.len()).max();
        let most = longest.unwrap_or(0) + self.room.0 + 1;
        let stream_stride = most.next_multiple_of(16);
        let frame_stride = (bound + self.room.1).next_multiple_of(16);
        let (count, chunks) = (self.streams.len(), streams.len());

        let mut slots_of_streams = noise(1, chunks * stream_stride);
        let (mut sizes, mut statuses) = (Vec::new(), Vec::new());
        let slot = slots_of_streams.chunks_mut(stream_stride);
        for (slot, (stream, claim)) in slot.zip(&streams) {
            slot[..stream.len()].copy_from_slice(stream);
            let len = stream.len() as u64;
            let (size, status) = match *claim {
                StandInReport::Done => (len, 0),
                StandInReport::Status(status) => (len, status),
                StandInReport::Nothing => (0, 0),
                StandInReport::Above(more) => (most as u64 + more, 0),
                StandInReport::Everything => (u64::MAX, 0),
            };
            sizes.push(size);
            statuses.push(status.cast_unsigned());
        }
        let stored = self.stored.as_ref().map_or(vec![0; count], |stored| {
            stored.iter().map(|&stored| 3 * u32::from(stored)).collect()
        });
        let (mut sizes, mut statuses, mut stored) = (u64s(&sizes), u32s(&statuses), u32s(&stored));
        let mut extra = extra.to_vec();
        let mut frames = vec![0xcc; count * frame_stride];
        let mut frame_sizes = vec![0xcc; 8 * count];
        let (mut framed, mut outcomes_of_device) = (vec![0xcc; 4 * count], vec![0xcc; 4 * count]);
        let buffers = &mut [
            &mut slots_of_streams,
            &mut sizes,
            &mut statuses,
            &mut stored,
            &mut frames,
            &mut frame_sizes,
            &mut framed,
            &mut outcomes_of_device,
            &mut extra,
        ];
        on(driver, buffers, |stream, spans| {
            let streams = Streams {
                slots: slots(spans[0], stream_stride, chunks),
                most,
                sizes: spans[1],
                statuses: spans[2],
            };
            let stored = self.stored.is_some().then_some(spans[3]);
            let frames = CompressedFrames {
                slots: slots(spans[4], frame_stride, count),
                sizes: spans[5],
                framed: spans[6],
                outcomes: spans[7],
            };
            launch(stream, streams, stored, frames, spans[8])
        })
        .expect("launches");
        let frame_sizes = to_u64s(&frame_sizes);
        let (framed, flags) = (to_u32s(&framed), to_u32s(&outcomes_of_device));
        let mut outcomes = Vec::new();
        for i in 0..count {
            let slot = &frames[i * frame_stride..][..frame_stride];
            let size = usize::try_from(frame_sizes[i]).expect("within a slot");
            outcomes.push(match (size, framed[i], FrameOutcome::of_flag(flags[i])) {
                (0, 0, Some(FrameOutcome::Empty)) => Outcome::Elided,
                (0, 0, Some(FrameOutcome::Failed)) => Outcome::Failed,
                (1.., 1, Some(FrameOutcome::Framed)) => {
                    let (frame, behind) = slot.split_at(size);
                    assert!(behind.iter().all(|&byte| byte == 0xcc), "behind {i}");
                    Outcome::Frame(frame.to_vec())
                }
                flags => panic!("{i} is {flags:?}"),
            });
        }
        outcomes
    }
}

/// Returns the content of a subchunk: noise, compressible bytes, or one repeated byte.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut content = noise(seed, bytes);
    for (i, byte) in content.iter_mut().enumerate() {
        match seed % 4 {
            0 => {}
            1 => *byte = *byte % 3 * 40,
            2 => *byte = (i / 50).to_le_bytes()[0],
            _ => *byte = 7,
        }
    }
    content
}

/// Returns the sectors that the last kernel moved, in percent of the sectors for `bytes` bytes read
/// and written once. The kernel moves more where streams and frames are aligned differently:
/// - one more sector for each row of 512 bytes, which begins within a sector,
/// - the end of a stream behind its whole windows, which is read twice,
/// - the stream's size and status, which are read for each piece.
fn percent_moved(simulation: &crate::cuda::driver::simulation::Simulation, bytes: usize) -> u64 {
    let (moved, _) = sectors(simulation);
    moved * 100 / (2 * bytes).div_ceil(32) as u64
}
