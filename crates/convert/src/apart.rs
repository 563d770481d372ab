//! Checks, before a run writes anything, that IN and OUT lie apart, and that no link in OUT leads to another
//! directory.
//!
//! A directory may have several names: by links, and by mounts of it elsewhere. So directories are compared by what
//! the system calls the same, and not by their names alone. Only OUT itself may be a link: a run that wrote or deleted
//! through a link in OUT would do it elsewhere.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::open::canonical;
use crate::open::{self, Kind, Place, is_missing};

/// The device and the inode of a directory, which are the same under each of the directory's names.
#[cfg(unix)]
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(not(unix))]
type Identity = PathBuf;

#[cfg(not(unix))]
fn identity(path: &Path) -> io::Result<Identity> {
    path.canonicalize()
}

/// Checks that neither of two places lies within the other, and that the directories in OUT, if OUT exists,
/// are not directories of IN.
///
/// # Errors
/// - The places do not lie apart: wrong usage.
/// - The errors of [`must_have_no_links`].
pub fn must_lie_apart(input: &Place, output: &Place) -> Result<(), Failure> {
    let are_one = |input: &dyn std::fmt::Display, output: &dyn std::fmt::Display| {
        Failure::usage(format!(
            "{input} and {output} must lie apart: one is read while the other is written"
        ))
    };
    match (input, output) {
        (Place::Directory(input), Place::Directory(output)) => {
            match within(input, output, &identity)? {
                None => Ok(()),
                Some((from, to)) => Err(are_one(&from.display(), &to.display()).with_remedy(
                    "name a directory for OUT that is not a part of IN by any name, as by a mount",
                )),
            }
        }
        (Place::Url(from), Place::Url(to)) => {
            let [from, to] = [from, to].map(|url| format!("{}/", url.trim_end_matches('/')));
            if from.starts_with(&to) || to.starts_with(&from) {
                return Err(are_one(input, output));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns a directory of `input` and a directory of `output` that are the same, or of which one contains the
/// other; `None` if there are none. Two directories are the same if `identify` returns the same value for
/// both.
fn within<T: Eq + std::hash::Hash>(
    input: &Path,
    output: &Path,
    identify: &dyn Fn(&Path) -> io::Result<T>,
) -> Result<Option<(PathBuf, PathBuf)>, Failure> {
    let (from, to) = (canonical(input), canonical(output));
    if from.starts_with(&to) || to.starts_with(&from) {
        return Ok(Some((from, to)));
    }
    let look = |path: &Path| match identify(path) {
        Ok(identity) => Ok(Some(identity)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => {
            let path = path.display();
            Err(Failure::failed(format!("cannot look at {path}: {error}")))
        }
    };
    let above = |path: &Path| {
        let above = path.ancestors().map(&look);
        let above = above.filter_map(Result::transpose);
        above.collect::<Result<HashSet<T>, Failure>>()
    };
    let (above_from, above_to) = (above(&from)?, above(&to)?);
    let is_above = |path: &Path, above: &HashSet<T>| {
        let identity = look(path)?;
        Ok::<_, Failure>(identity.is_some_and(|identity| above.contains(&identity)))
    };
    if is_above(&from, &above_to)? || is_above(&to, &above_from)? {
        return Ok(Some((from, to)));
    }
    let below_to = must_have_no_links(&to)?;
    let is_empty = fs::read_dir(&to).map_or(true, |mut entries| entries.next().is_none());
    if is_empty {
        return Ok(None); // there is nothing to delete
    }
    let mut below = HashSet::new();
    for directory in below_to {
        let identity = look(&directory)?;
        if identity.as_ref().is_some_and(|it| above_from.contains(it)) {
            return Ok(Some((from, directory)));
        }
        below.extend(identity);
    }
    // Links in IN count as directories of IN: a run that reads IN follows them.
    let (mut seen, mut left) = (HashSet::new(), vec![from]);
    while let Some(directory) = left.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue; // the run has its own words for a directory that it cannot read
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let may_be_directory = entry.file_type().is_ok_and(|kind| !kind.is_file());
            if !may_be_directory || !path.is_dir() {
                continue;
            }
            let Some(identity) = look(&path)? else {
                continue;
            };
            if below.contains(&identity) || above_to.contains(&identity) {
                return Ok(Some((path, to)));
            }
            if seen.insert(identity) {
                left.push(path);
            }
        }
    }
    Ok(None)
}

/// Checks that no link in the directory `output` leads to another directory, or nowhere. Returns the
/// directories in `output`; none if `output` does not exist. Links to files are allowed: a run replaces the
/// link by a new file, and does not write through it.
///
/// # Errors
/// There is such a link, a directory cannot be listed, or `output` itself is a link that leads nowhere.
pub fn must_have_no_links(output: &Path) -> Result<Vec<PathBuf>, Failure> {
    if let Ok(goal) = fs::read_link(output)
        && fs::metadata(output).is_err_and(|error| is_missing(&error))
    {
        let (output, goal) = (output.display(), goal.display());
        let failure = Failure::failed(format!("{output} is a link to {goal}, which is not there"));
        return Err(failure.with_remedy("make that directory, or delete the link"));
    }
    let mut directories = Vec::new();
    let mut left = vec![output.to_path_buf()];
    while let Some(directory) = left.pop() {
        let cannot = |error: io::Error| {
            let directory = directory.display();
            Failure::failed(format!("cannot list the directory {directory}: {error}"))
        };
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => continue,
            Err(error) => return Err(cannot(error)),
        };
        for entry in entries {
            let entry = entry.map_err(cannot)?;
            let kind = entry.file_type().map_err(cannot)?;
            let path = entry.path();
            if kind.is_symlink() {
                must_lead_to_a_file(&path)?;
            } else if kind.is_dir() {
                left.push(path.clone());
                directories.push(path);
            }
        }
    }
    Ok(directories)
}

/// Checks that no place above `output` is an array, which has no members.
///
/// # Errors
/// A place above `output` is an array, or a directory above it has metadata that cannot be read.
pub fn must_not_be_in_an_array(output: &Place) -> Result<(), Failure> {
    let above = match output {
        Place::Directory(path) => above_directory(path)?,
        Place::Url(_) => above_objects(output.clone()),
    };
    let Some(above) = above else { return Ok(()) };
    Err(Failure::failed(format!(
        "{output} lies in the array {above}, which has chunks, and no members"
    ))
    .with_remedy("name another OUT, beside that array"))
}

/// Returns the array in whose directory `path` lies; `None` if no directory above is an array.
fn above_directory(path: &Path) -> Result<Option<Place>, Failure> {
    for above in canonical(path).ancestors().skip(1) {
        if open::is_array(above)? {
            return Ok(Some(Place::Directory(above.to_path_buf())));
        }
    }
    Ok(None)
}

/// Returns the array in whose prefix the objects of `place` lie; `None` if there is none. The search ends at
/// the first place above that cannot be read: a user who may write the objects may not be allowed to read
/// there.
fn above_objects(mut place: Place) -> Option<Place> {
    loop {
        (place, _) = place.above()?;
        let kind = open::store(&place).and_then(|stores| Kind::of(&stores.store, &place));
        if kind.ok()? == Kind::Array {
            return Some(place);
        }
    }
}

/// Checks that `path`, a directory in OUT that a run writes to, is no link and has none in it.
///
/// # Errors
/// The errors of [`must_have_no_links`].
pub fn must_be_no_link(path: &Path) -> Result<(), Failure> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
        must_lead_to_a_file(path)?;
    }
    must_have_no_links(path).map(drop)
}

