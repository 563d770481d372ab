//! The output for people, while the camera runs and afterwards.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

use zarrs_cuda::writer::{ArrayWriter, WriterReport};

use crate::job::Job;

/// A line that is rewritten on a terminal; otherwise a new line now and then.
pub(crate) struct Status {
    start: Instant,
    last: Instant,
    taken: u64,
    taken_last: u64,
    dropped: u64,
    is_terminal: bool,
    wanted: Option<u64>,
}

impl Status {
    pub(crate) fn new(job: &Job) -> Self {
        let now = Instant::now();
        Self {
            start: now,
            last: now,
            taken: 0,
            taken_last: 0,
            dropped: 0,
            is_terminal: std::io::stderr().is_terminal(),
            wanted: job.frames,
        }
    }

    pub(crate) fn frame_taken(&mut self) {
        self.taken += 1;
    }

    pub(crate) fn frame_dropped(&mut self) {
        self.dropped += 1;
    }

    /// Prints the progress if some time has passed.
    pub(crate) fn show(&mut self, writer: &ArrayWriter) {
        let every = if self.is_terminal {
            Duration::from_millis(200)
        } else {
            Duration::from_secs(2)
        };
        let passed = self.last.elapsed();
        if passed < every {
            return;
        }
        let progress = writer.progress();
        let frames = (self.taken - self.taken_last) as f64 / passed.as_secs_f64();
        let frame = progress.appended_bytes as f64 / progress.appended_slices.max(1) as f64;
        let mut line = format!("{} ", self.taken);
        if let Some(wanted) = self.wanted {
            let _ = write!(line, "of {wanted} ");
        }
        let _ = write!(
            line,
            "frames, {} dropped | {frames:.0} frames/s, {:.2} GB/s | queue {}, lanes {} | ",
            self.dropped,
            frames * frame / 1e9,
            progress.batches_waiting,
            progress.batches_encoding,
        );
        let _ = match progress.ratio() {
            None => write!(line, "nothing encoded yet"),
            Some(ratio) => write!(line, "ratio {ratio:.2}, {} shards", progress.shards_stored),
        };
        if self.is_terminal {
            eprint!("\r\x1b[K{line}");
            // Errors of the terminal are ignored.
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
        self.taken_last = self.taken;
        self.last = Instant::now();
    }

    /// Clears the line for other output.
    pub(crate) fn clear(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }

    /// Returns the summary of the finished array.
    pub(crate) fn summary(&self, report: &WriterReport) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        format!(
            "{} frames taken, {} dropped, in {seconds:.2} s: {:.0} frames/s, {:.2} GB/s\n\
             {} shards stored ({} empty ones are not), {:.2} GB in {:.2} GB, ratio {:.2}, on {}\n\
             waited {:.2} s for the writer; encoding took {:.2} s, storing {:.2} s of its threads",
            self.taken,
            self.dropped,
            self.taken as f64 / seconds,
            report.raw_bytes as f64 / seconds / 1e9,
            report.shards,
            report.shards_empty,
            report.raw_bytes as f64 / 1e9,
            report.stored_bytes as f64 / 1e9,
            report.ratio(),
            report.engine,
            report.waiting.as_secs_f64(),
            report.encoding.as_secs_f64(),
            report.storing.as_secs_f64(),
        )
    }
}
