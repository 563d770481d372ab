//! Surveys all shards of an array: it lists their sizes, and reads the indices of some of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use rayon::prelude::*;
use zarrs_cuda::maintenance::{Inspection, Shards};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::Unit;
use zarrs_cuda_convert::chunks::Elsewhere;
use zarrs_cuda_convert::grid::{indices_of, number_of};
use zarrs_cuda_convert::open::Opened;
use zarrs_cuda_convert::stored::{self, Keys, ObjectKind};

use super::look::{Look, State};
use super::sharded::Sharded;
use crate::progress::Progress;
use crate::stop;

/// The number of indices that are read, unless the user asks for all.
pub(super) const MOST_READ: usize = 2_000;

/// The most bytes of a page that describe single subchunks.
const DETAIL: usize = 6 << 20;

/// The shards of an array, from a listing and from the indices that were read.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The number of shards along each axis.
    pub(super) grid: Vec<u64>,
    /// The number in C order and the size in bytes of each stored shard, sorted by number.
    pub(super) stored: Vec<(u64, u64)>,
    /// The summaries of the shards whose index was read, by the number of the shard.
    pub(super) looks: BTreeMap<u64, Look>,
    /// The numbers of the shards beside which subchunks wait in a frame. These shards need not be stored.
    pub(super) framed: BTreeSet<u64>,
    pub(super) sizes: Histogram,
    /// The number of stored shards outside of the grid. The array was larger when they were written.
    pub(super) outside: u64,
    /// Lines for people about chunks that lie where no reader looks for them.
    pub(super) notes: Vec<String>,
}

/// The number of subchunks of about each size: bin *b* counts sizes from 2^(b/4) bytes on, up to 2^((b+1)/4).
#[derive(Debug, Default)]
pub(super) struct Histogram {
    pub(super) bins: Vec<u64>,
    pub(super) empty: u64,
}

impl Histogram {
    fn add(&mut self, shard: &Inspection) {
        for subchunk in &shard.subchunks {
            match subchunk {
                None => self.empty += 1,
                Some(subchunk) => {
                    let bin = bin_of(subchunk.size);
                    if self.bins.len() <= bin {
                        self.bins.resize(bin + 1, 0);
                    }
                    self.bins[bin] += 1;
                }
            }
        }
    }
}

/// Returns the bin of a size: `floor(4 · log2(size))`.
fn bin_of(size: u64) -> usize {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a bin of a picture"
    )]
    let bin = (4.0 * (size.max(1) as f64).log2()).floor() as usize;
    bin
}

impl Survey {
    /// Lists the shards of an array, and reads the indices of at most `most` of them.
    pub(super) fn of(sharded: &Sharded, most: usize) -> Result<Self, Failure> {
        let mut survey = Self::listed(&sharded.opened)?;
        let index_len = index_len(sharded);
        let chosen = survey.chosen(most, index_len);
        let progress = Progress::new(
            "reading indices",
            Unit::Things("shards"),
            chosen.len() as u64,
        );
        let room = Mutex::new(DETAIL);
        let found: Vec<(u64, Look, Histogram)> = chosen
            .par_iter()
            .map(|&number| {
                if stop::is_asked() {
                    return Err(Failure::interrupted("not all indices were read"));
                }
                let indices = indices_of(number, &survey.grid);
                let mut sizes = Histogram::default();
                let found = sharded.inspect(&indices)?;
                progress.add(1);
                Ok(found.map(|found| {
                    sizes.add(&found);
                    let mut look = Look::of(&found);
                    if let Ok(mut room) = room.lock() {
                        look.fit(&mut room);
                    }
                    (number, look, sizes)
                }))
            })
            .filter_map(Result::transpose)
            .collect::<Result<_, Failure>>()?;
        for (number, look, sizes) in found {
            survey.looks.insert(number, look);
            survey.sizes.empty += sizes.empty;
            let all = &mut survey.sizes.bins;
            all.resize(all.len().max(sizes.bins.len()), 0);
            for (all, one) in all.iter_mut().zip(sizes.bins) {
                *all += one;
            }
        }
        Ok(survey)
    }

