//! The output directory.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::target::{Found, INCOMPLETE, METADATA, is_part_of_chunk_key, of_another_command};
use super::{Args, objects};
use crate::failure::Failure;
use crate::open::{Store, is_array, is_group};

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

/// Checks that the output directory only has files of this run, or deletes the array that is to be replaced.
pub(super) fn prepare(
    path: &Path,
    args: &Args,
    store: &Store,
    metadata: Vec<u8>,
) -> Result<(), Failure> {
    let shown = path.display();
    let marker = path.join(INCOMPLETE);
    let cannot = |error: io::Error| Failure::failed(format!("cannot make {shown} ready: {error}"));
    fs::create_dir_all(path).map_err(cannot)?;
    let is_empty = fs::read_dir(path).map_err(cannot)?.next().is_none();
    let is_incomplete = marker.is_file();
    let found = Found {
        is_empty,
        is_incomplete,
        is_foreign: !is_empty && !is_incomplete && !is_array(path)?,
    };
    found.must_be_free(args, &shown, "array")?;
    if is_incomplete && args.resume {
        if fs::read(&marker).map_err(cannot)? != metadata {
            return Err(of_another_command(&shown));
        }
        return remove_temporaries(path);
    }
    delete_array(path)?;
    objects::set(store, INCOMPLETE, metadata)
        .map_err(|error| Failure::failed(format!("cannot make {shown} ready: {error}")))
}

/// Checks that the directory has no nodes but those with the paths `members`, and hides its root from readers.
pub(super) fn prepare_group(
    root: &Path,
    args: &Args,
    members: &[&str],
    metadata: &[u8],
) -> Result<(), Failure> {
    let shown = root.display();
    let cannot = |error: io::Error| Failure::failed(format!("cannot make {shown} ready: {error}"));
    fs::create_dir_all(root).map_err(cannot)?;
    let marker = root.join(INCOMPLETE);
    let is_incomplete = marker.is_file();
    let is_empty = fs::read_dir(root).map_err(cannot)?.next().is_none();
    let found = Found {
        is_empty,
        is_incomplete,
        is_foreign: is_array(root)? || !(is_empty || is_incomplete || is_group(root)?),
    };
    found.must_be_free(args, &shown, "group")?;
    let expected: BTreeSet<_> = members.iter().map(|member| root.join(member)).collect();
    if let Some(foreign) = nodes_in(root)?
        .into_iter()
        .find(|node| !expected.contains(node))
    {
        return Err(Failure::failed(format!(
            "{} is in OUT, but IN has nothing there",
            foreign.display()
        ))
        .with_remedy("name another OUT, or delete it yourself"));
    }
    fs::write(&marker, metadata).map_err(cannot)?;
    for metadata in ["zarr.json", ".zgroup", ".zattrs", ".zmetadata"] {
        match fs::remove_file(root.join(metadata)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes a group, which readers see.
///
/// # Errors
/// Why it could not be written.
pub(super) fn write_group(group: &Path, metadata: &[u8]) -> Result<(), String> {
    let marker = group.join(INCOMPLETE);
    fs::create_dir_all(group)
        .and_then(|()| fs::write(&marker, metadata))
        .and_then(|()| fs::rename(&marker, group.join("zarr.json")))
        .map_err(|error| error.to_string())
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

/// Makes the array or group visible to readers.
pub(super) fn publish(path: &Path) -> Result<(), Failure> {
    fs::rename(path.join(INCOMPLETE), path.join("zarr.json"))
        .map_err(|error| Failure::failed(format!("cannot finish {}: {error}", path.display())))
}

/// The arrays and groups below `root`.
fn nodes_in(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let cannot = |error: io::Error| {
            Failure::failed(format!("cannot list {}: {error}", directory.display()))
        };
        for entry in fs::read_dir(&directory).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let path = entry.path();
            if is_array(&path)? || path.join(INCOMPLETE).is_file() && path != root {
                found.push(path);
            } else if path.is_dir() {
                if is_group(&path)? {
                    found.push(path.clone());
                }
                directories.push(path);
            }
        }
    }
    Ok(found)
}
