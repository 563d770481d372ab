//! What cannot be read in a group: arrays there would be left out without a word.

use std::fs;
use std::path::Path;

use crate::failure::Failure;
use crate::open::is_group;

/// Checks that everything in the group `root` and the groups in it can be looked into.
///
/// # Errors
/// What cannot be, and why: a directory, or a link that leads nowhere.
pub(super) fn must_be_readable(root: &Path) -> Result<(), Failure> {
    let cannot = |path: &Path, error: &std::io::Error| {
        Failure::failed(format!(
            "cannot find the arrays in {}: {}: {error}",
            root.display(),
            path.display()
        ))
        .with_remedy("make it readable, or move it away if nothing of it is wanted")
    };
    let mut groups = vec![root.to_path_buf()];
    while let Some(group) = groups.pop() {
        for entry in fs::read_dir(&group).map_err(|error| cannot(&group, &error))? {
            let path = entry.map_err(|error| cannot(&group, &error))?.path();
            let name = path.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(b".") {
                continue; // no member of a group
            }
            let metadata = fs::metadata(&path).map_err(|error| cannot(&path, &error))?;
            if metadata.is_dir() {
                fs::read_dir(&path).map_err(|error| cannot(&path, &error))?;
                if is_group(&path) {
                    groups.push(path);
                }
            }
        }
    }
    Ok(())
}
