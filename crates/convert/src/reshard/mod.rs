//! Moves encoded subchunks into other shards, without decoding them.
//!
//! | file | what it does |
//! |---|---|
//! | `side.rs` | understands an array by its metadata alone, and says how two arrays differ |
//! | `chain.rs` | compares two chains of codecs, as a decoder sees them |
//! | `metadata.rs` | chooses the metadata of OUT |
//! | `target.rs` | looks at OUT before the run, and makes OUT an array at the end |
//! | `plan.rs` | integers: which subchunks of IN make an object of OUT |
//! | `source.rs`, `copy.rs` | read subchunks of IN, and write objects of OUT |
//! | `in_parts.rs` | makes a part of OUT, while other processes make the others |

mod chain;
mod copy;
mod in_parts;
mod metadata;
mod plan;
pub mod side;
mod source;
mod target;

use std::num::NonZeroU64;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::metadata::v3::MetadataV3;
use zarrs_cuda::Options;
use zarrs_cuda::maintenance::ShardFormat;

use self::copy::{Existing, Target};
use self::metadata::{goal, metadata_text, read_metadata};
use self::plan::{BlockPiece, Plan};
use self::side::Side;
use self::source::Objects;
use self::target::Before;
use crate::apart::{must_lie_apart, must_not_be_in_an_array};
use crate::budget::Budget;
use crate::chunks::Elsewhere;
use crate::consolidated;
use crate::evidence::Evidence;
use crate::extensions;
use crate::failure::Failure;
use crate::grid::number_of;
use crate::open::{self, Place};
use crate::reencode::{PartReport, Shared};
use crate::replace::tidied;
use crate::shared_run;
use crate::stored::{self, Keys};
use crate::watcher::{Step, Unit, Watcher};

/// Moves encoded subchunks between chunks and shards, without decoding them.
///
/// Both arrays have the same shape, data type, fill value, subchunk shape and codecs of a subchunk. The
/// output is new, or the directory of an array that has no chunks yet, and a `zarr.json` that describes its
/// shards. When an interrupted run is started again, it keeps the objects of the output that are whole, and
/// copies the others.
///
/// ```
/// use std::sync::Arc;
/// use zarrs::array::{Array, ArrayBuilder, data_type};
/// use zarrs::filesystem::FilesystemStore;
/// use zarrs_cuda_convert::{Layout, Reshard};
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let store = Arc::new(FilesystemStore::new(folder.join("in"))?);
/// let array = ArrayBuilder::new(vec![64, 64], vec![16, 16], data_type::uint16(), 0u16).build(store, "/")?;
/// array.store_metadata()?;
/// array.store_array_subset(&array.subset_all(), vec![7u16; 64 * 64])?;
///
/// let mut reshard = Reshard::new(folder.join("in"), folder.join("out"));
/// reshard.layout = Some(Layout::Shards(vec![32.try_into()?, 64.try_into()?]));
/// let report = reshard.run(&())?;
/// assert_eq!((report.stored, report.written, report.codec_calls), (16, 2, 0));
///
/// let output = Array::open(Arc::new(FilesystemStore::new(folder.join("out"))?), "/")?;
/// assert_eq!(output.retrieve_array_subset::<Vec<u16>>(&output.subset_all())?, vec![7; 64 * 64]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reshard {
    /// The directory of the array to read.
    pub input: Place,
    /// The directory of the new array.
    pub output: Place,
    /// The objects of the output; `None` if the `zarr.json` of the output describes them.
    pub layout: Option<Layout>,
    /// The end of a shard at which its index lies; `None` for that of the input, or for the end if the input
    /// has no shards.
    pub index: Option<ShardingIndexLocation>,
    /// The encoding of the keys of chunks or shards; `None` for that of the input.
    pub chunk_keys: Option<MetadataV3>,
    /// The number of bytes of memory for the indices of shards.
    pub memory: u64,
    /// The number of threads that copy at once: one or more.
    pub threads: usize,
}

/// The objects of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Shards of this shape in elements, a whole multiple of a subchunk.
    Shards(Vec<NonZeroU64>),
    /// No shards: each subchunk becomes a chunk.
    Chunks,
}

/// The report of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Resharded {
    /// The noun for an object of the input: "chunk" or "shard".
    pub from: &'static str,
    /// The number of objects of the input that are stored.
    pub stored: u64,
    /// The noun for an object of the output: "chunk" or "shard".
    pub to: &'static str,
    /// The number of objects of the output that this run wrote.
    pub written: u64,
    /// The number of objects of the output that an earlier run had written and that are whole.
    pub kept: u64,
    /// The number of subchunks in the objects that this run wrote.
    pub subchunks: u64,
    /// The number of bytes of these subchunks.
    pub bytes: u64,
    /// The time that the copy took, including the syncs of files.
    pub time: Duration,
    /// The number of times that this process called codecs during the run. It is 0 unless other work of the
    /// process did.
    pub codec_calls: u64,
    /// Lines for people about temporaries that could not be deleted, and about consolidated metadata that are
    /// out of date.
    pub notes: Vec<String>,
}

