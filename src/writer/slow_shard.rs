//! Reports a shard that takes long to fill.

use std::fmt;
use std::time::Duration;

/// The longest time that a shard may take to fill before the application is told.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// A shard that takes long to fill. `Display` says how many slices came in which time, and how long shards
/// should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SlowShard {
    /// The number of slices of the shard that came within `time`.
    pub(crate) slices: u64,
    pub(crate) time: Duration,
    /// The number of slices that come within [`PATIENCE`], rounded down to whole subchunks if it has any.
    pub(crate) in_time: u64,
    /// The number of slices in an epoch, which is the extent of a subchunk along the first axis.
    pub(super) epoch_slices: u64,
}

impl fmt::Display for SlowShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            slices, in_time, ..
        } = self;
        let (time, patience) = (self.time.as_secs(), PATIENCE.as_secs());
        write!(
            f,
            "{slices} slices came in {time} s; shards of {in_time} slices would be full within {patience} s"
        )?;
        if *in_time < self.epoch_slices {
            write!(
                f,
                ", with subchunks of as many slices, which have {} now",
                self.epoch_slices
            )?;
        }
        Ok(())
    }
}
