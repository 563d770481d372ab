//! `zarrs-cuda stream`: appends frames of raw bytes to a sharded array while they arrive.

mod input;
mod recording;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use zarrs_cuda::writer::{ArrayWriter, Progress, WriterReport};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::SubchunkCodec;
use zarrs_cuda_convert::apart;
use zarrs_cuda_convert::consolidated;
use zarrs_cuda_convert::open::{self, Place};
use zarrs_cuda_convert::words::bytes_text;

use self::input::{Input, Received};
use self::recording::Recording;
use crate::arguments::{CODECS, Shape};
use crate::common::Common;
use crate::outcome::Outcome;
use crate::progress::Live;
use crate::shapes::ShapeArgs;
use crate::stop;

/// The codec of a new array, unless the user chooses one.
const CODEC: &str = "zstd:1";

/// Append frames of raw bytes to a sharded array while they arrive
///
/// Frames are elements in C order and in this machine's byte order, one frame behind the other, without
/// anything between them. Other programs can open the array meanwhile, and see the finished shards.
/// An array that exists is extended; its shapes and codecs stay.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The directory of the array, new or existing
    #[arg(value_name = "OUT")]
    output: Place,
    /// A file of frames; - is standard input
    #[arg(value_name = "INPUT", default_value = "-")]
    input: PathBuf,
    /// The shape of a frame, in elements; needed for a new array
    #[arg(long, value_name = "Y,X")]
    frame_shape: Option<Shape>,
    /// The data type of elements, such as uint16; needed for a new array
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,
    #[command(flatten)]
    shapes: ShapeArgs,
    #[arg(long, value_name = "CODEC", help = format!("{CODECS} [default: {CODEC}]"))]
    codec: Option<SubchunkCodec>,
    /// Stop after N frames of the input
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// Discard as many frames from the input as the array has: go on after an interrupted run
    #[arg(long)]
    skip_stored: bool,
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let _listening = stop::wait_for_me();
    open::must_be_local(&args.input, "INPUT is a file of frames")?;
    if let Place::Directory(output) = &args.output {
        apart::must_have_no_links(output)?;
    }
    let mut input = Input::open(&args.input, common.memory())?;
    // From here on, all sharded arrays use the codec of this library.
    let again = common.memory() / 8;
    let beside = input.memory().saturating_add(again as u64);
    let _registration = zarrs_cuda::register(common.options_beside(beside))?;
    let recording = Recording::open_or_create(args)?;
    let stored = recording.frames();
    common.say(&recording);
    if stored > 0 {
        common.say(if args.skip_stored {
            format!("{stored} frames are stored: as many are discarded from the input")
        } else {
            format!("{stored} frames are stored: new ones come behind them (--skip-stored goes on with the same input)")
        });
    }
    let mut taken = Taken {
        frame_bytes: recording.frame_bytes(),
        skip: if args.skip_stored { stored } else { 0 },
        frames: args.frames,
        bytes: 0,
    };
    let mut writer = recording.writer(again)?;
    let again = writer.progress();
    let start = Instant::now();
    let outcome = record(&mut input, &mut taken, &mut writer, again);
    // Store all whole frames, even after an error.
    let cut = writer.discard_partial_slice();
    let report = writer.finish().map_err(Failure::failed);
    let stale = consolidated::renew_stale(&args.output, &[]);
    let noted = |failure: Failure| match &stale {
        Some(note) => failure.with_note(note),
        None => failure,
    };
    let frames = |report: &WriterReport| report.finished_slices;
    let ended = match (outcome, report) {
        (Ok(ended), Ok(report)) => {
            if let Ended::Stopped = ended {
                let message = format!("{} has {} frames, all whole", args.output, frames(&report));
                return Err(noted(Failure::interrupted(message))
                    .with_remedy("run the same command with --skip-stored to go on"));
            }
            report
        }
        (Err(failure), Ok(report)) => {
            let note = format!("{} frames are stored", frames(&report));
            return Err(noted(failure.with_note(&note)).with_remedy(way_on(args)));
        }
        (Err(failure), Err(_)) | (Ok(_), Err(failure)) => {
            return Err(noted(failure).with_remedy(way_on(args)));
        }
    };
    if taken.is_short() {
        return Err(Failure::failed(format!(
            "the input has {} frames, and {stored} are stored, which --skip-stored discards: nothing was \
             appended",
            taken.frames_seen()
        ))
        .with_remedy("give the input that the array was begun with, or leave out --skip-stored"));
    }
    let mut outcome = summary(&recording, &ended, taken.frames_taken(), start.elapsed());
    if let Some(note) = &stale {
        outcome = outcome.with_note(note);
    }
    if cut > 0 {
        return Ok(outcome.with_errors(vec![
            Failure::failed(format!(
                "the input ended within a frame: {cut} of {} bytes were left out",
                taken.frame_bytes
            ))
            .with_remedy("compare --frame-shape and --dtype with what wrote the frames"),
        ]));
    }
    Ok(outcome)
}

/// The way in which the input ended.
enum Ended {
    /// The input had no more frames, or all requested frames have arrived.
    Whole,
    /// The user stopped the input.
    Stopped,
}

/// Counts the bytes that are taken from the input.
struct Taken {
    frame_bytes: usize,
    /// The number of frames to discard.
    skip: u64,
    /// The number of frames to take, including the discarded ones; `None` for all.
    frames: Option<u64>,
    /// The number of bytes of the input so far.
    bytes: u64,
}

