//! Works on the shards of an array, several at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::Unit;
use zarrs_cuda_convert::grid::Grid;
use zarrs_cuda_convert::words::counted;

use crate::chosen::Chosen;
use crate::progress::Progress;
use crate::stop;

/// The number of failed shards after which no more are begun: then the store itself fails.
const FAILURES: usize = 16;

/// The results and the failures of work on shards.
pub(crate) struct Done<T> {
    /// The indices and the result of each shard, in the order of the grid.
    pub(crate) results: Vec<(Vec<u64>, T)>,
    pub(crate) failures: Vec<Failure>,
}

/// Calls `work` for the shards at `positions`, for `at_once` of them at a time. Collects the results that are
/// not `None`. The work goes on after a shard fails, unless many fail.
///
/// `stays` is a fact that holds even if the work stops: the remedy of an error contains it, and says how to
/// go on.
///
/// # Errors
/// The user stopped the work. The message says that `what` stopped, and after how many shards.
pub(crate) fn on_each<T: Send>(
    [what, stays]: [&'static str; 2],
    grid: &Grid,
    chosen: &Chosen,
    at_once: usize,
    work: impl Fn(&[u64]) -> Result<Option<T>, Failure> + Sync,
) -> Result<Done<T>, Failure> {
    let _listening = stop::wait_for_me();
    let all = chosen.len();
    let total = u64::try_from(all).unwrap_or(u64::MAX);
    let progress = Progress::new(what, Unit::Things("shards"), total);
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let found = Mutex::new((Vec::new(), Vec::new()));
    let found_now = || found.lock().unwrap_or_else(PoisonError::into_inner);
    let worker = || {
        while !stop::is_asked() && found_now().1.len() < FAILURES {
            let Some(position) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) else {
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
        for _ in 1..at_once.min(usize::try_from(all).unwrap_or(usize::MAX)) {
            scope.spawn(worker);
        }
        worker();
    });
    progress.finish();
    let done = u128::from(done.into_inner());
    if done < all && stop::is_asked() {
        return Err(
            Failure::interrupted(format!("{what} stopped after {done} of {all} shards"))
                .with_remedy(format!("{stays}: run the same command again")),
        );
    }
    let (mut results, mut failures) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(position, _)| *position);
    failures.sort_by_key(|(position, _)| *position);
    let mut failures: Vec<_> = failures.into_iter().map(|(_, failure)| failure).collect();
    let rest = all.saturating_sub(done);
    if rest > 0 {
        failures.push(Failure::failed(format!(
            "{what} stopped, because {} failed: {rest} of {} are not begun",
            counted(failures.len(), "shard"),
            counted(all, "shard"),
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
