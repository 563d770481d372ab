//! Re-encodes any Zarr v2 or v3 array as a sharded v3 array.
//!
//! The array is read and written shard by shard, so it may be larger than memory: as many shards at once as the
//! memory for buffers allows (`lanes.rs`). If two shards do not fit, shards are made in boxes of subchunks
//! (`parts.rs` chooses them, `assembly.rs` puts them together). Every value, the data type, the
//! fill value, the attributes and the dimension names are carried over bit for bit.
//!
//! An output never looks more complete than it is. A shard in a directory is written to a temporary file and
//! then renamed; an object of a store appears as a whole anyway. No reader opens the array without
//! `zarr.json`, which comes last: until then the file is called `zarr.json.incomplete`. A run with `resume`
//! continues an interrupted run.

mod arrays;
mod assembly;
mod copy;
mod covered;
mod directory;
mod dry_run;
mod found;
mod groups;
mod hierarchy;
mod in_parts;
mod lanes;
mod mend;
mod nodes;
mod objects;
mod ome;
mod readable;
mod report;
mod resume;
mod same_run;
mod shapes;
mod target;
mod verify;
mod xarray;

use std::num::NonZeroU64;

use zarrs::array::ArraySubset;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs_codec::ArrayToBytesCodecTraits;
use zarrs_cuda::Options;

use self::arrays::{Input, OutputArray, describe, metadata_json};
use self::copy::copy;
use self::covered::Covered;
use self::found::{Node, Start};
pub(crate) use self::in_parts::must_be_few;
pub use self::nodes::arrays_below;
pub use self::report::{
    ArrayReport, ArrayWork, Copied, DryRun, GroupReport, PartReport, PartState, PartWork, Report,
    Work, WrittenGroup,
};
use self::resume::Stored;
#[cfg(test)]
pub(crate) use self::same_run::arguments_of_group;
use self::same_run::{GoesOn, Run};
use self::shapes::Shapes;
use self::target::Target;
use self::verify::verify;
use crate::apart::{must_lie_apart, must_not_be_in_an_array};
use crate::budget::Budget;
use crate::chunks::{Chunks, Empty};
use crate::codec::SubchunkCodec;
use crate::consolidated;
use crate::evidence::Evidence;
use crate::extensions;
use crate::failure::Failure;
use crate::open::{self, Opened, Place};
use crate::pattern::Pattern;
use crate::shapes::{Wishes, volume};
use crate::shared_run::{self, Part};
use crate::watcher::{Event, Watcher};

