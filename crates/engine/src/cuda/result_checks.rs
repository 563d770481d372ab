//! Checks the results of a device on the host, before they are returned.
//!
//! | check | of | content |
//! |---|---|---|
//! | frames | each encoded subchunk | headers, sizes, chains of blocks, checksums behind the compressor: `frame_checks` |
//! | comparison | batches that are [due](ResultChecks::is_due) | encoded with a compressor: decoded on the host, and compared with the input. Encoded without a compressor, or decoded: compared with the result of the host |
//!
//! After a difference, the device is in quarantine. The threads of the host compare one subchunk at a time each, in
//! their own buffers. No lane of whole shards is held meanwhile.

use std::borrow::Cow;

use super::check_progress::{LaneUses, Source, Subject, Unchecked, Work};
use super::counters::Counters;
use super::device::Device;
use super::driver::{DriverError, Fault};
use super::frame_checks::check_frame;
use super::sizing::ShardKind;
use crate::contract::{EngineError, ShardJob};
use crate::layout;
use crate::layout::Extent;
use crate::reduce::Reducer;
use crate::subchunk::compare::{Comparison, Unequal, compare_all};

/// Returns one batch of how many is compared by default, after a kind of shards has passed.
pub(super) const DEFAULT_EVERY: u32 = 64;

/// Checks the results of one device for one kind of shards.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResultChecks<'a> {
    pub(super) device: &'a Device,
    pub(super) counters: &'a Counters,
    pub(super) kind: &'a ShardKind,
    pub(super) fill_value: &'a [u8],
    pub(super) store_empty: bool,
    /// Whether slices of a stream are padded.
    pub(super) pads: bool,
    /// The reduction that makes the slices of a stream, if the device makes them.
    pub(super) reducer: Option<&'a Reducer>,
    /// One batch of so many is compared after the kind has passed; 0 if nothing is checked at all.
    pub(super) every: u32,
}

/// A shard, with what a device has made of it, or has made it of.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedShard<'a> {
    pub(super) decoded: &'a [u8],
    pub(super) encoded: &'a [u8],
    pub(super) extents: &'a [Extent],
    /// The subchunks that the host has encoded in place of the device, in ascending order.
    pub(super) on_host: &'a [usize],
    /// The most subchunks of a batch.
    pub(super) batch: usize,
    pub(super) uses: &'a LaneUses,
}

