//! Shows the progress of the copy.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use zarrs::array::{Array, ArraySubset};

use crate::Stop;
use crate::shapes::volume;

/// A bar on a terminal; otherwise a line for each tenth.
pub(crate) struct Progress {
    what: &'static str,
    bar: ProgressBar,
    element: u64,
    shards: u64,
    shards_done: u64,
    tenths: u64,
}

impl Progress {
    pub(crate) fn new<S: ?Sized>(what: &'static str, array: &Array<S>) -> Self {
        let size = array.data_type().fixed_size();
        let element = size.unwrap_or(1) as u64;
        let bar = ProgressBar::new(volume(array.shape()).saturating_mul(element));
        let counts = if size.is_some() {
            "{binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}"
        } else {
            "{human_pos} of {human_len} elements, {per_sec}"
        };
        let template = format!("{{msg}} {{wide_bar}} {counts}, {{eta}} left");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self {
            what,
            bar,
            element,
            shards: volume(array.chunk_grid_shape()),
            shards_done: 0,
            tenths: 0,
        }
    }

    /// Counts a finished shard.
    pub(crate) fn add(&mut self, region: &ArraySubset) {
        self.bar
            .inc(region.num_elements().saturating_mul(self.element));
        self.shards_done += 1;
        let tenths = 10 * self.shards_done / self.shards.max(1);
        if self.bar.is_hidden() && tenths != self.tenths {
            let Self { what, shards, .. } = self;
            eprintln!("{what}: {} of {shards} shards", self.shards_done);
        }
        self.tenths = tenths;
    }

    /// Removes the bar. Returns an error that tells the progress, unless every shard is done.
    pub(crate) fn finish(self) -> Result<(), Stop> {
        self.bar.finish_and_clear();
        if self.shards_done == self.shards {
            return Ok(());
        }
        Err(Stop::Interrupted(format!(
            "{} stopped after {} of {} shards",
            self.what, self.shards_done, self.shards
        )))
    }
}
