//! Chooses the size of batches and the number of buffers, within the budgets.
//!
//! The first of these configurations that fits the budgets is taken, from the best down:
//!
//! - as many epochs in a batch as the target says, or, where a shard is stored whole and every
//!   subchunk encodes to the same size, a whole shard epoch: then the buffer that is filled is what
//!   is stored;
//! - three inputs (one is filled, one is encoded, one is stored), then two; three outputs, then two, then
//!   one;
//! - two sets of buffers for shards that are put together, then one, each for all shards with one
//!   index along the first axis; of shards that lie in one batch, as many sets as there would be
//!   outputs, each for a batch;
//! - fewer epochs.
//!
//! The last configuration among those with the same number of epochs has the smallest buffers with which a
//! writer can always go on. The writer reserves these buffers for itself: they must fit beside those that the
//! other open writers have reserved. The pool lends further buffers of the configuration.

use std::fmt::Write;
use std::sync::Arc;

use super::error::WriterError;
use crate::metrics::MemoryEstimate;
use crate::options::Options;
use crate::plan::StreamChoice;
use crate::shard::stream::ShardEncoding;
use zarrs_cuda_engine::contract::EngineError;
use zarrs_cuda_engine::contract::stream::{Lending, Room, StreamJob};
use zarrs_cuda_engine::layout::StreamGrid;
use zarrs_cuda_engine::process::account;
use zarrs_cuda_engine::process::account::{Lender, Reserved};

/// The tuned sizes of a batch.
struct Targets {
    /// The number of decoded bytes that a batch should have.
    bytes: usize,
    /// The number of subchunks that a batch should have, so that all threads, or a whole device, have work.
    subchunks: usize,
    /// The most decoded bytes that a batch may have to reach that number of subchunks.
    most_bytes: usize,
}

/// The sizes of a batch on the host. A batch is too large for any cache.
const HOST: Targets = Targets {
    bytes: 64 << 20,
    subchunks: 64,
    most_bytes: 256 << 20,
};

/// The sizes of a batch on a device, which compresses a thousand subchunks about as fast as one.
const DEVICE: Targets = Targets {
    bytes: 64 << 20,
    subchunks: 1024,
    most_bytes: 256 << 20,
};

/// The most subchunks of a batch, unless one epoch has more: each subchunk has entries in tables.
const MOST_SUBCHUNKS: usize = 1 << 18;

/// The size of indexes, in bytes, for which no machine has memory.
const MOST_INDEXES: usize = 1 << 40;

/// The configuration that was chosen for a writer.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) job: Arc<StreamJob>,
    pub(crate) choice: StreamChoice,
    pub(crate) memory: MemoryEstimate,
    /// The number of bytes of host memory in the smallest buffers, which the writer reserves.
    pub(crate) reserved: usize,
    /// Whether every batch consists of whole shards.
    pub(crate) whole_shards: bool,
    /// The buffers in which shards are put together; `None` if no shard is.
    pub(crate) assembly: Option<Assembly>,
}

/// The buffers in which shards are put together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assembly {
    pub(crate) count: usize,
    /// The number of these buffers that the writer reserves for itself.
    pub(crate) own: usize,
    pub(crate) len: usize,
    pub(crate) lender: Lender,
}

/// The host memory of all open writers, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    /// The most host memory that all open writers may have together.
    pub(crate) limit: usize,
    /// The part of `limit` that no writer has reserved.
    pub(crate) free: usize,
    /// The part of `free` that a new writer takes, unless its smallest batches take more.
    pub(crate) share: usize,
    /// The memory that the open writers have reserved.
    pub(crate) reserved: Reserved,
}

impl Account {
    /// Returns the account of this moment, with a `limit` for all open writers.
    pub(crate) fn now(limit: usize) -> Self {
        /// The divisor of the free memory: beside other writers, a new writer takes one part of so many.
        const BESIDE_OTHERS: usize = 4;
        let reserved = account::reserved();
        let free = limit.saturating_sub(reserved.bytes);
        let is_alone = reserved.writers == 0;
        Self {
            limit,
            free,
            share: if is_alone { free } else { free / BESIDE_OTHERS },
            reserved,
        }
    }

    /// Returns the error of a writer whose smallest buffers do not fit beside the smallest buffers of the
    /// others.
    pub(crate) fn refuses(&self, needed: usize, budget: usize) -> WriterError {
        let Reserved { writers, bytes } = self.reserved;
        WriterError::Memory {
            memory: "host memory",
            needed,
            budget,
            advice: format!(
                "the {writers} open writers of this process have reserved {bytes} bytes of the {} that all of them may have: finish or drop one of them, or allow more by `Options::with_host_memory`",
                self.limit
            ),
        }
    }
}

