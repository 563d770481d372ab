//! How large batches are, and how many buffers there are, within the budgets.
//!
//! The first of these configurations that fits the budgets is taken, from the best down:
//!
//! - as many epochs in a batch as the target says, or, where a shard is stored whole and every
//!   subchunk encodes to the same size, a whole shard epoch: then the buffer that is filled is what
//!   is stored;
//! - three inputs (one is filled, one is encoded, one is stored), then two;
//! - two sets of buffers for shards that are put together, then one, each for all shards with one
//!   index along the first axis; of shards that lie in one batch, as many sets as there would be
//!   outputs, each for a batch;
//! - fewer epochs.

use std::fmt::Write;
use std::sync::Arc;

use super::error::WriterError;
use crate::codec::stream::ShardEncoding;
use crate::engine::stream::{Room, StreamJob};
use crate::layout::StreamGrid;
use crate::plan::StreamChoice;
use crate::{MemoryEstimate, Options};

/// The numbers that were tuned, together.
struct Targets {
    /// Decoded bytes of a batch.
    bytes: usize,
    /// Subchunks of a batch: enough that all threads, or a whole device, have work.
    subchunks: usize,
    /// The most bytes of a batch to reach that number.
    most_bytes: usize,
}

/// Batches that stay in no cache anyway.
const HOST: Targets = Targets {
    bytes: 64 << 20,
    subchunks: 64,
    most_bytes: 256 << 20,
};

/// A device compresses a thousand subchunks about as fast as one.
const DEVICE: Targets = Targets {
    bytes: 64 << 20,
    subchunks: 1024,
    most_bytes: 256 << 20,
};

/// The most subchunks of a batch, unless an epoch has more: each has its place in tables.
const MOST_SUBCHUNKS: usize = 1 << 18;

/// More bytes of indexes than any machine has memory for.
const MOST_INDEXES: usize = 1 << 40;

/// The configuration of a writer.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) job: Arc<StreamJob>,
    pub(super) choice: StreamChoice,
    pub(super) memory: MemoryEstimate,
    /// Whether every batch has whole shards.
    pub(super) whole_shards: bool,
    /// Buffers for shards that are put together: how many, and how long.
    pub(super) assembly: Option<(usize, usize)>,
}

/// How many epochs a batch has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Epochs {
    /// As many, if the application says so.
    pub(super) asked: Option<usize>,
    /// At most so many, unless a batch is a whole shard epoch that is stored as it is.
    pub(super) most: Option<usize>,
}

/// One configuration.
struct Candidate {
    epochs: usize,
    inputs: usize,
    outputs: usize,
    /// Shard epochs that are put together, or stored after that, at once.
    assembled: usize,
    room: Room,
}

