//! Plans an image: everything that is known of the levels before any of them is written.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zarrs::array::Array;
use zarrs::group::Group;

use super::levels::Level;
use super::ome::Described;
use crate::metrics::MemoryEstimate;
use crate::options::Options;
use crate::store::lease::Held;
use crate::writer::WriterError;
use crate::writer::plan::Account;
use crate::writer::waiting::Waiting;
use zarrs_cuda_engine::contract::stream::ReducedFrom;
use zarrs_cuda_engine::process::account::Reservation;
use zarrs_cuda_engine::reduce::Reducer;

/// The plan of an image: its levels, and how they share the budgets.
pub(super) struct Plan<TStorage: ?Sized> {
    pub(super) levels: Vec<Level>,
    /// The arrays of the levels, from level 0 on.
    pub(super) arrays: Vec<Array<TStorage>>,
    /// The reducers that make the levels below level 0, from level 1 on.
    pub(super) reducers: Vec<Reducer>,
    /// The bytes of host memory that the levels keep besides the buffers of their writers.
    pub(super) kept: usize,
    /// The share of each level in the budgets: its weight, divided by the sum of all weights.
    pub(super) weights: Vec<usize>,
    /// The most epochs of a batch of each level: as many as a batch of level 0 has. So the memory of a level
    /// is in proportion to the number of its elements.
    pub(super) epochs: Option<usize>,
    /// How a device makes the slices of the levels from level 1 on, as long as the device encodes the level
    /// above.
    pub(super) reduced: Vec<ReducedFrom>,
    pub(super) budget: Options,
    /// The account of the host memory of all open writers.
    pub(super) account: Account,
    pub(super) threads: NonZeroUsize,
    /// The group of the image, with the description that is to be stored.
    pub(super) group: Group<TStorage>,
    /// The levels, as the stored description of the image describes them.
    pub(super) described: Described,
    /// The limit for how long calls wait, which all levels share.
    pub(super) waiting: Arc<Waiting>,
    /// The part of the levels that this process writes, if other processes write the other parts.
    pub(super) part: Option<u64>,
    /// The leases of the levels' arrays, from level 0 on; `None` where no lease was taken.
    pub(super) leases: Vec<Option<Held>>,
}

impl<TStorage: ?Sized> Plan<TStorage> {
    /// Returns the memory that the levels keep besides the buffers of their writers.
    pub(super) fn kept_memory(&self) -> MemoryEstimate {
        MemoryEstimate {
            host: self.kept,
            ..MemoryEstimate::default()
        }
    }

    /// Returns the levels as the new description of the image describes them.
    pub(super) fn describes(&self) -> Described {
        let path = self.arrays[0].path().as_str();
        let (_, name) = path.rsplit_once('/').unwrap_or(("", path));
        Described::of(self.group.attributes(), name)
    }

    /// Returns the number of slices of a level.
    pub(super) fn length(&self, level: usize) -> u64 {
        self.arrays[level].shape()[0]
    }

    /// Returns how many of the first slices of each level are all stored: for a level below level 0, 0 if
    /// parts of it may be missing.
    pub(super) fn whole_lengths(&self) -> Vec<u64> {
        let whole = |level| {
            let may_be_missing = self.described.in_parts && level > 0;
            if may_be_missing {
                0
            } else {
                self.length(level)
            }
        };
        (0..self.arrays.len()).map(whole).collect()
    }

    /// Sets the number of slices in the array of a level, but not in its store.
    pub(super) fn set_length(&mut self, level: usize, slices: u64) -> Result<(), WriterError> {
        let mut shape = self.arrays[level].shape().to_vec();
        shape[0] = slices;
        match self.arrays[level].set_shape(shape) {
            Ok(_) => Ok(()),
            Err(error) => Err(WriterError::Pyramid {
                path: self.arrays[level].path().to_string(),
                reason: error.to_string(),
            }),
        }
    }

    /// Returns the options of a level, with its share of the budgets.
    pub(super) fn options_of(&self, level: usize) -> Options {
        let part = |bytes: usize| self.part(level, bytes);
        let budget = self.budget.clone();
        let host = part(budget.host_memory().saturating_sub(self.kept));
        let pinned = part(budget.most_pinned_memory());
        let device = budget.device_memory().map(part);
        let options = budget.with_host_memory(host).with_pinned_memory(pinned);
        match device {
            Some(device) => options.with_device_memory(device),
            None => options,
        }
    }

    /// Extends `reservation` to at least `bytes`. A level that a device has refused is encoded by the host,
    /// and may need more host memory than was reserved.
    pub(super) fn extend(
        &self,
        reservation: &mut Reservation,
        bytes: usize,
    ) -> Result<(), WriterError> {
        let limit = self.budget.host_memory();
        let extended = reservation.extend(bytes, limit);
        extended.map_err(|reserved| {
            let account = Account {
                reserved,
                ..self.account
            };
            account.refuses(bytes, limit)
        })
    }

    /// Returns the account of a level, with its part of the free memory that the image takes.
    pub(super) fn account_of(&self, level: usize) -> Account {
        Account {
            share: self.part(level, self.account.share.saturating_sub(self.kept)),
            ..self.account
        }
    }

    fn part(&self, level: usize, bytes: usize) -> usize {
        let sum: u128 = self.weights.iter().map(|weight| *weight as u128).sum();
        let part = bytes as u128 * self.weights[level] as u128 / sum.max(1);
        usize::try_from(part).unwrap_or(usize::MAX)
    }

    /// Returns `result` of a level. If the level's share of a budget is too small, the error gives the
    /// numbers of the whole image.
    pub(super) fn of_level<T>(
        &self,
        level: usize,
        result: Result<T, WriterError>,
    ) -> Result<T, WriterError> {
        result.map_err(|error| match error {
            WriterError::Memory {
                memory,
                needed,
                budget,
                advice,
            } => {
                let sum: usize = self.weights.iter().fold(0, |sum, w| sum.saturating_add(*w));
                let all = (needed as u128 * sum as u128).div_ceil(self.weights[level].max(1) as u128);
                let all = usize::try_from(all).unwrap_or(usize::MAX);
                let (kept, whole) = match memory {
                    "host memory" => (self.kept, self.budget.host_memory()),
                    "page-locked memory" => (0, self.budget.most_pinned_memory()),
                    _ => (0, self.budget.device_memory().unwrap_or(budget)),
                };
                WriterError::Memory {
                    memory,
                    needed: all.saturating_add(kept),
                    budget: whole,
                    advice: format!("all levels share the budget, and level {level} has {budget} bytes of it and needs {needed}; for this level: {advice}"),
                }
            }
            error => error,
        })
    }
}

impl Level {
    /// Returns the number of slices of the level above that make one slice of this level: 1 or 2.
    pub(super) fn window(&self) -> usize {
        if self.factors[0] == 2 { 2 } else { 1 }
    }

    /// Returns the number of bytes of an epoch, padded to whole subchunks.
    pub(super) fn epoch_bytes(&self, element: usize) -> usize {
        let padded = std::iter::zip(&self.inner, &self.subchunk[1..])
            .map(|(extent, subchunk)| extent.next_multiple_of((*subchunk).max(1)));
        let elements = padded.fold(self.subchunk[0], u64::saturating_mul);
        usize::try_from(elements)
            .unwrap_or(usize::MAX)
            .saturating_mul(element)
    }
}