/// The limits for the number of epochs in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Epochs {
    /// The number of epochs that the application asks for; `None` if it leaves the choice to the plan.
    pub(crate) asked: Option<usize>,
    /// The most epochs of a batch, unless the batch is a whole shard epoch that is stored as it is.
    pub(crate) most: Option<usize>,
}

/// One configuration of a writer: the sizes and numbers of its buffers.
#[derive(Clone, Copy)]
struct Candidate {
    epochs: usize,
    inputs: usize,
    outputs: usize,
    /// The number of shard epochs that are put together, or wait to be stored after that, at once.
    assembled: usize,
    room: Room,
}

impl Candidate {
    /// Returns the rule for buffers: those of this candidate are the writer's own, and `lender` lends others.
    fn lending(&self, lender: Lender) -> Lending {
        Lending {
            inputs: self.inputs,
            outputs: self.outputs,
            lender,
        }
    }
}

/// Plans a writer of `encoding` and `grid`, with batches of `epochs`. If the sink `grows` shards, it stores
/// them in pieces. If there is a reason for the `host`, the host encodes.
pub(crate) fn plan(
    encoding: &ShardEncoding,
    grid: &StreamGrid,
    grows: bool,
    epochs: Epochs,
    host: Option<&str>,
    account: &Account,
) -> Result<Plan, WriterError> {
    let options = &encoding.shards.codec.options;
    let refused = |(memory, needed, budget)| WriterError::Memory {
        memory,
        needed,
        budget,
        advice: advice(memory, needed, grid, grows, epochs.asked),
    };
    // For a shard that no machine has memory for, the search for divisors below would take long.
    let indexes = indexes(encoding, grid).unwrap_or(usize::MAX);
    if indexes > MOST_INDEXES.max(options.host_memory()) {
        return Err(refused(("host memory", indexes, options.host_memory())));
    }
    let lender = Lender::new(account.limit);
    let job = |candidate: &Candidate, least: &Candidate| {
        job(encoding, grid, candidate, least.lending(lender))
    };
    let first = Candidate {
        epochs: 1,
        inputs: 2,
        outputs: 2,
        assembled: 0,
        room: Room::default(),
    };
    let choice = match host {
        None => encoding.choose_engine(&job(&first, &first))?,
        Some(why) => StreamChoice::host(why),
    };
    let fixed = encoding.chain.is_fixed_size();
    let mut least_of_all: Option<(&'static str, usize, usize)> = None;
    let mut reason = None;
    // The smallest number of bytes that did not fit beside the other writers.
    let mut crowded: Option<usize> = None;
    let sizes = sizes(grid, grows, fixed, choice.is_device(), epochs);
    let smallest = sizes.last().copied();
    for size in sizes {
        let free = if Some(size) == smallest {
            account.free
        } else {
            account.share
        };
        let candidates = candidates(encoding, grid, grows, &choice, size);
        for candidate in &candidates {
            let least = least(candidate, &candidates, choice.is_device());
            let job = job(candidate, &least);
            let memories = memories(encoding, grid, &choice, &job, [candidate, &least]);
            let (most, own) = match memories {
                Ok([Some(most), Some(own)]) => (most, own.host),
                Ok(_) => continue,
                Err(error) => {
                    reason = Some(error.to_string());
                    continue;
                }
            };
            match over_budget(most, options, &choice) {
                None if own > free => {
                    crowded = Some(crowded.map_or(own, |crowded| crowded.min(own)));
                }
                None => {
                    let assembly = assembly(encoding, grid, candidate);
                    let assembly = assembly.map(|(count, len)| Assembly {
                        count,
                        own: assembly_count(grid, &least),
                        len,
                        lender,
                    });
                    tracing::debug!(
                        epochs = size,
                        inputs = candidate.inputs,
                        why = choice.why,
                        memory = %most,
                        reserved = own,
                        "planned a writer"
                    );
                    return Ok(Plan {
                        job: Arc::new(job),
                        memory: most,
                        reserved: own,
                        whole_shards: size.is_multiple_of(grid.epochs_per_shard()),
                        assembly,
                        choice,
                    });
                }
                Some(over)
                    if least_of_all.is_none_or(|least| over.0 == least.0 && over.1 < least.1) =>
                {
                    least_of_all = Some(over);
                }
                Some(_) => {}
            }
        }
    }
    if let Some(needed) = crowded {
        return Err(account.refuses(needed, options.host_memory()));
    }
    Err(least_of_all.map_or_else(
        || WriterError::Unsupported {
            reason: reason.unwrap_or_else(|| {
                "its batches are more bytes than this machine can address".to_string()
            }),
        },
        refused,
    ))
}

/// Returns the configurations with batches of `epochs` epochs, from the best to the smallest.
fn candidates(
    encoding: &ShardEncoding,
    grid: &StreamGrid,
    grows: bool,
    choice: &StreamChoice,
    epochs: usize,
) -> Vec<Candidate> {
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
    let buffers = [(3, 3, 2), (2, 2, 2), (2, 2, 1), (2, 1, 1)];
    // A device needs at least two outputs.
    let buffers = &buffers[..if choice.is_device() { 3 } else { 4 }];
    let candidate = |&(inputs, outputs, sets): &(usize, usize, usize)| Candidate {
        epochs,
        inputs,
        outputs: match (in_place, assembles) {
            (true, _) => 0,
            // The output is copied into shards at once, so the next batch can use it.
            (_, true) => 1,
            (_, false) => outputs,
        },
        assembled: match (assembles, whole_shards) {
            (false, _) => 0,
            (true, true) => outputs * shard_epochs,
            (true, false) => sets,
        },
        room,
    };
    buffers.iter().map(candidate).collect()
}

/// Returns the smallest configuration that can replace `candidate`, one of `candidates`: the writer reserves
/// its buffers. A device has all of its buffers from the beginning.
fn least(candidate: &Candidate, candidates: &[Candidate], device: bool) -> Candidate {
    let last = candidates.last().unwrap_or(candidate);
    Candidate {
        inputs: if device {
            candidate.inputs
        } else {
            last.inputs
        },
        outputs: if device {
            candidate.outputs
        } else {
            last.outputs
        },
        assembled: last.assembled,
        ..*candidate
    }
}

fn job(
    encoding: &ShardEncoding,
    grid: &StreamGrid,
    candidate: &Candidate,
    lending: Lending,
) -> StreamJob {
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
        lending: Some(lending),
        reduced_from: encoding.reduced_from.clone(),
    }
}

