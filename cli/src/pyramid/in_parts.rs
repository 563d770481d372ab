//! Makes a part of the levels, while other processes make the others.
//!
//! The levels are made in a directory beside the plan, which has a link to level 0, and move to their places when all
//! parts are made: no reader sees levels that lack slices.

use std::num::NonZeroU64;

use serde_json::{Map, Value, json};
use zarrs_cuda_convert::chunks::Chunks;
use zarrs_cuda_convert::{Apart, Failure, Part, PartApart, Place, RunApart, is_in_parts, status};

use super::image::Image;
use super::plan::Plan;
use super::{Args, Common};
use crate::reencode::shared;
use crate::reports::missing_text;

/// The answer to a process that joins a run.
pub(super) enum Joined {
    /// The part is to be made.
    Make(PartApart),
    /// Nothing is to be made: a sentence for people, and the word for JSON.
    Nothing(String, &'static str),
}

/// Completes a run all of whose parts are made: the last process may have been killed when it had moved some of the
/// levels, which are no levels of an image then.
pub(super) fn complete(args: &Args) -> Result<(), Failure> {
    if args.part.is_none() {
        return Ok(());
    }
    let path = args.image.directory()?;
    for group in [Some(path), path.parent()].into_iter().flatten() {
        if is_in_parts(group) {
            let status = status(&Place::Directory(group.to_path_buf()), true)?;
            for note in status.notes {
                tell!("{note}");
            }
        }
    }
    Ok(())
}

/// Joins the run, or plans it; `None` if the levels are made by one process.
pub(super) fn join(
    args: &Args,
    common: &Common,
    image: &Image,
    plan: &Plan,
    chunks: &Chunks,
) -> Result<Option<Joined>, Failure> {
    let Some(shared) = shared(args.prepare, args.part)? else {
        return Ok(None);
    };
    let parts = shared.parts();
    let mut levels = plan.json("");
    for level in levels["levels"].as_array_mut().into_iter().flatten() {
        // Another process may have completed the levels.
        level
            .as_object_mut()
            .map(|level| level.remove("slices_before"));
    }
    let axes: Vec<String> = args.axes.iter().map(ToString::to_string).collect();
    let axes = (!axes.is_empty()).then_some(axes);
    // The first difference is told, so the shapes, which follow from the others, come last.
    let arguments = [
        ("--levels", json!(plan.names().len())),
        ("--reduction", levels["reduction"].clone()),
        ("--axis", json!(axes)),
        ("--name", json!(args.name)),
        ("the shapes of levels", levels["levels"].clone()),
    ];
    let arguments = arguments.map(|(option, value)| (option.to_owned(), value));
    let run = RunApart {
        group: &image.directory,
        command: "pyramid",
        arguments: Map::from_iter(arguments),
        backend: format!("{:?}", common.options().backend()).to_lowercase(),
        input: &image.name,
        chunks: chunks.counts().stored,
        paths: plan.names().into_iter().skip(1).collect(),
    };
    let shown = &args.image;
    Ok(Some(match run.join(parts, shared.part())? {
        Apart::Begun(part) => Joined::Make(part),
        Apart::WasMade(missing) => Joined::Nothing(
            format!(
                "this part was made before\n{}",
                missing_text(parts, &missing)
            ),
            "was_made",
        ),
        Apart::Planned => Joined::Nothing(
            format!(
                "the levels of {shown} are planned in {parts} parts: make each with --part I/{parts}"
            ),
            "prepared",
        ),
        Apart::WasComplete(notes) => {
            let state = format!(
                "the levels of {shown} are complete already: all {parts} parts are made, and nothing was changed"
            );
            Joined::Nothing([&[state], &notes[..]].concat().join("\n"), "was_complete")
        }
    }))
}

/// Marks the part, which was made. Returns lines for people, and adds the state to `json`.
pub(super) fn mark(args: &Args, part: &PartApart, json: &mut Value) -> Result<String, Failure> {
    let (missing, notes) = part.mark()?;
    json["missing"] = json!(missing);
    json["state"] = json!(if missing.is_empty() {
        "completed"
    } else {
        "made"
    });
    let parts = args.part.map_or(NonZeroU64::MIN, Part::of);
    let state = if missing.is_empty() {
        format!("all {parts} parts are made: the levels can be read")
    } else {
        missing_text(parts, &missing)
    };
    Ok([&[state], &notes[..]].concat().join("\n"))
}
