//! Work on the shards of an array, several at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use zarrs::array::Array;

use crate::arguments::{Part, ShardIndices, shape_text};
use crate::failure::Failure;
use crate::open::Place;
use crate::progress::{Progress, Unit, counted};
use crate::stop;

/// After so many shards that failed no more are begun: then it is the store that fails.
const FAILURES: usize = 16;

/// An array, and which of its shards.
#[derive(clap::Args, Debug)]
pub(crate) struct ShardArgs {
    /// A sharded array
    pub(crate) array: Place,
    /// Only these shards, by their indices in the grid of shards [default: all]
    shards: Vec<ShardIndices>,
    /// Only the part I of N of the shards: shard k of the grid belongs to part k mod N
    #[arg(long, value_name = "I/N")]
    part: Option<Part>,
}

impl ShardArgs {
    /// The positions of the chosen shards.
    pub(crate) fn positions(&self, grid: &Grid) -> Result<Vec<u64>, Failure> {
        grid.positions(&self.shards, self.part)
    }
}

/// The grid of the shards of an array.
#[derive(Clone, Debug)]
pub(crate) struct Grid(Vec<u64>);

impl Grid {
    pub(crate) fn of<S: ?Sized>(array: &Array<S>) -> Self {
        Self(array.chunk_grid_shape().to_vec())
    }

    /// The number of shards.
    pub(crate) fn len(&self) -> u64 {
        self.0
            .iter()
            .fold(1, |len: u64, &count| len.saturating_mul(count))
    }

    /// The indices of the shard at `position`, in C order.
    pub(crate) fn indices(&self, mut position: u64) -> Vec<u64> {
        let mut indices = vec![0; self.0.len()];
        for (index, &count) in indices.iter_mut().zip(&self.0).rev() {
            *index = position % count.max(1);
            position /= count.max(1);
        }
        indices
    }

    /// The position of a shard, in C order. `None` if the grid has no such shard.
    pub(crate) fn position(&self, indices: &[u64]) -> Option<u64> {
        if indices.len() != self.0.len() {
            return None;
        }
        let mut position = 0_u64;
        for (&index, &count) in indices.iter().zip(&self.0) {
            (index < count).then_some(())?;
            position = position.checked_mul(count)?.checked_add(index)?;
        }
        Some(position)
    }

    /// The positions of `shards`, or of all shards, that belong to `part`.
    fn positions(&self, shards: &[ShardIndices], part: Option<Part>) -> Result<Vec<u64>, Failure> {
        let belongs = |position: &u64| part.is_none_or(|part| part.has(*position));
        if shards.is_empty() {
            return Ok((0..self.len()).filter(belongs).collect());
        }
        let positions: Result<Vec<_>, _> = shards
            .iter()
            .map(|ShardIndices(shard)| {
                self.position(shard).ok_or_else(|| {
                    let last: Vec<_> = self.0.iter().map(|count| count.saturating_sub(1)).collect();
                    let failure = Failure::usage(format!(
                        "{} is not a shard: the grid of shards is {}",
                        shape_text(shard),
                        shape_text(&self.0)
                    ));
                    if self.0.contains(&0) {
                        return failure; // there is no shard
                    }
                    failure.with_remedy(format!("the last shard is {}", shape_text(&last)))
                })
            })
            .collect();
        Ok(positions?.into_iter().filter(belongs).collect())
    }
}

/// What became of shards.
pub(crate) struct Done<T> {
    /// In the order of the grid.
    pub(crate) results: Vec<(Vec<u64>, T)>,
    pub(crate) failures: Vec<Failure>,
}

/// Does `work` to the shards at `positions`, `at_once` at once. What it returns is kept, unless it is
/// `None`. A shard that fails does not keep the others from being worked on, unless many fail.
///
/// `stays` is what is true whenever it stops: the help of an error has it, and says how to go on.
///
/// # Errors
/// If the user stops it. The message says that `what` stopped, and after how many shards.
pub(crate) fn on_each<T: Send>(
    [what, stays]: [&'static str; 2],
    grid: &Grid,
    positions: &[u64],
    at_once: usize,
    work: impl Fn(&[u64]) -> Result<Option<T>, Failure> + Sync,
) -> Result<Done<T>, Failure> {
    let _listening = stop::wait_for_me();
    let progress = Progress::new(what, Unit::Things("shards"), positions.len() as u64);
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let found = Mutex::new((Vec::new(), Vec::new()));
    let found_now = || found.lock().unwrap_or_else(PoisonError::into_inner);
    let worker = || {
        while !stop::is_asked() && found_now().1.len() < FAILURES {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let position = usize::try_from(number).ok();
            let Some(&position) = position.and_then(|number| positions.get(number)) else {
                break;
            };
            match work(&grid.indices(position)) {
                Ok(None) => {}
                Ok(Some(result)) => found_now().0.push((position, result)),
                Err(failure) => found_now().1.push((position, failure)),
            }
            done.fetch_add(1, Ordering::Relaxed);
            progress.add(1);
        }
    };
    thread::scope(|scope| {
        for _ in 1..at_once.min(positions.len()) {
            scope.spawn(worker);
        }
        worker();
    });
    progress.finish();
    let done = done.into_inner();
    if done < positions.len() as u64 && stop::is_asked() {
        return Err(Failure::interrupted(format!(
            "{what} stopped after {done} of {} shards",
            positions.len()
        ))
        .with_remedy(format!("{stays}: run the same command again")));
    }
    let (mut results, mut failures) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(position, _)| *position);
    failures.sort_by_key(|(position, _)| *position);
    let mut failures: Vec<_> = failures.into_iter().map(|(_, failure)| failure).collect();
    let rest = positions.len() as u64 - done;
    if rest > 0 {
        failures.push(Failure::failed(format!(
            "{what} stopped, because {} failed: {rest} of {} are not begun",
            counted(failures.len(), "shard"),
            counted(positions.len(), "shard"),
        )));
    }
    if let Some(last) = failures.pop() {
        let again = format!("{stays}: when the cause is gone, run the same command again");
        failures.push(last.with_remedy(again));
    }
    let results = results
        .into_iter()
        .map(|(position, result)| (grid.indices(position), result));
    Ok(Done {
        results: results.collect(),
        failures,
    })
}

#[cfg(test)]
mod tests {
    use super::Grid;
    use crate::arguments::ShardIndices;

    #[test]
    fn positions_are_in_c_order() {
        let grid = Grid(vec![2, 3]);
        assert_eq!(grid.len(), 6);
        for position in 0..6 {
            assert_eq!(grid.position(&grid.indices(position)), Some(position));
        }
        assert_eq!(grid.indices(4), [1, 1]);
        for wrong in [&[2, 0][..], &[0, 3], &[0], &[0, 0, 0]] {
            assert_eq!(grid.position(wrong), None);
        }
        assert_eq!(Grid(vec![]).positions(&[], None).unwrap(), [0]);
        assert!(Grid(vec![4, 0]).positions(&[], None).unwrap().is_empty());
        let part = "1/2".parse().ok();
        assert_eq!(grid.positions(&[], part).unwrap(), [1, 3, 5]);
        assert_eq!(
            grid.positions(&[vec![1, 0], vec![1, 1]].map(ShardIndices), part)
                .unwrap(),
            [3]
        );
        assert!(grid.positions(&[ShardIndices(vec![2, 0])], None).is_err());
    }
}
