//! Finds directories and links of a group that cannot be read: arrays in them would be left out without a
//! word.

use std::fs;
use std::path::Path;

use crate::failure::Failure;
use crate::open::is_group;
use crate::stored::ends_elsewhere;

/// Returns a failure for each directory that cannot be read, and for each link that leads nowhere, in the
/// group `root` and in the groups below it.
///
/// # Errors
/// The group `root` cannot be listed.
pub(super) fn unreadable(root: &Path) -> Result<Vec<Failure>, Failure> {
    let cannot = |path: &Path, error: &std::io::Error| {
        Failure::failed(format!(
            "cannot find the arrays in {}: {}: {error}",
            root.display(),
            path.display()
        ))
        .with_remedy("make it readable, or move it away if it is not needed")
    };
    let mut found = Vec::new();
    let mut groups = vec![root.to_path_buf()];
    while let Some(group) = groups.pop() {
        for entry in fs::read_dir(&group).map_err(|error| cannot(&group, &error))? {
            let path = entry.map_err(|error| cannot(&group, &error))?.path();
            let name = path.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(b".") {
                continue; // hidden entries are no members of a group
            }
            match fs::metadata(&path) {
                Ok(metadata) if !metadata.is_dir() => {}
                Ok(_) => match fs::read_dir(&path) {
                    // The walk through the members, in `hierarchy.rs`, reports metadata that cannot be
                    // understood, and links that lead back.
                    Ok(_) if is_group(&path).unwrap_or(false) => {
                        if ends_elsewhere(&path).is_ok() {
                            groups.push(path);
                        }
                    }
                    Ok(_) => {}
                    Err(error) => found.push(cannot(&path, &error)),
                },
                Err(error) => found.push(cannot(&path, &error)),
            }
        }
    }
    Ok(found)
}