impl ResultChecks<'_> {
    fn ordinal(&self) -> usize {
        self.device.info().ordinal
    }

    /// Returns what `work` on this device is to the progress of the kind.
    pub(super) fn subject(&self, work: Work) -> Subject<'_> {
        let is_reduced = work == Work::Stream(Source::Reduction);
        Subject {
            ordinal: self.ordinal(),
            work,
            fill_value: Cow::Borrowed(self.fill_value),
            store_empty: self.store_empty,
            pads: self.pads,
            reducer: self.reducer.filter(|_| is_reduced).map(Cow::Borrowed),
        }
    }

    /// Returns whether the next batch of `work` has to be compared.
    pub(super) fn is_due(&self, work: Work) -> bool {
        self.every > 0 && self.kind.checks.is_due(&self.subject(work), self.every)
    }

    /// Returns whether the next batch of `work` has to be compared, which may use any buffer of `buffers`.
    pub(super) fn is_due_in(&self, work: Work, buffers: &LaneUses) -> bool {
        let is_due = self.is_due(work);
        let subject = self.subject(work);
        is_due || self.every > 0 && self.kind.checks.reaches_new(&subject, buffers)
    }

    /// Returns whether every batch of `work` has to be compared at present.
    pub(super) fn are_all_due(&self, work: Work) -> bool {
        self.every == 1 || self.every > 0 && !self.kind.checks.has_passed(&self.subject(work))
    }

    /// Checks an encoded shard before it is returned.
    ///
    /// # Errors
    /// [`EngineError::Device`] if the shard is wrong, after which the device is in quarantine; also if the
    /// device went into quarantine for another reason. [`EngineError::OutOfMemory`].
    pub(super) fn check_encoded(
        &self,
        job: &ShardJob<'_>,
        shard: &CheckedShard<'_>,
    ) -> Result<(), EngineError> {
        if self.every == 0 {
            return Ok(());
        }
        let checked = self
            .check_frames(shard)
            .and_then(|()| self.check_empty(job, shard))
            .and_then(|()| self.compare(Work::Encode, job, shard));
        self.quarantine_if_wrong(checked)
    }

    /// Checks the structure of all encoded subchunks of a shard.
    fn check_frames(&self, shard: &CheckedShard<'_>) -> Result<(), EngineError> {
        for (number, extent) in shard.extents.iter().enumerate() {
            if let Some(extent) = extent
                && shard.on_host.binary_search(&number).is_err()
            {
                let encoded = shard.encoded.get(extent.clone()).unwrap_or_default();
                self.check_frame(Work::Encode, number, encoded, None)?;
            }
        }
        Ok(())
    }

    /// Checks that the subchunks which are not stored are empty.
    fn check_empty(&self, job: &ShardJob<'_>, shard: &CheckedShard<'_>) -> Result<(), EngineError> {
        let extents = shard.extents.iter().enumerate();
        let empty = extents.filter(|(_, extent)| extent.is_none());
        let empty: Vec<_> = empty.map(|(number, _)| (number, None)).collect();
        let comparison = Comparison::new(job, &self.kind.chain);
        let compared = compare_all(&empty, job.threads, |number, encoded| {
            comparison.check_encoded(shard.decoded, number, encoded)
        });
        self.result_of(Work::Encode, compared, None)
    }

    /// Returns `checked`. Puts the device into quarantine if `checked` says that the device returned wrong data.
    fn quarantine_if_wrong(&self, checked: Result<(), EngineError>) -> Result<(), EngineError> {
        if let Err(EngineError::Device(error)) = &checked {
            self.distrust(error);
        }
        checked
    }

    /// Puts the device into quarantine if `error` says that the device returned wrong data.
    fn distrust(&self, error: &DriverError) {
        let _ = self.device.watch::<()>(Err(error.clone()));
    }

    /// Checks a decoded shard before it is returned.
    ///
    /// # Errors
    /// The errors of [`check_encoded`](Self::check_encoded), and [`EngineError::Unsuitable`] if the host cannot
    /// decode the shard.
    pub(super) fn check_decoded(
        &self,
        job: &ShardJob<'_>,
        shard: &CheckedShard<'_>,
    ) -> Result<(), EngineError> {
        if self.every == 0 {
            return Ok(());
        }
        self.quarantine_if_wrong(self.compare(Work::Decode, job, shard))
    }

    /// Checks the structure of an encoded subchunk. `unchecked` is that of [`result_of`](Self::result_of).
    ///
    /// # Errors
    /// [`EngineError::Device`] if no encoder makes these bytes.
    pub(super) fn check_frame(
        &self,
        work: Work,
        number: usize,
        encoded: &[u8],
        unchecked: Option<&str>,
    ) -> Result<(), EngineError> {
        let Some(prepared) = &self.kind.compressor else {
            return Ok(());
        };
        check_frame(&prepared.compression, encoded).map_err(|reason| {
            let what = format!("encoded subchunk {number} is no legal one: {reason}");
            self.is_wrong(work, &what, unchecked)
        })
    }

    /// Compares the batches of a shard that are due.
    fn compare(
        &self,
        work: Work,
        job: &ShardJob<'_>,
        shard: &CheckedShard<'_>,
    ) -> Result<(), EngineError> {
        let comparison = Comparison::new(job, &self.kind.chain);
        let (checks, subject) = (&self.kind.checks, self.subject(work));
        let reaches_new = checks.reaches_new(&subject, shard.uses);
        let (mut compared, mut subchunks, mut unchecked) = (0, 0, 0);
        for batch in layout::batches(job.grid, shard.batch) {
            if !checks.is_due(&subject, self.every) && !reaches_new {
                unchecked += 1;
                continue;
            }
            let of_batch: Vec<_> = (batch.first..batch.first + batch.len())
                .map(|number| {
                    let extent = shard.extents.get(number).cloned().flatten();
                    (number, extent.and_then(|extent| shard.encoded.get(extent)))
                })
                .collect();
            let made = of_batch.iter().filter(|(number, encoded)| {
                encoded.is_some() && shard.on_host.binary_search(number).is_err()
            });
            subchunks += made.count() as u64;
            let compared_all = compare_all(&of_batch, job.threads, |number, encoded| match work {
                Work::Decode => comparison.check_decoded(shard.decoded, number, encoded),
                _ => comparison.check_encoded(shard.decoded, number, encoded),
            });
            self.result_of(work, compared_all, None)?;
            self.counters.batch_checked();
            compared += 1;
        }
        if compared > 0 {
            checks.equal(&subject, subchunks, shard.uses);
        }
        if unchecked > 0 {
            let shards = u64::from(compared == 0);
            let batches = unchecked;
            checks.returned(&subject, Unchecked { shards, batches });
        }
        // Another thread may have found a difference meanwhile.
        Ok(self.device.check_usable()?)
    }

    /// Returns the result of comparing subchunks. `unchecked` says what was returned since the last
    /// comparison without a difference, if the caller knows more than the counters of the kind.
    pub(super) fn result_of(
        &self,
        work: Work,
        compared: Result<(), (usize, Unequal)>,
        unchecked: Option<&str>,
    ) -> Result<(), EngineError> {
        compared.map_err(|(number, unequal)| match unequal {
            Unequal::Differs(how) => {
                let or_changed = match work {
                    Work::Decode | Work::Read | Work::Stream(Source::Reduction) => "",
                    _ => " (elements that the application changed meanwhile look the same)",
                };
                let what = format!("subchunk {number} is wrong: {how}{or_changed}");
                self.is_wrong(work, &what, unchecked)
            }
            Unequal::Failed(error @ EngineError::OutOfMemory { .. }) => error,
            // The device compared the checksum, too, and found it right.
            Unequal::Failed(error @ EngineError::Checksum { .. }) => {
                let what = format!("the device found a checksum right that is wrong: {error}");
                self.distrust(&self.wrong(work, &what, unchecked));
                error
            }
            Unequal::Failed(error) => {
                EngineError::Unsuitable(format!("the host has the last word: {error}"))
            }
        })
    }

    /// Returns an error of `work` on the device, with what was returned since the last comparison without a
    /// difference, if the error says that the device returned wrong data.
    pub(super) fn with_unchecked(&self, work: Work, error: EngineError) -> EngineError {
        match error {
            EngineError::Device(mut error) if error.fault == Fault::Wrong => {
                let unchecked = self.kind.checks.unchecked(&self.subject(work));
                error.reason = format!("{}; {unchecked}", error.reason);
                EngineError::Device(error)
            }
            error => error,
        }
    }

    /// Counts a wrong result, and returns the error, after which the device belongs into quarantine.
    fn is_wrong(&self, work: Work, what: &str, unchecked: Option<&str>) -> EngineError {
        EngineError::Device(self.wrong(work, what, unchecked))
    }

    /// Counts a wrong result, and returns the error of the device.
    fn wrong(&self, work: Work, what: &str, unchecked: Option<&str>) -> DriverError {
        self.counters.mismatch();
        let of_kind = self.kind.checks.unchecked(&self.subject(work));
        let operation = match work {
            Work::Encode => "checking an encoded shard",
            Work::Decode => "checking a decoded shard",
            Work::Read => "checking subchunks in the memory of a device",
            Work::Stream(_) => "checking an encoded batch of a stream",
        };
        DriverError {
            operation: operation.to_string(),
            device: Some(self.ordinal()),
            fault: Fault::Wrong,
            reason: match unchecked {
                Some(unchecked) => format!("{what}; {of_kind}; {unchecked}"),
                None => format!("{what}; {of_kind}"),
            },
        }
    }
}