/// Re-encodes any Zarr v2 or v3 array, or all arrays of a group, as sharded arrays of Zarr v3.
///
/// The elements, data types, fill values, attributes and names of dimensions are carried over bit for bit. An
/// output never looks more complete than it is: shards appear as a whole, and `zarr.json` comes last. Each error
/// of a run that has begun says how to go on.
///
/// A run registers the codecs of `zarrs_cuda` with zarrs while it lasts ([`zarrs_cuda::register`]), and codecs of
/// numcodecs for good.
///
/// ```
/// use std::sync::Arc;
/// use zarrs::array::{Array, ArrayBuilder, data_type};
/// use zarrs::filesystem::FilesystemStore;
/// use zarrs_cuda_convert::{Reencode, Report};
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let store = Arc::new(FilesystemStore::new(folder.join("in"))?);
/// let array = ArrayBuilder::new(vec![64, 64], vec![16, 16], data_type::uint16(), 0u16).build(store, "/")?;
/// array.store_metadata()?;
/// array.store_array_subset(&array.subset_all(), vec![7u16; 64 * 64])?;
///
/// let mut reencode = Reencode::new(folder.join("in"), folder.join("out"));
/// reencode.shapes.shard_size = 4 << 10;
/// reencode.shapes.subchunk_size = 512;
/// reencode.codec = "zstd:5".parse()?;
/// reencode.verify = true;
/// let Report::Array(report) = reencode.run(&())? else { unreachable!() };
/// assert!(report.copied.is_some_and(|copied| copied.verified && copied.chunks.stored == Some(16)));
///
/// let output = Array::open(Arc::new(FilesystemStore::new(folder.join("out"))?), "/")?;
/// assert_eq!(output.retrieve_array_subset::<Vec<u16>>(&output.subset_all())?, vec![7; 64 * 64]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(
    clippy::struct_excessive_bools,
    reason = "choices that do not exclude one another"
)]
pub struct Reencode {
    /// The Zarr array to read, of v2 or v3; if `recursive`, also a group.
    pub input: Place,
    /// The place of the new array or group.
    pub output: Place,
    /// The shapes of shards and subchunks. If `recursive`, they apply to arrays with the same number of
    /// dimensions.
    pub shapes: Wishes,
    /// The codec of subchunks.
    pub codec: SubchunkCodec,
    /// The end of a shard at which its index lies.
    pub index: ShardingIndexLocation,
    /// Whether `input` may be a group, each array of which is re-encoded.
    pub recursive: bool,
    /// If `recursive`: the arrays to re-encode, with the groups that they are in; all if it is empty.
    pub include: Vec<Pattern>,
    /// If `recursive`: whether the group gets consolidated metadata also if `input` has none.
    pub consolidate_metadata: bool,
    /// If `recursive`: whether arrays that cannot be re-encoded are left out, instead of failing the run. It excludes
    /// `overwrite`.
    pub keep_going: bool,
    /// Whether the watcher is told the stages of shards.
    pub explain: bool,
    /// Whether the run finally reads both arrays with zarrs' own codecs, and compares every bit.
    pub verify: bool,
    /// Whether an array without a stored chunk, in which every element is the fill value, is accepted.
    pub allow_empty: bool,
    /// Whether arrays at `output` are replaced.
    pub overwrite: bool,
    /// Whether the run continues an interrupted run of the same settings, and keeps the shards of `output`
    /// that are whole. If a run in parts has completed `output`, the run makes shards again that are missing or damaged.
    /// It excludes `overwrite`.
    pub resume: bool,
    /// Whether the run plans the parts of a run of several processes, or makes one of them. It excludes `resume` and
    /// `verify`; `overwrite` is for [`Shared::Prepare`] alone.
    pub shared: Option<Shared>,
    /// Whether the run only tells its work, and writes nothing. With `resume`, it reads the indices of the shards that
    /// are stored, and tells which ones the run would keep.
    pub dry_run: bool,
    /// The engines that encode and decode shards, and the memory for buffers.
    pub options: Options,
    /// The number of threads that decode and encode at once: one or more.
    pub threads: usize,
}

impl Reencode {
    /// Returns the settings to re-encode `input` as the new array `output`, with shards of about 128 MiB,
    /// subchunks of about 128 KiB and zstd.
    pub fn new(input: impl Into<Place>, output: impl Into<Place>) -> Self {
        Self {
            input: input.into(),
            output: output.into(),
            shapes: Wishes::default(),
            codec: SubchunkCodec::default(),
            index: ShardingIndexLocation::End,
            recursive: false,
            include: Vec::new(),
            consolidate_metadata: false,
            keep_going: false,
            explain: false,
            verify: false,
            allow_empty: false,
            overwrite: false,
            resume: false,
            shared: None,
            dry_run: false,
            options: Options::default(),
            threads: rayon::current_num_threads(),
        }
    }

