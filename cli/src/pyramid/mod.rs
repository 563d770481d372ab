//! `zarrs-cuda pyramid`: makes the smaller levels of an image from level 0.
//!
//! | file | what it does |
//! |---|---|
//! | `image.rs` | finds the array of level 0, and reads the metadata of its image |
//! | `axes.rs` | the axes, from arguments, metadata and dimension names |
//! | `plan.rs` | describes the levels before they are made, for people and as JSON |
//! | `make.rs` | makes the levels, or a part of them |
//! | `in_parts.rs` | joins the run of several processes that make a part each |

mod axes;
mod image;
mod in_parts;
mod make;
mod plan;

use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use serde_json::json;
use zarrs::array::{Array, ArrayShardedExt};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::writer::{MultiscaleBuilder, MultiscaleWriter, Reduction, WriterError};
use zarrs_cuda_convert::apart;
use zarrs_cuda_convert::budget::Budget;
use zarrs_cuda_convert::chunks::{Chunks, Empty};
use zarrs_cuda_convert::consolidated;
use zarrs_cuda_convert::open::{self, Files, Kind, Place, Store};
use zarrs_cuda_convert::shapes::edges;
use zarrs_cuda_convert::words::{bytes_text, counted};
use zarrs_cuda_convert::{Failure, Part, must_not_be_in_parts};

use self::axes::AxisArg;
use self::image::{Described, Image};
use self::in_parts::Joined;
use self::plan::Plan;
use crate::arguments::Count;
use crate::common::Common;
use crate::consolidate;
use crate::outcome::Outcome;
use crate::stop;

const EXAMPLES: &str = "\
Examples:
  zarrs-cuda pyramid image --axis y,unit=micrometer,scale=0.325 --axis x,unit=micrometer,scale=0.325
  zarrs-cuda pyramid labels/0 --reduction mode --levels 4
  zarrs-cuda pyramid image --axis z,factor=1
  for i in 1 2 3 4; do zarrs-cuda pyramid image --part $i/4 & done; wait

What is whole of the levels is kept: killed, and run again, it goes on there. A part is made again.
Level 0 is only read. If level 0 was changed, give --start.";

/// Make the smaller levels of an image whose level 0 is there
///
/// Each level is made from the level above, and is an array beside it. The group of the arrays is
/// described by OME-Zarr 0.5, so that viewers find them.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The directory of level 0, or of the group that has it: as array 0, as its only array, or as its
    /// OME-Zarr metadata say
    #[arg(value_name = "ARRAY|GROUP")]
    image: Place,
    /// How many levels there are, with level 0 [default: as the image says, or until a slice fits one
    /// subchunk]
    #[arg(long, value_name = "N")]
    levels: Option<Count>,
    /// How elements become one of the level below [default: as the image says, or mode for labels, or
    /// mean]
    #[arg(long, value_enum, value_name = "HOW")]
    reduction: Option<How>,
    /// An axis: NAME and, with commas between, any of type=, unit=, scale=, translation=, factor=.
    /// Factor 1 or 2 is how many elements become one: 2 for axes of space unless it is said. What is
    /// not said is as in the image's metadata, or usual for an axis of this name
    #[arg(long = "axis", value_name = "NAME,KEY=VALUE…")]
    axes: Vec<AxisArg>,
    /// The name of the image, for its metadata [default: the name that it has]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Make the levels again from this slice of level 0 on: slice 0 is all
    #[arg(long, value_name = "SLICE", conflicts_with = "part")]
    start: Option<u64>,
    /// Only the part I of N, as 3/16, while other processes make the others. The last one makes the levels
    /// readable. `zarrs-cuda status GROUP` lists the parts that are missing
    #[arg(long, value_name = "I/N")]
    part: Option<Part>,
    /// Plan N parts, and make none: for file systems without hard links
    #[arg(long, value_name = "N", conflicts_with_all = ["part", "start"])]
    prepare: Option<u64>,
    /// Make the levels also if no shard of level 0 is stored: every element is the fill value
    #[arg(long)]
    allow_empty: bool,
    /// Only say which levels there would be, and how much memory that takes
    #[arg(long)]
    dry_run: bool,
}

/// How elements become one of the level below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    /// The mean; of integers, rounded half to even
    Mean,
    /// The smallest
    Minimum,
    /// The largest
    Maximum,
    /// The middle one, or the mean of both in the middle
    Median,
    /// The most frequent, for labels
    Mode,
    /// The first
    Decimate,
}