    fn listed(opened: &Opened) -> Result<Self, Failure> {
        let array = &opened.array;
        let grid = array.chunk_grid_shape().to_vec();
        let volume = grid
            .iter()
            .try_fold(1_u64, |n, &count| n.checked_mul(count));
        if volume.is_none() && !grid.contains(&0) {
            return Err(Failure::failed(format!(
                "a grid of {grid:?} shards has more of them than can be numbered"
            )));
        }
        let keys = Keys::new(array.chunk_key_encoding(), &grid);
        let mut survey = Self {
            grid: grid.clone(),
            ..Self::default()
        };
        if !keys.are_known() {
            // The store cannot be listed, so ask it for each shard of the grid.
            for found in Shards::of(array)?.stored_by_asking() {
                if stop::is_asked() {
                    return Err(Failure::interrupted("not all shards were asked for"));
                }
                let (indices, size) = found?;
                survey.stored.push((number_of(&indices, &grid), size));
            }
            return Ok(survey);
        }
        let mut elsewhere = Elsewhere::new(&keys);
        let mut unknown = Vec::new();
        let failures = stored::objects(opened, |object| {
            if let Some(indices) = keys.parse(object.key) {
                let is_there = indices.iter().zip(&grid).all(|(i, n)| i < n);
                match object.kind {
                    ObjectKind::Directory(_) if !is_there => {}
                    _ if !is_there => survey.outside += 1,
                    // A shard that was deleted meanwhile has no size.
                    _ => match object.size() {
                        Ok(size) => {
                            let shard = size.map(|size| (number_of(&indices, &grid), size));
                            survey.stored.extend(shard);
                        }
                        Err(failure) => unknown.push(failure),
                    },
                }
            } else if let Some(shard) = keys.framed(object.key) {
                if shard.iter().zip(&grid).all(|(i, n)| i < n) {
                    survey.framed.insert(number_of(&shard, &grid));
                }
            } else if !matches!(object.kind, ObjectKind::Directory(_)) {
                elsewhere.look_at(object.key);
            }
        })?;
        if let Some(failure) = failures.into_iter().chain(unknown).next() {
            return Err(failure);
        }
        survey.stored.sort_unstable();
        let is_stored = |indices: &[u64]| {
            let number = number_of(indices, &grid);
            let found = survey
                .stored
                .binary_search_by_key(&number, |(stored, _)| *stored);
            found.is_ok()
        };
        elsewhere.settle(is_stored);
        survey.notes.extend(elsewhere.note());
        Ok(survey)
    }

    /// Returns the numbers of the shards whose index is read: shards that are too short for an index, then
    /// the largest, the smallest, and a sample of the rest.
    fn chosen(&self, most: usize, index_len: u64) -> Vec<u64> {
        if self.stored.len() <= most {
            return self.stored.iter().map(|&(number, _)| number).collect();
        }
        let short = self.stored.iter().filter(|(_, size)| *size < index_len);
        let framed = self
            .stored
            .iter()
            .filter(|(number, _)| self.framed.contains(number));
        let mut by_size: Vec<&(u64, u64)> = self.stored.iter().collect();
        by_size.sort_unstable_by_key(|(number, size)| (*size, *number));
        let quarter = most / 4;
        let step = (self.stored.len() / most.max(1)).max(1);
        let sample = self.stored.iter().step_by(step);
        let mut chosen = BTreeSet::new();
        for &(number, _) in short
            .take(quarter)
            .chain(framed.take(quarter))
            .chain(by_size.iter().rev().take(quarter / 2).copied())
            .chain(by_size.iter().take(quarter / 2).copied())
            .chain(sample)
        {
            if chosen.len() == most {
                break;
            }
            chosen.insert(number);
        }
        chosen.into_iter().collect()
    }

    /// Returns the state of a stored shard, as far as it is known.
    pub(super) fn state(&self, number: u64) -> State {
        let known = self
            .looks
            .get(&number)
            .map_or(State::NotRead, |look| look.state);
        if self.framed.contains(&number) && known < State::Waiting {
            return State::Waiting;
        }
        known
    }

    /// Returns the number of shards in each state, in the order of [`State::ALL`]. A shard that is not stored
    /// counts only if subchunks wait for it.
    pub(super) fn states(&self) -> [u64; State::ALL.len()] {
        let mut counts = [0; State::ALL.len()];
        for &(number, _) in &self.stored {
            counts[self.state(number) as usize] += 1;
        }
        let is_stored = |number: &u64| self.stored.binary_search_by_key(number, |s| s.0).is_ok();
        let only_framed = self.framed.iter().filter(|number| !is_stored(number));
        counts[State::Waiting as usize] += only_framed.count() as u64;
        counts
    }

    /// Returns the size of all stored shards in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let sizes = self.stored.iter().map(|(_, size)| size);
        sizes.fold(0, |sum, &size| sum.saturating_add(size))
    }
}

/// Returns the size of an encoded index in bytes; 0 if the array has no shard.
fn index_len(sharded: &Sharded) -> u64 {
    let first = vec![0; sharded.opened.array.dimensionality()];
    let format = sharded.format(&first);
    format.map_or(0, |format| format.index_len())
}
