//! Stores shards, and lets the array's metadata say how far they reach, in steps that threads of the process
//! do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use zarrs_storage::{StorageError, StoreKey};

use super::shared::{Failure, ShardId, Shared, State, Storing, Work};
use super::stored_bytes::StoredBytes;

/// The next step of storing.
enum Step {
    Shard(ShardId, StoreKey, Work),
    /// Let the metadata cover so many slices.
    Grow(u64),
}

/// Does the next step of `shared`, if there is one. Returns whether another step may follow.
pub(super) fn step(shared: &Shared) -> bool {
    let step = {
        let mut state = shared.lock();
        let step = next(shared, &mut state);
        match step {
            Some(_) => state.working += 1,
            None => state.storing -= 1,
        }
        step
    };
    let done = catch_unwind(AssertUnwindSafe(|| match step {
        Some(Step::Shard(id, key, work)) => {
            do_work(shared, id, &key, work);
            true
        }
        Some(Step::Grow(slices)) => {
            grow(shared, slices);
            true
        }
        None => false,
    }));
    done.unwrap_or_else(|_| {
        shared.break_down("a thread that stored a shard panicked".to_string());
        false
    })
}

fn next(shared: &Shared, state: &mut State) -> Option<Step> {
    if !may_begin(state) {
        return None;
    }
    // The metadata come first: otherwise, new shards could delay them for ever.
    if due(shared, state).is_some_and(|due| due.is_zero()) {
        state.growing = true;
        return Some(Step::Grow(state.progress.finished_slices));
    }
    let id = state.ready.pop_front()?;
    let storing = state.shards.get_mut(&id)?;
    let work = storing.work.pop_front()?;
    storing.busy = true;
    // The temporary may exist from here on, even if the step fails or the writer is given up meanwhile.
    storing.begun |= matches!(work, Work::Write { .. } | Work::Set(_));
    let key = storing.key.clone();
    Some(Step::Shard(id, key, merged(work, storing)))
}

fn may_begin(state: &State) -> bool {
    !state.aborted && state.failure.is_none() && state.broken.is_none()
}

/// Returns how many threads could begin a step now.
pub(super) fn steps(shared: &Shared, state: &State) -> usize {
    if !may_begin(state) {
        return 0;
    }
    let grows = due(shared, state).is_some_and(|due| due.is_zero());
    state.ready.len() + usize::from(grows)
}

/// Returns the time until the metadata are to be written; `None` if they need not be written.
pub(super) fn due(shared: &Shared, state: &State) -> Option<Duration> {
    if !may_begin(state) || state.growing || !shared.must_grow(state) {
        return None;
    }
    if state.grow_now || is_promised(state) {
        return Some(Duration::ZERO);
    }
    let interval = shared.setup.metadata_interval;
    Some(interval.saturating_sub(state.grown.elapsed()))
}

/// Returns whether all slices are stored that the metadata are to cover before their interval is over.
fn is_promised(state: &State) -> bool {
    let progress = &state.progress;
    progress.covered_slices < state.promised && state.promised <= progress.finished_slices
}

/// Joins `work` with the writes behind it in the queue of the shard, because each call of a store has a cost.
fn merged(mut work: Work, storing: &mut Storing) -> Work {
    if let Work::Write { pieces, .. } = &mut work {
        while let Some(Work::Write { pieces: more, .. }) = storing.work.front_mut() {
            pieces.append(more);
            storing.work.pop_front();
        }
    }
    work
}

fn do_work(shared: &Shared, id: ShardId, key: &StoreKey, work: Work) {
    let begin = Instant::now();
    let mut work = Some(work);
    let mut stored = 0;
    let result = caught(|| {
        let slices = shared.setup.grid.shard_slices() as u64;
        let end = id.outer.saturating_add(1).saturating_mul(slices);
        if !matches!(work, Some(Work::Write { .. })) {
            shared.setup.cutting.before(end)?;
        }
        extend(shared, end)?;
        store(shared, key, &mut work, &mut stored)
    });
    let time = begin.elapsed();
    let news = shared.change(|state| {
        state.working -= 1;
        state.progress.storing += time;
        state.progress.stored_bytes += stored;
        if let Some(storing) = state.shards.get_mut(&id) {
            storing.busy = false;
        }
        match (result, work.take()) {
            (Ok(last), _) => {
                match last {
                    Last::No => {
                        if let Some(storing) = state.shards.get(&id)
                            && !storing.work.is_empty()
                        {
                            state.ready.push_back(id);
                        }
                    }
                    Last::Stored => {
                        state.progress.shards_stored += 1;
                        shared.finish_shard(state, id);
                    }
                    Last::Empty => {
                        state.progress.shards_empty += 1;
                        shared.finish_shard(state, id);
                    }
                }
                !matches!(last, Last::No)
            }
            (Err(_), Some(left)) if state.aborted => {
                // The work is dropped after the state was unlocked, because its buffers then go back.
                work = Some(left);
                false
            }
            (Err(source), Some(work)) => {
                let doing = work.doing();
                tracing::warn!(doing, %key, %source, "a store failed");
                if let Some(storing) = state.shards.get_mut(&id) {
                    storing.work.push_front(work);
                }
                state.failure.get_or_insert(Failure::Store {
                    doing,
                    key: key.clone(),
                    source: Arc::new(source),
                });
                false
            }
            (Err(source), None) => {
                state
                    .broken
                    .get_or_insert(format!("work on {key} was lost: {source}"));
                false
            }
        }
    });
    if news {
        tell(shared);
    }
}