    /// Re-encodes. Blocks until the output is complete, the run fails, or `watcher` stops it.
    ///
    /// # Errors
    /// - `input` cannot be read, is damaged, or has a feature that Zarr v3 or other readers do not have.
    /// - `output` exists already, lies in `input`, or is being written by another run.
    /// - The settings make no sense together, or more memory is needed than the options have.
    /// - A registration of [`zarrs_cuda::register`] is in force: of the application, or of another run.
    /// - The watcher stopped the run.
    ///
    /// With `recursive`, the failures of single arrays are in the report.
    pub fn run(&self, watcher: &dyn Watcher) -> Result<Report, Failure> {
        extensions::register();
        if self.overwrite && self.resume {
            return Err(Failure::usage(
                "an interrupted run is gone on with or replaced: --resume excludes --overwrite",
            ));
        }
        if self.overwrite && self.keep_going {
            return Err(Failure::usage(
                "a run with --overwrite deletes the arrays of the output first, also those that --keep-going would \
                 leave out: --keep-going excludes --overwrite",
            ));
        }
        if self.shapes.keep_chunks && self.shapes.subchunk.is_some() {
            return Err(Failure::usage(
                "subchunks have the shape of the chunks of the input, or one that is given: --keep-chunks excludes \
                 --subchunk",
            ));
        }
        if !self.recursive {
            let of_groups = [
                ("--include", !self.include.is_empty()),
                ("--shape-for", !self.shapes.for_paths.is_empty()),
                ("--consolidate-metadata", self.consolidate_metadata),
            ];
            if let Some((option, _)) = of_groups.iter().find(|(_, is_given)| *is_given) {
                return Err(Failure::usage(format!(
                    "{option} is for the arrays of a group: give --recursive, or leave it out"
                )));
            }
        }
        must_lie_apart(&self.input, &self.output)?;
        must_not_be_in_an_array(&self.output)?;
        shared_run::must_not_be_made_above(&self.output)?;
        if self.dry_run {
            return dry_run::run(self, watcher).map(Report::DryRun);
        }
        if let Some(shared) = self.shared {
            return in_parts::run(self, shared, watcher).map(Report::Part);
        }
        if self.resume
            && let Some(parts) = shared_run::completed(&self.output)?
        {
            return in_parts::mend(self, parts, watcher).map(Report::Part);
        }
        if self.recursive {
            return hierarchy::run(self, watcher).map(Report::Group);
        }
        let report = Job::new(self, watcher, "").plan(false)?.run()?;
        Ok(Report::Array(Box::new(report)))
    }

    fn mode(&self) -> Mode {
        Mode {
            resume: self.resume,
            overwrite: self.overwrite,
            replaces_parts: self.overwrite && matches!(self.shared, Some(Shared::Prepare { .. })),
        }
    }

    fn budget(&self) -> Budget {
        Budget::new(self.options.host_memory() as u64)
    }
}

/// The work of one process in a run of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// The process plans the parts, and makes none.
    Prepare {
        /// The number of parts.
        parts: NonZeroU64,
    },
    /// The process makes this part. It plans the run if no other process has.
    Part(Part),
}

impl Shared {
    /// Returns the number of parts.
    pub fn parts(self) -> NonZeroU64 {
        match self {
            Self::Prepare { parts } => parts,
            Self::Part(part) => part.of(),
        }
    }

    /// Returns the part that the process makes; `None` if it makes none.
    pub fn part(self) -> Option<Part> {
        match self {
            Self::Prepare { .. } => None,
            Self::Part(part) => Some(part),
        }
    }
}

/// The existing outputs to which a run may write.
#[derive(Clone, Copy)]
struct Mode {
    /// Whether the run continues the output of an interrupted run.
    resume: bool,
    /// Whether the run replaces an array.
    overwrite: bool,
    /// Whether the run replaces what a run in parts has stored, before that run is finished.
    replaces_parts: bool,
}

/// The job to re-encode one array.
struct Job<'a> {
    settings: &'a Reencode,
    watcher: &'a dyn Watcher,
    /// The path of the array in the group that is re-encoded; empty for the array that is re-encoded by itself.
    path: String,
    /// The names of the axes of the image of which the array is a level.
    axes: Option<Vec<String>>,
    input: Place,
    output: Place,
}

impl<'a> Job<'a> {
    /// Returns the job for the array at `path` in the input.
    fn new(settings: &'a Reencode, watcher: &'a dyn Watcher, path: &str) -> Self {
        Self {
            settings,
            watcher,
            path: path.to_owned(),
            axes: None,
            input: settings.input.join(path),
            output: settings.output.join(path),
        }
    }
}

/// Returns the failure of a run that the user stopped while it was planned.
fn not_begun() -> Failure {
    Failure::interrupted("stopped before anything was written")
}

/// The plan for one array, before anything is written.
struct Plan<'a> {
    job: Job<'a>,
    shapes: Shapes,
    input: Input,
    /// The chunks of the input that are stored. `counted` is their number in words.
    chunks: Chunks,
    counted: String,
    opened: Opened,
    target: Target,
    output: OutputArray,
    run: Run,
    mode: Mode,
    /// The interrupted run that this run continues; `None` if it continues none.
    goes_on: Option<GoesOn>,
    /// Whether an earlier run has completed this array.
    is_done: bool,
}

