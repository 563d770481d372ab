//! Makes the levels of an image.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zarrs_cuda::reader::Cancel;
use zarrs_cuda::writer::{WriterError, WriterReport};
use zarrs_cuda_convert::words::{bytes_text, counted};
use zarrs_cuda_convert::{Part, Unit};

use super::plan::Plan;
use super::{Args, Builder};
use crate::progress::Progress;
use crate::stop;

/// The result of a run that made the lower levels, or one part of them.
pub(super) struct Made {
    /// For each level, the report of its writer; none for a part.
    reports: Vec<WriterReport>,
    /// The number of blocks of slices in the part.
    blocks: u64,
    part: Option<Part>,
    bytes: u64,
    time: Duration,
}

pub(super) fn make(args: &Args, builder: Builder, plan: &Plan) -> Result<Made, WriterError> {
    let begin = Instant::now();
    let counter = Arc::new(Counter::new(plan, args));
    let builder = {
        let counter = counter.clone();
        builder.with_progress_callback(move |level, progress| {
            counter.count(level, progress.appended_bytes);
        })
    };
    let (reports, blocks) = cancellable(|cancel| match args.part {
        Some(part) => {
            let blocks = builder.write_part_of_lower_levels(part.number(), part.of(), cancel);
            blocks.map(|blocks| (Vec::new(), blocks))
        }
        None => Ok((builder.write_lower_levels(cancel)?, 0)),
    })?;
    counter.bar.finish();
    Ok(Made {
        reports,
        blocks,
        part: args.part,
        bytes: counter.bytes(),
        time: begin.elapsed(),
    })
}

/// Runs `work`, which Ctrl-C cancels.
fn cancellable<T>(work: impl FnOnce(&Cancel) -> T) -> T {
    /// Ends the thread that waits for Ctrl-C, even after a panic.
    struct Ended<'a>(&'a AtomicBool);

    impl Drop for Ended<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let (cancel, has_ended) = (Cancel::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _ended = Ended(&has_ended);
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                if stop::is_asked() {
                    cancel.cancel();
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
        work(&cancel)
    })
}

/// Counts the bytes that the writers of the levels have taken.
struct Counter {
    bar: Progress,
    /// For each level: the bytes of all its writers, and the bytes of its current writer.
    bytes: Mutex<Vec<(u64, u64)>>,
}

impl Counter {
    fn new(plan: &Plan, args: &Args) -> Self {
        let bytes = plan.below().iter().map(|level| {
            let kept = match args.start {
                None if args.part.is_none() => level.whole(),
                _ => 0,
            };
            level
                .slice()
                .saturating_mul(level.shape[0].saturating_sub(kept))
        });
        let all = bytes.fold(0, u64::saturating_add);
        let parts = args.part.map_or(1, |part| part.of().get());
        Self {
            bar: Progress::new("writing", Unit::Bytes, all / parts),
            bytes: Mutex::new(vec![(0, 0); plan.levels.len()]),
        }
    }

    /// Notes that the current writer of `level` has taken `now` bytes so far.
    fn count(&self, level: usize, now: u64) {
        let mut levels = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((all, before)) = levels.get_mut(level) else {
            return;
        };
        // Each block of slices has a new writer, whose bytes begin at 0.
        let new = now.checked_sub(*before).unwrap_or(now);
        (*all, *before) = (*all + new, now);
        self.bar.add(new);
    }

    fn bytes(&self) -> u64 {
        let levels = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        levels.iter().map(|(all, _)| all).sum()
    }
}

impl Made {
    pub(super) fn text(&self) -> String {
        let seconds = self.time.as_secs_f64();
        let (shards, stored) = self
            .reports
            .iter()
            .fold((0, 0), |(shards, stored), report| {
                (shards + report.shards, stored + report.stored_bytes)
            });
        let written = match self.part {
            Some(part) => format!(
                "part {part}: {} of slices written",
                counted(self.blocks, "block")
            ),
            None => format!(
                "{} written: {}, {} in {}",
                counted(self.reports.len(), "level"),
                counted(shards, "shard"),
                bytes_text(self.reports.iter().map(|report| report.raw_bytes).sum()),
                bytes_text(stored)
            ),
        };
        format!("{written}, in {seconds:.2} s")
    }

    pub(super) fn json(&self) -> Value {
        let levels = self.reports.iter().map(|report| {
            json!({
                "first_slice": report.first_slice,
                "slices": report.finished_slices,
                "shards": report.shards,
                "shards_empty": report.shards_empty,
                "raw_bytes": report.raw_bytes,
                "stored_bytes": report.stored_bytes,
                "engine": report.engine,
            })
        });
        json!({
            "levels": levels.collect::<Value>(),
            "blocks": self.blocks,
            "bytes": self.bytes,
            "seconds": self.time.as_secs_f64(),
        })
    }
}