/// Takes the lease of the array before a shard is stored that ends at `end`, if the shard extends the array.
fn extend(shared: &Shared, end: u64) -> Result<(), StorageError> {
    let Some(lease) = shared.setup.extending.upgrade() else {
        return Ok(());
    };
    lease.before(end.min(shared.end()), &*shared.setup.length)?;
    // Taking the lease may last longer than the limit for the end of a writer, so the writer may have ended.
    if shared.lock().aborted {
        return Err(StorageError::Other("the writer has ended".to_owned()));
    }
    Ok(())
}

/// The state of a shard after a step: whether it is finished, and how.
#[derive(Clone, Copy)]
enum Last {
    No,
    Stored,
    Empty,
}

/// Does the step in `work`, and leaves `None` there when the step is done.
fn store(
    shared: &Shared,
    key: &StoreKey,
    work: &mut Option<Work>,
    stored: &mut u64,
) -> Result<Last, StorageError> {
    let sink = &shared.setup.sink;
    let Some(mut doing) = work.take() else {
        return Ok(Last::No);
    };
    if shared.store_keeps.load(Ordering::Relaxed) {
        doing = match doing {
            Work::Set(part) => Work::Set(part.out_of_scarce()),
            other => other,
        };
    }
    // The step stays in `work` during the call, because the store may panic.
    let result = match work.insert(doing) {
        Work::Set(part) => sink.set(key, part.bytes()),
        Work::Erase => sink.erase(key),
        Work::Write { pieces, first } => {
            let pieces = pieces.iter().map(|(at, part)| (*at, part.bytes()));
            sink.write(key, pieces.collect(), *first)
        }
        Work::Complete => sink.complete(key),
    };
    result?;
    let Some(doing) = work.take() else {
        return Ok(Last::No);
    };
    Ok(match doing {
        Work::Set(part) => {
            *stored += part.len() as u64;
            if let Some(copy) = part.taken() {
                shared.store_keeps.store(true, Ordering::Relaxed);
                replace(shared, key, copy, work)?;
            }
            Last::Stored
        }
        Work::Erase => Last::Empty,
        Work::Write { pieces, first } => {
            for (at, part) in pieces {
                // The first bytes are only room for an index at the start, which is counted when it is
                // written.
                if at > 0 || !first || shared.setup.encoding.shards.index.is_at_end() {
                    *stored += part.len() as u64;
                }
                // A store does not keep the buffer of a piece of a file.
                drop(part.taken());
            }
            Last::No
        }
        Work::Complete => Last::Stored,
    })
}

/// Stores a copy of the bytes, so that the store gives back the scarce buffer that it keeps.
fn replace(
    shared: &Shared,
    key: &StoreKey,
    part: StoredBytes,
    work: &mut Option<Work>,
) -> Result<(), StorageError> {
    let result = shared.setup.sink.set(key, part.bytes());
    if result.is_err() {
        *work = Some(Work::Set(part));
    }
    result
}

fn grow(shared: &Shared, slices: u64) {
    let result = caught(|| shared.setup.cover(slices));
    let news = shared.change(|state| {
        state.working -= 1;
        state.growing = false;
        state.grown = Instant::now();
        match result {
            Ok(()) => {
                let covered = &mut state.progress.covered_slices;
                *covered = slices.max(*covered);
                true
            }
            Err(source) => {
                let doing = "let the metadata of the array cover more slices: rewrite";
                let path = shared.setup.array.path();
                let key = zarrs::node::meta_key_v3(path);
                tracing::warn!(%key, slices, %source, "a store failed");
                state.failure.get_or_insert(Failure::Store {
                    doing,
                    key,
                    source: Arc::new(source),
                });
                false
            }
        }
    });
    if news {
        tell(shared);
    }
}

/// Calls the application's callback. One thread calls it at a time, so that the progress never goes back.
fn tell(shared: &Shared) {
    let Some(callback) = &shared.setup.on_progress else {
        return;
    };
    let _turn = shared
        .telling
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let progress = shared.progress();
    if catch_unwind(AssertUnwindSafe(|| (callback.0)(&progress))).is_err() {
        tracing::error!("a progress callback panicked");
    }
}

/// Returns the result of `work`, or an error if the store panicked.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, StorageError>) -> Result<T, StorageError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(StorageError::Other("the store panicked".to_string())))
}