impl<'a> Job<'a> {
    /// Tells the watcher a line.
    fn say(&self, line: &str) {
        self.watcher.hear(Event::Line(line));
    }

    /// Opens the input, and plans the output. Writes nothing. `is_stale`: whether the input was written after
    /// an earlier run may have completed the output.
    fn plan(self, is_stale: bool) -> Result<Plan<'a>, Failure> {
        // All sharded arrays use our codec, the input too.
        let _registration = zarrs_cuda::register(self.settings.options.clone())?;
        let (opened, chunks) = self.listed()?;
        let empty = if self.settings.allow_empty {
            Empty::Allowed
        } else if self.settings.recursive {
            Empty::Told
        } else {
            Empty::Refused
        };
        let counted = chunks.told(&opened, empty)?;
        let input = opened.array.with_storage(opened.array.storage());
        self.must_be_decodable(&input)?;
        let shapes = Shapes::choose(&self, &input)?;
        let input = input.with_codec_options(shapes.parts.options());
        let target = Target::new(&self.output)?;
        let output = describe(
            &self,
            &target,
            &input,
            &shapes,
            opened.stores.has_no_fill_value(),
        )?;
        let output = output.with_codec_options(shapes.parts.options());
        let evidence = Evidence::of(&self.input, &*input.storage())?;
        let run = Run::of_array(self.settings, &shapes, evidence, metadata_json(&output)?);
        let mut mode = self.settings.mode();
        // An array of a group may be the output of another run in parts.
        mode.replaces_parts &= self.path.is_empty();
        let is_published =
            self.settings.recursive && self.settings.resume && target.is_published(&run)?;
        let is_done = is_published && !is_stale;
        if is_published && is_stale {
            mode = Mode {
                resume: false,
                overwrite: true,
                replaces_parts: false,
            };
        }
        let mut goes_on = None;
        if !is_done {
            // Parts replace nothing: `in_parts.rs` looks whether the whole output is free.
            if self.settings.shared.is_none() || mode.overwrite {
                let root = Target::new(&self.settings.output)?;
                let is_of_parts = mode.overwrite && root.has_array_in_parts(&self.path)?;
                if let Start::GoOn(found) = target.check(mode, &run, is_of_parts)? {
                    goes_on = Some(found);
                }
            }
            self.must_be_read(&chunks, &input, &shapes)?;
        }
        Ok(Plan {
            job: self,
            shapes,
            input,
            chunks,
            counted,
            opened,
            target,
            output,
            run,
            mode,
            goes_on,
            is_done,
        })
    }

    /// Checks that the codecs of the input support its data type. Some codecs refuse it only when they
    /// decode.
    fn must_be_decodable(&self, input: &Input) -> Result<(), Failure> {
        let Ok(chunk) = input.chunk_shape(&vec![0; input.dimensionality()]) else {
            return Ok(()); // there are no chunks
        };
        let codecs = input.codecs();
        let encoded = codecs.encoded_representation(&chunk, input.data_type(), input.fill_value());
        encoded.map(drop).map_err(|error| {
            Failure::failed(format!("cannot decode {}: {error}", self.input))
                .with_remedy(
                    "let zarr-python decode it: `python -m zarrs_cuda reencode --decode-with zarr-python IN OUT`",
                )
        })
    }

    /// Reads the first stored chunk, as far as it lies in one part of a shard of the output. Some codecs fail
    /// only then, and here the output is not begun yet.
    fn must_be_read(&self, chunks: &Chunks, input: &Input, shapes: &Shapes) -> Result<(), Failure> {
        let Some(first) = chunks.indices().and_then(|mut chunks| chunks.next()) else {
            return Ok(());
        };
        let region = input
            .chunk_subset_bounded(&first)
            .map_err(Failure::to(format_args!(
                "find the chunk {first:?} of {}",
                self.input
            )))?;
        let axes = region.to_ranges().into_iter();
        let axes = axes.zip(&shapes.shard).zip(&shapes.parts.shape);
        let ranges: Vec<_> = axes
            .map(|((chunk, shard), part)| {
                let shard = chunk.start / shard.get() * shard.get();
                let parts_before = (chunk.start - shard) / part;
                let end = shard.saturating_add((parts_before + 1).saturating_mul(*part));
                chunk.start..chunk.end.min(end)
            })
            .collect();
        let region = ArraySubset::new_with_ranges(&ranges);
        let read = copy::read(self, chunks, input, shapes, &region);
        read.map(drop)
            .map_err(|failure| failure.with_remedy("nothing was written. Is the input whole?"))
    }

    /// Opens the input, and lists its stored chunks.
    fn listed(&self) -> Result<(Opened, Chunks), Failure> {
        let mut input = open::array(&self.input)?;
        let chunks = Chunks::of(&mut input)?;
        Ok((input, chunks))
    }
}

