//! The output directory.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use zarrs::storage::{StoreKey, WritableStorageTraits};

use super::Job;
use super::arrays::{Output, metadata_json};
use crate::failure::Failure;
use crate::open::is_array;

/// The name of `zarr.json` until the array is complete.
pub(super) const INCOMPLETE: &str = "zarr.json.incomplete";
/// The suffix of a value's file until it is renamed.
const TEMPORARY: &str = ".tmp";

/// Checks that neither of two directories is within the other.
pub(super) fn must_lie_apart(input: &Path, output: &Path) -> Result<(), Failure> {
    let (from, to) = (canonical(input), canonical(output));
    if from.starts_with(&to) || to.starts_with(&from) {
        return Err(Failure::usage(format!(
            "IN and OUT must lie apart: {} and {}",
            from.display(),
            to.display()
        )));
    }
    Ok(())
}

/// Checks that the output directory only has files of this run.
pub(super) fn prepare(job: &Job<'_>, output: &Output) -> Result<(), Failure> {
    let path = job.output();
    let (resume, overwrite) = (job.args.resume, job.args.overwrite);
    let shown = path.display();
    let metadata = metadata_json(output)?;
    let marker = path.join(INCOMPLETE);
    let cannot = |error: io::Error| Failure::failed(format!("cannot make {shown} ready: {error}"));
    fs::create_dir_all(path).map_err(cannot)?;
    let is_empty = fs::read_dir(path).map_err(cannot)?.next().is_none();
    let is_incomplete = marker.is_file();

    if is_incomplete && resume {
        if fs::read(&marker).map_err(cannot)? != metadata {
            return Err(Failure::failed(format!(
                "{shown} is the incomplete output of another command"
            ))
            .with_remedy("resume with that one, or start again with --overwrite"));
        }
        return remove_temporaries(path);
    }
    if is_incomplete && !overwrite {
        return Err(
            Failure::failed(format!("{shown} holds the output of an interrupted run"))
                .with_remedy("go on with --resume, or start again with --overwrite"),
        );
    }
    if !is_empty && !is_incomplete && !is_array(path) {
        return Err(
            Failure::failed(format!("{shown} is not empty, and not a Zarr array"))
                .with_remedy("name another OUT, or empty it yourself"),
        );
    }
    if !is_empty && !overwrite {
        return Err(Failure::failed(format!("{shown} holds a Zarr array"))
            .with_remedy("name another OUT, or replace it with --overwrite"));
    }
    delete_array(path)?;
    let cannot =
        |error: &dyn fmt::Display| Failure::failed(format!("cannot make {shown} ready: {error}"));
    let key = StoreKey::new(INCOMPLETE).map_err(|error| cannot(&error))?;
    let stored = output.storage().set(&key, metadata.into());
    stored.map_err(|error| cannot(&error))
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
fn delete_array(path: &Path) -> Result<(), Failure> {
    let cannot =
        |error: io::Error| Failure::failed(format!("cannot empty {}: {error}", path.display()));
    let (mut files, foreign) = files(path).map_err(cannot)?;
    if let Some(foreign) = foreign {
        return Err(Failure::failed(format!(
            "{} is not a part of the array in {}: nothing is deleted while it is there",
            foreign.display(),
            path.display()
        ))
        .with_remedy("name another OUT, or move that file away"));
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
pub(super) fn remove_temporaries(path: &Path) -> Result<(), Failure> {
    let cannot =
        |error: io::Error| Failure::failed(format!("cannot tidy {}: {error}", path.display()));
    for file in files(path).map_err(cannot)?.0 {
        if file.to_str().is_some_and(|file| file.ends_with(TEMPORARY)) {
            fs::remove_file(&file).map_err(cannot)?;
        }
    }
    Ok(())
}

/// Whether `path` has the array `output` and readers see it.
pub(super) fn is_published(path: &Path, output: &Output) -> Result<bool, Failure> {
    let metadata = metadata_json(output)?;
    Ok(fs::read(path.join("zarr.json")).is_ok_and(|stored| stored == metadata))
}

/// Makes the array or group visible to readers.
pub(super) fn publish(path: &Path) -> Result<(), Failure> {
    fs::rename(path.join(INCOMPLETE), path.join("zarr.json"))
        .map_err(|error| Failure::failed(format!("cannot finish {}: {error}", path.display())))
}