impl Reshard {
    /// Returns the settings to reshard the array `input` as the array `output`. The `zarr.json` of the output
    /// describes its shards, unless a [`layout`](Self::layout) is set.
    pub fn new(input: impl Into<Place>, output: impl Into<Place>) -> Self {
        Self {
            input: input.into(),
            output: output.into(),
            layout: None,
            index: None,
            chunk_keys: None,
            memory: Options::default().host_memory() as u64,
            threads: rayon::current_num_threads(),
        }
    }

    /// Reshards. Blocks until the output is complete, the run fails, or `watcher` stops it.
    ///
    /// # Errors
    /// - `input` is no array of Zarr v3 in a directory, or is damaged.
    /// - Encoded subchunks of `input` do not fit `output` as they are. [`Reencode`](crate::Reencode) decodes
    ///   them.
    /// - `output` has other files, lies in `input`, or is being written by another run.
    /// - The settings make no sense together, or the indices need more than `memory`.
    /// - The watcher stopped the run.
    pub fn run(&self, watcher: &dyn Watcher) -> Result<Resharded, Failure> {
        extensions::register();
        run(self, watcher)
    }

    /// Plans the parts of a run of several processes, or makes one of them. The process that makes the last part makes
    /// the output an array. The output is new, and a [`layout`](Self::layout) says its shards.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run); the output is of another run; its file system has no hard links, and the
    /// parts were not planned before.
    pub fn run_part(&self, shared: Shared, watcher: &dyn Watcher) -> Result<PartReport, Failure> {
        extensions::register();
        in_parts::run(self, shared, watcher)
    }

    /// Returns the failure for subchunks that cannot be moved as they are. Its remedy is the command
    /// `zarrs-cuda reencode`.
    fn refused(&self, message: impl std::fmt::Display) -> Failure {
        Failure::failed(message).with_remedy(format!(
            "`zarrs-cuda reencode {} OUT` decodes the elements and encodes them anew",
            self.input
        ))
    }

    fn cannot_move(&self, reason: impl std::fmt::Display) -> Failure {
        self.refused(format_args!("cannot reshard {}: {reason}", self.input))
    }
}

/// An input that can be read and understood, and that may become the output.
struct Readable<'a> {
    input: &'a Path,
    output: &'a Path,
    /// The metadata of the input.
    document: Map<String, Value>,
    side: Side,
}

impl<'a> Readable<'a> {
    fn of(settings: &'a Reshard) -> Result<Self, Failure> {
        let (input, output) = (settings.input.directory()?, settings.output.directory()?);
        let document = read_metadata(input, settings)?;
        let side = Side::of(&document).map_err(|reason| settings.cannot_move(reason))?;
        must_lie_apart(&settings.input, &settings.output)?;
        must_not_be_in_an_array(&settings.output)?;
        shared_run::must_not_be_made_above(&settings.output)?;
        Ok(Self {
            input,
            output,
            document,
            side,
        })
    }
}

/// The work of a run, before anything is written.
struct Prepared<'a> {
    input: &'a Path,
    side: Side,
    goal: Side,
    /// The text of the output's `zarr.json`.
    metadata: String,
    plan: Plan,
    /// The positions in the grid of the objects of the input that are stored, sorted.
    stored: Vec<u64>,
    of_input: Option<ShardFormat>,
    of_output: Option<ShardFormat>,
    threads: usize,
    pieces: Vec<BlockPiece>,
}

impl<'a> Prepared<'a> {
    fn new(settings: &Reshard, readable: Readable<'a>, before: &Before) -> Result<Self, Failure> {
        let Readable {
            input,
            output,
            document,
            side,
        } = readable;
        let (wanted, goal) = goal(settings, &document, &side, before)?;
        let metadata = metadata_text([input, output], &wanted)?;
        let plan = Plan::new(&side, &goal).map_err(|reason| settings.cannot_move(reason))?;
        let stored = listed(input, &side, &plan, settings)?;
        let (of_input, of_output) = (format(&side, settings)?, format(&goal, settings)?);
        let budget = Budget::new(settings.memory);
        let of_thread = plan.index_bytes([of_input.is_some(), of_output.is_some()]);
        budget.must_fit(
            format_args!(
                "have the indices of shards of {} and {} in memory",
                settings.input, settings.output
            ),
            of_thread,
        )?;
        let threads = budget.at_once(0, of_thread, settings.threads);
        Ok(Self {
            input,
            pieces: plan.pieces(&stored, threads),
            side,
            goal,
            metadata,
            plan,
            stored,
            of_input,
            of_output,
            threads,
        })
    }

    fn objects(&self) -> Objects<'_> {
        Objects {
            root: self.input,
            keys: &self.side.keys,
            grid: &self.plan.input.grid,
            format: self.of_input.as_ref(),
            stored: &self.stored,
        }
    }
}