/// Plan a writer of `encoding` and `grid`, whose sink stores shards in pieces if it `grows`; with
/// batches of `epochs`; on the `host`, if there is a reason.
pub(super) fn plan(
    encoding: &ShardEncoding,
    grid: &StreamGrid,
    grows: bool,
    epochs: Epochs,
    host: Option<&str>,
) -> Result<Plan, WriterError> {
    let options = &encoding.shards.codec.options;
    let refused = |(memory, needed, budget)| WriterError::Memory {
        memory,
        needed,
        budget,
        advice: advice(memory, needed, grid, grows, epochs.asked),
    };
    // Of shards that no machine has room for, it would take long to find divisors.
    let indexes = indexes(encoding, grid).unwrap_or(usize::MAX);
    if indexes > MOST_INDEXES.max(options.host_memory()) {
        return Err(refused(("host memory", indexes, options.host_memory())));
    }
    let job = |candidate: &Candidate| job(encoding, grid, candidate);
    let first = Candidate {
        epochs: 1,
        inputs: 2,
        outputs: 2,
        assembled: 0,
        room: Room::default(),
    };
    let choice = match host {
        None => encoding.choose_engine(&job(&first))?,
        Some(why) => StreamChoice::host(why),
    };
    let fixed = encoding.chain.is_fixed_size();
    let mut least: Option<(&'static str, usize, usize)> = None;
    let mut reason = None;
    for size in sizes(grid, grows, fixed, choice.is_device(), epochs) {
        for candidate in candidates(encoding, grid, grows, &choice, size) {
            let job = job(&candidate);
            let buffers = match choice.memory(&job) {
                Ok(buffers) => buffers,
                Err(error) => {
                    reason = Some(error.to_string());
                    continue;
                }
            };
            let assembly = assembly(encoding, grid, &candidate);
            let Some(memory) = memory(encoding, grid, buffers, assembly) else {
                continue;
            };
            match over_budget(memory, options) {
                None => {
                    tracing::debug!(
                        epochs = size,
                        inputs = candidate.inputs,
                        why = choice.why,
                        memory = %memory,
                        "planned a writer"
                    );
                    return Ok(Plan {
                        job: Arc::new(job),
                        memory,
                        whole_shards: size.is_multiple_of(grid.epochs_per_shard()),
                        assembly,
                        choice,
                    });
                }
                Some(over) if least.is_none_or(|least| over.0 == least.0 && over.1 < least.1) => {
                    least = Some(over);
                }
                Some(_) => {}
            }
        }
    }
    Err(least.map_or_else(
        || WriterError::Unsupported {
            reason: reason.unwrap_or_else(|| {
                "its batches are more bytes than this machine can address".to_string()
            }),
        },
        refused,
    ))
}

/// The configurations with batches of `epochs`, from the best down.
fn candidates(
    encoding: &ShardEncoding,
    grid: &StreamGrid,
    grows: bool,
    choice: &StreamChoice,
    epochs: usize,
) -> [Candidate; 3] {
    let in_place = encoding.chain.is_fixed_size() && !choice.is_device();
    let packs = choice.packs(&encoding.chain);
    let shard_epochs = epochs / grid.epochs_per_shard();
    let whole_shards = epochs.is_multiple_of(grid.epochs_per_shard());
    let assembles = if whole_shards { !packs } else { !grows };
    let index = encoding.shards.index.len();
    let room = match (whole_shards && packs, !encoding.shards.index.is_at_end()) {
        (false, _) => Room::default(),
        (true, true) => Room {
            head: index,
            tail: 0,
        },
        (true, false) => Room {
            head: 0,
            tail: index,
        },
    };
    [(3, 3, 2), (2, 2, 2), (2, 2, 1)].map(|(inputs, outputs, sets)| Candidate {
        epochs,
        inputs,
        outputs: match (in_place, assembles) {
            (true, _) => 0,
            // Copied from, and free again before there is another one.
            (_, true) => 1,
            (_, false) => outputs,
        },
        assembled: match (assembles, whole_shards) {
            (false, _) => 0,
            (true, true) => outputs * shard_epochs,
            (true, false) => sets,
        },
        room,
    })
}

fn job(encoding: &ShardEncoding, grid: &StreamGrid, candidate: &Candidate) -> StreamJob {
    StreamJob {
        grid: grid.clone(),
        chain: encoding.chain.clone(),
        fill_value: encoding.shards.fill_value.as_ne_bytes().to_vec(),
        store_empty: encoding.options.store_empty_chunks(),
        threads: encoding.threads,
        huge_pages: encoding.shards.codec.options.huge_pages(),
        epochs: candidate.epochs,
        room: candidate.room,
        inputs: candidate.inputs,
        outputs: candidate.outputs,
        reduced_from: encoding.reduced_from.clone(),
    }
}

/// Epochs of a batch, from the best number down.
fn sizes(grid: &StreamGrid, grows: bool, fixed: bool, device: bool, epochs: Epochs) -> Vec<usize> {
    if let Some(asked) = epochs.asked {
        return vec![grid.whole_batch(asked)];
    }
    let targets = if device { DEVICE } else { HOST };
    let bytes = (grid.subchunks_per_epoch())
        .saturating_mul(grid.shard().subchunk_bytes())
        .max(1);
    let for_subchunks = targets
        .subchunks
        .div_ceil(grid.subchunks_per_epoch().max(1));
    let target = (targets.bytes / bytes)
        .max(for_subchunks.min(targets.most_bytes / bytes))
        .min(MOST_SUBCHUNKS / grid.subchunks_per_epoch().max(1))
        .min(epochs.most.unwrap_or(usize::MAX))
        .max(1);
    let per_shard = grid.epochs_per_shard();
    let mut sizes = Vec::new();
    if fixed && !grows && target < per_shard {
        sizes.push(per_shard);
    }
    let mut epochs = grid.whole_batch(target);
    loop {
        sizes.push(epochs);
        if epochs == 1 {
            return sizes;
        }
        epochs = grid.whole_batch(epochs / 2);
    }
}

/// Buffers for shards that are put together: how many, and how long.
fn assembly(
    encoding: &ShardEncoding,
    grid: &StreamGrid,
    candidate: &Candidate,
) -> Option<(usize, usize)> {
    if candidate.assembled == 0 {
        return None;
    }
    let bound = StreamChoice::encoded_bound(&encoding.chain, encoding.shards.grid.subchunk_bytes());
    // An array may be smaller than its shards.
    let most = std::iter::zip(
        encoding.shards.grid.counts().iter().skip(1),
        grid.subchunks(),
    )
    .map(|(of_shard, of_array)| of_array.min(*of_shard))
    .try_fold(grid.epochs_per_shard(), usize::checked_mul);
    let len = bound
        .and_then(|bound| bound.checked_mul(most?))
        .and_then(|len| len.checked_add(encoding.shards.index.len()));
    let count = grid.shards_per_epoch().checked_mul(candidate.assembled);
    Some((count.unwrap_or(usize::MAX), len.unwrap_or(usize::MAX)))
}

/// What the indexes of the shards take that are open, as they are put together and encoded.
fn indexes(encoding: &ShardEncoding, grid: &StreamGrid) -> Option<usize> {
    let of_subchunk = size_of::<crate::layout::Extent>() + 2 * size_of::<u64>();
    encoding
        .shards
        .grid
        .num_subchunks()
        .checked_mul(of_subchunk)?
        .checked_mul(grid.shards_per_epoch())
}

/// The memory that it takes; `None` if that is more than this machine can address.
fn memory(
    encoding: &ShardEncoding,
    grid: &StreamGrid,
    buffers: MemoryEstimate,
    assembly: Option<(usize, usize)>,
) -> Option<MemoryEstimate> {
    let (count, len) = assembly.unwrap_or((0, 0));
    let indexes = indexes(encoding, grid)?;
    Some(MemoryEstimate {
        host: buffers
            .host
            .checked_add(count.checked_mul(len)?)?
            .checked_add(indexes)?,
        pinned: buffers.pinned,
        device: buffers.device,
    })
}

/// The first kind of memory that exceeds its budget: its name, the bytes, and the budget.
fn over_budget(memory: MemoryEstimate, options: &Options) -> Option<(&'static str, usize, usize)> {
    let host = options.host_memory();
    if memory.host > host {
        return Some(("host memory", memory.host, host));
    }
    let pinned = options.pinned_memory();
    if memory.pinned > pinned {
        return Some(("page-locked memory", memory.pinned, pinned));
    }
    let device = options.device_memory().unwrap_or(usize::MAX);
    (memory.device > device).then_some(("device memory", memory.device, device))
}

fn advice(
    memory: &str,
    needed: usize,
    grid: &StreamGrid,
    grows: bool,
    epochs: Option<usize>,
) -> String {
    let option = match memory {
        "host memory" => "with_host_memory",
        "page-locked memory" => "with_pinned_memory",
        _ => "with_device_memory",
    };
    let mut advice = format!("allow {needed} by `Options::{option}`");
    if epochs.is_some_and(|epochs| epochs > 1) {
        advice.push_str(", or ask for fewer `with_epochs_per_batch`, or for none");
    }
    if memory == "host memory" && !grows {
        let in_flight = grid.shards_per_epoch();
        let _ = write!(
            advice,
            ", or use shards of a smaller extent along the first axis: all {in_flight} shards with one index along it are in memory until they are stored. On a filesystem they need not be, with `ArrayWriterBuilder::with_atomic_rename`"
        );
    } else {
        advice.push_str(", or use subchunks of a smaller extent along the first axis");
    }
    advice
}
