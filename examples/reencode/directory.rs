//! The output directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use zarrs::storage::{StoreKey, WritableStorageTraits};

use crate::arrays::{Output, is_array, metadata_json};
use crate::job::Job;

/// The name of `zarr.json` until the array is complete.
const INCOMPLETE: &str = "zarr.json.incomplete";
/// The suffix of a value's file until it is renamed.
const TEMPORARY: &str = ".tmp";

/// Checks that the output directory only has files of this run.
pub(crate) fn prepare(job: &Job, output: &Output) -> Result<(), String> {
    let path = &job.output;
    let shown = path.display();
    let metadata = metadata_json(output)?;
    let (from, to) = (canonical(&job.input), canonical(path));
    if from.starts_with(&to) || to.starts_with(&from) {
        return Err(format!(
            "IN and OUT must lie apart: {} and {}",
            from.display(),
            to.display()
        ));
    }
    let marker = path.join(INCOMPLETE);
    let cannot = |error: io::Error| format!("cannot make {shown} ready: {error}");
    fs::create_dir_all(path).map_err(cannot)?;
    let is_empty = fs::read_dir(path).map_err(cannot)?.next().is_none();
    let is_incomplete = marker.is_file();

    if is_incomplete && job.resume {
        if fs::read(&marker).map_err(cannot)? != metadata {
            return Err(format!(
                "{shown} is the incomplete output of another command: resume with that one, or \
                 start again with --overwrite"
            ));
        }
        return remove_temporaries(path);
    }
    if is_incomplete && !job.overwrite {
        return Err(format!(
            "{shown} holds the output of an interrupted run: go on with --resume, or start again \
             with --overwrite"
        ));
    }
    if !is_empty && !is_incomplete && !is_array(path) {
        return Err(format!(
            "{shown} is not empty, and not a Zarr array: name another OUT, or empty it yourself"
        ));
    }
    if !is_empty && !job.overwrite {
        return Err(format!(
            "{shown} holds a Zarr array: name another OUT, or replace it with --overwrite"
        ));
    }
    delete_array(path)?;
    StoreKey::new(INCOMPLETE)
        .map_err(|error| error.to_string())
        .and_then(|key| {
            let stored = output.storage().set(&key, metadata.into());
            stored.map_err(|error| error.to_string())
        })
        .map_err(|error| format!("cannot make {shown} ready: {error}"))
}

/// The path without `..` and symbolic links, whether it exists or not.
fn canonical(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(path), _, _) => path,
        (Err(_), Some(parent), Some(name)) => canonical(parent).join(name),
        _ => path,
    }
}

/// The files in `path` that belong to an array, and the first path that does not.
fn files(path: &Path) -> io::Result<(Vec<PathBuf>, Option<PathBuf>)> {
    const METADATA: [&str; 5] = ["zarr.json", ".zarray", ".zattrs", ".zmetadata", INCOMPLETE];
    let (mut files, mut foreign) = (Vec::new(), None);
    let mut directories = vec![path.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let file_type = entry.file_type()?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or("?");
            let name = name.strip_suffix(TEMPORARY).unwrap_or(name);
            let is_metadata = directory == path && METADATA.contains(&name);
            if file_type.is_dir() && is_part_of_chunk_key(name) {
                directories.push(entry.path());
            } else if file_type.is_file() && (is_metadata || is_part_of_chunk_key(name)) {
                files.push(entry.path());
            } else {
                foreign = Some(entry.path());
            }
        }
    }
    Ok((files, foreign))
}

/// For example `c`, `0`, `0.1.2`, `c.0.1`.
fn is_part_of_chunk_key(name: &str) -> bool {
    let digits = name.strip_prefix('c').unwrap_or(name);
    !name.is_empty() && digits.bytes().all(|b| b == b'.' || b.is_ascii_digit())
}

/// Deletes the array in `path`. Deletes nothing if there are other files.
fn delete_array(path: &Path) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot empty {}: {error}", path.display());
    let (mut files, foreign) = files(path).map_err(cannot)?;
    if let Some(foreign) = foreign {
        return Err(format!(
            "{} is not a part of the array in {}: nothing is deleted while it is there",
            foreign.display(),
            path.display()
        ));
    }
    // A half-deleted array must not look complete. It must be recognised as an incomplete output.
    let marker = path.join(INCOMPLETE);
    fs::write(&marker, "").map_err(cannot)?;
    files.retain(|file| *file != marker);
    files.sort_by_key(|file| file.parent() != Some(path));
    for file in files {
        fs::remove_file(file).map_err(cannot)?;
    }
    for entry in fs::read_dir(path).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        if entry.file_type().map_err(cannot)?.is_dir() {
            fs::remove_dir_all(entry.path()).map_err(cannot)?;
        }
    }
    Ok(())
}

/// Deletes the temporaries of a killed run, or of a full disk. The store would refuse to write
/// these shards otherwise.
pub(crate) fn remove_temporaries(path: &Path) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot tidy {}: {error}", path.display());
    for file in files(path).map_err(cannot)?.0 {
        if file.to_str().is_some_and(|file| file.ends_with(TEMPORARY)) {
            fs::remove_file(&file).map_err(cannot)?;
        }
    }
    Ok(())
}

/// Makes the array visible to readers.
pub(crate) fn publish(job: &Job) -> Result<(), String> {
    fs::rename(job.output.join(INCOMPLETE), job.output.join("zarr.json"))
        .map_err(|error| format!("cannot finish {}: {error}", job.output.display()))
}
