//! The directory of OUT: its state before the run, and how the run makes it an array.

use std::io::{self, ErrorKind};
use std::path::Path;

use serde_json::{Map, Value, json};
use zarrs_cuda::storage::{Durable, Owner, Unfinished, replace};

use crate::claim::{Claim, Refused, busy, must_have_ended};
use crate::evidence::{Changes, Evidence};
use crate::failure::Failure;
use crate::open::{Place, read_file};
use crate::replace::sync_all_files;
use crate::shared_run;
use crate::stored;

/// The file that marks OUT as incomplete. It has the metadata that OUT will have, and the evidence of IN.
pub(super) const MARKER: &str = "zarr.json.reshard";
const METADATA: &str = "zarr.json";

/// The state of OUT before the run.
pub(super) enum Before {
    /// The directory does not exist, or is empty.
    Empty,
    /// An array without chunks. Its metadata describe OUT.
    Described(Map<String, Value>),
    /// The incomplete output of an interrupted run with the same input.
    Begun(Noted),
}

/// The notes of an interrupted run.
pub(super) struct Noted {
    /// The metadata that OUT will have.
    pub(super) metadata: Map<String, Value>,
    /// The evidence of the input when that run began.
    input: Evidence,
}

/// Returns the state of OUT. Changes nothing. A marker that `claim` has just made does not count.
pub(super) fn look(
    output: &Path,
    input: &Evidence,
    claim: Option<&Claim>,
) -> Result<Before, Failure> {
    let doing = format!("use {}", output.display());
    let read = |name: &str| match read_file(&output.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::to(&doing)(error)),
    };
    let json = |name: &str, bytes: &[u8]| {
        serde_json::from_slice::<Map<String, Value>>(bytes).map_err(|error| {
            Failure::to(&doing)(format!("its {name} is not a JSON object: {error}"))
        })
    };
    let is_new = claim.is_some_and(|claim| !claim.was_there());
    let marker = if is_new { None } else { read(MARKER)? };
    // The run was killed as soon as it had made the marker, so it has stored nothing.
    let is_bare = marker.as_ref().is_some_and(Vec::is_empty);
    if let Some(marker) = marker
        && !is_bare
    {
        let marker = json(MARKER, &marker)?;
        let shown = output.display();
        let owner = marker.get("process").and_then(Value::as_str);
        let owner: Option<Owner> = owner.and_then(|owner| owner.parse().ok());
        must_have_ended(owner.as_ref(), &shown)?;
        let noted = marker.get("evidence").and_then(Evidence::from_json);
        let noted = noted.ok_or_else(|| {
            let from = marker.get("input").and_then(Value::as_str).unwrap_or("?");
            Failure::failed(format!(
                "{shown} is the incomplete output of an older version, which did not note what its input \
                 {from} was"
            ))
            .with_remedy("name another OUT, or empty it yourself and start again")
        })?;
        if let Some(difference) = noted.difference(input) {
            return Err(Failure::failed(format!(
                "{shown} is the incomplete output of another input: {difference}"
            ))
            .with_remedy("go on with that input, or name another OUT"));
        }
        let metadata = marker.get("metadata").and_then(Value::as_str);
        let metadata = metadata.and_then(|text| serde_json::from_str(text).ok());
        let metadata =
            metadata.ok_or_else(|| Failure::to(&doing)(format!("its {MARKER} is damaged")))?;
        return Ok(Before::Begun(Noted {
            metadata,
            input: noted,
        }));
    }
    let described = read(METADATA)?
        .map(|bytes| json(METADATA, &bytes))
        .transpose()?;
    let mut others = 0_usize;
    if output.exists() {
        let found = stored::files(output, |key, _| {
            let is_marker =
                key == MARKER || Unfinished::of(&key).is_some_and(|file| file.name == MARKER);
            others += usize::from(key != METADATA && !is_marker);
        });
        found.map_err(Failure::to(&doing))?;
    }
    if others > 0 {
        let (what, remedy) = match described {
            Some(_) => (
                "chunks or other files",
                "if a run of reshard ended there, its output is complete. Otherwise name another OUT, or empty it yourself",
            ),
            None => ("files", "name another OUT, or empty it yourself"),
        };
        let message = format!("there are {others} {what} in {} already", output.display());
        return Err(Failure::failed(message).with_remedy(remedy));
    }
    Ok(described.map_or(Before::Empty, Before::Described))
}

/// Claims OUT, so that no other run writes there. Makes the directory if it does not exist.
fn claim(output: &Path) -> Result<Claim, Failure> {
    Claim::take(&output.join(MARKER)).map_err(|refused| match refused {
        Refused::Busy => busy(&output.display(), None),
        Refused::Failed(error) => {
            Failure::failed(format!("cannot begin {}: {error}", output.display()))
        }
    })
}

/// A run that has claimed OUT.
pub(super) struct Begun {
    pub(super) claim: Claim,
    /// Whether the run continues an interrupted one.
    pub(super) resumes: bool,
    /// The keys of the input that were written since the interrupted run began.
    pub(super) changes: Option<Changes>,
}

/// Claims OUT, whose state was `before`, and marks it as incomplete.
pub(super) fn begin(
    output: &Path,
    before: &Before,
    input: &Evidence,
    metadata: &str,
) -> Result<Begun, Failure> {
    let doing = format!("begin {}", output.display());
    let mut claim = claim(output)?;
    // A part that makes a plan meanwhile looks for the marker afterwards: one of both withdraws.
    shared_run::must_not_be_begun(&Place::Directory(output.to_path_buf()))?;
    // Another run may have written to OUT since `before`.
    let now = look(output, input, Some(&claim))?;
    if std::mem::discriminant(before) != std::mem::discriminant(&now) {
        return Err(
            Failure::to(&doing)("another run was there at the same time")
                .with_remedy("run the same command again"),
        );
    }
    let begun = match before {
        Before::Begun(noted) => Some(noted),
        Before::Empty | Before::Described(_) => None,
    };
    let noted = begun.map_or(input, |begun| &begun.input);
    let marker = json!({
        "evidence": noted.json(),
        "metadata": metadata,
        "process": Owner::this().to_string(),
    });
    let written = claim.write(format!("{marker:#}\n").as_bytes());
    written.map_err(Failure::to(&doing))?;
    Ok(Begun {
        claim,
        resumes: begun.is_some(),
        changes: noted.changes(input),
    })
}

/// Makes all written objects durable, and then makes OUT an array.
pub(super) fn publish(output: &Path, claim: Claim, metadata: &str) -> io::Result<()> {
    sync_all_files(output)?;
    replace(&output.join(METADATA), metadata.as_bytes(), Durable::Bytes)?;
    sync_all_files(output)?;
    claim.remove()
}
