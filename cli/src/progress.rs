//! Shows the progress of long work: as a bar on a terminal, otherwise as a line now and then.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use zarrs_cuda_convert::Unit;

/// The time between two lines if standard error is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// The progress of one piece of work, on standard error. Threads may share it.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    unit: Unit,
    bar: ProgressBar,
    last_line: Mutex<Instant>,
}

impl Progress {
    /// Shows the progress of the work `what`, such as "writing", which has `total` units.
    pub(crate) fn new(what: &'static str, unit: Unit, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let counts = match unit {
            Unit::Bytes => {
                "{binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}".to_string()
            }
            Unit::Things(name) => format!("{{human_pos}} of {{human_len}} {name}"),
        };
        let template = format!("{{msg}} {{wide_bar}} {counts}, {{eta}} left");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self {
            what,
            unit,
            bar,
            last_line: Mutex::new(Instant::now()),
        }
    }

    /// Counts `units` more that are done.
    pub(crate) fn add(&self, units: u64) {
        self.bar.inc(units);
        if !self.bar.is_hidden() {
            return;
        }
        let Ok(mut last) = self.last_line.lock() else {
            return;
        };
        if last.elapsed() < BETWEEN_LINES {
            return;
        }
        *last = Instant::now();
        let (done, total) = (self.bar.position(), self.bar.length().unwrap_or_default());
        match self.unit {
            Unit::Bytes => tell!(
                "{}: {} of {}",
                self.what,
                HumanBytes(done),
                HumanBytes(total)
            ),
            Unit::Things(name) => {
                tell!(
                    "{}: {} of {} {name}",
                    self.what,
                    HumanCount(done),
                    HumanCount(total)
                );
            }
        }
    }

    /// Removes the bar from the terminal.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A line that is rewritten on a terminal. Elsewhere, a new line is printed now and then.
#[derive(Debug)]
pub(crate) struct Live {
    bar: ProgressBar,
    last: Instant,
}

impl Live {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            last: Instant::now(),
        }
    }

    /// Shows the line, unless the last one was shown just before.
    pub(crate) fn show(&mut self, line: impl FnOnce() -> String) {
        let between = if self.bar.is_hidden() {
            BETWEEN_LINES
        } else {
            Duration::from_millis(200)
        };
        if self.last.elapsed() < between {
            return;
        }
        self.last = Instant::now();
        if self.bar.is_hidden() {
            tell!("{}", line());
        } else {
            self.bar.set_message(line());
            self.bar.tick();
        }
    }

    /// Removes the line from the terminal.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
