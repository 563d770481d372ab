//! Entries of a group that cannot be looked into: arrays there would be left out without a word.

use std::fs;
use std::path::Path;

use crate::failure::Failure;
use crate::open::is_group;
use crate::stored::ends_elsewhere;

/// The directories, and links that lead nowhere, in the group `root` and the groups in it that cannot be read.
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
                continue; // no member of a group
            }
            match fs::metadata(&path) {
                Ok(metadata) if !metadata.is_dir() => {}
                Ok(_) => match fs::read_dir(&path) {
                    // The walk through the members reports metadata that cannot be understood.
                    // A link that leads back is reported by the walk, too.
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