impl From<How> for Reduction {
    fn from(how: How) -> Self {
        match how {
            How::Mean => Self::Mean,
            How::Minimum => Self::Minimum,
            How::Maximum => Self::Maximum,
            How::Median => Self::Median,
            How::Mode => Self::Mode,
            How::Decimate => Self::Decimate,
        }
    }
}

type Builder = MultiscaleBuilder<Store>;

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    in_parts::complete(args)?;
    let image = Image::find(args.image.directory()?)?;
    let (files, chunks, told) = level_0(args, common, &image)?;
    let open = || top_of(&image.directory, &image, &chunks);
    let reading = open().map_or(0, |(array, _)| plan::reading(&array));
    let budget = common.budget();
    budget.must_fit(
        format_args!("read blocks of whole slices of {}", args.image),
        reading.saturating_add(1),
    )?;
    // From here on, all sharded arrays use the codec of this library.
    let _registration = zarrs_cuda::register(common.options_beside(reading))?;
    let (array, _) = open()?;
    let axes = axes::chosen(
        array.dimensionality(),
        &args.axes,
        &image.described.axes,
        array.dimension_names().as_deref(),
    )?;
    let reduction = reduction(args, &image.described);
    check_what_is_there(args, &image, &axes, reduction)?;
    let builder = builder(args, &image, &array, &files, &axes, reduction);
    let failed = |args: &Args, error: &WriterError| {
        does_not_fit(args, error, &budget, reading).unwrap_or_else(|| failed(args, error))
    };
    for name in &image.described.paths {
        check_directory(&image, name)?;
    }
    let levels = builder.levels().map_err(|error| failed(args, &error))?;
    let plan = Plan::of(&levels, &axes, reduction, &array);
    check_names(args, &image, &plan)?;
    check_levels(&image, &plan)?;
    let mut json = plan.json(&args.image.to_string());
    json["chunks"] = json!(chunks.counts());
    common.say(told);
    if args.dry_run {
        let memory = plan::memory(&levels, &files).map_err(|error| failed(args, &error))?;
        let text = format!("{plan}\n{}", plan::memory_text(memory));
        json["dry_run"] = true.into();
        json["memory"] = memory.into();
        return Ok(Outcome::new(text, json));
    }
    common.say(&plan);
    let _listening = stop::wait_for_me();
    let part = match in_parts::join(args, common, &image, &plan, &chunks)? {
        None => {
            must_not_be_in_parts(&image.directory)?;
            None
        }
        Some(Joined::Make(part)) => Some(part),
        Some(Joined::Nothing(text, state)) => {
            json["dry_run"] = false.into();
            json["state"] = state.into();
            return Ok(Outcome::new(text, json));
        }
    };
    let builder = match &part {
        None => builder,
        Some(part) => {
            let (array, files) = top_of(part.directory(), &image, &chunks)?;
            self::builder(args, &image, &array, &files, &axes, reduction)
        }
    };
    let made = make::make(args, builder, &plan).map_err(|error| match error {
        WriterError::Cancelled => {
            Failure::interrupted(format!("the levels of {} are not complete", args.image))
                .with_remedy(goes_on(args))
        }
        error => failed(args, &error),
    });
    let marked = match (&part, &made) {
        (Some(part), Ok(_)) => Some(in_parts::mark(args, part, &mut json)?),
        _ => None,
    };
    // The levels of parts are not where readers look, before all parts are made.
    let note = part
        .as_ref()
        .map_or_else(|| renewed(&image, &plan), |_| None);
    let made = made.map_err(|failure| match &note {
        Some(note) => failure.with_note(note),
        None => failure,
    })?;
    json["dry_run"] = false.into();
    json["part"] = json!(args.part.map(|part| part.to_string()));
    json["made"] = made.json();
    let mut text = made.text();
    if let Some(marked) = marked {
        text += &format!("\n{marked}");
    }
    let mut outcome = Outcome::new(text, json);
    if image.described.is_old {
        outcome = outcome.with_note(&format!(
            "note: {} keeps its `multiscales` of OME-Zarr 0.4 beside `ome` of 0.5: the old ones know nothing of \
             these levels",
            image.directory.display()
        ));
    }
    Ok(match &note {
        Some(note) => outcome.with_note(note),
        None => outcome,
    })
}

/// Checks that each level is an array, or that nothing is in its place.
fn check_levels(image: &Image, plan: &Plan) -> Result<(), Failure> {
    for name in plan.names() {
        let level = image.directory.join(&name);
        check_directory(image, &name)?;
        // A killed run may leave temporaries of a level's metadata, before it has stored any shard.
        let is_ours = |name: &str| name.starts_with("zarr.json.");
        if Kind::in_directory(&level)? == Kind::Nothing
            && let Err(foreign) = open::must_be_free(&level, "a level", is_ours)
            // The process of another part may have made the level in between.
            && Kind::in_directory(&level)? == Kind::Nothing
        {
            return Err(foreign);
        }
    }
    Ok(())
}