fn run(settings: &Reshard, watcher: &dyn Watcher) -> Result<Resharded, Failure> {
    let calls_before = codec_calls();
    let readable = Readable::of(settings)?;
    shared_run::must_not_be_begun(&settings.output)?;
    let output = readable.output;
    let evidence = Evidence::of(&settings.input, &*open::store(&settings.input)?.store)?;
    let before = target::look(output, &evidence, None)?;
    let prepared = Prepared::new(settings, readable, &before)?;
    let Prepared {
        side,
        goal,
        metadata,
        plan,
        stored,
        pieces,
        ..
    } = &prepared;
    let cannot = |what: &str, error: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot {what} {}: {error}", output.display()))
    };
    let step = Step::begin(
        watcher,
        "resharding",
        Unit::Things("parts"),
        pieces.len() as u64,
    );
    if watcher.is_stopping() {
        return Err(Failure::interrupted("stopped before anything was written"));
    }
    let begun = target::begin(output, &before, &evidence, metadata)?;
    let start = Instant::now();
    let objects = prepared.objects();
    let target = Target {
        root: output,
        keys: &goal.keys,
        format: prepared.of_output.as_ref(),
        within: 0..u64::MAX,
        existing: if begun.resumes {
            Existing::Kept(begun.changes.as_ref())
        } else {
            Existing::Replaced
        },
    };
    let goes_on = format!(
        "run the same command again to go on: what is whole in {} is kept",
        settings.output
    );
    let copied = copy::copy(plan, pieces, &objects, &target, prepared.threads, watcher);
    let copied = copied.map_err(|error| {
        Failure::failed(error).with_remedy(format!("when the cause is gone, {goes_on}"))
    })?;
    drop(step);
    if watcher.is_stopping() {
        return Err(Failure::interrupted(format!(
            "{} {}s were written, and {} is not complete",
            copied.written,
            goal.noun(),
            output.display()
        ))
        .with_remedy(goes_on));
    }
    if begun.resumes {
        copy::delete_stale(plan, &objects, &target).map_err(Failure::failed)?;
    }
    let left = tidied(output).map_err(Failure::failed)?;
    target::publish(output, begun.claim, metadata).map_err(|error| cannot("complete", &error))?;
    let notes = left.note().into_iter();
    let notes = notes.chain(consolidated::renew_stale(&settings.output, &[]));
    Ok(Resharded {
        from: side.noun(),
        stored: stored.len() as u64,
        to: goal.noun(),
        written: copied.written,
        kept: copied.kept,
        subchunks: copied.subchunks,
        bytes: copied.bytes,
        time: start.elapsed(),
        codec_calls: codec_calls() - calls_before,
        notes: notes.collect(),
    })
}

/// Returns the number of times that this process has called codecs so far.
fn codec_calls() -> u64 {
    let metrics = zarrs_cuda::metrics();
    metrics.host_codings + metrics.shards_encoded + metrics.shards_decoded + metrics.batches_encoded
}

/// Returns the format of the shards of one side; `None` if its objects are chunks.
fn format(side: &Side, settings: &Reshard) -> Result<Option<ShardFormat>, Failure> {
    side.format().map_err(|error| {
        let reason = format!("the index of a shard is not understood: {error}");
        settings.cannot_move(reason)
    })
}

/// Returns the positions in the grid of the objects of IN that are stored, sorted.
fn listed(input: &Path, side: &Side, plan: &Plan, settings: &Reshard) -> Result<Vec<u64>, Failure> {
    let keys = Keys::new(&side.keys, &plan.input.grid);
    if !keys.are_known() {
        return Err(settings.cannot_move("its chunk keys do not spell out the indices of chunks"));
    }
    let (mut stored, mut framed) = (Vec::new(), Vec::new());
    let mut elsewhere = Elsewhere::new(&keys);
    let listed = stored::files_of_array(input, &keys, |key| {
        if let Some(indices) = keys.in_grid(key) {
            stored.push(number_of(&indices, &plan.input.grid));
        } else if side.index.is_some()
            && let Some(shard) = keys.framed(key)
        {
            framed.push(shard);
        } else if keys.parse(key).is_none() {
            elsewhere.look_at(key);
        }
    });
    listed.map_err(Failure::failed)?;
    stored.sort_unstable();
    elsewhere.settle(|indices| {
        let number = number_of(indices, &plan.input.grid);
        stored.binary_search(&number).is_ok()
    });
    let counted = format!("{} {}s are stored", stored.len(), side.noun());
    if let Some(failure) = elsewhere.told(&settings.input, false, &counted) {
        return Err(failure);
    }
    framed.sort();
    framed.dedup();
    if let [first, ..] = &framed[..] {
        return Err(Failure::failed(format!(
            "cannot reshard {}: subchunks wait in the frames of {} of its shards, the first of them {first:?}, and are newer than the shards",
            settings.input,
            framed.len()
        ))
        .with_remedy(format!(
            "pack them with `zarrs-cuda consolidate {}` first. `zarrs-cuda reencode` would not see them",
            settings.input
        )));
    }
    Ok(stored)
}
