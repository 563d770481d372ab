//! Identifies the run that began an incomplete output, so that a different run does not continue it.
//!
//! The marker of the output is the metadata that the output will have. One more member in its first line
//! describes the run.

use std::fmt;

use serde_json::{Map, Value, json};
use zarrs_cuda::storage::Owner;

use super::Reencode;
use super::shapes::Shapes;
use crate::evidence::{Changes, Evidence};
use crate::failure::Failure;
use crate::words::shape_text;

/// The name of the member that describes the run.
const MEMBER: &str = "zarrs_cuda_run";

/// The input and the arguments of a run, and the metadata that its output will have.
pub(super) struct Run {
    input: Evidence,
    /// The arguments that affect the output, by the names of their options.
    arguments: Map<String, Value>,
    metadata: Vec<u8>,
}

impl Run {
    /// Returns a run that re-encodes one array.
    pub(super) fn of_array(
        settings: &Reencode,
        shapes: &Shapes,
        input: Evidence,
        metadata: Vec<u8>,
    ) -> Self {
        let shapes = [&shapes.shard, &shapes.subchunk].map(|shape| shape_text(shape).into());
        Self {
            input,
            arguments: arguments(settings, shapes),
            metadata,
        }
    }

    /// Returns a run that re-encodes all arrays of a group.
    pub(super) fn of_group(settings: &Reencode, input: Evidence, metadata: Vec<u8>) -> Self {
        Self {
            input,
            arguments: arguments_of_group(settings),
            metadata,
        }
    }

    /// Returns the metadata that the output will have.
    pub(super) fn metadata(&self) -> &[u8] {
        &self.metadata
    }

    /// Returns the marker of this run, with this process as its owner.
    pub(super) fn marker(&self) -> Vec<u8> {
        self.marker_with(&self.input)
    }

    fn marker_with(&self, input: &Evidence) -> Vec<u8> {
        let run = json!({
            "must_understand": false,
            "input": input.json(),
            "arguments": self.arguments,
            "process": Owner::this().to_string(),
        });
        let rest = self.metadata.strip_prefix(b"{").unwrap_or(&self.metadata);
        let mut marker = format!("{{\"{MEMBER}\": {run},\n").into_bytes();
        marker.extend_from_slice(rest);
        marker
    }

    /// Checks that this run may continue the output that has `marker`.
    pub(super) fn goes_on(
        &self,
        marker: &[u8],
        shown: &dyn fmt::Display,
    ) -> Result<GoesOn, Failure> {
        let again = "resume with that one, or start again with --overwrite";
        let Some(Noted {
            input,
            arguments,
            metadata,
            ..
        }) = Noted::of(marker)
        else {
            return Err(Failure::failed(format!(
                "{shown} is incomplete, and does not say which input and arguments it is of: an older \
                 version began it, or a run that was stopped while it deleted what was there"
            ))
            .with_remedy("start again with --overwrite"));
        };
        if let Some(difference) = input.difference(&self.input) {
            return Err(Failure::failed(format!(
                "{shown} is the incomplete output of another input: {difference}"
            ))
            .with_remedy(again));
        }
        let said = |value: Option<&Value>| match value {
            None | Some(Value::Null) => "not given".to_string(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let mut differences = Vec::new();
        for (option, now) in &self.arguments {
            let was = arguments.get(option);
            if was != Some(now) {
                differences.push(format!(
                    "{option} was {}, and is {}",
                    said(was),
                    said(Some(now))
                ));
            }
        }
        if differences.is_empty() && metadata != self.metadata {
            differences.push("its metadata would be others: another version began it".to_string());
        }
        if !differences.is_empty() {
            return Err(Failure::failed(format!(
                "{shown} is the incomplete output of another command: {}",
                differences.join("; ")
            ))
            .with_remedy(again));
        }
        Ok(GoesOn {
            // Some shards may be from chunks that were written later: so the next run, too, compares with the
            // state of the first.
            marker: self.marker_with(&input),
            changes: input.changes(&self.input),
        })
    }
}

/// The continuation of an interrupted run by another run.
pub(super) struct GoesOn {
    /// The marker of the output from now on.
    pub(super) marker: Vec<u8>,
    /// The keys of the input that were written since the first run began.
    pub(super) changes: Option<Changes>,
}

/// Returns the arguments of a run that re-encodes all arrays of a group, as far as they affect the output, by the names
/// of their options.
pub(crate) fn arguments_of_group(settings: &Reencode) -> Map<String, Value> {
    let shapes = &settings.shapes;
    let asked = [&shapes.shard, &shapes.subchunk]
        .map(|shape| json!(shape.as_ref().map(|shape| shape_text(shape))));
    let mut arguments = arguments(settings, asked);
    let include: Vec<_> = settings.include.iter().map(ToString::to_string).collect();
    let for_paths = shapes.for_paths.iter().map(|one| {
        let subchunk = one.subchunk.as_ref().map(|shape| shape_text(shape));
        format!(
            "{}={}/{}",
            one.pattern,
            shape_text(&one.shard),
            subchunk.unwrap_or_default()
        )
    });
    for (option, value) in [
        ("--shard-size", json!(shapes.shard_size)),
        ("--subchunk-size", json!(shapes.subchunk_size)),
        ("--keep-chunks", json!(shapes.keep_chunks)),
        ("--shape-for", json!(for_paths.collect::<Vec<_>>())),
        ("--include", json!(include)),
        (
            "--consolidate-metadata",
            json!(settings.consolidate_metadata),
        ),
    ] {
        arguments.insert(option.to_string(), value);
    }
    arguments
}

fn arguments(settings: &Reencode, shapes: [Value; 2]) -> Map<String, Value> {
    let [shard, subchunk] = shapes;
    let arguments = [
        ("--shard", shard),
        ("--subchunk", subchunk),
        ("--codec", settings.codec.to_string().into()),
        (
            "--index",
            format!("{:?}", settings.index).to_lowercase().into(),
        ),
    ];
    let arguments = arguments.map(|(option, value)| (option.to_string(), value));
    arguments.into_iter().collect()
}

/// Returns whether `marker` describes its run.
pub(super) fn is_noted(marker: &[u8]) -> bool {
    Noted::of(marker).is_some()
}

/// Returns the process that wrote `marker`; `None` if the marker does not say it.
pub(super) fn owner_of(marker: &[u8]) -> Option<Owner> {
    Noted::of(marker)?.process
}

/// The description of a run in a marker.
struct Noted {
    input: Evidence,
    arguments: Map<String, Value>,
    process: Option<Owner>,
    metadata: Vec<u8>,
}

impl Noted {
    fn of(marker: &[u8]) -> Option<Self> {
        let end = marker.iter().position(|&byte| byte == b'\n')?;
        let (first, rest) = marker.split_at(end);
        let begin = format!("{{\"{MEMBER}\": ");
        let run = first.strip_prefix(begin.as_bytes())?.strip_suffix(b",")?;
        let run: Value = serde_json::from_slice(run).ok()?;
        let mut metadata = b"{".to_vec();
        metadata.extend_from_slice(rest.strip_prefix(b"\n")?);
        Some(Self {
            input: Evidence::from_json(&run["input"])?,
            arguments: run["arguments"].as_object()?.clone(),
            process: run["process"].as_str().and_then(|owner| owner.parse().ok()),
            metadata,
        })
    }
}