/// Opens level 0 of the image that is made in `directory`. Returns its store, too.
fn top_of(
    directory: &Path,
    image: &Image,
    chunks: &Chunks,
) -> Result<(Array<Store>, Arc<FilesystemStore>), Failure> {
    let opening = format!("open {}", directory.join(&image.name).display());
    let files = FilesystemStore::new(directory).map_err(Failure::to(&opening))?;
    let files = Arc::new(files);
    let store = chunks.watched(Arc::new(Files::new(files.clone())), &image.name);
    let array = Array::open(store, &format!("/{}", image.name));
    Ok((array.map_err(Failure::to(&opening))?, files))
}

/// Checks that the directory of a level below level 0 is no link, and does not lead to level 0.
fn check_directory(image: &Image, name: &str) -> Result<(), Failure> {
    if name == image.name {
        return Ok(());
    }
    let [top, level] = [&*image.name, name].map(|name| image.directory.join(name));
    apart::must_be_no_link(&level)?;
    apart::must_lie_apart(&Place::Directory(top), &Place::Directory(level))
}

/// Renews the consolidated metadata of the image's group and of groups above it. Returns a note if that failed.
fn renewed(image: &Image, plan: &Plan) -> Option<String> {
    let names = plan.names();
    let below: Vec<_> = names.iter().map(String::as_str).collect();
    consolidated::renew_stale(&Place::Directory(image.directory.clone()), &below)
}

/// Checks that level 0 can be read as shards. Returns the store of the image, the stored chunks of level 0,
/// and a sentence for people about them.
fn level_0(
    args: &Args,
    common: &Common,
    image: &Image,
) -> Result<(Arc<FilesystemStore>, Chunks, String), Failure> {
    let path = image.directory.join(&image.name);
    let _registration = zarrs_cuda::register(common.options())?;
    let mut opened = open::array(&Place::Directory(path.clone()))?;
    opened.must_be_plain("make levels of")?;
    let group = Place::Directory(image.directory.clone());
    let stores = open::store(&group)?;
    Kind::of(&*stores.store, &group)?;
    open::must_be_plain(&group, "describe the levels in", &stores.not_json())?;
    open::shards(&opened)?; // its error says how an array becomes sharded
    let pending = consolidate::pending(&opened)?;
    if pending > 0 {
        return Err(Failure::failed(format!(
            "cannot make levels of {}: subchunks of {} wait in frames, and are newer than the shards",
            path.display(),
            counted(pending, "shard")
        ))
        .with_remedy(format!(
            "pack them with `zarrs-cuda consolidate {}` first",
            path.display()
        )));
    }
    let chunks = Chunks::of(&mut opened)?;
    let empty = if args.allow_empty {
        Empty::Allowed
    } else {
        Empty::Refused
    };
    let told = chunks.told(&opened, empty)?;
    let store = FilesystemStore::new(&image.directory);
    let store = store.map_err(Failure::to(format_args!("write to {}", args.image)))?;
    Ok((Arc::new(store), chunks, told))
}

/// Returns the reduction of the arguments, or the reduction that made the existing levels.
fn reduction(args: &Args, described: &Described) -> Reduction {
    let method = described.method.as_deref();
    let made_by = || {
        let mut all = Reduction::ALL.into_iter();
        all.find(|reduction| Some(reduction.name()) == method)
    };
    let asked = args.reduction.map(Reduction::from);
    let usual = if described.are_labels {
        Reduction::Mode
    } else {
        Reduction::Mean
    };
    asked.or_else(made_by).unwrap_or(usual)
}

/// The name of this library as the program that made levels, in the metadata of an image.
const MAKER: &str = "zarrs_cuda::writer::MultiscaleWriter";