/// Returns the numbers of epochs that a batch may have, from the best to the smallest.
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

/// Returns the number of buffers in which shards are put together, and their length in bytes; `None` if
/// `candidate` needs none.
fn assembly(
    encoding: &ShardEncoding,
    grid: &StreamGrid,
    candidate: &Candidate,
) -> Option<(usize, usize)> {
    if candidate.assembled == 0 {
        return None;
    }
    let bound = StreamChoice::encoded_bound(&encoding.chain, encoding.shards.grid.subchunk_bytes());
    // A shard may reach beyond the edge of the array, where it has no subchunks.
    let most = std::iter::zip(
        encoding.shards.grid.counts().iter().skip(1),
        grid.subchunks(),
    )
    .map(|(of_shard, of_array)| of_array.min(*of_shard))
    .try_fold(grid.epochs_per_shard(), usize::checked_mul);
    let len = bound
        .and_then(|bound| bound.checked_mul(most?))
        .and_then(|len| len.checked_add(encoding.shards.index.len()));
    Some((assembly_count(grid, candidate), len.unwrap_or(usize::MAX)))
}

fn assembly_count(grid: &StreamGrid, candidate: &Candidate) -> usize {
    grid.shards_per_epoch().saturating_mul(candidate.assembled)
}

/// Returns the bytes that the indexes of the open shards take, both decoded and encoded.
fn indexes(encoding: &ShardEncoding, grid: &StreamGrid) -> Option<usize> {
    let of_subchunk = size_of::<zarrs_cuda_engine::layout::Extent>() + 2 * size_of::<u64>();
    encoding
        .shards
        .grid
        .num_subchunks()
        .checked_mul(of_subchunk)?
        .checked_mul(grid.shards_per_epoch())
}

/// Returns the memory of two candidates with the same batches. An estimate is `None` if it exceeds the
/// address space.
fn memories(
    encoding: &ShardEncoding,
    grid: &StreamGrid,
    choice: &StreamChoice,
    job: &StreamJob,
    candidates: [&Candidate; 2],
) -> Result<[Option<MemoryEstimate>; 2], EngineError> {
    let of = |candidate: &Candidate| -> Result<_, EngineError> {
        let buffers = choice.memory(&StreamJob {
            inputs: candidate.inputs,
            outputs: candidate.outputs,
            ..job.clone()
        })?;
        let assembly = assembly(encoding, grid, candidate);
        Ok(memory(encoding, grid, buffers, assembly))
    };
    Ok([of(candidates[0])?, of(candidates[1])?])
}

/// Returns the memory of a writer; `None` if it exceeds the address space.
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

/// Returns the first kind of memory that exceeds its budget: its name, the needed bytes, and the budget.
/// `None` if all fit.
fn over_budget(
    memory: MemoryEstimate,
    options: &Options,
    choice: &StreamChoice,
) -> Option<(&'static str, usize, usize)> {
    let host = options.host_memory();
    if memory.host > host {
        return Some(("host memory", memory.host, host));
    }
    let pinned = choice.pinned_budget().unwrap_or(usize::MAX);
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