impl Plan<'_> {
    fn run(&self) -> Result<ArrayReport, Failure> {
        let Self {
            job,
            shapes,
            input,
            output,
            ..
        } = self;
        let Job { settings, .. } = job;
        let report = |copied, made_again| ArrayReport {
            input: job.input.clone(),
            output: job.output.clone(),
            copied,
            made_again,
        };
        job.say(&format!("{} -> {}", job.input, job.output));
        if self.is_done {
            let made_again = self.mend()?;
            if let Some(note) = self.target.remove_temporaries(None)?.note() {
                job.say(&note);
            }
            return Ok(report(None, made_again));
        }
        job.say(&self.counted);
        job.say(&format!("{shapes}, {}", settings.codec));
        for note in shapes.notes(&settings.budget()) {
            job.say(&note);
        }
        let repaired_metadata = self.opened.stores.repairs();
        for repair in &repaired_metadata {
            job.say(&format!("note: {repair}"));
        }
        let explanation = if settings.explain {
            let explanation = zarrs_cuda::explain(output);
            match &explanation {
                Ok(explanation) => job.watcher.hear(Event::Explanation(explanation)),
                Err(error) => job.say(&format!("nothing to explain: {error}")),
            }
            explanation.ok()
        } else {
            None
        };

        let registration = zarrs_cuda::register(settings.options.clone())?;
        if job.watcher.is_stopping() {
            return Err(not_begun());
        }
        let begun = self.target.begin(self.mode, &self.run, Node::Array)?;
        if let Some(changes) = &begun.changes {
            job.say(&format!(
                "note: {changes} of {} changed since the run began: shards of them are written again",
                job.input
            ));
        }
        let stored = Stored::of(job, input, output, begun.changes.as_ref())?;
        let incomplete = |failure: Failure| {
            let when = failure.condition();
            failure.with_remedy(format!(
                "{} is incomplete, and no Zarr reader opens it: {when}run the same command with \
                 --resume to go on, or with --overwrite to start again",
                job.output
            ))
        };
        let covered = Covered::of(&self.opened, &self.chunks, input, output);
        let covered = covered.map_err(incomplete)?;
        let transfer = copy(job, shapes, &covered, &self.chunks, input, output, &stored)
            .map_err(incomplete)?;
        drop(registration);
        if settings.verify {
            verify(job, shapes, output).map_err(incomplete)?;
        }
        let left = self.target.remove_temporaries(None)?;
        begun.publish().map_err(incomplete)?;
        let mut notes: Vec<_> = left.note().into_iter().collect();
        if !settings.recursive {
            notes.extend(consolidated::renew_stale(&job.output, &[]));
        }
        let copied = Copied {
            shape: shapes.array.clone(),
            shard: shapes.shard.clone(),
            subchunk: shapes.subchunk.clone(),
            codec: settings.codec.clone(),
            chunks: self.chunks.counts(),
            explanation,
            verified: settings.verify,
            bytes_decoded: transfer.bytes_decoded,
            time: transfer.time,
            values_bytes: match input.data_type().fixed_size() {
                Some(size) => Some(volume(input.shape()).saturating_mul(size as u64)),
                None => (!settings.resume).then_some(transfer.bytes_decoded),
            },
            stored_bytes_before: copy::size(&job.input, &*input.storage())?,
            stored_bytes_now: copy::size(&job.output, &*output.storage())?,
            notes,
            repaired_metadata,
        };
        Ok(report(Some(copied), 0))
    }
}