/// Checks that the existing levels can be continued: they were made by this library, with the same settings.
fn check_what_is_there(
    args: &Args,
    image: &Image,
    axes: &[AxisArg],
    reduction: Reduction,
) -> Result<(), Failure> {
    let described = &image.described;
    let mut are_there = false;
    for path in described.paths.iter().skip(1) {
        are_there |= open::is_array(&image.directory.join(path))?;
    }
    if args.start == Some(0) || !are_there {
        return Ok(());
    }
    let refused = |message: String| {
        Err(Failure::failed(format!(
            "{}: the levels that are there were made {message}",
            args.image
        ))
        .with_remedy(if args.part.is_some() {
            "erase them, or leave out what differs"
        } else {
            "make all of them again with --start 0, or leave out what differs"
        }))
    };
    if described.maker.as_deref() != Some(MAKER) {
        // Otherwise, old and new slices of a level would differ.
        return refused(match &described.maker {
            Some(maker) => format!("by another program, {maker}"),
            None => "by another program".to_string(),
        });
    }
    if let Some(method) = &described.method
        && method != reduction.name()
    {
        return refused(format!("by {method}, not by {}", reduction.name()));
    }
    for (described, axis) in described.axes.iter().zip(axes) {
        if let Some(factor) = described.factor
            && factor != axis.factor()
        {
            let asked = axis.factor();
            let name = &axis.name;
            return refused(format!("by factor {factor} along {name}, not by {asked}"));
        }
    }
    Ok(())
}

/// Checks that the planned levels have the names that the metadata of the image give them.
fn check_names(args: &Args, image: &Image, plan: &Plan) -> Result<(), Failure> {
    let described = &image.described.paths;
    let names = plan.names();
    let differs = described
        .iter()
        .zip(&names)
        .find(|(path, name)| path != name);
    match differs {
        None => Ok(()),
        Some((path, name)) => Err(Failure::failed(format!(
            "the metadata of {} name a level {path}, and its array would be {name}: levels count on from the name of level 0",
            args.image
        ))
        .with_remedy("rename the arrays, or take the other levels out of the metadata of the image")),
    }
}

fn builder(
    args: &Args,
    image: &Image,
    array: &Array<Store>,
    files: &Arc<FilesystemStore>,
    axes: &[AxisArg],
    reduction: Reduction,
) -> Builder {
    let described = &image.described;
    let mut builder = MultiscaleWriter::builder(array)
        .with_atomic_rename(files.clone())
        .with_axes(axes.iter().map(AxisArg::axis))
        .with_reduction(reduction);
    let of_image = Some(described.paths.len()).filter(|levels| *levels > 1);
    let levels = args.levels.map(Count::get).or(of_image);
    if let Some(levels) = levels {
        builder = builder.with_levels(levels);
    }
    // Existing levels keep their shapes.
    for (level, path) in described.paths.iter().enumerate().skip(1) {
        if levels.is_none_or(|levels| level < levels)
            && let Ok(there) = Array::open(array.storage(), &format!("/{path}"))
            && there.dimensionality() == array.dimensionality()
            && let Some(subchunk) = there.subchunk_shape()
            && let Ok(shard) = there.chunk_shape(&vec![0; there.dimensionality()])
        {
            builder = builder.with_level_shapes(level, edges(&subchunk), edges(&shard));
        }
    }
    if let Some(name) = args.name.as_ref().or(described.name.as_ref()) {
        builder = builder.with_name(name);
    }
    if let Some(omero) = &described.omero {
        builder = builder.with_omero(omero.clone());
    }
    if let Some(start) = args.start {
        builder = builder.with_start(start);
    }
    builder
}

/// Returns the error that the buffers of the levels do not fit the budget. Reading level 0 takes `reading`
/// bytes of it.
fn does_not_fit(
    args: &Args,
    error: &WriterError,
    budget: &Budget,
    reading: u64,
) -> Option<Failure> {
    let mut cause = error;
    while let WriterError::Level { source, .. } = cause {
        cause = source;
    }
    let WriterError::Memory { memory, needed, .. } = cause else {
        return None;
    };
    let needed = *needed as u64;
    if *memory == "device memory" {
        return None; // a larger --memory does not help
    }
    let doing = format!(
        "make levels of {} (blocks of level 0 take {}, and the smallest buffers of all levels {})",
        args.image,
        bytes_text(reading),
        bytes_text(needed)
    );
    let or = ", or make level 0 of subchunks that are shorter along the first axis";
    Some(budget.refusal(doing, needed.saturating_add(reading), or))
}

fn failed(args: &Args, error: &WriterError) -> Failure {
    let failure = Failure::failed(format!("cannot make levels of {}: {error}", args.image));
    let mut cause = error;
    while let WriterError::Level { source, .. } = cause {
        cause = source;
    }
    match cause {
        WriterError::Pyramid { .. } => failure,
        _ => failure.with_remedy(format!("when the cause is gone, {}", goes_on(args))),
    }
}

/// Returns the words that tell how to complete an incomplete pyramid.
fn goes_on(args: &Args) -> String {
    let without = if args.start.is_some() {
        ", without --start"
    } else {
        ""
    };
    let kept = if args.part.is_some() {
        "the part is made again, and other parts are kept"
    } else {
        "what is whole of the levels is kept"
    };
    format!("run the same command again{without}: {kept}")
}