/// Checks that a link within OUT leads to no directory.
fn must_lead_to_a_file(link: &Path) -> Result<(), Failure> {
    // A hidden link that leads nowhere is allowed: editors leave such links beside files.
    let is_hidden = link
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    match fs::metadata(link) {
        Ok(found) if !found.is_dir() => return Ok(()),
        Err(_) if is_hidden => return Ok(()),
        _ => {}
    }
    let goal = fs::read_link(link).unwrap_or_default();
    Err(Failure::failed(format!(
        "{} is a link to {}, and nothing is written or deleted through a link in OUT",
        link.display(),
        goal.display()
    ))
    .with_remedy(
        "name another OUT, or put a directory in the place of the link: only OUT itself may be one",
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::within;

    /// Each directory has a second name, `mounted`, as after `mount --bind`.
    #[test]
    fn mounted_directories_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in ["in/a", "in/b", "mounted/a", "out/a", "far"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        let found = |input: &str, output: &str, mounted: &str, is: &str| {
            let identify = |path: &Path| {
                fs::metadata(path)?;
                let inner = path.strip_prefix(root.join(mounted));
                Ok(inner.map_or_else(|_| path.to_path_buf(), |inner| root.join(is).join(inner)))
            };
            within(&root.join(input), &root.join(output), &identify)
                .unwrap()
                .is_some()
        };
        for (input, output, mounted, is, expected) in [
            ("in", "mounted", "mounted", "in", true),
            ("in", "mounted/new", "mounted", "in", true),
            ("mounted", "in", "mounted", "in", true),
            ("mounted/a", "in", "mounted", "in", true),
            // A part of IN is mounted elsewhere, or within OUT.
            ("in", "mounted", "mounted", "in/b", true),
            ("in", "out", "out/a", "in/b", true),
            ("in/b", "out", "out/a", "in", true),
            ("in", "out", "mounted", "in", false),
            ("in/a", "in/b", "mounted", "in", false),
            ("in", "new/er", "mounted", "in", false),
        ] {
            let said = format!("{input} {output}, where {mounted} is {is}");
            assert_eq!(found(input, output, mounted, is), expected, "{said}");
        }
    }
}
