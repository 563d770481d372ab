//! The directory of OUT: what it has to be before, and how it becomes an array.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::copy::TEMPORARY;
use crate::failure::Failure;
use crate::inspect::stored;

/// The file that says that OUT is not complete: what it becomes, and out of what.
const MARKER: &str = "zarr.json.reshard";
/// The marker until it is whole.
const NEW_MARKER: &str = "zarr.json.reshard.tmp";
const METADATA: &str = "zarr.json";

/// What OUT was before.
pub(super) enum Before {
    /// Nothing, or an empty directory.
    Empty,
    /// An array without chunks, which says what OUT is to be.
    Described(Map<String, Value>),
    /// The output of a run of the same input that was interrupted, and its metadata.
    Begun(Map<String, Value>),
}

/// Looks at OUT. Nothing is changed.
pub(super) fn look(output: &Path, input: &Path) -> Result<Before, Failure> {
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot use {}: {error}", output.display()))
    };
    let json = |name: &str| match fs::read(output.join(name)) {
        Ok(bytes) => serde_json::from_slice::<Map<String, Value>>(&bytes)
            .map(Some)
            .map_err(|error| cannot(&format!("its {name} is not a JSON object: {error}"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot(&error)),
    };
    if let Some(marker) = json(MARKER)? {
        let from = marker.get("input").and_then(Value::as_str);
        if from != Some(&*input.to_string_lossy()) {
            return Err(Failure::failed(format!(
                "{} is the incomplete output of another input, {}",
                output.display(),
                from.unwrap_or("?")
            ))
            .with_remedy("go on with that input, or name another OUT"));
        }
        let metadata = marker.get("metadata").and_then(Value::as_str);
        let metadata = metadata.and_then(|text| serde_json::from_str(text).ok());
        let metadata = metadata.ok_or_else(|| cannot(&format!("its {MARKER} is damaged")))?;
        return Ok(Before::Begun(metadata));
    }
    let described = json(METADATA)?;
    let mut others = 0_usize;
    if output.exists() {
        let found = stored::files(output, |key, _| {
            others += usize::from(key != METADATA && key != NEW_MARKER);
        });
        found.map_err(|error| cannot(&error))?;
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

/// Marks OUT as incomplete.
pub(super) fn begin(output: &Path, input: &Path, metadata: &str) -> io::Result<()> {
    fs::create_dir_all(output)?;
    let marker = json!({ "input": input.to_string_lossy(), "metadata": metadata });
    let marker = format!("{marker:#}\n");
    fs::write(output.join(NEW_MARKER), marker)?;
    fs::rename(output.join(NEW_MARKER), output.join(MARKER))
}

/// Deletes what a killed run left of shards.
pub(super) fn tidy(output: &Path) -> Result<(), String> {
    let mut temporaries: Vec<PathBuf> = Vec::new();
    stored::files(output, |key, entry| {
        if key.ends_with(TEMPORARY) {
            temporaries.push(entry.path());
        }
    })?;
    for path in temporaries {
        fs::remove_file(&path)
            .map_err(|error| format!("cannot delete {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Makes everything that was written durable, and then OUT an array.
pub(super) fn publish(output: &Path, metadata: &str) -> io::Result<()> {
    sync_all(output)?;
    replace(&output.join(METADATA), metadata.as_bytes())?;
    sync_all(output)?;
    fs::remove_file(output.join(MARKER))
}

/// Makes everything in the file system of a directory durable.
#[cfg(target_os = "linux")]
fn sync_all(directory: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(directory)?)?)
}

/// Each file was synced when it was written.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::unnecessary_wraps, reason = "as elsewhere")]
fn sync_all(_directory: &Path) -> io::Result<()> {
    Ok(())
}

/// Replaces a file at once.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY);
    let temporary = PathBuf::from(temporary);
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

/// The path without `..` and symbolic links, whether it exists or not.
pub(super) fn canonical(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(path), _, _) => path,
        (Err(_), Some(parent), Some(name)) => canonical(parent).join(name),
        _ => path,
    }
}