impl Taken {
    /// Counts `bytes`, the next bytes of the input, and returns the part of them that belongs to the array.
    fn wanted<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let frame = self.frame_bytes as u64;
        let begin = self.bytes;
        self.bytes += bytes.len() as u64;
        let at = |position: u64| {
            let offset = position.saturating_sub(begin);
            usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()))
        };
        let from = at(self.skip.saturating_mul(frame));
        let to = self
            .frames
            .map_or(bytes.len(), |frames| at(frames.saturating_mul(frame)));
        &bytes[from.min(to)..to]
    }

    fn is_done(&self) -> bool {
        let frame = self.frame_bytes as u64;
        self.frames
            .is_some_and(|frames| self.bytes >= frames.saturating_mul(frame))
    }

    /// Returns the number of whole frames of the input so far.
    fn frames_seen(&self) -> u64 {
        self.bytes / (self.frame_bytes as u64).max(1)
    }

    /// Returns whether the input ended within the frames to discard.
    fn is_short(&self) -> bool {
        !self.is_done() && self.frames_seen() < self.skip
    }

    /// Returns the number of frames that were appended.
    fn frames_taken(&self) -> u64 {
        let whole = self.frames_seen();
        let whole = self.frames.map_or(whole, |frames| whole.min(frames));
        whole.saturating_sub(self.skip)
    }
}

fn record(
    input: &mut Input,
    taken: &mut Taken,
    writer: &mut ArrayWriter,
    again: Progress,
) -> Result<Ended, Failure> {
    let mut live = Live::new();
    let mut line = Line::new(again);
    while !taken.is_done() {
        if stop::is_asked() {
            live.finish();
            return Ok(Ended::Stopped);
        }
        match input.next(Duration::from_millis(100))? {
            Received::Nothing => {}
            Received::End => break,
            Received::Bytes(bytes) => {
                writer
                    .append_bytes(taken.wanted(&bytes))
                    .map_err(Failure::failed)?;
                input.give_back(bytes);
            }
        }
        live.show(|| line.text(&writer.progress()));
    }
    live.finish();
    Ok(Ended::Whole)
}

fn way_on(args: &Args) -> String {
    format!(
        "what {} has is whole: when the cause is gone, run the same command with --skip-stored",
        args.output
    )
}

/// The line of progress while frames arrive.
struct Line {
    at: Instant,
    before: Progress,
}

#[allow(clippy::cast_precision_loss, reason = "rounded for people")]
impl Line {
    fn new(before: Progress) -> Self {
        Self {
            at: Instant::now(),
            before,
        }
    }

    fn text(&mut self, now: &Progress) -> String {
        let seconds = self.at.elapsed().as_secs_f64().max(1e-9);
        let slices = now.appended_slices - self.before.appended_slices;
        let bytes = now.appended_bytes - self.before.appended_bytes;
        let waiting = now
            .waiting
            .saturating_sub(self.before.waiting)
            .as_secs_f64();
        (self.at, self.before) = (Instant::now(), *now);
        let memory =
            resident_bytes().map_or(String::new(), |bytes| format!(" | {}", bytes_text(bytes)));
        format!(
            "{} frames, {:.0}/s, {:.2} GB/s | waits {:.0}%{memory} | {} shards",
            now.appended_slices,
            slices as f64 / seconds,
            bytes as f64 / seconds / 1e9,
            100.0 * waiting / seconds,
            now.shards_stored,
        )
    }
}

/// Returns the bytes of memory that this process occupies; `None` if the system does not tell.
fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[allow(clippy::cast_precision_loss, reason = "rounded for people")]
fn summary(recording: &Recording, report: &WriterReport, taken: u64, time: Duration) -> Outcome {
    let seconds = time.as_secs_f64().max(1e-9);
    let bytes = taken * recording.frame_bytes() as u64;
    let text = format!(
        "{taken} frames in {seconds:.2} s: {:.0} frames/s, {:.2} GB/s; the array has {}\n\
         {} shards stored ({} empty ones are not), {} in {}, ratio {:.2}, on {}\n\
         waited {:.2} s for the writer; encoding took {:.2} s, storing {:.2} s of its threads",
        taken as f64 / seconds,
        bytes as f64 / seconds / 1e9,
        report.finished_slices,
        report.shards,
        report.shards_empty,
        bytes_text(report.raw_bytes),
        bytes_text(report.stored_bytes),
        report.ratio(),
        report.engine,
        report.waiting.as_secs_f64(),
        report.encoding.as_secs_f64(),
        report.storing.as_secs_f64(),
    );
    let json = json!({
        "output": recording.place().to_string(),
        "frames": taken,
        "frames_in_array": report.finished_slices,
        "seconds": seconds,
        "shards": report.shards,
        "shards_empty": report.shards_empty,
        "raw_bytes": report.raw_bytes,
        "stored_bytes": report.stored_bytes,
        "engine": report.engine,
        "waiting_seconds": report.waiting.as_secs_f64(),
        "encoding_seconds": report.encoding.as_secs_f64(),
        "storing_seconds": report.storing.as_secs_f64(),
    });
    Outcome::new(text, json)
}

#[cfg(test)]
mod tests {
    use super::Taken;

    #[test]
    fn frames_are_skipped_and_limited() {
        for piece in [1, 3, 5, 64] {
            let input: Vec<u8> = (0..30).collect();
            let mut taken = Taken {
                frame_bytes: 4,
                skip: 2,
                frames: Some(5),
                bytes: 0,
            };
            let mut wanted = Vec::new();
            for bytes in input.chunks(piece) {
                wanted.extend_from_slice(taken.wanted(bytes));
            }
            assert_eq!(wanted, (8..20).collect::<Vec<u8>>(), "{piece}");
            assert!(taken.is_done());
            assert_eq!(taken.frames_taken(), 3);
        }
    }
}
